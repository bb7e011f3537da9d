"""Padding that a model adds around its text to fill or offset blocks: its rows and columns are left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from attnx.graph.load.nodes import attributes
from attnx.records import Place
from attnx.sites.strided.cell_tracing import projected
from attnx.sites.strided.cells import Cells
from attnx.sites.strided.row_proof import Proof
from attnx.sites.strided.sources import Source, Weighed

if TYPE_CHECKING:
    from attnx.graph.shapes.index import Graph

Pads = tuple[int, int]
"""How much padding comes before and after the text."""
_NOTE = (
    "the padding that the model puts round its text ({before} before, {behind} behind) is left out: no query sees it"
)


def left_out(
    graph: Graph, cells: Cells, source: Source, use: Weighed | None, proof: Proof, places: dict[str, Place]
) -> str:
    """Leave padding out of a site's tensors, if the text's queries and keys are padded alike and no padding is seen.

    Args:
        graph: The graph.
        cells: Collects nodes.
        source: What scores are made from.
        use: What weights are multiplied by.
        proof: What was found about the cells.
        places: Where the site's tensors are; changed in place.

    Returns:
        A note on the padding; "" where nothing was left out.
    """
    asking = _pads(graph, source.query, proof.query.length)
    asked = [_pads(graph, part, proof.key.length) for part in source.keys]
    if asking is None or asking not in asked or not _unseen(proof, asked):
        return ""
    e = cells.emit
    queries = _kept(cells, [(source.query, proof.query.length, asking)])
    keys = _kept(cells, [(part, proof.key.length, pads) for part, pads in zip(source.keys, asked, strict=True)])
    along = {"query": (proof.query, queries), "key": (proof.key, keys)}
    if proof.value is not None and proof.context is not None:
        along |= {"value": (proof.value, keys), "context": (proof.context, queries)}
    for quantity, (operand, kept) in along.items():
        if quantity in places:
            text = e.op("Gather", places[quantity].value, kept, out=e.name(f"text/{quantity}"), axis=operand.length)
            places[quantity] = replace(places[quantity], value=text)
    for quantity in ("masked", "weights"):
        rows = e.op("Gather", places[quantity].value, queries, axis=2)
        text = e.op("Gather", rows, keys, out=e.name(f"text/{quantity}"), axis=3)
        places[quantity] = replace(places[quantity], value=text)
    return _NOTE.format(before=asking[0], behind=asking[1])


def _pads(graph: Graph, value: str, length: int) -> Pads | None:
    """The padding of the rows that a query or key is projected from; None where they are not padded."""
    rows = projected(graph, value)
    node = graph.producer(rows)
    if (
        node is None
        or node.op_type != "Pad"
        or attributes(node).get("mode", b"constant") not in (b"constant", "constant")
    ):
        return None
    pads = graph.stable(node.input[1]) if len(node.input) > 1 else None
    shape, own = graph.shape(rows), graph.shape(value)
    if (
        pads is None
        or shape is None
        or own is None
        or pads.size != 2 * len(shape)
        or (len(node.input) > 3 and node.input[3])
    ):
        return None
    both = [(int(one), int(two)) for one, two in zip(pads[: len(shape)], pads[len(shape) :], strict=True)]
    axes = [axis for axis, pair in enumerate(both) if pair != (0, 0)]
    if len(axes) != 1 or min(both[axes[0]]) < 0 or shape[axes[0]] is None or shape[axes[0]] != own[length]:
        return None
    return both[axes[0]]


def _unseen(proof: Proof, pads: Sequence[Pads | None]) -> bool:
    """Whether no query sees a padded key."""
    start, padded = 0, set()
    for count, pair in zip(proof.lengths, pads, strict=True):
        before, behind = pair or (0, 0)
        padded |= {*range(start, start + before), *range(start + count - behind, start + count)}
        start += count
    return padded <= proof.unseen


def _kept(cells: Cells, parts: Sequence[tuple[str, int, Pads | None]]) -> str:
    """Where the text lies on an axis of several parts, int64 [text]."""
    e = cells.emit
    found, start = [], e.ints(0)
    for value, axis, pads in parts:
        before, behind = pads or (0, 0)
        size = e.dim(value, axis)
        own = e.slice(e.arange(size), before, e.op("Sub", size, e.ints(behind)), 0)
        found.append(e.op("Add", own, start))
        start = e.op("Add", start, size)
    return e.concat(found, 0)
