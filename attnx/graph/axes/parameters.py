"""How many numbers every token is multiplied by: the size of a model without its embeddings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from attnx.graph.axes.paths import depends
from attnx.graph.axes.product import Product, find_product
from attnx.graph.axes.stored import root as root_of
from attnx.graph.axes.stored import stored
from attnx.graph.load.nodes import attributes

if TYPE_CHECKING:
    from attnx.graph.shapes.index import Graph

_ON = frozenset(
    "Transpose Reshape Cast CastLike Identity Unsqueeze Squeeze Expand Tile Flatten Dropout Slice Split Gather "
    "Add Mul Div Tanh".split()
)


def parameters(graph: Graph) -> int:
    """Numbers in all matrices that hidden states are multiplied by: projections and feed-forward, not embeddings.

    Left out: a matrix that is also looked up as an embedding, and one whose product is a model output as wide as such a
    table is long (the language model's head).
    """
    tables = {root_of(graph, node.input[0]) for node in graph.nodes if node.op_type == "Gather"}
    shapes = [stored(graph, name) for name in tables if name is not None]
    long = {shape[0] for shape in shapes if shape is not None and len(shape) == 2}
    count, seen = 0, set()
    for product, constant in _constant_products(graph):
        root = root_of(graph, constant)
        shape = stored(graph, root)
        if root is None or root in seen or root in tables or shape is None or len(shape) < 2:
            continue
        seen.add(root)
        if not (any(size in long for size in shape) and _is_last(graph, product.out)):
            count += int(np.prod(shape))
    for node in graph.nodes:
        if node.op_type == "MatMulNBits":
            a = attributes(node)
            if not (int(a["N"]) in long and _is_last(graph, node.output[0])):
                count += int(a["K"]) * int(a["N"])
    return count


def _is_last(graph: Graph, value: str) -> bool:
    """Whether a value is an output of the model, up to views, casts and a bias."""
    for _ in range(8):
        if value in graph.outputs:
            return True
        readers = graph.consumers(value)
        if len(readers) != 1 or readers[0].op_type not in _ON:
            return False
        value = readers[0].output[0]
    return False


def _constant_products(graph: Graph) -> Iterator[tuple[Product, str]]:
    """Every product of data with a constant, and that constant."""
    for node in graph.nodes:
        product = find_product(graph, node.output[0]) if node.output else None
        if product is None:
            continue
        sides = [depends(graph, product.left), depends(graph, product.right)]
        if sides == [True, False]:
            yield product, product.right
        elif sides == [False, True]:
            yield product, product.left
