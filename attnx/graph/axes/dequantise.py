"""The floats behind a quantised weight: where its scale and zero point are, and its numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from attnx.graph.axes.product import Product
    from attnx.graph.shapes.index import Graph
    from attnx.records import Array

_INPUTS = {"QLinearMatMul": (4, 5), "DynamicQuantizeMatMul": (2, 3), "MatMulIntegerToFloat": (3, 5)}
"""Operators with a quantised second operand -> which inputs hold its scale and zero point."""


def scale_of(graph: Graph, product: Product) -> tuple[str, str] | None:
    """The names of the scale and zero point ("" for none) of a product's quantised right operand.

    None where they are not constants.

    Source: ONNX MatMulInteger and QLinearMatMul; onnxruntime contrib operators DynamicQuantizeMatMul and
    MatMulIntegerToFloat. After MatMulInteger, quantisers multiply by both scales at once: the scale of x, which depends
    on the text, times that of the weight.
    """
    node = product.node
    if node.op_type == "MatMulInteger":
        zero = node.input[3] if len(node.input) > 3 else ""
        scale = _weight_scale(graph, product)
    elif node.op_type in _INPUTS:
        scale, zero = (node.input[at] if len(node.input) > at else "" for at in _INPUTS[node.op_type])
    else:
        return None
    constant = bool(scale) and graph.is_constant(scale) and (not zero or graph.is_constant(zero))
    return (scale, zero) if constant else None


def _weight_scale(graph: Graph, product: Product) -> str:
    """The constant factor that dequantises the result of a MatMulInteger; "" where there is not exactly one."""
    if product.last is None:
        return ""
    found = []
    for name in product.last.input:
        node = graph.producer(name)
        if node is not None and node.op_type == "Mul":
            found += [inner for inner in node.input if graph.is_constant(inner)]
    return found[0] if len(found) == 1 else ""


def floats(values: Array, scale: Array, zero: Array | None, axis: int, block: int = 0) -> Array | None:
    """The float32 result of DequantizeLinear; None where the scale does not fit.

    Source: ONNX DequantizeLinear-21: (x - zero) x scale, with one scale for all, one for each place along an axis, or
    one for each block of an axis.
    """
    if block and scale.ndim == values.ndim:
        scale = np.repeat(scale, block, axis=axis)
        zero = None if zero is None else np.repeat(zero, block, axis=axis)
        if scale.shape[axis] < values.shape[axis]:
            return None
        cut = [slice(size) for size in values.shape]
        scale, zero = scale[tuple(cut)], None if zero is None else zero[tuple(cut)]
    elif scale.size > 1:
        if scale.ndim != 1 or scale.size != values.shape[axis]:
            return None
        shape = [-1 if at == axis % values.ndim else 1 for at in range(values.ndim)]
        scale, zero = scale.reshape(shape), None if zero is None else zero.reshape(shape)
    else:
        scale, zero = scale.reshape(()), None if zero is None else zero.reshape(())
    whole = values.astype(np.float32) - (0 if zero is None else zero.astype(np.float32))
    return np.asarray(whole * scale.astype(np.float32), np.float32)
