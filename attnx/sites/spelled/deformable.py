"""Deformable attention: weights over a few points of an image that each query chooses, without keys.

A softmax over numbers that are projected from the query weighs values sampled between the cells of a feature map, in a
product summed over the points. There is no score between two vectors, so it is not a site; it is reported by name, and
what it samples from tells encoder from decoder.

Source: Zhu et al. 2021 (Deformable DETR), equation 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnx.graph.axes.paths import Way, above, depends, ways_on
from attnx.graph.shapes.symbols import PROBE

if TYPE_CHECKING:
    from onnx import NodeProto

    from attnx.graph.axes.softmax_forms import Softmax
    from attnx.graph.shapes.index import Graph

_MADE = frozenset(
    "Reshape Transpose Unsqueeze Squeeze Concat Slice Split Identity Cast Expand Tile Flatten Add Sub Mul Div Where "
    "Sum Clip".split()
)
"""Operators that sampled values are made with: they move, stack, and mix the cells around a point."""
_PICKS = ("Gather", "GatherElements", "GatherND")
_ROUNDS = ("Floor", "Ceil", "Round", "Cast")
_PLUGIN = "deform"
_MOST = 400


@dataclass(frozen=True, slots=True)
class Sampling:
    """One deformable attention."""

    node: NodeProto
    """The softmax."""
    asks: str
    """What the weights are made from: the query's side."""
    value: str
    """What is sampled from."""
    out: str
    """Its output."""
    weights: str
    points: int | None
    """The number of points per query and head."""

    @property
    def reason(self) -> str:
        """Why it is not a site, in words."""
        count = "some" if self.points is None else str(self.points)
        return (
            f"deformable attention: it weighs values that are sampled at {count} points a query and head chooses, and "
            f"there are no keys; its weights over the points are the tensor {self.weights!r}"
        )


def sampling(graph: Graph, node: NodeProto, found: Softmax) -> Sampling | None:
    """The deformable attention that a softmax belongs to; None where it samples nothing."""
    shape = graph.shape(found.logits)
    size = None if shape is None or found.axis >= len(shape) else shape[found.axis]
    points = size if size is not None and size < PROBE else None
    plugin = _plugin(graph, found.out)
    if plugin is not None:
        return Sampling(node, found.logits, plugin.input[0], plugin.output[0], found.out, points)
    for way in ways_on(graph, found.out):
        value = _sampled(graph, _other(way, found.out))
        if value is not None:
            return Sampling(node, found.logits, value, way.product.out, found.out, points)
    return None


def _other(way: Way, weights: str) -> str:
    return way.product.other(way.steps[-1].target if way.steps else weights)


def _plugin(graph: Graph, value: str) -> NodeProto | None:
    """A dedicated operator that takes the weights, as converters for TensorRT write it."""
    for _ in range(6):
        readers = graph.consumers(value)
        plugin = next((n for n in readers if n.domain not in ("", "ai.onnx") and _PLUGIN in n.op_type.lower()), None)
        if plugin is not None:
            return plugin
        if len(readers) != 1 or readers[0].op_type not in _MADE or not readers[0].output:
            return None
        value = readers[0].output[0]
    return None


def _sampled(graph: Graph, value: str) -> str | None:
    """What a tensor's numbers were sampled from, at places that depend on data; None where they were not sampled."""
    seen: set[str] = set()
    stack = [value]
    while stack and len(seen) < _MOST:
        name = stack.pop()
        node = graph.producer(name)
        if name in seen or node is None or not depends(graph, name):
            continue
        seen.add(name)
        if node.op_type == "GridSample" and depends(graph, node.input[1]):
            return str(node.input[0])
        if node.op_type in _PICKS and depends(graph, node.input[0]) and _between(graph, node.input[1]):
            return str(node.input[0])
        if node.op_type in _MADE:
            stack += [n for n in node.input if n]
    return None


def _between(graph: Graph, index: str) -> bool:
    """Whether places to gather were rounded from numbers that depend on data: the cells around a point."""
    if not depends(graph, index):
        return False
    makers = (graph.producer(name) for name in above(graph, [index]))
    rounds = [n for n in makers if n is not None and n.op_type in _ROUNDS]
    return any((fact := graph.facts.get(n.input[0])) is not None and fact.dtype in (1, 10, 11) for n in rounds)
