"""Whether new keys are joined with keys that enter as an input of the model: a KV cache, however it is updated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnx.graph.axes.paths import depends
from attnx.graph.load.nodes import ROUNDS, joined

if TYPE_CHECKING:
    from onnx import NodeProto

    from attnx.graph.shapes.index import Graph

_VIEWS = frozenset("Transpose Reshape Cast Identity Unsqueeze Squeeze Expand Slice Gather Tile Split".split()) | ROUNDS
_SCALED = ("Mul", "Div")
_WRITES = ("ScatterND", "ScatterElements", "TensorScatter")
"""Operators that write new rows over old ones: the last input holds places or new rows, never the cache."""
_MERGED = ("Add", "Sum", "Where")
_STEPS = 24


def has_cache(graph: Graph, value: str) -> bool:
    """Whether a key (or value) consists of new rows and of rows that enter as an input of the model.

    Args:
        graph: The flat graph.
        value: Name of the key as it enters the product.

    Returns:
        True where the rows are concatenated or scattered, selected by a mask, or blended by a one-hot product:
        cache x (1 - onehot) + onehot x new.
    """
    for _ in range(_STEPS):
        node = graph.producer(value)
        if node is None:
            return False
        if parts := joined(node) or (list(node.input) if node.op_type in _WRITES else []):
            return len(parts) > 1 and any(comes_in(graph, name) for name in parts[:-1])
        if node.op_type in _MERGED:
            full = _full(graph, node)
            merged = [n for n in full if depends(graph, n)]
            if node.op_type == "Where":  # one new row is broadcast over all places, and the condition picks its place
                merged = [n for n in node.input[1:] if depends(graph, n)]
            if len(merged) > 1:
                return _blends(graph, node, merged, full)
            if len(merged) == 0:
                return False
            value = merged[0]
        elif node.op_type in _SCALED:
            value = next(iter(_full(graph, node)), node.input[0])
        elif node.op_type in _VIEWS:
            value = node.input[0]
        else:
            return False
    return False


def _full(graph: Graph, node: NodeProto) -> list[str]:
    """The operands as large as the result: no mask or angle that is broadcast over it, and no condition."""
    shape = graph.shape(node.output[0])
    operands = node.input[1:] if node.op_type == "Where" else node.input
    return [name for name in operands if name and (shape is None or graph.shape(name) == shape)]


def _blends(graph: Graph, node: NodeProto, merged: list[str], full: list[str]) -> bool:
    """Whether one tensor enters unchanged, the other is computed, and one replaces rows of the other.

    A sum replaces rows only where the other side is multiplied by something; otherwise it is an ordinary sum, such as a
    position added to an input. In a rotary embedding both sides come from the same tensor.
    """
    old = [name for name in merged if name in full and comes_in(graph, name)]
    new = [name for name in merged if name not in old]
    if not old or not new:
        return False
    return node.op_type == "Where" or all(_is_scaled(graph, name) for name in new)


def _is_scaled(graph: Graph, value: str) -> bool:
    for _ in range(_STEPS):
        node = graph.producer(value)
        if node is None or node.op_type not in _VIEWS:
            return node is not None and (node.op_type in _SCALED or _is_outer(graph, node))
        value = node.input[0]
    return False


def _is_outer(graph: Graph, node: NodeProto) -> bool:
    """Whether a product copies one row to many places: onehot [.., K, 1] x new [.., 1, D]."""
    if node.op_type not in ("MatMul", "Einsum") or len(node.input) != 2:
        return False
    return all(depends(graph, name) for name in node.input)


def comes_in(graph: Graph, value: str) -> bool:
    """Whether a value is an input of the model with a row per position, moved, cast or multiplied at most."""
    for _ in range(8):
        if value in graph.inputs:
            return len(graph.inputs[value].type.tensor_type.shape.dim) >= 3
        node = graph.producer(value)
        if node is None:
            return False
        if node.op_type in _SCALED or node.op_type == "Where":
            value = next((name for name in _full(graph, node) if depends(graph, name)), "")
        elif node.op_type in _VIEWS:
            value = node.input[0]
        else:
            return False
    return False
