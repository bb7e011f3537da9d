"""Weights packed in a few bits (com.microsoft.MatMulNBits): their product, and their numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attnx.graph.axes.atoms import Atom, fresh
from attnx.graph.axes.product import Product
from attnx.graph.axes.stored import numbers
from attnx.graph.load.nodes import attributes

if TYPE_CHECKING:
    from onnx import NodeProto

    from attnx.graph.shapes.index import Graph
    from attnx.records import Array

OP = "MatMulNBits"


def packed_product(graph: Graph, node: NodeProto) -> Product | None:
    """The product x W, where the right operand holds W [K,N] as bytes [N,blocks,bytes of a block]."""
    shape, held = graph.shape(node.input[0]), graph.shape(node.input[1])
    if node.op_type != OP or not shape or held is None or len(held) != 3:
        return None
    inner, column = Atom(int(attributes(node)["K"])), Atom(int(attributes(node)["N"]))
    lead = fresh(shape[:-1])
    right = [[column], [inner], []]
    return Product(
        node, node.output[0], node.input[0], node.input[1], [*lead, [inner]], right, [*lead, [column]], [inner]
    )


def packed_numbers(graph: Graph, node: NodeProto) -> Array | None:
    """W [K,N], float32; None where the packing of the weights is not known here.

    Source: onnxruntime's ContribOperators, MatMulNBits: in blocks along K, each with a scale and a zero point (by
    default the middle); low bits first; zero points are packed the same way, or are floats.
    """
    a = attributes(node)
    bits, rows, columns, block = (int(a.get(name, 4)) for name in ("bits", "K", "N", "block_size"))
    held, scale = (numbers(graph, name) for name in node.input[1:3])
    zero_name, order = (node.input[at] if len(node.input) > at else "" for at in (3, 4))
    if held is None or scale is None or 8 % bits or held.dtype != np.uint8 or order:
        return None
    blocks = -(-rows // block)
    values = _unpacked(held.reshape(columns, blocks, -1), bits)[..., :block].astype(np.float32)
    zero = np.full((columns, blocks), 2.0 ** (bits - 1), np.float32)
    if zero_name:
        given = numbers(graph, zero_name)
        if given is None:
            return None
        packed = given.dtype == np.uint8
        zero = _unpacked(given.reshape(columns, -1), bits)[:, :blocks] if packed else given.reshape(columns, blocks)
    whole = (values - zero.astype(np.float32)[..., None]) * scale.reshape(columns, blocks, 1).astype(np.float32)
    return np.ascontiguousarray(whole.reshape(columns, -1)[:, :rows].T)


def _unpacked(held: Array, bits: int) -> Array:
    """The numbers packed into bytes along the last axis, low bits first."""
    parts = [(held >> shift) & ((1 << bits) - 1) for shift in range(0, 8, bits)]
    return np.stack(parts, axis=-1).reshape(*held.shape[:-1], -1)
