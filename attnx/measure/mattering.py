"""Does it matter where heads point? The weight of an edge compared with the effect of cutting it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from attnx.errors import InputError
from attnx.measure.resampling import interval, redrawn
from attnx.numerals import counted
from attnx.records import Array, Axis, Measurement
from attnx.tokens.spans import Mention

SOURCE = "attention knockout: Geva et al. 2023; the controls: attnx"
STATISTICS = ("mean", "low", "high")
CORRELATION = "rank correlation of weight and effect"
MOST = "the head that points most matters most"
POINTING, OTHERS, RANDOM = "head that points most", "as much weight, other words", "other heads, same edge"
LESS = ("pointing less other words", "pointing less other heads")


@dataclass(frozen=True, slots=True)
class Mattering:
    """The effect of cutting the attention from one word to another, one head at a time."""

    word: Mention
    to: Mention
    weights: Measurement
    """[S,H]: the weight that is cut: the mean over the first word's pieces, the sum over the other's; with sinks."""
    moved: Measurement
    """[S,H]: how far the model's answer moves; its name says in what."""
    second: Measurement | None
    """[S,H]: another number of the same runs: how far the text's vector moves, or the answer's probability."""
    unedited: float | None
    """The same number for the run in which nothing is cut, unless it is a distance."""
    other_weights: Measurement
    """[S,H]: the weight to other words that the control cuts in the same head, as near as possible; NaN where the
    head gives other words none."""
    other_moved: Measurement
    """[S,H]: how far the control moves the answer."""
    correlation: float
    """Spearman's correlation of weight and effect over all heads; NaN if either is the same in all."""

    @property
    def ranked(self) -> tuple[tuple[int, int], ...]:
        """(layer position, head), largest effect first."""
        values = np.nan_to_num(self.moved.values, nan=-np.inf)
        order = np.argsort(-values, axis=None, kind="stable")
        return tuple(divmod(int(at), values.shape[1]) for at in order if np.isfinite(values.ravel()[at]))


@dataclass(frozen=True, slots=True)
class Cut:
    """One example: an edge cut in every head, and the control for the head that points most."""

    weights: Array
    """[S,H]."""
    moved: Array
    """[S,H]."""
    other_weight: float
    """For the head with the largest weight; NaN if it gives other words none."""
    other_moved: float
    group: str

    @property
    def pointing(self) -> tuple[int, int]:
        """The head with the largest weight."""
        layer, head = divmod(int(np.nanargmax(self.weights)), int(self.weights.shape[1]))
        return layer, head


@dataclass(frozen=True, slots=True)
class Mattered:
    """Whether heads that point also matter, over a dataset."""

    comparison: Measurement
    """[M,3]: mean and 95% interval of the correlation, of effects, of their differences, of a share of examples."""
    heads: Measurement
    """[S,H]: mean effect of cutting the edge in a head."""
    weights: Measurement
    """[S,H]: mean weight of the edge in a head."""
    cut: tuple[float, float]
    """Mean weight that is cut in the head that points most, and mean weight to other words cut in the control."""
    examples: int
    groups: int
    notes: tuple[str, ...] = ()


def matched(weights: Array, allowed: Array, target: float) -> list[int]:
    """Keys whose weights add up to nearly a target, found greedily from the largest.

    Args:
        weights: [K].
        allowed: bool [K]: keys that may be taken.
        target: The weight to reach.

    Returns:
        Positions; at least one if any is allowed and has weight.
    """
    order = [int(k) for k in np.argsort(-weights, kind="stable") if allowed[k] and weights[k] > 0]
    taken: list[int] = []
    total = 0.0
    for key in order:
        if abs(total + weights[key] - target) < abs(total - target):
            taken.append(key)
            total += float(weights[key])
    return taken or order[-1:]


def spearman(one: Array, two: Array) -> float:
    """Spearman's rank correlation; ties share their mean rank."""
    a, b = (_ranks(np.ravel(values)) for values in (one, two))
    if a.std() == 0 or b.std() == 0:
        return float("nan")
    return float(np.corrcoef(a, b)[0, 1])


def _ranks(values: Array) -> Array:
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(count)
    return np.asarray((ends - (count - 1) / 2)[place], np.float64)


def mattered(
    examples: Sequence[Cut],
    layers: Sequence[str],
    heading: str,
    *,
    seed: int = 0,
    draws: int = 2000,
    level: float = 0.95,
) -> Mattered:
    """Whether heads that point also matter.

    For each example: the rank correlation over heads; the effect in the head that points most, of as much weight cut to
    other words of that head, and of the same edge in the other heads (their mean). Intervals are percentiles over
    groups drawn with replacement; for the share, Wilson's.

    Raises:
        InputError: There are no examples.

    Source: Efron and Tibshirani 1993, chapter 13; Wilson 1927.
    """
    if not examples:
        raise InputError("no example of the dataset could be judged")
    rows: dict[str, list[float]] = {CORRELATION: [], POINTING: [], OTHERS: [], RANDOM: [], LESS[0]: [], LESS[1]: []}
    hits = 0
    for one in examples:
        at = one.pointing
        rest = np.delete(one.moved.ravel(), at[0] * one.moved.shape[1] + at[1])
        here, random = float(one.moved[at]), float(np.nanmean(rest))
        rows[CORRELATION].append(spearman(one.weights, one.moved))
        rows[POINTING].append(here)
        rows[OTHERS].append(one.other_moved)
        rows[RANDOM].append(random)
        rows[LESS[0]].append(here - one.other_moved)
        rows[LESS[1]].append(here - random)
        hits += int(here >= np.nanmax(one.moved))
    names = list(dict.fromkeys(one.group for one in examples))
    groups = np.array([names.index(one.group) for one in examples])
    sample = redrawn(len(names), draws, seed)
    values = [_interval(np.array(found), groups, sample, level) for found in rows.values()]
    values.append(wilson(hits, len(examples)))
    numbers = tuple(f"H{at}" for at in range(examples[0].moved.shape[1]))
    axes = (Axis("layer", tuple(layers)), Axis("head", numbers))
    pairs = [(float(one.weights[one.pointing]), one.other_weight) for one in examples]
    notes = (
        f"{level:.0%} intervals: {draws} bootstrap draws over {counted(len(names), 'group')}, seed {seed}; "
        "of the share, Wilson's",
    )
    return Mattered(
        Measurement(
            "does pointing matter", "", (Axis("quantity", (*rows, MOST)), Axis("statistic", STATISTICS)),
            np.array(values), source=SOURCE, formula=heading,
        ),
        Measurement(heading, "", axes, np.mean([one.moved for one in examples], axis=0), source=SOURCE),
        Measurement("weight", "share", axes, np.mean([one.weights for one in examples], axis=0), (0.0, 1.0)),
        (float(np.nanmean([a for a, _ in pairs])), float(np.nanmean([b for _, b in pairs]))),
        len(examples),
        len(names),
        notes,
    )  # fmt: skip


def wilson(hits: int, count: int, z: float = 1.959963984540054) -> list[float]:
    """A share of examples with its interval.

    Source: Wilson 1927, "Probable inference, the law of succession, and statistical inference".
    """
    share = hits / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z * sqrt(share * (1 - share) / count + z * z / (4 * count * count)) / (1 + z * z / count)
    return [share, max(0.0, middle - half), min(1.0, middle + half)]


def _interval(values: Array, groups: Array, sample: Array, level: float) -> list[float]:
    """Mean of the known values, and its interval over groups drawn with replacement."""
    known = ~np.isnan(values)
    if not known.any():
        return [float("nan")] * 3
    size = sample.max() + 1
    count = np.bincount(groups[known], minlength=size).astype(np.float64)
    total = np.bincount(groups[known], weights=values[known], minlength=size)
    drawn = total[sample].sum(axis=1) / np.maximum(count[sample].sum(axis=1), 1)
    low, high = interval(drawn, level)
    return [float(values[known].mean()), float(low), float(high)]
