"""What is kept of some layers of a long text for a page, once their sites are packed; and all layers together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from attnx.errors import UnsupportedError
from attnx.measure import heads
from attnx.measure.heads import HeadTable
from attnx.measure.looks import Column, columns_of
from attnx.measure.rows import Received, read
from attnx.records import Array, Attention, Axis, Measurement, Trace
from attnx.study.side_by_side import side_by_side


@dataclass(frozen=True, slots=True)
class Part:
    """What is kept of some layers."""

    trace: Trace
    """Only the rows of the words that are looked from."""
    received: dict[int, Received]
    """By a site's index, what its keys receive from all rows; without sites that have no weights."""
    columns: tuple[Column | None, ...]
    """For each site, the same by kind of key; None if it has no weights."""
    table: HeadTable | UnsupportedError
    """The measures of heads, or why there are none."""


def part(trace: Trace, rows: Sequence[int], table: HeadTable | UnsupportedError) -> Part:
    """Keep what a page needs of some layers.

    Args:
        trace: With weights [B,H,Q,K], one text without a past.
        rows: The positions of the words that are looked from.
        table: The measures of its heads.
    """
    columns: list[Column | None] = []
    received = {}
    for attention in trace.attentions:
        if attention.weights is None:
            columns.append(None)
            continue
        columns += columns_of(replace(trace, attentions=(attention,)))
        received[attention.site.index] = _received(trace, attention)
    kept = tuple(_rows(attention, list(rows)) for attention in trace.attentions)
    return Part(replace(trace, attentions=kept, rows=tuple(rows)), received, tuple(columns), table)


def _received(trace: Trace, attention: Attention) -> Received:
    rows = read(trace, attention)
    sums, seers = [], []
    for line, real, visible in zip(rows.weights, rows.real, rows.visible, strict=True):  # so that memory stays bounded
        seen = visible & real[:, None]
        sums.append(np.where(seen, line, 0.0).sum(axis=0, dtype=np.float64))
        seers.append(seen.sum(axis=0))
    return Received(np.stack(sums), np.stack(seers))


def _rows(attention: Attention, rows: list[int]) -> Attention:
    """Some rows of what coreference reads; copied, so that the rest is not held."""

    def cut(array: Array | None) -> Array | None:
        return None if array is None else array[:, :, rows]

    return Attention(
        attention.site, weights=cut(attention.weights), masked=cut(attention.masked), capped=cut(attention.capped),
        checks=attention.checks,
    )  # fmt: skip


def joined(parts: Sequence[Part]) -> Part:
    """All layers together.

    Args:
        parts: Consecutive layers; at least one.
    """
    first = parts[0].trace
    notes = tuple(dict.fromkeys(note for one in parts for note in one.trace.notes))
    attentions = tuple(a for one in parts for a in one.trace.attentions)
    sides = {index: both for one in parts for index, both in one.trace.sides.items()}
    trace = replace(first, attentions=attentions, notes=notes, sides=sides)
    return Part(
        trace,
        {index: found for one in parts for index, found in one.received.items()},
        tuple(column for one in parts for column in one.columns),
        _table(trace, [one.table for one in parts]),
    )


def _table(trace: Trace, tables: Sequence[HeadTable | UnsupportedError]) -> HeadTable | UnsupportedError:
    there = [one for one in tables if not isinstance(one, UnsupportedError)]
    if len(there) < len(tables):
        return next(one for one in tables if isinstance(one, UnsupportedError))
    layer = Axis("layer", trace.labels)
    return heads.table(_joined(layer, [one.measures for one in there]), _joined(layer, [one.rest for one in there]))


def _joined(layer: Axis, tables: Sequence[Sequence[Measurement]]) -> list[Measurement]:
    whole = []
    for same in zip(*tables, strict=True):
        found = side_by_side(same, heads=True)
        notes = tuple(dict.fromkeys(note for one in same for note in one.notes))
        whole.append(replace(found, axes=(layer, *found.axes[1:]), notes=notes))
    return whole
