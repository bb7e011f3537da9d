"""Operators that onnxruntime's optimizer puts around the attention of diffusion models and that have no CPU kernel.

Source: onnxruntime contrib operators BiasAdd, BiasSplitGelu, GroupNorm, SkipGroupNorm, NhwcConv and GemmFastGelu.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from attnx.graph.load.nodes import attributes
from attnx.records import Miss
from attnx.sites.emit import Emit, prefix_of
from attnx.sites.finding import Replacement
from attnx.sites.stages import input_of, output_of

if TYPE_CHECKING:
    from onnx import NodeProto

    from attnx.graph.shapes.index import Graph


def bias_add(graph: Graph, node: NodeProto) -> Replacement:
    """BiasAdd: x + bias + skip."""
    x, bias, skip = node.input[:3]
    e = Emit(graph, prefix_of(graph, node), x)
    e.op("Add", e.op("Add", x, bias), skip, out=node.output[0])
    return Replacement(e.nodes, e.initializers, required=True)


def bias_split_gelu(graph: Graph, node: NodeProto) -> Replacement:
    """BiasSplitGelu: of x + bias [N,S,2C], the left half times the GELU of the right half."""
    x, bias = node.input[:2]
    e = Emit(graph, prefix_of(graph, node), x)
    total = e.op("Add", e.real(x), e.real(bias))
    half = e.op("Div", e.dim(x, 2), e.ints(2))
    left, right = e.slice(total, 0, half, 2), e.slice(total, half, 2**62, 2)
    erf = e.op("Erf", e.op("Mul", right, e.number(math.sqrt(0.5))))
    gelu = e.op("Mul", e.op("Mul", right, e.number(0.5)), e.op("Add", erf, e.number(1.0)))
    e.back(e.op("Mul", left, gelu), x, out=node.output[0])
    return Replacement(e.nodes, e.initializers, required=True)


def gemm_fast_gelu(graph: Graph, node: NodeProto) -> Replacement:
    """GemmFastGelu: the tanh form of GELU of x W + bias. Source: Hendrycks and Gimpel 2016, section 2."""
    x, weight = node.input[:2]
    e = Emit(graph, prefix_of(graph, node), x)
    y = e.op("MatMul", e.real(x), e.real(weight))
    if input_of(node, 2):
        y = e.op("Add", y, e.real(input_of(node, 2)))
    cube = e.op("Mul", e.op("Mul", y, e.op("Mul", y, y)), e.number(0.044715))
    inner = e.op("Tanh", e.op("Mul", e.op("Add", y, cube), e.number(math.sqrt(2 / math.pi))))
    e.back(e.op("Mul", e.op("Mul", y, e.number(0.5)), e.op("Add", inner, e.number(1.0))), x, out=node.output[0])
    return Replacement(e.nodes, e.initializers, required=True)


def group_norm(graph: Graph, node: NodeProto) -> Replacement | Miss:
    """GroupNorm and SkipGroupNorm: groups of channels normed, channels last or first, optionally followed by SiLU.

    Source: Wu and He 2018 (Group Normalization), eq. 1 and 7.
    """
    a = attributes(node)
    x, gamma, beta = node.input[:3]
    e = Emit(graph, prefix_of(graph, node), x)
    last = bool(a.get("channels_last", 1))
    total = e.real(x)
    if skip := input_of(node, 3):
        rank = e.rank(skip)
        if rank not in (2, 4):
            return Miss(node.name, f"com.microsoft.{node.op_type}", "the form of its skip is not known: it has no rank")
        added = e.real(skip)
        if rank == 2:
            added = e.unsqueeze(added, 1, 2) if last else e.unsqueeze(added, 2, 3)
        total = e.op("Add", total, added)
        if input_of(node, 4):
            bias = e.real(input_of(node, 4))
            total = e.op("Add", total, bias if last else e.unsqueeze(bias, 1, 2))
    if output_of(node, 1):
        e.back(total, x, out=node.output[1])
    first = e.transpose(total, 0, 3, 1, 2) if last else total
    rows = e.reshape(first, 0, a["groups"], -1)
    centred = e.op("Sub", rows, e.reduce("ReduceMean", rows, 2))
    variance = e.reduce("ReduceMean", e.op("Mul", centred, centred), 2)
    spread = e.op("Sqrt", e.op("Add", variance, e.number(a.get("epsilon", 1e-5))))
    normed = e.op("Reshape", e.op("Div", centred, spread), e.op("Shape", first))
    scaled = e.op("Mul", normed, e.unsqueeze(e.real(gamma), 1, 2))
    y = e.op("Add", scaled, e.unsqueeze(e.real(beta), 1, 2))
    if a.get("activation"):
        y = e.op("Mul", y, e.op("Sigmoid", y))
    e.back(e.transpose(y, 0, 2, 3, 1) if last else y, x, out=node.output[0])
    return Replacement(e.nodes, e.initializers, required=True)


def nhwc_conv(graph: Graph, node: NodeProto) -> Replacement:
    """NhwcConv: a convolution with channels last, both in its input [N,H,W,C] and in its weight [M,kH,kW,C]."""
    e = Emit(graph, prefix_of(graph, node), node.input[0])
    x, weight = (e.transpose(node.input[i], 0, 3, 1, 2) for i in (0, 1))
    bias = [node.input[2]] if input_of(node, 2) else []
    y = e.op("Conv", x, weight, *bias, **attributes(node))
    e.transpose(y, 0, 2, 3, 1, out=node.output[0])
    return Replacement(e.nodes, e.initializers, required=True)
