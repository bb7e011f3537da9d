"""What hides cells of a matrix, as tensors smaller than it: masks on the way from the scores to the softmax.

Of these, rather than of the masked scores, is counted in the graph whether any cell is visible that should not be.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from attnx.layout import axis_of
from attnx.records import Place
from attnx.taps.reductions import HIDDEN, UP_TO, Writer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attnx.graph.shapes.index import Graph

_DEEP = 8
"""How many nodes are looked through."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One tensor that hides cells; its last axes are queries and keys."""

    value: str
    kind: str
    """ "added" where a number far below zero hides, "shows" where True shows a cell, "hides" where True hides it."""


def unlike(writer: Writer, graph: Graph, masked: str, place: Place, before: Place | None, stat: str) -> str:
    """In how many cells what is visible differs from what is expected: of the masks alone where those are known.

    A mask of [1,K] or [Q,K] is looked at once for all sites that it hides cells of.

    Args:
        writer: Writes the nodes.
        graph: The flat graph.
        masked: The tensor of the softmax's input.
        place: Where that is in the flat graph.
        before: The scores to which bias and mask are added, if they are known.
        stat: One of `UNLIKE`.

    Returns:
        The name of one number.
    """
    found = None if before is None else pieces(graph, place, before, HIDDEN)
    if found is None:
        shown = [writer.node("Greater", [writer.last(masked, place), writer.number(HIDDEN)])]
        hides = [writer.node("Not", shown)]
    else:
        added = [writer.as_float32(one.value) for one in found if one.kind == "added"]
        shown = [writer.node("Greater", [one, writer.number(HIDDEN / len(added))]) for one in added]
        hides = [writer.node("Not", [writer.node("Greater", [one, writer.number(HIDDEN)])]) for one in added]
        for one in found:
            if one.kind != "added":
                (shown if one.kind == "shows" else hides).append(one.value)
                (hides if one.kind == "shows" else shown).append(writer.node("Not", [one.value]))
    if not shown:
        shown, hides = [writer.constant(np.ones((1, 1), bool))], [writer.constant(np.zeros((1, 1), bool))]
    seen = _joined(writer, "And", shown)
    if stat == "not_full":
        other = writer.node("Not", [seen])
    elif len(shown) == 1:
        other = writer.node("Xor", [seen, UP_TO])
    else:  # a cell that several numbers hide only together is neither surely seen nor surely hidden: it counts
        later = writer.node("Not", [writer.node("Or", [_joined(writer, "Or", hides), UP_TO])])
        other = writer.node("Or", [writer.node("And", [writer.node("Not", [seen]), UP_TO]), later])
    return writer.node("ReduceSum", [writer.node("Cast", [other], to=1)], keepdims=0)


def _joined(writer: Writer, kind: str, values: Sequence[str]) -> str:
    """And, or Or, of several."""
    return values[0] if len(values) == 1 else writer.node(kind, [_joined(writer, kind, values[:-1]), values[-1]])


def pieces(graph: Graph, masked: Place, before: Place, hidden: float) -> list[Piece] | None:
    """Everything that makes the masked scores of the scores before them; None unless each is an Add or a Where.

    Args:
        graph: The flat graph.
        masked: The softmax's input.
        before: The scores to which bias and mask are added.
        hidden: A masked score at or below this counts as hidden.
    """
    shape = graph.shape(masked.value)
    rank = 0 if shape is None else len(shape)
    ends = (axis_of(masked.layout, "q"), axis_of(masked.layout, "k")) == (rank - 2, rank - 1)
    if rank < 2 or not ends or masked.window is not None or before.window is not None:
        return None
    found = _behind(graph, masked.value, before.value, hidden, _DEEP)
    ranks = [graph.shape(piece.value) for piece in found or ()]
    return found if all(one is not None and len(one) <= rank for one in ranks) else None


def _behind(graph: Graph, value: str, before: str, hidden: float, left: int) -> list[Piece] | None:
    """The pieces between a value and the scores before the mask; None where there is no such way."""
    if value == before:
        return []
    node = graph.producer(value)
    if node is not None and left and node.op_type in ("Identity", "Cast"):
        return _behind(graph, node.input[0], before, hidden, left - 1)
    if node is None or not left or node.op_type not in ("Add", "Where"):
        return None
    for at, name in enumerate(node.input):
        if node.op_type == "Where" and (at == 0 or not _far_below(graph, node.input[3 - at], hidden)):
            continue
        rest = _behind(graph, name, before, hidden, left - 1)
        if rest is not None and node.op_type == "Add":
            return [*rest, Piece(node.input[1 - at], "added")]
        if rest is not None:
            return [*rest, Piece(node.input[0], "shows" if at == 1 else "hides")]
    return None


def _far_below(graph: Graph, value: str, hidden: float) -> bool:
    """Whether a tensor is known to hold nothing but numbers that hide."""
    known = graph.known(value)
    return known is not None and bool(known.size) and bool((known <= hidden).all())


__all__ = ["Piece", "pieces", "unlike"]
