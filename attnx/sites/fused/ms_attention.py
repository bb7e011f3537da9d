"""com.microsoft Attention and QAttention: BERT, GPT-2 and ViT as onnxruntime's optimizer fuses them.

The projection is inside: one weight whose columns are [Q of all heads | K | V]. Without its bias, which the schema
calls optional, onnxruntime 1.31's CPU kernel crashes the process, so such a node is always replaced.
Source: onnxruntime contrib operators, Attention and QAttention; the masks as measured on its CPU kernels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attnx.graph.load.nodes import attributes, op_name
from attnx.records import Miss
from attnx.sites.emit import INT8, INT64, Emit, prefix_of
from attnx.sites.finding import Finding
from attnx.sites.fused.caches import append
from attnx.sites.fused.masks import FILTER, hide_future, padding
from attnx.sites.stages import (
    attend,
    bias_name,
    default_scale,
    found,
    input_of,
    merge_heads,
    output_of,
    rotary_without_cache,
    split_heads,
)

if TYPE_CHECKING:
    from onnx import NodeProto

    from attnx.graph.shapes.index import Graph


def recognise(graph: Graph, node: NodeProto) -> Finding | Miss | None:
    """The attention site of a com.microsoft Attention node."""
    e = Emit(graph, prefix_of(graph, node), node.input[0])
    projected = e.op("MatMul", e.real(node.input[0]), e.real(node.input[1]))
    names = {"mask": 3, "past": 4, "bias": 5, "length": 6}
    return _site(e, node, projected, {name: input_of(node, i) for name, i in names.items()}, not input_of(node, 2))


def recognise_quantised(graph: Graph, node: NodeProto) -> Finding | Miss | None:
    """The attention site of a com.microsoft QAttention node: an integer product, scaled back, then as Attention."""
    e = Emit(graph, prefix_of(graph, node), input_of(node, 3))
    x, weight, scale, weight_scale = (node.input[i] for i in (0, 1, 3, 4))
    zeros = [input_of(node, i) for i in (6, 7)]
    product = e.op("MatMulInteger", x, weight, *(zeros if zeros[1] else zeros[:1] if zeros[0] else []))
    projected = e.op("Mul", e.cast(product, e.work), e.op("Mul", e.real(scale), e.real(weight_scale)))
    given = {"mask": input_of(node, 5), "past": input_of(node, 8), "bias": "", "length": ""}
    return _site(e, node, projected, given, e.dtype(x) == INT8)


def _site(e: Emit, node: NodeProto, projected: str, given: dict[str, str], required: bool) -> Finding | Miss:
    """The site from the projection [B,S,Dq+Dk+Dv] onward; `given` names mask, past, attention bias and past length."""
    a = attributes(node)
    op = op_name(node)
    heads = a["num_heads"]
    mask, past = given["mask"], given["past"]
    if mask and e.rank(mask) is None:
        return Miss(node.name, op, "the form of its mask is not known: it has no rank")
    bias = input_of(node, 2)
    if bias:
        projected = e.op("Add", projected, e.real(bias))
    sizes = a.get("qkv_hidden_sizes")
    parts = e.split(projected, sizes, 2) if sizes else e.thirds(projected, 2)
    query, key, value = (split_heads(e, part, heads) for part in parts)

    columns = e.size(node.input[1], 1)
    size = sizes[0] // heads if sizes else columns // (3 * heads) if columns else None
    shared = bool(given["length"] and a.get("past_present_share_buffer"))
    length = e.reshape(e.cast(given["length"], INT64), 1) if shared else ""
    caches = [e.op("Gather", e.real(past), e.const(np.array(i, np.int64)), axis=0) if past else "" for i in (0, 1)]
    if a.get("do_rotary"):
        channels = a.get("rotary_embedding_dim") or size
        if not channels:
            return Miss(node.name, op, "how many channels it turns (do_rotary) is not known")
        before = length or (e.dim(caches[0], 2) if past else e.ints(0))
        turn = e.op("Add", e.arange(e.dim(query, 2)), before)
        query, key = (rotary_without_cache(e, x, turn, channels) for x in (query, key))
    (key, kept_key), (value, kept_value) = (append(e, c, n, length) for c, n in zip(caches, (key, value), strict=True))
    if output_of(node, 1):
        both = e.concat([e.unsqueeze(kept_key, 0), e.unsqueeze(kept_value, 0)], 0)
        e.back(both, past or _float(node), out=node.output[1])

    rows, total = e.dim(query, 2), e.dim(key, 2)
    term = ""
    if mask:
        fill = a.get("mask_filter_value", FILTER)
        term = padding(e, mask, e.dim(query, 0), rows, total, fill, starts=True)
    causal = bool(a.get("unidirectional"))
    if causal:
        term = hide_future(e, term, rows, total, e.op("Sub", total, rows))
    add = [t for t in (term, e.real(given["bias"]) if given["bias"] else "") if t]
    scale, number = default_scale(e, a.get("scale") or None, size, query)
    context = attend(e, query, key, value, heads=heads, kv_heads=heads, scale=scale, add=add)
    merge_heads(e, context, _float(node), node.output[0])
    square = mask and e.rank(mask) in (3, 4)
    unknown = shared or bool(a.get("do_rotary")) or bool(mask and e.rank(mask) == 4)  # not supported by the CPU kernel
    return found(
        e, node, required=required or unknown, heads=heads, kv_heads=heads,
        head_size=size, scale=number, scale_place=f"inside {node.op_type}", kind="self",
        causal=True if causal else None if square or given["bias"] else False,
        bias=bias_name(e, given["bias"]),
        query_from=node.input[0], key_from=node.input[0], value_from=node.input[0],
    )  # fmt: skip


def _float(node: NodeProto) -> str:
    """The input whose type the outputs share."""
    return str(node.input[3 if node.op_type == "QAttention" else 0])
