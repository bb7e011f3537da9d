"""What the measures read from a trace: the rows of the first sequence; and values per head as a Measurement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from attnx.formula import AT_ONCE, average, sees_nothing, visible
from attnx.numerals import counted
from attnx.records import Array, Attention, Axis, Measurement, Tokens, Trace
from attnx.tokens.axes import holds
from attnx.tokens.spans import axis_labels

SINK = 0.3
"""A key is a sink of a head if its importance (see `Rows`) is above this. Source: Gu et al. 2025, section 3."""


@dataclass(frozen=True, slots=True)
class Received:
    """What each key of a site receives from all its rows, reduced in the graph."""

    sums: Array
    """[H,K]: the weight of all rows on each key."""
    seers: Array
    """[H,K]: how many rows see each key."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The weights of one site for the first sequence of the batch, the one that the trace's tokens describe."""

    attention: Attention
    weights: Array
    """[H,Q,K]."""
    real: Array
    """bool [H,Q]: rows that count. Excluded: padding, fully hidden rows (no weight), rows with NaN."""
    queries: Tokens
    keys: Tokens
    position: Array | None
    """int [Q]: the key position of each query itself (K - Q keys are past); None across two texts, and where a graph
    moves the keys of a text and not its queries."""
    broken: int
    """How many rows of real tokens contain a NaN."""
    received: Received | None = None
    """What the keys receive from all rows, if only some were kept."""

    @property
    def query_labels(self) -> tuple[str, ...]:
        """A label per query, [Q]."""
        return axis_labels(self.queries, self.weights.shape[1])

    @property
    def key_labels(self) -> tuple[str, ...]:
        """A label per key, [K]."""
        return axis_labels(self.keys, self.weights.shape[2])

    @property
    def heads(self) -> tuple[str, ...]:
        """A label per head, [H]."""
        return head_labels(self.weights.shape[0])

    @property
    def visible(self) -> Array:
        """Which keys each query may look at, bool [H,Q,K], from masked (see `formula.visible`).

        Without masked, it follows from the site (causal, window) and the tokens' padding; if the site does not say, a
        cell is hidden if no head gives it weight.
        """
        a = self.attention
        if a.masked is not None:
            return visible(a.masked[0], None if a.capped is None else a.capped[0], self.weights)
        if a.site.causal is None or (a.site.causal and self.position is None):
            return np.broadcast_to((self.weights != 0).any(axis=0), self.weights.shape)
        seen = np.broadcast_to(_flags(self.keys.mask, self.weights.shape[2], front=True, fill=True), self.weights.shape)
        if self.position is not None:
            behind = self.position[:, None] - np.arange(self.weights.shape[2])[None, :]
            if a.site.causal:
                seen = seen & (behind >= 0)
                seen = seen & (behind < a.site.window) if a.site.window else seen
        return np.asarray(seen)

    def key_flags(self, flags: Sequence[bool]) -> Array:
        """Flags of the key tokens as bool [K]; past keys, and axes that are not these tokens, are False."""
        return _flags(flags, self.weights.shape[2], front=True, fill=False)

    def importance(self, leaving_out: Sequence[int] = (), at_least: int = 1, visible: Array | None = None) -> Array:
        """Importance of every key for every head: alpha_k = mean over the real rows that see key k of a_ik.

        Args:
            leaving_out: Queries to exclude, as rows of `weights`.
            at_least: A key that fewer rows see gets NaN.
            visible: `self.visible`, if known.

        Returns:
            float64 [H,K].

        Source: Gu et al. 2025, "When Attention Sink Emerges in Language Models", section 3.
        """
        seen = (self.visible if visible is None else visible) & self.real[..., None]
        if self.received is not None:
            own = seen[:, list(leaving_out)]
            count = self.received.seers - own.sum(axis=1)
            sums = self.received.sums - np.where(own, self.weights[:, list(leaving_out)], 0.0).sum(axis=1)
            return np.where(count >= at_least, sums / np.maximum(count, 1), np.nan)
        seen[:, list(leaving_out)] = False
        count = seen.sum(axis=1)
        sums = np.where(seen, self.weights, 0.0).sum(axis=1, dtype=np.float64)  # no real row holds NaN
        return np.where(count >= max(at_least, 1), sums / np.maximum(count, 1), np.nan)

    def copies(self, distance: int = 1) -> Array | None:
        """Which keys are earlier copies of each query's token, at least `distance` tokens back.

        Special tokens and padding are neither queries nor copies.

        Returns:
            bool [Q,K]; None if queries and keys are not the same text, row for row.
        """
        count = len(self.queries)
        if self.position is None or self.weights.shape[1:] != (count, count):
            return None
        ids = np.asarray(self.queries.ids).reshape(-1)
        plain = np.asarray(self.queries.mask, bool) & ~np.asarray(self.queries.special, bool)
        earlier = np.tri(count, k=-distance, dtype=bool)
        return np.asarray((ids[:, None] == ids[None, :]) & earlier & plain[:, None] & plain[None, :])

    def inside(self, target: Array) -> Array:
        """Whether the target key of each query (int [Q]) exists and is not padding, bool [Q]."""
        keys = self.weights.shape[2]
        inside = (target >= 0) & (target < keys)
        if keys == len(self.keys):
            inside &= np.asarray(self.keys.mask, bool)[np.clip(target, 0, max(keys - 1, 0))]
        return np.asarray(inside)

    def at(self, target: Array) -> Array:
        """Weight of each query on its target key (int [Q]), [H,Q]; NaN where there is none."""
        inside = self.inside(target)
        if not inside.any():
            return np.full(self.weights.shape[:2], np.nan)
        safe = np.where(inside, target, 0)
        picked = self.weights[:, np.arange(self.weights.shape[1]), safe].astype(np.float64)
        return np.where(inside, picked, np.nan)

    def none(self) -> Array:
        """NaN for every head, [H]."""
        return np.full(self.weights.shape[0], np.nan)

    def mean(self, values: Array) -> Array:
        """Mean over the real rows: [H,Q] to [H]; NaN where no row is left."""
        return average(values, axis=1, where=self.real)


def head_labels(heads: int) -> tuple[str, ...]:
    """H0, H1, ..."""
    return tuple(f"H{at}" for at in range(heads))


def _flags(flags: Sequence[bool], size: int, front: bool, fill: bool) -> Array:
    """Flags along an axis of `size`: missing places are filled in at the front; a shorter axis is filled throughout."""
    if size < len(flags):
        return np.full(size, fill)
    extra = np.full(size - len(flags), fill)
    return np.concatenate([extra, np.asarray(flags, bool)] if front else [np.asarray(flags, bool), extra])


def read(trace: Trace, attention: Attention, received: Received | None = None) -> Rows:
    """The rows of one site.

    Args:
        trace: Provides the tokens.
        attention: One of its sites.
        received: What its keys receive from all rows, if the trace has only some.

    Raises:
        UnsupportedError: The site has no weights.
    """
    weights = attention.need("weights")[0]
    _, count, keys = weights.shape
    queries = trace.queries_of(attention)
    padding = ~_flags(queries.mask, count, front=True, fill=True)
    if weights.size > AT_ONCE:  # one matrix at a time, so that memory stays bounded
        nan, total = (np.stack(part) for part in zip(*map(_summed, weights), strict=True))
    else:
        nan, total = _summed(weights)
    real = ~padding[None, :] & ~nan & (total > 0)
    if attention.masked is not None:
        real &= ~sees_nothing(attention.masked[0], None if attention.capped is None else attention.capped[0], weights)
    asking = queries if trace.rows is None else trace.tokens  # of rows that were picked, the text that they stand in
    own = attention.site.kind == "self" and attention.site.aligned and keys >= count
    own = own and holds(trace.keys_of(attention), asking)
    return Rows(
        attention=attention,
        weights=weights,
        real=real,
        queries=queries,
        keys=trace.keys_of(attention),
        position=_positions(trace, count, keys) if own else None,
        broken=int((nan & ~padding[None, :]).sum()),
        received=received,
    )


def alike(rows: Sequence[Rows]) -> list[list[Rows]]:
    """Sites in groups that numpy can look at in one go: of one shape, over the same keys, and small."""
    groups: list[list[Rows]] = []
    for one in rows:
        last = groups[-1] if groups else []
        first = last[0] if last else one
        same = (
            one.weights.shape == first.weights.shape and one.keys is first.keys and not (one.received or first.received)
        )
        if last and same and (len(last) + 1) * one.weights.size <= AT_ONCE:
            last.append(one)
        else:
            groups.append([one])
    return groups


def joined(group: Sequence[Rows]) -> Rows:
    """The heads of several sites as the heads of one; all but the weights, and which rows count, is the first's."""
    if len(group) == 1:
        return group[0]
    weights, real = (np.concatenate(parts) for parts in zip(*((one.weights, one.real) for one in group), strict=True))
    return replace(group[0], weights=weights, real=real)


def _summed(weights: Array) -> tuple[Array, Array]:
    """Rows [...,K] with a NaN in them: bool [...]; and sums of rows [...], of which NaN are left out."""
    total = weights.sum(axis=-1)
    nan = np.isnan(total)
    if nan.any():  # of a NaN in the row, or of infinite numbers
        nan = np.isnan(weights).any(axis=-1)
        total = np.where(np.isnan(weights), 0, weights).sum(axis=-1)
    return nan, total


def is_over(trace: Trace, attention: Attention, text: Tokens) -> bool:
    """Whether a site is a self-attention over this text, which may have keys of the past before it."""
    keys = trace.keys_of(attention)
    asks = trace.queries_of(attention) is text or (keys is text and _picked(trace, attention, text))
    return attention.site.kind == "self" and asks and attention.site.aligned and holds(keys, text)


def _picked(trace: Trace, attention: Attention, text: Tokens) -> bool:
    """Whether a site's queries are those tokens of this text whose rows were kept."""
    rows = trace.rows or ()
    pieces = trace.queries_of(attention).pieces
    return bool(rows) and max(rows) < len(text) and pieces == tuple(text.pieces[at] for at in rows)


def rows_at(trace: Trace, positions: Sequence[int]) -> list[int]:
    """Which rows of a trace belong to these positions of the text."""
    return list(positions) if trace.rows is None else [trace.rows.index(at) for at in positions]


def _positions(trace: Trace, count: int, keys: int) -> Array:
    """The queries' positions among the keys: if some are cached, the last ones are the text."""
    if trace.rows is None:
        return np.arange(count) + keys - count
    return np.asarray(trace.rows) + keys - len(trace.tokens)


def by_head(
    trace: Trace,
    compute: Callable[[Rows], Array],
    *,
    name: str,
    unit: str,
    formula: str,
    source: str,
    bounds: tuple[float | None, float | None] = (None, None),
    notes: Sequence[str] = (),
) -> Measurement:
    """One number per head of every site, [S,H]: the result of `compute` on a site's rows.

    Sites with fewer heads than the widest are filled up with NaN. Rows with NaN are left out, and a note says how many.
    """
    rows = [read(trace, attention) for attention in trace.attentions]
    columns = [np.asarray(compute(row), np.float64) for row in rows]
    broken = sum(row.broken for row in rows)
    said = (
        *notes,
        *((f"{counted(broken, 'row holds NaN and is', 'rows hold NaN and are')} left out",) if broken else ()),
    )
    return Measurement(
        name=name,
        unit=unit,
        axes=head_axes(trace, [len(column) for column in columns]),
        values=stack(columns),
        bounds=bounds,
        source=source,
        formula=formula,
        notes=said,
    )


def share_by_head(
    trace: Trace, compute: Callable[[Rows], Array], *, name: str, formula: str, source: str, notes: Sequence[str] = ()
) -> Measurement:
    """One share from 0 to 1 per head of every site, [S,H]; see `by_head`."""
    bounds = (0.0, 1.0)
    return by_head(trace, compute, name=name, unit="share", formula=formula, source=source, bounds=bounds, notes=notes)


def head_axes(trace: Trace, heads: Sequence[int]) -> tuple[Axis, Axis]:
    """The axes (layer, head) of a measurement over all sites, given the number of heads of each."""
    return Axis("layer", trace.labels), Axis("head", head_labels(max(heads, default=0)))


def stack(parts: Sequence[Array]) -> Array:
    """Arrays [H_i,...] of all sites as one [S,H,...], filled up with NaN where a site has fewer heads."""
    if not parts:
        return np.zeros((0, 0))
    widest = max(len(part) for part in parts)
    out = np.full((len(parts), widest, *parts[0].shape[1:]), np.nan)
    for at, part in enumerate(parts):
        out[at, : len(part)] = part
    return out
