"""Coreference: which candidate every head and layer points to from a pronoun."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from attnx.errors import InputError, UnsupportedError, UsageError
from attnx.formula import average
from attnx.measure.choice import Verdict, margin, shares, verdict
from attnx.measure.rows import SINK, Received, Rows, alike, head_labels, is_over, joined, read, rows_at, stack
from attnx.numerals import counted
from attnx.records import Array, Axis, Measurement, Tokens, Trace
from attnx.tokens.pieces import in_prose
from attnx.tokens.spans import Mention
from attnx.wording import Wording

ONE_SENTENCE = "one sentence proves nothing: a head may point at a noun for its place alone"
HUB_ROWS = 4
"""A key that fewer other queries see is never considered a hub."""
PARTS = ("candidates", "special", "self", "hub", "other")
SOURCE = "Clark et al. 2019, sections 4.1 and 4.3"


@dataclass(frozen=True, slots=True)
class Coreference:
    """Where all heads of a model point from one pronoun."""

    pronoun: Mention
    candidates: tuple[Mention, ...]
    sites: tuple[int, ...]
    """Positions in `trace.attentions` of the layers measured."""
    weights: Measurement
    """[S,H,C]: weight from the pronoun (mean over its pieces) to each candidate (sum over its pieces)."""
    shares: Measurement
    """[S,H,C]: the same as shares among the candidates."""
    aside: Measurement
    """[S,H,5]: where all the pronoun's weight goes: candidates, special tokens, the pronoun itself, hubs, other."""
    margin: Measurement
    """[S,H]: weight of the first candidate minus that of the second."""
    layer_means: tuple[Verdict, ...]
    """One per layer: the mean of its heads."""
    layer_best: tuple[int, ...]
    """One per layer: the head with the largest margin; -1 if no head has one."""
    ranked: tuple[tuple[int, int], ...]
    """(layer position, head) by margin, largest first."""
    verdicts: tuple[Verdict, ...]
    """Best head, mean of all heads, then each given map."""
    baselines: tuple[Verdict, ...]
    """Uniform, nearest candidate, first candidate."""
    unseen: tuple[int, ...]
    """Candidates that no site lets the pronoun see (in a causal model, those after it)."""
    notes: tuple[str, ...]


def coreference(
    trace: Trace,
    pronoun: Mention,
    candidates: Sequence[Mention],
    *,
    maps: Mapping[str, Array] = MappingProxyType({}),
    tokens: Tokens | None = None,
    received: Mapping[int, Received] = MappingProxyType({}),
) -> Coreference:
    """Where every head and layer points from a pronoun, against baselines.

    Weight to a candidate is summed over its pieces, weight from the pronoun averaged over them. Special tokens, the
    pronoun itself and hubs are set aside first: a key is a hub for a head if the queries other than the pronoun
    give it more than 0.3 of their weight on average, whether or not it is a candidate.

    Args:
        trace: With weights [B,H,Q,K]; masked tells hidden keys from keys without weight. The pronoun's rows suffice
            if `received` gives what the keys receive from all rows.
        pronoun: The word to look from.
        candidates: The words to look to; at least one, none overlapping the pronoun.
        maps: Other matrices [Q,K] that give a verdict, by name ("rollout", "value norm"), with the rows of `trace`.
        tokens: The text; by default the encoder's if there is one, otherwise the query side's. The self-attentions
            over it are measured.
        received: By a site's index, what its keys receive from all rows.

    Returns:
        See `Coreference`; weights are shares of a row.

    Raises:
        UsageError: No candidates, or one overlaps the pronoun.
        UnsupportedError: No self-attention is over this text, or a site has no weights.
        InputError: A map does not fit the text.

    Source: Clark et al. 2019, section 4.1 (pieces), 4.3 (antecedents); the importance of a hub Gu et al. 2025.
    """
    text = tokens or trace.memory or trace.tokens
    looks = _looks(trace, pronoun, candidates, text, received)
    sites = tuple(looks)
    aside = {at: look.aside() for at, look in looks.items()}
    parked = [
        (value, f"{trace.labels[at]} H{head}", piece) for at, (_, hubs) in aside.items() for head, piece, value in hubs
    ]
    seen = np.any([look.seen for look in looks.values()], axis=0)
    weights = stack([look.weight for look in looks.values()])
    axes = (
        Axis("layer", tuple(trace.labels[at] for at in sites)),
        Axis("head", head_labels(weights.shape[1])),
        Axis("candidate", tuple(one.text for one in candidates)),
    )
    margins = margin(weights)
    order = np.argsort(-np.where(np.isnan(margins), -np.inf, margins), axis=None, kind="stable")
    places = [np.unravel_index(int(at), margins.shape) for at in order]
    ranked = tuple((int(s), int(h)) for s, h in places if margins[s, h] > 0)
    verdicts = []
    if ranked:
        s, h = ranked[0]
        verdicts.append(verdict("best head", f"{axes[0].labels[s]} {axes[1].labels[h]}", weights[s, h]))
    verdicts.append(verdict("mean of all heads", "", average(weights, axis=(0, 1))))
    for name, matrix in maps.items():
        verdicts.append(verdict(name, "", _from_map(name, matrix, trace, text, pronoun, candidates, seen)))
    unseen = tuple(int(at) for at in np.flatnonzero(~seen))
    return Coreference(
        pronoun=pronoun,
        candidates=tuple(candidates),
        sites=sites,
        weights=_measured(
            "coreference weight", axes, weights, "a, mean over the pronoun's tokens, sum over the candidate's"
        ),
        shares=_measured("coreference share", axes, shares(weights), "a / sum of a over the candidates"),
        aside=_measured(
            "where the weight goes",
            (*axes[:2], Axis("part", PARTS)),
            stack([part for part, _ in aside.values()]),
            "sum of the pronoun's a over each part",
        ),
        margin=_measured("margin", axes[:2], margins, "weight of the first candidate - weight of the second"),
        layer_means=tuple(
            verdict("layer mean", axes[0].labels[s], average(weights[s], axis=0)) for s in range(len(sites))
        ),
        layer_best=tuple(
            int(np.argmax(np.nan_to_num(m, nan=-1.0))) if (np.nan_to_num(m) > 0).any() else -1 for m in margins
        ),
        ranked=ranked,
        verdicts=tuple(verdicts),
        baselines=_baselines(pronoun, candidates, seen),
        unseen=unseen,
        notes=_notes(trace, sites, pronoun, candidates, unseen, parked),
    )


@dataclass(frozen=True, slots=True)
class Choices:
    """What a dataset needs of each text: the candidates' weights by head and by other ways to choose."""

    layers: tuple[str, ...]
    weights: Array
    """[S,H,C], as in `Coreference`."""
    others: Mapping[str, Array]
    """[C] each: shares by each map, "nearest" and "first"."""


def choices(
    trace: Trace,
    pronoun: Mention,
    candidates: Sequence[Mention],
    *,
    maps: Mapping[str, Array] = MappingProxyType({}),
    tokens: Tokens | None = None,
    known: Mapping[int, Rows] = MappingProxyType({}),
) -> Choices:
    """The weights and shares of `coreference`, without what is only shown of a single text.

    Args:
        trace: As for `coreference`.
        pronoun: The word to look from.
        candidates: The words to look to.
        maps: As for `coreference`.
        tokens: As for `coreference`.
        known: The rows of sites, by their index, where they were read before.

    Returns:
        See `Choices`.

    Raises:
        UsageError: As for `coreference`.
        UnsupportedError: As for `coreference`.
        InputError: As for `coreference`.

    Source: Clark et al. 2019, sections 4.1 and 4.3.
    """
    text = tokens or trace.memory or trace.tokens
    looks = _looks(trace, pronoun, candidates, text, known=known)
    seen = np.any([look.seen for look in looks.values()], axis=0)
    by_map = {name: _from_map(name, matrix, trace, text, pronoun, candidates, seen) for name, matrix in maps.items()}
    return Choices(
        tuple(trace.labels[at] for at in looks),
        stack([look.weight for look in looks.values()]),
        {name: shares(one) for name, one in {**by_map, **_by_place(pronoun, candidates, seen)}.items()},
    )


def _check(pronoun: Mention, candidates: Sequence[Mention]) -> None:
    if not candidates:
        raise UsageError(
            f"there is nothing that {pronoun.text!r} could stand for", Wording("Name candidates[ with <to>].")
        )
    for one in candidates:
        if set(one.pieces) & set(pronoun.pieces):
            raise UsageError(
                f"{one.text!r} is the word looked from, so it is not a candidate", Wording("Leave it out[ of <to>].")
            )


@dataclass(frozen=True, slots=True)
class _Look:
    """Where the heads of one site look from a pronoun."""

    rows: Rows
    line: Array
    """[H,K]: the pronoun's weights, the mean of its pieces."""
    hub: Array
    """bool [H,K]."""
    special: Array
    """bool [K]."""
    own: Array
    """bool [K]: the pronoun itself."""
    wanted: Array
    """bool [C,K]: the pieces of each candidate."""
    weight: Array
    """[H,C]: weight to each candidate, NaN for one that cannot be seen."""
    seen: Array
    """bool [C]: which candidates can be seen."""

    def aside(self) -> tuple[Array, list[tuple[int, str, float]]]:
        """The parts [H,5]; and the hubs that take weight from the pronoun: head, piece, weight."""
        any_wanted, each = self.wanted.any(axis=0), np.ones((len(self.line), 1), bool)
        plain = ~(self.special | self.own) & ~self.hub
        on_hub = self.hub & ~(self.special | self.own)
        masks = (plain & any_wanted, self.special & each, self.own & each, on_hub, plain & ~any_wanted)
        on_hubs = np.where(on_hub, np.nan_to_num(self.line), 0.0)
        tops = [(head, int(row.argmax()), float(row.max(initial=0.0))) for head, row in enumerate(on_hubs) if row.any()]
        labels = self.rows.key_labels if tops else ()
        hubs = [(head, labels[key].strip(), value) for head, key, value in tops]
        return np.stack([np.where(mask, self.line, 0.0).sum(axis=1) for mask in masks], axis=-1), hubs


def _looks(
    trace: Trace,
    pronoun: Mention,
    candidates: Sequence[Mention],
    text: Tokens,
    received: Mapping[int, Received] = MappingProxyType({}),
    known: Mapping[int, Rows] = MappingProxyType({}),
) -> dict[int, _Look]:
    """Where the heads of every self-attention over the text look, by position in `trace.attentions`."""
    _check(pronoun, candidates)
    sites = [at for at, a in enumerate(trace.attentions) if is_over(trace, a, text)]
    if not sites:
        raise UnsupportedError(
            "no self-attention of this model is over that text", Wording("<model.find()> lists what the model has.")
        )
    found: list[Rows] = []
    for at in sites:
        attention = trace.attentions[at]
        index = attention.site.index
        found.append(known.get(index) or read(trace, attention, received.get(index)))
    queries = rows_at(trace, pronoun.pieces)
    looks: list[_Look] = []
    for group in alike(found):
        past = group[0].weights.shape[1] - len(group[0].queries) if trace.rows is None else 0
        looks += _look(group, [row + past for row in queries], pronoun, candidates)
    return dict(zip(sites, looks, strict=True))


def _look(
    group: Sequence[Rows], queries: Sequence[int], pronoun: Mention, candidates: Sequence[Mention]
) -> list[_Look]:
    """Where the heads of sites that are alike look, site by site; their heads are counted through."""
    rows = joined(group)
    heads, _, keys = group[0].weights.shape
    shift = keys - len(rows.keys)
    if shift < 0 or min(queries) < 0:
        raise InputError(
            f"{rows.attention.site.label} has {keys} keys where the text has {counted(len(rows.keys), 'token')}"
        )
    kept, visible = rows.real[:, queries], np.concatenate([one.visible for one in group])
    line: Array = average(rows.weights[:, queries], axis=1, where=np.broadcast_to(kept[..., None], (*kept.shape, keys)))
    hub = np.asarray(rows.importance(queries, HUB_ROWS, visible) > SINK)  # not where it is NaN
    special, own = rows.key_flags(rows.keys.special), np.zeros(keys, bool)
    own[[at + shift for at in pronoun.pieces]] = True
    wanted = np.zeros((len(candidates), keys), bool)
    for at, one in enumerate(candidates):
        wanted[at, [piece + shift for piece in one.pieces]] = True
    by_site = np.asarray(visible[:, queries].reshape(len(group), heads, -1, keys).any(axis=(1, 2)))
    seen = np.asarray((wanted & by_site[:, None, :]).any(axis=2))  # [S,C]
    plain = ~(special | own) & ~hub
    weight = np.stack([np.where(plain & cells, line, 0.0).sum(axis=1) for cells in wanted], axis=-1)
    says = np.asarray(kept.any(axis=1))[:, None]
    weight = np.asarray(np.where(np.repeat(seen, heads, axis=0) & says, weight, np.nan))
    parts = [slice(at * heads, (at + 1) * heads) for at in range(len(group))]
    return [
        _Look(one, line[part], hub[part], special, own, wanted, weight[part], seen[at])
        for at, (one, part) in enumerate(zip(group, parts, strict=True))
    ]


def _from_map(
    name: str,
    matrix: Array,
    trace: Trace,
    text: Tokens,
    pronoun: Mention,
    candidates: Sequence[Mention],
    seen: Array,
) -> Array:
    """Weight to each candidate according to a map [Q,K] over the text."""
    if matrix.shape != (len(text) if trace.rows is None else len(trace.rows), len(text)):
        raise InputError(f"the map {name!r} is {matrix.shape}, the text has {counted(len(text), 'token')}")
    line = np.asarray(matrix, np.float64)[rows_at(trace, pronoun.pieces)].mean(axis=0)
    sums = np.array([line[list(one.pieces)].sum() for one in candidates])
    return np.where(seen, sums, np.nan)


def _baselines(pronoun: Mention, candidates: Sequence[Mention], seen: Array) -> tuple[Verdict, ...]:
    """The baselines over visible candidates: uniform, nearest and first."""
    if not seen.any():
        return ()
    uniform = np.where(seen, 1.0, np.nan)
    return tuple(
        verdict(name, "", weights)
        for name, weights in (("uniform", uniform), *_by_place(pronoun, candidates, seen).items())
    )


def _by_place(pronoun: Mention, candidates: Sequence[Mention], seen: Array) -> dict[str, Array]:
    """All weight on the nearest or the first visible candidate, [C]. Ties in distance go to the one before."""
    there = [at for at in range(len(candidates)) if seen[at]]
    if not there:
        return {}
    own = pronoun.pieces

    def away(at: int) -> tuple[int, int]:
        pieces = candidates[at].pieces
        before = pieces[-1] < own[0]
        return (own[0] - pieces[-1] if before else pieces[0] - own[-1]), (0 if before else 1)

    chosen = {"nearest": min(there, key=away), "first": min(there, key=lambda at: candidates[at].pieces)}
    order = np.arange(len(candidates))
    return {name: np.where(seen, (order == at).astype(np.float64), np.nan) for name, at in chosen.items()}


def _measured(name: str, axes: tuple[Axis, ...], values: Array, formula: str) -> Measurement:
    return Measurement(name, "share", axes, values, (0.0, 1.0), SOURCE, formula)


def _notes(
    trace: Trace,
    sites: Sequence[int],
    pronoun: Mention,
    candidates: Sequence[Mention],
    unseen: Sequence[int],
    parked: Sequence[tuple[float, str, str]],
) -> tuple[str, ...]:
    """The notes that must accompany the numbers."""
    notes = [ONE_SENTENCE]
    later = [repr(candidates[at].text) for at in unseen if candidates[at].pieces[0] > pronoun.pieces[0]]
    other = [repr(candidates[at].text) for at in unseen if candidates[at].pieces[0] < pronoun.pieces[0]]
    if later:
        verb, them = ("comes", "it") if len(later) == 1 else ("come", "them")
        clause = f"{_joined(later)} {verb} after {pronoun.text!r}"
        notes.append(f"{clause}: this model looks back only and cannot see {them}")
    if other:
        verb = "is" if len(other) == 1 else "are"
        notes.append(f"{_joined(other)} {verb} hidden from {pronoun.text!r} at every layer")
    if any(trace.attentions[at].site.causal for at in sites):
        notes.append("a causal model reads the pronoun before what follows it, so a later clue cannot count")
    if parked:
        hubs = sorted(parked, reverse=True)[:3]
        named = ", ".join(f"{head} {value:.2f} on {in_prose(piece)}" for value, head, piece in hubs)
        count = counted(len(parked), "head")
        more = ", ..." if len(parked) > 3 else ""
        notes.append(f"set aside as a hub, since other queries look there as well, in {count}: {named}{more}")
    return tuple(notes)


def _joined(words: Sequence[str]) -> str:
    """A list in words: a, b and c."""
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))
