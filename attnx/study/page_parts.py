"""What is kept of some layers of a long text for a page, once their sites are packed; and all layers together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from attnx.errors import UnsupportedError
from attnx.measure import heads
from attnx.measure.heads import HeadTable
from attnx.measure.looks import Column, columns_of
from attnx.measure.rows import Received, is_over, read
from attnx.notes import merged, of_all_heads
from attnx.records import Array, Attention, Axis, Measurement, Site, Trace
from attnx.study.page_heads import beside_tables
from attnx.study.side_by_side import side_by_side


@dataclass(frozen=True, slots=True)
class Part:
    """What is kept of some layers."""

    trace: Trace
    """Only the rows of the words that are looked from; none of a site that is not over the text of these words."""
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
    text = trace.memory or trace.tokens
    kept = tuple(_rows(a, list(rows) if is_over(trace, a, text) else []) for a in trace.attentions)
    return Part(replace(trace, attentions=kept, rows=tuple(rows)), received, tuple(columns), table)


def joined_heads(parts: Sequence[Part], site: Site) -> Part:
    """Some heads each of one site as one part.

    Args:
        parts: From the first head to the last; at least one.
        site: The whole site.
    """
    if len(parts) == 1:
        return parts[0]
    attentions = [one.trace.attentions[0] for one in parts]
    checks = tuple(check for a in attentions for check in a.checks)
    weights, masked, capped = (
        _concatenated([getattr(a, name) for a in attentions]) for name in ("weights", "masked", "capped")
    )
    whole = Attention(site, weights=weights, masked=masked, capped=capped, checks=checks)
    columns = [one.columns[0] for one in parts]
    there = [column for column in columns if column is not None]
    of_keys = [one.received[site.index] for one in parts if site.index in one.received]
    return Part(
        replace(parts[0].trace, attentions=(whole,), notes=of_all_heads([one.trace.notes for one in parts])),
        {site.index: Received(*(np.concatenate([getattr(one, name) for one in of_keys]) for name in ("sums", "seers")))}
        if of_keys
        else {},
        (
            replace(there[0], sums=np.concatenate([c.sums for c in there]), rows=sum(c.rows for c in there))
            if there
            else None,
        ),
        _beside([one.table for one in parts]),
    )


def _concatenated(arrays: Sequence[Array | None]) -> Array | None:
    """Heads one behind the other; None where there are no such arrays."""
    there = [array for array in arrays if array is not None]
    return np.concatenate(there, axis=1) if there else None


def _beside(tables: Sequence[HeadTable | UnsupportedError]) -> HeadTable | UnsupportedError:
    """The measures of some heads each as those of all."""
    there = [one for one in tables if not isinstance(one, UnsupportedError)]
    if len(there) < len(tables):
        return next(one for one in tables if isinstance(one, UnsupportedError))
    return beside_tables(there)


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
    notes = merged(*(one.trace.notes for one in parts))
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
