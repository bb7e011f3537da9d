"""Softmaxes that are not attention of queries over keys: linear attention, and slots (queries) competing for keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnx.graph.axes.atoms import atoms_of, leaves
from attnx.graph.axes.axes import forward
from attnx.graph.axes.pairing import Candidate, Use, use_of
from attnx.graph.axes.paths import Way, depends
from attnx.graph.axes.product import find_product

if TYPE_CHECKING:
    from attnx.graph.shapes.index import Graph


def competed(graph: Graph, way: Way, chosen: Candidate, out: str) -> bool:
    """Whether weights sum over an axis of the product's other operand, and not over the one that was normalised."""
    if not any(step.node.op_type == "Div" for step in way.steps):
        return False  # they must be normalised to sum to 1 over the keys
    leading = chosen.way.product.out_axes[:-2]  # batch axes, which stored slots do not have
    shared = atoms_of([*chosen.key_axes, *leading])
    queries = [a for axis in chosen.query_axes for a in leaves(axis) if a not in shared]
    if not queries:
        return False
    turned = Candidate(chosen.way, chosen.axes, queries, left_is_key=chosen.key == chosen.way.product.left)
    return use_of(graph, way, turned, out) is not None


def is_linear(graph: Graph, use: Use) -> bool:
    """Whether the context's row axis is contracted with another tensor of data (efficient, or linear, attention).

    False where that tensor is made from the context itself: latents that are queried once more (poly-encoders).
    """
    value, axes = use.way.product.out, use.way.product.out_axes
    rows = atoms_of(use.weights_axes) - atoms_of(use.value_axes)
    for _ in range(6):
        readers = graph.consumers(value)
        for node in readers:
            product = find_product(graph, node.output[0])
            if product is not None and product.node is node and node.op_type in ("MatMul", "Einsum"):
                mine = product.left_axes if value == product.left else product.right_axes
                summed = set(product.contracted)
                at = [i for i, own in enumerate(mine) if not summed.isdisjoint(own)]
                known = len(mine) == len(axes) and bool(rows)
                if known and rows.isdisjoint(a for i in at for a in leaves(axes[i])):
                    continue  # it sums over features
                other = product.other(value)
                return depends(graph, other) and not _made_from(graph, other, use.way.product.out)
        onward = next((n for n in readers if n.op_type in ("Transpose", "Cast", "Identity")), None)
        following = forward(graph, onward, axes, value) if onward is not None else None
        if onward is None or following is None:
            return False
        value, axes = onward.output[0], following
    return False


def _made_from(graph: Graph, value: str, source: str) -> bool:
    """Whether a value is made from another, a few nodes before it."""
    stack, seen = [value], set[str]()
    while stack and len(seen) < 40:
        name = stack.pop()
        if name == source:
            return True
        node = graph.producer(name)
        if node is not None and name not in seen:
            stack += [n for n in node.input if n and depends(graph, n)]
        seen.add(name)
    return False
