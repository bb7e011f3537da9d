"""Links compared with gold ones: precision, recall and alignment error rate, by head, layer and method."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from attnx.errors import InputError
from attnx.measure.resampling import halves, interval, redrawn
from attnx.numerals import counted
from attnx.records import Array, Axis, Measurement
from attnx.tokens.text_file import read_text
from attnx.wording import Wording

SOURCE = "Och and Ney 2003, A Systematic Comparison of Various Statistical Alignment Models, equations 24 to 26"
STATISTICS = ("AER", "low", "high", "precision", "recall")
_LINK = re.compile(r"(\d{1,6})([-p?])(\d{1,6})", re.ASCII)
_PARTS = 3
"""The counts of an alignment: links that are sure, links that are possible, and all links."""


@dataclass(frozen=True, slots=True)
class Gold:
    """The human annotation of one sentence pair; words count from 0."""

    sure: frozenset[tuple[int, int]]
    """Links (source word, target word) that are required."""
    possible: frozenset[tuple[int, int]]
    """Links that are allowed; they include the sure ones."""

    def matrices(self, targets: int, sources: int) -> tuple[Array, Array]:
        """Sure and possible links, bool [T,S] each.

        Raises:
            InputError: A link to a word that does not exist.
        """
        out = np.zeros((2, targets, sources), bool)
        for which, links in enumerate((self.sure, self.possible)):
            for s, t in links:
                if s >= sources or t >= targets:
                    raise InputError(
                        f"the gold link {s}-{t} is of no word: there are {sources} source and {targets} target words",
                        Wording(
                            "Words stand between spaces and count from 0[; for gold that counts from 1: <gold_from=1>]."
                        ),
                    )
                out[which, t, s] = True
        return out[0], out[1]


@dataclass(frozen=True, slots=True)
class Counted:
    """One sentence pair and how many links its alignments got right; see `count`."""

    heads: Array
    """int [L,H,3]."""
    layers: Array
    """int [L,3]: of the mean of each layer's heads."""
    others: Mapping[str, Array]
    """Other methods by name, int [3] each; the same names for every sentence."""
    sure: int
    """Sure gold links."""


@dataclass(frozen=True, slots=True)
class Errors:
    """The error rates of alignments against the gold ones."""

    heads: Measurement
    """[L,H]: AER of every head over all sentences. Its minimum is chosen after the fact: see `methods`."""
    layers: Measurement
    """[L]: AER of the mean of each layer's heads."""
    methods: Measurement
    """[M,5]: AER, lower and upper end of its 95% interval, precision, recall."""
    chosen: tuple[tuple[int, int], ...]
    """(layer position, head) chosen on the first and on the second half; empty for one sentence."""
    chosen_layers: tuple[int, ...]
    sentences: int
    notes: tuple[str, ...] = ()


def read_gold(path: Path, start: int = 0) -> tuple[Gold, ...]:
    """Read gold links in Pharaoh's format, one sentence per line: "0-0 1-2 2p3", where p or ? marks a possible link.

    Args:
        path: The file.
        start: The number of the first word.

    Raises:
        InputError: It cannot be read, or contains something else.
    """
    lines = read_text(path, "Gold links are a text file, a sentence a line.").splitlines()
    out = []
    for number, line in enumerate(lines, 1):
        sure, possible = set(), set()
        for word in line.split():
            match = _LINK.fullmatch(word)
            if match is None or int(match[1]) < start or int(match[3]) < start:
                raise InputError(
                    f"line {number} of {path} is not a line of links: {word[:40]!r}",
                    f"Each is SOURCE-TARGET, counted from {start}, such as 0-0 1-2; 2p3 is a possible link.",
                )
            link = (int(match[1]) - start, int(match[3]) - start)
            possible.add(link)
            if match[2] == "-":
                sure.add(link)
        out.append(Gold(frozenset(sure), frozenset(possible)))
    if not any(one.possible for one in out):
        raise InputError(f"{path} has no links in it", "Each line holds links such as 0-0 1-2, a sentence a line.")
    return tuple(out)


def count(links: Array, sure: Array, possible: Array) -> Array:
    """Count the links that are sure, those that are possible, and all: int [...,3].

    Args:
        links: bool [...,T,S].
        sure: bool [T,S].
        possible: bool [T,S], including the sure ones.
    """
    parts = (links & sure, links & possible, links)
    return np.stack([part.sum(axis=(-1, -2)) for part in parts], axis=-1)


def rates(counted: Array, sure: Array | int) -> Array:
    """AER, precision and recall of counts: 1 - (|A and S| + |A and P|) / (|A| + |S|), |A and P| / |A|, |A and S| / |S|.

    Args:
        counted: int [...,3] (see `count`), summed over sentences.
        sure: |S|, summed likewise.

    Returns:
        float64 [...,3]; NaN where the denominator is 0.

    Source: Och and Ney 2003, equations 24 to 26.
    """
    hit, near, made = (counted[..., i].astype(np.float64) for i in range(_PARTS))
    gold = np.broadcast_to(np.asarray(sure, np.float64), made.shape)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.stack([1 - (hit + near) / (made + gold), near / made, hit / gold], axis=-1)


def errors(
    sentences: Sequence[Counted], layers: Sequence[str], *, seed: int = 0, draws: int = 2000, level: float = 0.95
) -> Errors:
    """Error rates of every head, and of heads chosen on held-out data.

    The sentences are shuffled and cut in two; the head (and the layer) with the lowest AER on one half is judged on
    the other, both ways. Intervals are percentiles over sentences drawn with replacement.

    Args:
        sentences: At least one; with only one, nothing can be chosen.
        layers: L labels.
        seed: The same seed gives the same halves and intervals.
        draws: Bootstrap draws.
        level: Confidence level of the intervals.

    Source: Och and Ney 2003; chosen on one half and judged on the other as in `coref_accuracy`.
    """
    heads = np.stack([one.heads for one in sentences])
    means = np.stack([one.layers for one in sentences])
    sure = np.array([one.sure for one in sentences])
    rows: dict[str, Array] = {}
    picks: tuple[int, ...] = ()
    picked: tuple[int, ...] = ()
    if len(sentences) > 1:
        both = halves(np.arange(len(sentences)), seed)
        flat = heads.reshape(len(heads), -1, _PARTS)
        rows["best head, chosen on the other half"], picks = _held_out(flat, sure, both)
        rows["best layer mean, chosen on the other half"], picked = _held_out(means, sure, both)
    for name in sentences[0].others:
        rows[name] = np.stack([one.others[name] for one in sentences])
    sample = redrawn(len(sentences), draws, seed)
    values = np.array([_interval(counted, sure, sample, level) for counted in rows.values()])
    axis = Axis("layer", tuple(layers))
    of_heads = Axis("head", tuple(f"H{at}" for at in range(heads.shape[2])))
    total = int(sure.sum())
    notes = [f"{level:.0%} intervals: {draws} bootstrap draws over {counted(len(sentences), 'sentence')}, seed {seed}"]
    if len(sentences) > 1:
        notes.append("the best of many over all sentences is chosen after the fact: trust the one chosen on a half")
    else:
        notes.append("one sentence cannot be cut in two: no head is chosen on one half and judged on the other")
    return Errors(
        heads=_measured("alignment error rate", (axis, of_heads), rates(heads.sum(axis=0), total)[..., 0]),
        layers=_measured("alignment error rate, layer means", (axis,), rates(means.sum(axis=0), total)[..., 0]),
        methods=_measured(
            "alignment error rate by method", (Axis("method", tuple(rows)), Axis("statistic", STATISTICS)), values
        ),
        chosen=tuple((at // heads.shape[2], at % heads.shape[2]) for at in picks),
        chosen_layers=picked,
        sentences=len(sentences),
        notes=tuple(notes),
    )


def _held_out(counted: Array, sure: Array, both: tuple[Array, Array]) -> tuple[Array, tuple[int, ...]]:
    """Reduce counts [N,M,3] of M methods to those of the best on the other half, [N,3]; and the two chosen methods."""
    out, picks = np.zeros((len(counted), _PARTS), counted.dtype), []
    for train, test in (both, both[::-1]):
        rate = rates(counted[train].sum(axis=0), int(sure[train].sum()))[..., 0]
        picks.append(int(np.argmin(np.nan_to_num(rate, nan=np.inf))))
        out[test] = counted[test, picks[-1]]
    return out, tuple(picks)


def _interval(counted: Array, sure: Array, sample: Array, level: float) -> list[float]:
    """AER over all sentences, its interval over sentences drawn with replacement, precision and recall."""
    rate, precision, recall = rates(counted.sum(axis=0), int(sure.sum()))
    drawn = rates(counted[sample].sum(axis=1), sure[sample].sum(axis=1))[..., 0]
    drawn = drawn[~np.isnan(drawn)]
    low, high = interval(drawn, level) if len(drawn) else (np.nan, np.nan)
    return [float(rate), float(low), float(high), float(precision), float(recall)]


def _measured(name: str, axes: tuple[Axis, ...], values: Array) -> Measurement:
    return Measurement(name, "share", axes, values, (0.0, 1.0), SOURCE, "1 - (|A∩S| + |A∩P|) / (|A| + |S|)")


__all__ = ["Counted", "Errors", "Gold", "count", "errors", "rates", "read_gold"]
