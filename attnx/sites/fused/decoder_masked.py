"""com.microsoft DecoderMaskedMultiHeadAttention and DecoderMaskedSelfAttention: one new token, for beam search.

Caches are read as [B,H,M,D], as on the CPU. onnxruntime's CUDA kernels keep shared key buffers in a different order.
Source: onnxruntime contrib operators; beams as its CPU kernel follows `cache_indirection`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attnx.graph.load.nodes import attributes, op_name
from attnx.records import Miss
from attnx.sites.emit import INT64, Emit, prefix_of
from attnx.sites.finding import Finding
from attnx.sites.fused.caches import append, beams
from attnx.sites.fused.masks import FILTER, padding
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

REORDERED = "caches are read as [B,H,M,D]; a CUDA run keeps shared key buffers in another order"


def recognise(graph: Graph, node: NodeProto) -> Finding | Miss | None:
    """The attention site of a DecoderMaskedMultiHeadAttention node: self with a past, or cross with keys split."""
    a = attributes(node)
    heads = a["num_heads"]
    e = Emit(graph, prefix_of(graph, node), node.input[0])
    key_in, value_in = input_of(node, 1), input_of(node, 2)
    if key_in and e.rank(key_in) is None:
        return Miss(node.name, op_name(node), "whether its keys are split is not known: they have no rank")
    cross = bool(key_in) and e.rank(key_in) == 4
    bias = e.real(input_of(node, 10)) if input_of(node, 10) else ""
    query = e.real(node.input[0])
    if key_in:
        three = [query, e.real(key_in), e.real(value_in)]
    else:
        three = e.thirds(query, 2)
    if bias:
        width = e.dim(three[0], 2)
        twice = e.op("Add", width, width)
        ends = [e.ints(0), width, twice, e.ints(2**62)]
        cut = [e.slice(bias, ends[i], ends[i + 1], 0) for i in range(3)]
        three = [x if cross and i else e.op("Add", x, cut[i]) for i, x in enumerate(three)]
    query, key, value = (x if cross and i else split_heads(e, x, heads) for i, x in enumerate(three))

    past = [e.real(input_of(node, i)) if input_of(node, i) else "" for i in (5, 6)]
    length = _length(e, input_of(node, 7)) if past[0] and input_of(node, 7) else ""
    whole: list[str] = []
    for index, (old, new) in enumerate(zip(past, (key, value), strict=True)):
        seen, kept = append(e, old, new, length)
        if output_of(node, 1 + index):
            e.back(kept, node.input[0], out=node.output[1 + index])
        if input_of(node, 9) and not cross:
            seen = beams(e, seen, input_of(node, 9))
        whole.append(seen)
    names = {"mask": input_of(node, 3), "bias": input_of(node, 4), "scores": output_of(node, 3)}
    # The CPU kernel takes a past only in a shared buffer and no packed query; with beams it reads the wrong row's bias.
    mixed = bool(input_of(node, 9) and names["bias"])
    required = bool(past[0] and not a.get("past_present_share_buffer")) or mixed or not key_in
    return _site(e, node, (query, whole[0], whole[1]), names, required)


def recognise_self(graph: Graph, node: NodeProto) -> Finding | Miss | None:
    """The attention site of a DecoderMaskedSelfAttention node, with its projection and one tensor for both pasts."""
    a = attributes(node)
    heads = a["num_heads"]
    e = Emit(graph, prefix_of(graph, node), node.input[0])
    projected = e.op("Add", e.op("MatMul", e.real(node.input[0]), e.real(node.input[1])), e.real(node.input[2]))
    query, key, value = (split_heads(e, x, heads) for x in e.thirds(projected, 2))
    past = input_of(node, 4)
    length = _length(e, input_of(node, 6)) if input_of(node, 6) and a.get("past_present_share_buffer") else ""
    if a.get("do_rotary"):
        columns = e.size(node.input[1], 1)
        if not columns:
            return Miss(node.name, op_name(node), "how many channels it turns (do_rotary) is not known")
        before = length or (e.dim(past, 3) if past else e.ints(0))
        query, key = (rotary_without_cache(e, x, before, columns // (3 * heads)) for x in (query, key))
    whole: list[str] = []
    kept: list[str] = []
    for index, new in enumerate((key, value)):
        old = e.op("Gather", e.real(past), e.const(np.array(index, np.int64)), axis=0) if past else ""
        seen, present = append(e, old, new, length)
        whole.append(beams(e, seen, input_of(node, 8)) if input_of(node, 8) else seen)
        kept.append(present)
    if output_of(node, 1):
        e.back(e.concat([e.unsqueeze(x, 0) for x in kept], 0), node.input[0], out=node.output[1])
    names = {"mask": input_of(node, 3), "bias": input_of(node, 5), "scores": ""}
    return _site(e, node, (query, whole[0], whole[1]), names, True)


def _length(e: Emit, value: str) -> str:
    return e.reshape(e.cast(value, INT64), 1)


def _site(
    e: Emit, node: NodeProto, parts: tuple[str, str, str], names: dict[str, str], required: bool
) -> Finding | Miss:
    """The attention site of one query [B,H,1,D] over keys and values [B,H,K,D]."""
    a = attributes(node)
    heads = a["num_heads"]
    query, key, value = parts
    add: list[str] = []
    if names["mask"]:
        if e.rank(names["mask"]) is None:
            return Miss(node.name, op_name(node), "the form of its mask is not known: it has no rank")
        rows, total, batch = e.dim(query, 2), e.dim(key, 2), e.dim(query, 0)
        add.append(padding(e, names["mask"], batch, rows, total, a.get("mask_filter_value", FILTER)))
    if names["bias"]:
        add.append(e.real(names["bias"]))
    itself = node.op_type == "DecoderMaskedSelfAttention"
    key_in = node.input[0] if itself else input_of(node, 1) or node.input[0]
    value_in = node.input[0] if itself else input_of(node, 2) or node.input[0]
    width = e.size(node.input[1], 1) if itself else e.size(node.input[0], 2)
    size = width // heads // (3 if itself or key_in == node.input[0] else 1) if width else None
    scale, number = default_scale(e, a.get("scale") or None, size, query)
    context = attend(e, query, key, value, heads=heads, kv_heads=heads, scale=scale, add=add)
    merge_heads(e, context, node.input[0], node.output[0])
    if names["scores"]:
        like = names["scores"] if e.dtype(names["scores"]) else node.input[0]
        e.back(e.name("masked"), like, out=names["scores"])
    return found(
        e, node, required=required, heads=heads, kv_heads=heads, head_size=size, scale=number,
        scale_place=f"inside {node.op_type}", causal=None if names["bias"] else False,
        bias=bias_name(e, names["bias"]), query_from=node.input[0], key_from=key_in, value_from=value_in,
        linear=not itself and not input_of(node, 10),
        notes=[REORDERED] if a.get("past_present_share_buffer") else [],
    )  # fmt: skip
