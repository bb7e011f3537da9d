"""Attention over channels (XCiT, DaViT, Restormer): queries and keys are features, and the product sums over tokens.

Source: El-Nouby et al. 2021, XCiT, section 3.2 (cross-covariance attention).
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from attnx.graph.axes.atoms import Axes, atoms_of, fresh, leaves
from attnx.graph.axes.axes import backward
from attnx.graph.axes.paths import depends
from attnx.graph.axes.product import Product, find_product

if TYPE_CHECKING:
    from attnx.graph.fact import Shape
    from attnx.graph.shapes.index import Graph

_STEPS = 32


def is_of_features(graph: Graph, value: str, axis: int) -> bool:
    """Whether an axis of a tensor holds the features that its projection made, and no tokens.

    Args:
        graph: The graph.
        value: A query.
        axis: The axis that counts the query's rows.
    """
    shape = graph.shape(value)
    axes: Axes | None = None if shape is None or not 0 <= axis < len(shape) else fresh(shape)
    mark = [] if axes is None else axes[axis]
    for _ in range(_STEPS):
        if axes is None or not leaves(mark):
            return False
        product, node = find_product(graph, value), graph.producer(value)
        if product is not None or node is None or node.op_type == "Conv":
            made = [] if node is None else [1] if product is None else _features(graph, product)
            inside = {leaf for at in made if at < len(axes) for leaf in leaves(axes[at])}
            return inside.issuperset(leaves(mark))
        live = [name for name in node.input if name and depends(graph, name)]
        if not live:
            return False
        # Of the operands of x / |x|, the one that is as wide as the result.
        source = next((name for name in live if graph.shape(name) == graph.shape(value)), live[0])
        axes, value = _whole(backward(graph, node, axes, source), graph.shape(source)), source
    return False


def _whole(axes: Axes | None, shape: Shape | None) -> Axes | None:
    """Axes of a tensor that a Split has cut: the axis that was cut keeps nothing."""
    if axes is None or shape is None or len(axes) != len(shape):
        return None
    sizes = [[atom.size for atom in leaves(axis)] for axis in axes]
    return [
        axis if None in own or prod(n for n in own if n is not None) == size else fresh([size])[0]
        for axis, own, size in zip(axes, sizes, shape, strict=True)
    ]


def _features(graph: Graph, product: Product) -> list[int]:
    """The axes of a projection's output along which its matrix has columns; none for a product of two tensors."""
    live = [side for side in (product.left, product.right) if depends(graph, side)]
    if len(live) != 1:
        return []
    matrix = product.right_axes if live[0] == product.left else product.left_axes
    columns = atoms_of(matrix) - set(leaves(product.contracted))
    return [at for at, axis in enumerate(product.out_axes) if not columns.isdisjoint(leaves(axis))]
