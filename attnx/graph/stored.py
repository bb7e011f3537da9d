"""Constants behind the operands of products: which initializer holds them, its shape, its numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attnx.graph.dequantise import floats
from attnx.graph.index import attributes
from attnx.graph.load import read_tensor

if TYPE_CHECKING:
    from onnx import NodeProto

    from attnx.graph.index import Graph
    from attnx.records import Array

_THROUGH = frozenset("Transpose Cast Identity DequantizeLinear Reshape Unsqueeze Squeeze".split())


def root(graph: Graph, value: str) -> str | None:
    """The initializer or Constant behind a constant, through views, casts and dequantisation."""
    for _ in range(8):
        if value in graph.initializers:
            return value
        node = graph.producer(value)
        if node is None:
            return None
        if node.op_type == "Constant":
            return value
        if node.op_type not in _THROUGH:
            return None
        value = str(node.input[0])
    return None


def stored(graph: Graph, name: str | None) -> tuple[int, ...] | None:
    """The shape of an initializer or Constant; None where it is not known."""
    if name is None:
        return None
    tensor = graph.initializers.get(name)
    if tensor is not None:
        return tuple(tensor.dims)
    shape = graph.shape(name)
    return None if shape is None or None in shape else tuple(int(size) for size in shape if size is not None)


def numbers(graph: Graph, value: str) -> Array | None:
    """The numbers of a constant operand: of its initializer, through the views and the dequantisation between."""
    tensor = graph.initializers.get(value)
    if tensor is not None:
        return read_tensor(graph.loaded, tensor)
    node = graph.producer(value)
    if node is None:
        return None
    if node.op_type == "Constant":
        return graph.constant(value)
    if node.op_type == "DequantizeLinear":
        return _dequantised(graph, node)
    inner = numbers(graph, node.input[0]) if node.op_type in ("Transpose", "Cast", "Identity") else None
    if inner is None or node.op_type != "Transpose":
        return inner
    return np.transpose(inner, attributes(node).get("perm"))


def _dequantised(graph: Graph, node: NodeProto) -> Array | None:
    values, scale = (numbers(graph, name) for name in node.input[:2])
    zero = numbers(graph, node.input[2]) if len(node.input) > 2 and node.input[2] else None
    if values is None or scale is None or (zero is None and len(node.input) > 2 and node.input[2]):
        return None
    a = attributes(node)
    return floats(values, scale, zero, int(a.get("axis", 1)), int(a.get("block_size", 0)))
