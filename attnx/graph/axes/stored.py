"""Constants behind the operands of products: which initializer holds them, their shape and their numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attnx.graph.axes.dequantise import floats
from attnx.graph.axes.paths import depends
from attnx.graph.load.load import read_tensor
from attnx.graph.load.nodes import attributes

if TYPE_CHECKING:
    from onnx import NodeProto

    from attnx.graph.shapes.index import Graph
    from attnx.records import Array

_ARITHMETIC = {"Mul": np.multiply, "Add": np.add, "Sub": np.subtract, "Div": np.divide}
"""How a graph itself turns a quantised weight back into floats."""
_FLOATS = {1: np.float32, 10: np.float16, 11: np.float64, 16: np.float32}
"""ONNX types that a Cast produces -> numpy's; bfloat16, which numpy lacks, as float32."""
_THROUGH = frozenset("Transpose Cast Identity DequantizeLinear Reshape Unsqueeze Squeeze".split())


def root(graph: Graph, value: str) -> str | None:
    """The initializer or Constant behind a constant, through views, casts and dequantisation, written out or not."""
    for _ in range(8):
        if value in graph.initializers:
            return value
        node = graph.producer(value)
        if node is None:
            return None
        if node.op_type == "Constant":
            return value
        if node.op_type in _ARITHMETIC:
            wide = _widest(graph, node)
            if wide is None:
                return None
            value = wide
        elif node.op_type in _THROUGH:
            value = str(node.input[0])
        else:
            return None
    return None


def stored(graph: Graph, name: str | None) -> tuple[int, ...] | None:
    """The shape of an initializer or Constant; None where unknown."""
    if name is None:
        return None
    tensor = graph.initializers.get(name)
    if tensor is not None:
        return tuple(tensor.dims)
    shape = graph.shape(name)
    return None if shape is None or None in shape else tuple(int(size) for size in shape if size is not None)


def numbers(graph: Graph, value: str) -> Array | None:
    """The numbers of a constant operand: read from its initializer, through any views and dequantisation."""
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
    if node.op_type in _ARITHMETIC and _widest(graph, node) is not None:
        one, other = (numbers(graph, name) for name in node.input)
        return None if one is None or other is None else np.asarray(_ARITHMETIC[node.op_type](one, other))
    inner = numbers(graph, node.input[0]) if node.op_type in ("Transpose", "Cast", "Identity") else None
    if inner is not None and node.op_type == "Cast":
        return inner.astype(_FLOATS.get(attributes(node).get("to", 0), inner.dtype))
    if inner is None or node.op_type != "Transpose":
        return inner
    return np.transpose(inner, attributes(node).get("perm"))


def _widest(graph: Graph, node: NodeProto) -> str | None:
    """The operand with the shape of the result, the other being a scale or zero point; None where that is not so."""
    shapes = [graph.shape(name) for name in node.input]
    whole = graph.shape(node.output[0])
    wide = [name for name, shape in zip(node.input, shapes, strict=True) if shape is not None and shape == whole]
    return str(wide[0]) if len(wide) == 1 and not depends(graph, node.output[0]) else None


def _dequantised(graph: Graph, node: NodeProto) -> Array | None:
    values, scale = (numbers(graph, name) for name in node.input[:2])
    zero = numbers(graph, node.input[2]) if len(node.input) > 2 and node.input[2] else None
    if values is None or scale is None or (zero is None and len(node.input) > 2 and node.input[2]):
        return None
    a = attributes(node)
    return floats(values, scale, zero, int(a.get("axis", 1)), int(a.get("block_size", 0)))
