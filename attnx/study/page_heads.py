"""The measures of every head on a page, of a long text a few heads at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from attnx.errors import UnsupportedError
from attnx.measure import describe_heads
from attnx.measure import heads as head_measures
from attnx.measure.heads import HeadTable
from attnx.records import Array, Trace
from attnx.study.side_by_side import beside

CELLS = 1 << 20
"""How many weights of one layer are measured at once."""


def measured(trace: Trace) -> HeadTable | UnsupportedError:
    """The measures of every head, or why there are none."""
    try:
        return _heads(trace)
    except UnsupportedError as error:
        return error


def _heads(trace: Trace) -> HeadTable:
    """`describe_heads`, a few heads at a time for a long text, so that intermediate arrays stay small."""
    shapes = {a.weights.shape[1:] for a in trace.attentions if a.weights is not None}
    if len(shapes) != 1 or any(a.weights is None for a in trace.attentions):
        return describe_heads(trace)
    ((count, queries, keys),) = shapes
    step = max(1, CELLS // (queries * keys))
    if step >= count:
        return describe_heads(trace)
    tables = [describe_heads(_some(trace, slice(at, min(at + step, count)))) for at in range(0, count, step)]
    return beside_tables(tables)


def beside_tables(tables: Sequence[HeadTable]) -> HeadTable:
    """The measures of some heads each as those of all, from the first head to the last."""
    measures = [beside(same) for same in zip(*(one.measures for one in tables), strict=True)]
    return head_measures.table(measures, [beside(same) for same in zip(*(one.rest for one in tables), strict=True)])


def _some(trace: Trace, heads: slice) -> Trace:
    """The trace with some of its heads."""

    def cut(array: Array | None) -> Array | None:
        return None if array is None else array[:, heads]

    return replace(
        trace,
        attentions=tuple(
            replace(
                a, weights=cut(a.weights), masked=cut(a.masked), capped=cut(a.capped),
                query=None, key=None, value=None, scores=None, scaled=None, context=None,
            )
            for a in trace.attentions
        ),
    )  # fmt: skip
