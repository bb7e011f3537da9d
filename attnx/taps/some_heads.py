"""The matrices of some heads of a site, computed for these alone: a copy of what leads from its product to its weights.

Which heads is an input of the graph, so that one session computes them all, some after others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from attnx.layout import axis_of, parse
from attnx.records import STAGES, Place, Site

if TYPE_CHECKING:
    from onnx import NodeProto

    from attnx.graph.shapes.index import Graph
    from attnx.taps.writer import Nodes

PICKED = "attnx/picked/"
"""Prefix of the names of tensors that hold some heads."""
_ALIKE = frozenset("Add Sub Mul Div Where Cast Identity Tanh Clip Max Min Neg Equal And Or Not IsNaN".split())
"""Operators that treat every cell alike."""
_FLOATS = (1, 10)


def heads_input(site: int) -> str:
    """The input that says which heads of a site are wanted, int64 [h]."""
    return f"attnx/heads/{site}"


def some_heads(
    writer: Nodes, graph: Graph, site: Site, quantities: Collection[str], others: Collection[str]
) -> dict[str, str]:
    """Add the copy.

    Args:
        writer: The writer of the graph that is being tapped.
        graph: The graph that the site's places are in.
        site: The site.
        quantities: Those of its stages that are wanted.
        others: Tensors wanted besides. If one of them follows from the site's product, all heads are computed anyway.

    Returns:
        Stage -> the tensor that holds it, for the heads in the input; empty where the graph does not allow it.
    """
    from attnx.graph.axes.paths import reaches  # not needed where a tapped model comes from the cache

    places = {name: site.places[name] for name in STAGES if name in quantities and name in site.places}
    values = {place.value for place in places.values()}
    facts = [graph.facts.get(value) for value in values]
    if not places or not all(map(apart, places.values())) or any(f is None or f.dtype not in _FLOATS for f in facts):
        return {}
    found = _product(graph, places.values())
    if found is None or any(reaches(graph, other, {found[0]}) for other in others):
        return {}
    copy = _Copy(writer, graph, heads_input(site.index), *found)
    names = copy.made(values)
    return {name: names[place.value] for name, place in places.items()} if names is not None else {}


def apart(place: Place) -> bool:
    """Whether a stage's heads are an axis of their own, in its usual order and with one factor for all."""
    return (
        axis_of(place.layout, "h") is not None
        and place.tile == 1
        and not any(isinstance(factor, tuple) for factor in place.factors)
    )


def _product(graph: Graph, places: Collection[Place]) -> tuple[str, int] | None:
    """The product that the stages are made from, and its axis of heads, counted from the last, which is 1."""
    for place in places:
        node, axis = graph.producer(place.value), axis_of(place.layout, "h")
        if node is not None and node.op_type == "MatMul" and node.domain in ("", "ai.onnx") and axis is not None:
            back = len(parse(place.layout)) - axis
            return (place.value, back) if back > 2 else None
    return None


_Input = tuple[str, "int | None"]
"""A tensor that a node reads, and the axis along which some heads are picked of it; None for the tensor as it is."""


class _Copy:
    """Copies nodes for some heads."""

    def __init__(self, writer: Nodes, graph: Graph, chosen: str, product: str, back: int) -> None:
        self._writer, self._graph, self._chosen, self._product, self._back = writer, graph, chosen, product, back
        shape = graph.shape(product)
        self._heads = None if shape is None else shape[-back]

    def made(self, values: Collection[str]) -> Mapping[str, str] | None:
        """Tensor -> its copy, for these and all between them and the product; None where a node mixes heads."""
        from attnx.graph.axes.paths import above

        graph, names = self._graph, dict[str, str]()
        needed = above(graph, values, {self._product}) | {self._product}
        plan: list[tuple[NodeProto, list[_Input]]] = []
        for node in graph.nodes:
            first = self._product in node.output
            if not first and (needed.isdisjoint(node.output) or names.keys().isdisjoint(node.input)):
                continue
            inputs = [(names[name], None) if name in names else self._cut(name) for name in node.input]
            if (not first and not _alike(graph, node)) or len(node.output) != 1:
                return None
            plan.append((node, [one for one in inputs if one is not None]))
            if len(plan[-1][1]) < len(node.input):
                return None
            names[node.output[0]] = PICKED + node.output[0]
        if not names.keys() >= set(values):
            return None
        for node, read in plan:
            self._writer.copied(node, [self._picked(*one) for one in read], names[node.output[0]])
        return names

    def _cut(self, name: str) -> _Input | None:
        """How a node's input is read; None where it is not known which axis its heads are."""
        if not name:
            return name, None
        shape = self._graph.shape(name)
        if shape is None or self._heads is None:
            return None
        if len(shape) < self._back or shape[-self._back] == 1:
            return name, None
        return (name, len(shape) - self._back) if shape[-self._back] == self._heads else None

    def _picked(self, name: str, axis: int | None) -> str:
        return name if axis is None else self._writer.node("Gather", [name, self._chosen], axis=axis)


def _alike(graph: Graph, node: NodeProto) -> bool:
    """Whether a node treats every head alike: cell by cell, or along the keys."""
    if node.domain not in ("", "ai.onnx"):
        return False
    attributes = {a.name: a for a in node.attribute}
    if node.op_type == "Softmax":
        return attributes["axis"].i == -1 if "axis" in attributes else graph.opset >= 13
    if node.op_type == "ReduceMax":
        known = graph.known(node.input[1]) if len(node.input) > 1 else None
        axes = list(attributes["axes"].ints) if "axes" in attributes else [] if known is None else known.tolist()
        return axes == [-1] and ("keepdims" not in attributes or attributes["keepdims"].i == 1)
    return node.op_type in _ALIKE


__all__ = ["PICKED", "apart", "heads_input", "some_heads"]
