"""Several tokens treated as one: as queries, the mean of their rows; as keys, the sum of their columns.

The merged token takes the position of the first, so code that reads a row, column or cell reads theirs. For scores
this is exact: the mean query times the sum of the keys. For weights it is the mean of distributions, which still sums
to 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from attnx.errors import UnsupportedError
from attnx.formula import repeat_heads
from attnx.measure.looks import Look
from attnx.records import Array, Tokens, Trace

Group = tuple[Sequence[int], str]
"""Positions of tokens, and their common label."""
_MEANS = ("query", "scores", "scaled", "capped", "weights", "context")


def rows_averaged(trace: Trace, at: Sequence[int], label: str) -> Trace:
    """The trace with the first of some rows replaced by their mean, labelled `label`.

    For masked scores it is the largest: their mean would be minus infinity wherever one of the rows hides a key.

    Args:
        trace: Whole, or with exactly these rows, which become one.
        at: Positions in the text, in order.
        label: The name of the mean row.

    Raises:
        UnsupportedError: A site's queries are not the text that the positions refer to.
    """
    rows = list(range(len(at))) if trace.rows is not None else list(at)
    sides, attentions = {}, []
    for attention in trace.attentions:
        queries = trace.queries_of(attention)
        if max(rows) >= len(queries):
            raise UnsupportedError(
                f"the queries of {attention.site.label} are not the text's tokens, so they cannot be taken together",
                "Choose a single token.",
            )
        made: dict[str, Any] = {}
        for name in (*_MEANS, "masked"):
            array: Array | None = getattr(attention, name)
            if array is not None:
                new = array[:, :, rows].max(axis=2) if name == "masked" else _mean(array[:, :, rows])
                made[name] = _put(array, rows[0], new, axis=2)
        attention = replace(attention, **made)
        names = _named(queries, rows[0], label)
        if trace.rows is not None:
            attention = replace(attention, **{n: getattr(attention, n)[:, :, :1] for n in made})
            names = _first(names)
        attentions.append(attention)
        sides[attention.site.index] = (names, trace.keys_of(attention))
    kept = None if trace.rows is None else (at[0],)
    return replace(trace, attentions=tuple(attentions), sides={**trace.sides, **sides}, rows=kept)


def columns_summed(trace: Trace, site: int, query: int, at: Sequence[int], label: str) -> Trace:
    """The trace with the first of some columns at one site replaced by their sum, and the others removed.

    Its value is the weighted mean of theirs for the query, so that weight x value is the sum of theirs.

    Args:
        trace: With weights.
        site: Position in `trace.attentions`.
        query: The query whose weights determine the value.
        at: Positions on the key axis, in order.
        label: Their common name.
    """
    attention = trace.attentions[site]
    keys, first, gone = list(at), at[0], list(at[1:])
    made: dict[str, Any] = {}
    for name in ("scores", "scaled", "capped", "masked", "weights"):
        array: Array | None = getattr(attention, name)
        if array is not None:
            new = array[..., keys].max(axis=-1) if name == "masked" else array[..., keys].sum(axis=-1)
            made[name] = _put(array, first, new, axis=3)
            made[name][..., gone] = -np.inf if name == "masked" else 0.0
    heads = attention.need("weights").shape[1]
    weights = attention.need("weights")[:, :, query, keys].astype(np.float64)
    if attention.key is not None:
        whole = repeat_heads(attention.key, heads)
        made["key"] = _put(whole, first, whole[:, :, keys].sum(axis=2), axis=2)
    if attention.value is not None:
        whole = repeat_heads(attention.value, heads)
        total = weights.sum(axis=-1, keepdims=True)
        shares = np.where(total > 0, weights / np.where(total > 0, total, 1.0), 1.0 / len(keys))
        made["value"] = _put(whole, first, np.einsum("bhk,bhkd->bhd", shares, whole[:, :, keys]), axis=2)
    attentions = list(trace.attentions)
    attentions[site] = replace(attention, **made)
    sides = (trace.queries_of(attention), _named(trace.keys_of(attention), first, label))
    return replace(trace, attentions=tuple(attentions), sides={**trace.sides, attention.site.index: sides})


def taken_together(
    trace: Trace,
    queries: tuple[Sequence[int], str],
    keys: tuple[Sequence[int], str],
    strongest: Callable[[Trace], Look],
) -> tuple[Look, Trace, tuple[str, ...]]:
    """Merge several queries, several keys or both into one, and pick the cell to look at.

    Args:
        trace: With weights; also with query, key and value if they are to be shown.
        queries: Positions to merge; one or none is left as it is.
        keys: Likewise.
        strongest: Picks the cell of such a trace to look at.

    Returns:
        That cell, the trace, and notes for the user.
    """
    notes = []
    if len(queries[0]) > 1:
        trace = rows_averaged(trace, *queries)
        notes.append(f"from {len(queries[0])} tokens together: their mean query, and the mean of their rows")
    many = len(keys[0]) > 1
    summed = trace
    if many:
        for site in range(len(trace.attentions)):
            summed = columns_summed(summed, site, 0, *keys)
    at = strongest(summed)
    if many:
        trace = columns_summed(trace, at.site, at.query or 0, *keys)
        notes.append(
            f"to {len(keys[0])} tokens together: the sum of their keys and of their columns; v is the mean of their "
            "values by weight"
        )
    if notes:  # the largest score is not the merged token's masked score
        trace = replace(trace, attentions=tuple(replace(a, masked=None) for a in trace.attentions))
    return at, trace, tuple(notes)


def _mean(rows: Array) -> Array:
    with np.errstate(invalid="ignore"):
        return np.asarray(rows.mean(axis=2, dtype=np.float64))


def _put(array: Array, at: int, new: Array, axis: int) -> Array:
    out = array.copy()
    out[(slice(None),) * axis + (at,)] = new
    return out


def _named(tokens: Tokens, at: int, label: str) -> Tokens:
    pieces = (*tokens.pieces[:at], label, *tokens.pieces[at + 1 :])
    return replace(tokens, pieces=pieces)


def _first(tokens: Tokens) -> Tokens:
    from attnx.tokens.axes import pick

    return pick(tokens, [0])


__all__ = ["columns_summed", "rows_averaged", "taken_together"]
