"""Find which axes hold heads before the query: those that its features were split from or projected together with."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from attnx.graph.axes.atoms import Atom, Axes, axes_with, beside, leaves
from attnx.graph.axes.axes import MIXING, backward
from attnx.graph.axes.paths import depends
from attnx.graph.axes.product import Product, find_product
from attnx.graph.load.nodes import attributes

if TYPE_CHECKING:
    from onnx import NodeProto

    from attnx.graph.shapes.index import Graph


def split_from(graph: Graph, query: str, axes: Axes, contracted: list[Atom]) -> list[Atom] | None:
    """The atoms that the query's features were split from, or projected together with: the heads.

    Args:
        graph: The graph.
        query: The query, as it enters the score product.
        axes: Its axes.
        contracted: The atoms of its features.

    Returns:
        Their atoms, none where a projection made the features alone; None where the query cannot be followed to one.
    """
    value = query
    for _ in range(60):
        marks = set(leaves(contracted))
        merged = beside(axes, marks)
        if merged:
            return merged
        product = find_product(graph, value)
        if product is not None:
            return _made_by(graph, product, axes, marks)
        node = graph.producer(value)
        if node is not None and node.op_type == "Conv" and len(axes) > 1:
            return [] if not marks.isdisjoint(leaves(axes[1])) else None
        if node is not None and node.op_type == "Concat" and (stacked := _stacked(graph, node, axes, marks)):
            return stacked
        step = upstream(graph, value, axes, contracted)
        if step is None:
            return None
        value, axes, contracted = step
    return None


def _stacked(graph: Graph, node: NodeProto, axes: Axes, marks: set[Atom]) -> list[Atom]:
    """The atoms of an axis along which single heads are stacked, each made by its own projection."""
    makers = [graph.producer(n) for n in node.input]
    at = attributes(node).get("axis", 0)
    if (
        len(makers) < 2
        or not -len(axes) <= at < len(axes)
        or any(m is None or m.op_type != "Unsqueeze" for m in makers)
    ):
        return []
    shapes = [graph.shape(n) for n in node.input]
    single = all(s is not None and len(s) == len(axes) and s[at] == 1 for s in shapes)
    return leaves(axes[at]) if single and marks.isdisjoint(leaves(axes[at])) else []


def upstream(graph: Graph, value: str, axes: Axes, marked: list[Atom]) -> tuple[str, Axes, list[Atom]] | None:
    """One step towards what made a tensor: the operand that it comes from, its axes, and the marked atoms there.

    An axis that a Split, Slice or Concat made longer or shorter has different atoms before it; they are marked where
    the axis held marked ones.
    """
    node = graph.producer(value)
    if node is None or node.op_type in (*MIXING, "Softmax"):
        return None
    live = [n for n in node.input if n and not _stored(graph, n)]
    source = next((n for n in live if _same_size(graph, n, value)), live[0] if live else None)
    traced = backward(graph, node, axes, source) if source is not None else None
    shape = graph.shape(source) if source is not None else None
    if source is None or traced is None:
        return None
    if node.op_type in ("Split", "Slice", "Concat", "Pad", "Gather") and shape is not None:
        marks = set(leaves(marked))
        for i, (axis, size) in enumerate(zip(traced, shape, strict=True)):
            atoms = leaves(axis)
            sizes = [a.size for a in atoms]
            if size is None or None in sizes or prod(n for n in sizes if n is not None) == size:
                continue
            traced[i] = [] if size == 1 else [Atom(size)]  # the length that it has there
            if not marks.isdisjoint(atoms):
                marked = traced[i]
    return source, traced, marked


def _stored(graph: Graph, value: str) -> bool:
    """Whether a value is stored with the model or is whole numbers (shapes, places), so that no query comes from it."""
    fact = graph.facts.get(value)
    return graph.is_constant(value) or (fact is not None and fact.dtype in (6, 7))


def _same_size(graph: Graph, a: str, b: str) -> bool:
    one, other = graph.shape(a), graph.shape(b)
    if one is None or other is None or None in one or None in other:
        return False
    return prod(n for n in one if n) == prod(n for n in other if n)


def _made_by(graph: Graph, product: Product, axes: Axes, marks: set[Atom]) -> list[Atom] | None:
    """What else the stored side of a projection adds to its result: heads, where it is [width, heads, size]."""
    held = [_stored(graph, side) for side in (product.left, product.right)]
    if not any(held):  # a stored matrix that is transposed first
        held = [not depends(graph, side) for side in (product.left, product.right)]
    if held[0] == held[1] or len(product.out_axes) != len(axes):
        return None
    stored = product.left_axes if held[0] else product.right_axes
    own = {a for axis in stored for a in axis}
    made = [leaf for at in axes_with(product.out_axes, own) for leaf in leaves(axes[at])]
    return [a for a in made if a not in marks] if not marks.isdisjoint(made) else None
