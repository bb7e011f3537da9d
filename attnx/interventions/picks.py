"""Models that pick positions between their last layer and their final norm: where each picked position comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from attnx.graph.axes.paths import reaches
from attnx.interventions.joins import VIEWS
from attnx.interventions.norms import norm_of
from attnx.interventions.points import Point
from attnx.interventions.tail import part
from attnx.records import Array, Place

if TYPE_CHECKING:
    from attnx.graph.shapes.index import Graph
    from attnx.interventions.unedited import Unedited

_PICKS = VIEWS | frozenset("Slice Gather GatherND GatherElements Split Compress Mul ReduceSum MatMul Einsum".split())
"""Operators that can pick positions, by index or by a product with ones and zeros; whether they do is tried."""
_LAYOUTS = {1: "d", 2: "b d", 3: "b q d"}
_MOST = 24
"""The most tensors that are looked at behind the last layer."""


@dataclass(frozen=True, slots=True, eq=False)
class Picked:
    """A tensor of picked positions of a stream, [B',Q',E]."""

    place: Place
    sources: Array
    """int [B',Q']: row x Q + position in the stream."""
    queries: int
    """Q: positions in the stream."""

    def at(self, row: int, position: int) -> tuple[int, int] | None:
        """Where a position of the stream is among the picked ones; None if it is not picked."""
        found = np.argwhere(self.sources == row * self.queries + position)
        return (int(found[0, 0]), int(found[0, 1])) if len(found) else None

    def of_row(self, row: int) -> list[int]:
        """The positions that are picked of a row."""
        own = self.sources[self.sources // self.queries == row]
        return sorted({int(at) % self.queries for at in own})


def picked(all_: Unedited, name: str, last: Point, logits: str) -> Picked | None:
    """The picked positions that the final norm is of.

    Args:
        all_: The model and its feeds.
        name: The feed.
        last: The stream after the last layer.
        logits: The tensor of logits.

    Returns:
        None where no norm of picked positions stands between the last layer and the logits.
    """
    graph, begin = all_.points.wide.graph, last.place.value
    for value in _behind(graph, begin):
        end = norm_of(graph, value)
        if end is None or reaches(graph, logits, {begin}, {value}) or reaches(graph, logits, {value}, {end}):
            continue
        if (found := _tried(all_, name, last, value)) is not None:
            return found
    return None


def _behind(graph: Graph, begin: str) -> list[str]:
    """The tensors that are made of a stream alone by operators that can pick positions, the nearest first."""
    found, shape = [begin], graph.shape(begin)
    for value in found:
        for node in graph.consumers(value):
            others = [n for n in node.input if n and n != value]
            if node.op_type in _PICKS and not any(reaches(graph, n, {begin}) for n in others):
                found += [out for out in node.output if out and out not in found]
        if len(found) > _MOST:
            break
    width = shape[-1] if shape else None
    shapes = [(value, graph.shape(value)) for value in found[1:]]
    return [value for value, own in shapes if own and len(own) in _LAYOUTS and own[-1] == width]


def _tried(all_: Unedited, name: str, last: Point, value: str) -> Picked | None:
    """Run what leads to a tensor on a stream in which each position is marked; None if it does not pick positions."""
    (given,) = all_.take(name, [last])
    rows, queries, width = given.shape
    base = 2  # marks are digits in the features, so that half precision and sums of zeros keep them exact
    while base**width <= rows * queries:
        base += 1
    digits = min(width, int(np.ceil(np.log(rows * queries + 1) / np.log(base))) + 1)
    powers = base ** np.arange(digits)
    marks = (np.arange(1, rows * queries + 1)[:, None] // powers) % base
    state = np.zeros((rows * queries, width))
    state[:, :digits] = marks
    place = Place(value, _LAYOUTS[len(all_.points.wide.graph.shape(value) or ())])
    end = Point("picked positions", "end", place, "bqd")
    raw = part(all_, name, last, {"end": value})(state.reshape(given.shape))["end"]
    all_.survey(name, [end])
    out = all_.tensor(name, end).ordered(raw)
    numbers = np.rint(out[..., :digits]) @ powers
    sources = np.asarray(numbers, np.int64) - 1
    if not (out[..., digits:] == 0).all() or not ((sources >= 0) & (sources < rows * queries)).all():
        return None
    if not np.array_equal(out, state[sources]):
        return None
    return Picked(place, sources, queries)


__all__ = ["Picked", "picked"]
