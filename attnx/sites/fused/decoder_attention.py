"""com.microsoft DecoderAttention: fairseq's decoder layer, time first, with switches that select its kind.

Source: onnxruntime contrib operators and their CUDA kernel; there is no CPU kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnx.graph.load.nodes import attributes, op_name
from attnx.records import Miss
from attnx.sites.emit import Emit, prefix_of
from attnx.sites.finding import Finding
from attnx.sites.stages import attend, default_scale, found, input_of, output_of

if TYPE_CHECKING:
    from onnx import NodeProto

    from attnx.graph.shapes.index import Graph

SWITCHES = ("static_kv", "use_past", "has_layer_state", "has_key_padding_mask")


def recognise(graph: Graph, node: NodeProto) -> Finding | Miss | None:
    """The attention site of a DecoderAttention node, where its switches are constants of the graph."""
    heads = attributes(node)["num_heads"]
    query_in, key_in, query_weight, kv_weight, bias = node.input[:5]
    mask, key_cache, value_cache = (input_of(node, i) for i in (5, 6, 7))
    known = {name: graph.known(input_of(node, 8 + i)) for i, name in enumerate(SWITCHES)}
    unknown = [name for name, value in known.items() if value is None]
    if unknown:
        return Miss(node.name, op_name(node), f"what it does is known only when it runs: {', '.join(unknown)}")
    static, use_past, layer_state, masked = (bool(known[name].all()) for name in SWITCHES)  # type: ignore[union-attr]

    e = Emit(graph, prefix_of(graph, node), query_in)
    x, shift = e.real(query_in), e.real(bias)
    width = e.dim(query_weight, 1)
    query_bias, kv_bias = e.slice(shift, 0, width, 0), e.slice(shift, width, 2**62, 0)
    query = _split(e, e.op("Add", e.op("MatMul", x, e.real(query_weight)), query_bias), heads)
    cached = layer_state and use_past
    if cached and static:
        key, value = e.real(key_cache), e.real(value_cache)
    else:
        source = e.real(key_in) if static else x
        both = e.op("Add", e.op("MatMul", source, e.real(kv_weight)), kv_bias)
        parts = [e.slice(both, 0, width, 2), e.slice(both, width, 2**62, 2)]
        key, value = (_split(e, part, heads) for part in parts)
        if cached:
            key, value = e.concat([e.real(key_cache), key], 2), e.concat([e.real(value_cache), value], 2)
    for index, kept in ((1, key), (2, value)):
        if output_of(node, index):
            e.back(kept, query_in, out=node.output[index])
    visible = e.op("Not", e.unsqueeze(mask, 1, 2)) if masked and mask else ""
    columns = e.size(query_weight, 1)
    size = columns // heads if columns else None
    scale, number = default_scale(e, None, size, query)
    context = attend(e, query, key, value, heads=heads, kv_heads=heads, scale=scale, visible=visible)
    merged = e.reshape(e.transpose(context, 2, 0, 1, 3), 0, 0, -1)
    e.back(merged, query_in, out=node.output[0])
    cross = key_cache if cached else key_in
    return found(
        e, node, required=True, heads=heads, kv_heads=heads, head_size=size, scale=number,
        scale_place="inside DecoderAttention", kind="cross" if static else "self", causal=False, query_from=query_in,
        key_from=cross if static else query_in, value_from=cross if static else query_in,
    )  # fmt: skip


def _split(e: Emit, x: str, heads: int) -> str:
    """[S,B,H*D] -> [B,H,S,D]."""
    return e.transpose(e.reshape(x, 0, 0, heads, -1), 1, 2, 0, 3)
