"""com.microsoft MultiHeadAttention: projected query, key and value, self or cross, packed or not.

With past keys but no names for the present outputs, onnxruntime's CPU kernel silently gives wrong results, and it
refuses packed inputs and a bias that broadcasts over queries: such nodes are always replaced.
Source: onnxruntime contrib operators, MultiHeadAttention; masks as measured on its CPU kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attnx.graph.load.nodes import attributes, op_name
from attnx.records import Miss
from attnx.sites.emit import INT64, Emit, prefix_of
from attnx.sites.finding import Finding
from attnx.sites.fused.caches import append, beams
from attnx.sites.fused.masks import FILTER, hide_future, padding
from attnx.sites.stages import attend, bias_name, default_scale, found, input_of, merge_heads, output_of, split_heads

if TYPE_CHECKING:
    from onnx import NodeProto

    from attnx.graph.shapes.index import Graph


def recognise(graph: Graph, node: NodeProto) -> Finding | Miss | None:
    """The attention site of a MultiHeadAttention node."""
    a = attributes(node)
    op, heads = op_name(node), a["num_heads"]
    e = Emit(graph, prefix_of(graph, node), node.input[0])
    key_in, mask, bias_in = (input_of(node, i) for i in (1, 4, 5))
    packed = e.rank(node.input[0]) == 5
    if (e.rank(node.input[0]) if packed or not key_in else e.rank(key_in)) is None:
        return Miss(node.name, op, "how its inputs are packed is not known: they have no rank")
    if mask and e.rank(mask) is None:
        return Miss(node.name, op, "the form of its mask is not known: it has no rank")
    if not key_in and not packed:
        return Miss(node.name, op, "it has neither a key nor a packed query")

    query, key, value = _heads(e, node, heads)
    past_key, past_value = (e.real(p) if p else "" for p in (input_of(node, 6), input_of(node, 7)))
    length = e.reshape(e.cast(input_of(node, 8), INT64), 1) if input_of(node, 8) and past_key else ""
    key, kept_key = append(e, past_key, key, length)
    value, kept_value = append(e, past_value, value, length)
    for index, kept in ((1, kept_key), (2, kept_value)):
        if output_of(node, index):
            e.back(kept, node.input[0], out=node.output[index])
    if indirection := input_of(node, 9):
        key, value = (beams(e, x, indirection) for x in (key, value))

    rows, total, batch = e.dim(query, 2), e.dim(key, 2), e.dim(query, 0)
    fill = a.get("mask_filter_value", FILTER)
    term = padding(e, mask, batch, rows, total, fill) if mask else ""
    causal = bool(a.get("unidirectional"))
    if causal:
        before = length or (e.dim(past_key, 2) if past_key else e.ints(0))
        term = hide_future(e, term, rows, total, before, spare_last=not past_key)
    add = [t for t in (term, e.real(bias_in) if bias_in else "") if t]
    width = e.size(node.input[0], -1)
    size = (width if packed else width // heads) if width else None
    scale, number = default_scale(e, a.get("scale") or None, size, query)
    context = attend(e, query, key, value, heads=heads, kv_heads=heads, scale=scale, add=add)
    merge_heads(e, context, node.input[0], node.output[0])
    if output_of(node, 3):
        e.back(e.name("masked"), node.output[3] if e.dtype(node.output[3]) else node.input[0], out=node.output[3])
    value_in = input_of(node, 2) or key_in or node.input[0]
    same = past_key or packed or graph.shape(node.input[0]) == graph.shape(key_in)
    square = mask and e.rank(mask) == 3
    return found(
        e, node, required=_refused(e, node), heads=heads, kv_heads=heads, head_size=size, scale=number,
        scale_place="inside MultiHeadAttention",
        causal=(True if same else None) if causal else None if square or bias_in else False,
        bias=bias_name(e, bias_in),
        query_from=node.input[0], key_from=key_in or node.input[0], value_from=value_in,
        linear=not input_of(node, 3),
    )  # fmt: skip


def _heads(e: Emit, node: NodeProto, heads: int) -> tuple[str, str, str]:
    """Query [B,H,Q,D], key and value [B,H,K,D] from inputs in any form, with the projections' bias added."""
    query, key, value = (input_of(node, i) for i in (0, 1, 2))
    bias = e.real(input_of(node, 3)) if input_of(node, 3) else ""
    if e.rank(query) == 5:
        stacked = e.transpose(e.real(query), 3, 0, 2, 1, 4)
        parts = [e.op("Gather", stacked, e.const(np.array(i, np.int64)), axis=0) for i in range(3)]
        shifts = [e.reshape(b, 1, heads, 1, -1) for b in e.thirds(bias, 0)] if bias else []
    elif e.rank(key) == 5:
        stacked = e.transpose(e.real(key), 3, 0, 2, 1, 4)
        kv = [e.op("Gather", stacked, e.const(np.array(i, np.int64)), axis=0) for i in range(2)]
        parts = [split_heads(e, e.real(query), heads), *kv]
        shifts = [e.reshape(b, 1, heads, 1, -1) for b in e.thirds(bias, 0)] if bias else []
    else:
        cached = e.rank(key) == 4
        parts = [e.real(x) if cached and x != query else split_heads(e, e.real(x), heads) for x in (query, key, value)]
        width = e.dim(query, 2)
        twice = e.op("Add", width, width)
        ends = [e.ints(0), width, twice, e.ints(2**62)]
        shifts = []
        if bias:
            cut = [e.slice(bias, ends[i], ends[i + 1], 0) for i in range(1 if cached else 3)]
            shifts = [e.reshape(b, 1, heads, 1, -1) for b in cut]
    return tuple(  # type: ignore[return-value]
        e.op("Add", part, shifts[i]) if i < len(shifts) else part for i, part in enumerate(parts)
    )


def _refused(e: Emit, node: NodeProto) -> bool:
    """Whether onnxruntime's CPU kernel cannot run the node as written, or gives wrong results."""
    if e.rank(node.input[0]) == 5 or (input_of(node, 1) and e.rank(node.input[1]) == 5):
        return True
    if input_of(node, 6) and not (output_of(node, 1) and output_of(node, 2)):
        return True
    if input_of(node, 8) or input_of(node, 9):
        return True
    bias = e.graph.shape(input_of(node, 5)) if input_of(node, 5) else None
    queries = e.graph.shape(node.input[0])
    return bias is not None and queries is not None and bias[-2] is not None and bias[-2] != queries[1]
