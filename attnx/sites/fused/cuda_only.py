"""onnxruntime operators around attention that have no CPU kernel, as primitive nodes.

BiasSoftmax (a mask and a softmax in one), GemmaRotaryEmbedding, and the two that remove padding and restore it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnx.graph.load.nodes import attributes
from attnx.records import Miss
from attnx.sites.emit import INT32, INT64, Emit, prefix_of
from attnx.sites.finding import Replacement
from attnx.sites.fused.packed import places_of, remove, restore
from attnx.sites.stages import output_of

if TYPE_CHECKING:
    from onnx import NodeProto

    from attnx.graph.shapes.index import Graph


def bias_softmax(graph: Graph, node: NodeProto) -> Replacement | Miss:
    """BiasSoftmax: softmax(data + bias) over the axes from `axis` on."""
    data, bias = node.input[:2]
    e = Emit(graph, prefix_of(graph, node), data)
    axis, rank = attributes(node).get("axis", 1), e.rank(data)
    if rank is None and axis != -1:
        return Miss(node.name, "com.microsoft.BiasSoftmax", "the rank of its input is not known")
    total = e.op("Add", data, bias)
    if rank is None or axis in (-1, rank - 1):
        e.softmax(total, out=node.output[0])
    else:
        flat = e.op("Flatten", total, axis=axis)
        e.op("Reshape", e.softmax(flat), e.op("Shape", data), out=node.output[0])
    return Replacement(e.nodes, e.initializers, required=True)


def gemma_rotary(graph: Graph, node: NodeProto) -> Replacement:
    """GemmaRotaryEmbedding: q * cos(emb) + q_rot * sin(emb), and the same for k; emb is [B,S,D], q and k [B,H,S,D]."""
    emb, query, query_turned, key, key_turned = node.input[:5]
    e = Emit(graph, prefix_of(graph, node), query)
    angle = e.unsqueeze(e.real(emb), 1)
    # The kernel rounds sine and cosine to the type of query and key before multiplying.
    cos, sin = (e.real(e.back(e.op(f, angle), query)) for f in ("Cos", "Sin"))
    for index, (x, turned) in enumerate(((query, query_turned), (key, key_turned))):
        if output_of(node, index):
            total = e.op("Add", e.op("Mul", e.real(x), cos), e.op("Mul", e.real(turned), sin))
            e.back(total, query, out=node.output[index])
    return Replacement(e.nodes, e.initializers, required=True)


def restore_padding(graph: Graph, node: NodeProto) -> Replacement:
    """RestorePadding: [tokens,D] -> [B,S,D] with zeros for padding."""
    tokens, offset = node.input[:2]
    e = Emit(graph, prefix_of(graph, node), tokens)
    e.back(restore(e, e.real(tokens), offset), tokens, out=node.output[0])
    return Replacement(e.nodes, e.initializers, required=True)


def remove_padding(graph: Graph, node: NodeProto) -> Replacement:
    """RemovePadding: [B,S,D] and each sequence's length -> [tokens,D], their places, cumulative and maximum lengths."""
    padded, counts = node.input[:2]
    e = Emit(graph, prefix_of(graph, node), padded)
    wide = e.cast(counts, INT64)
    length = e.dim(padded, 1)
    visible = e.op("Less", e.arange(length), e.unsqueeze(wide, 1))
    real, padding = places_of(e, visible), places_of(e, e.op("Not", visible))
    remove(e, padded, real, out=node.output[0])
    if out := output_of(node, 1):
        places = e.reshape(e.concat([real, padding], 0), e.dim(padded, 0), length)
        e.cast(places, INT32, out=out)
    if out := output_of(node, 2):
        sums = e.op("CumSum", wide, e.ints(0))
        e.cast(e.concat([e.ints(0), sums], 0), INT32, out=out)
    if out := output_of(node, 3):
        e.cast(e.reduce("ReduceMax", wide, 0), INT32, out=out)
    return Replacement(e.nodes, e.initializers, required=True)
