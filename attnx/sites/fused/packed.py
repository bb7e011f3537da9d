"""A batch without its padding: com.microsoft PackedAttention, PackedMultiHeadAttention, and how padding is restored.

The tokens are laid out as a padded batch (`restore`), attended, and picked out (`remove`). Rows and columns of padding
exist in the stages, with weights of 0. CUDA only. Source: onnxruntime contrib operators and their CUDA kernels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attnx.graph.load.nodes import attributes, op_name
from attnx.records import Miss
from attnx.sites.emit import INT64, Emit, prefix_of
from attnx.sites.finding import Finding
from attnx.sites.stages import attend, bias_name, default_scale, found, input_of, split_heads

if TYPE_CHECKING:
    from onnx import NodeProto

    from attnx.graph.shapes.index import Graph

NOTE = "the batch is packed: padding rows and columns are not tokens, and have weights of 0"


def recognise(graph: Graph, node: NodeProto) -> Finding | Miss | None:
    """The attention site of a PackedAttention node, with its projection inside as in com.microsoft Attention."""
    a = attributes(node)
    e = Emit(graph, prefix_of(graph, node), node.input[0])
    projected = e.op("MatMul", e.real(node.input[0]), e.real(node.input[1]))
    if input_of(node, 2):
        projected = e.op("Add", projected, e.real(input_of(node, 2)))
    sizes = a.get("qkv_hidden_sizes")
    parts = e.split(projected, sizes, 1) if sizes else e.thirds(projected, 1)
    columns = e.size(node.input[1], 1)
    width = sizes[0] if sizes else columns // 3 if columns else None
    names = (node.input[0], node.input[0], node.input[0])
    return _site(e, node, parts, width, (node.input[3], node.input[4], input_of(node, 5)), names)


def recognise_multi_head(graph: Graph, node: NodeProto) -> Finding | Miss | None:
    """The attention site of a PackedMultiHeadAttention node: query, key and value separate or packed [tokens,H,3,D]."""
    heads = attributes(node)["num_heads"]
    e = Emit(graph, prefix_of(graph, node), node.input[0])
    key_in = input_of(node, 1)
    if not key_in and e.rank(node.input[0]) not in (None, 4):
        return Miss(node.name, op_name(node), "it has neither a key nor a packed query")
    if key_in:
        parts = [e.real(input_of(node, i)) for i in range(3)]
        width = e.size(node.input[0], 1)
    else:
        stacked = e.transpose(e.real(node.input[0]), 2, 0, 1, 3)
        parts = [e.op("Gather", stacked, e.const(np.array(i, np.int64)), axis=0) for i in range(3)]
        parts = [e.reshape(x, 0, -1) for x in parts]
        size = e.size(node.input[0], 3)
        width = size * heads if size else None
    if input_of(node, 3):
        bias = e.real(input_of(node, 3))
        wide = e.dim(parts[0], 1)
        twice = e.op("Add", wide, wide)
        ends = [e.ints(0), wide, twice, e.ints(2**62)]
        parts = [e.op("Add", x, e.slice(bias, ends[i], ends[i + 1], 0)) for i, x in enumerate(parts)]
    names = (node.input[0], key_in or node.input[0], input_of(node, 2) or node.input[0])
    return _site(e, node, parts, width, (node.input[4], node.input[5], input_of(node, 6)), names)


def _site(
    e: Emit,
    node: NodeProto,
    parts: list[str],
    width: int | None,
    packing: tuple[str, str, str],
    names: tuple[str, str, str],
) -> Finding:
    """The attention site of projected tokens [tokens,H*D]; `packing` names offsets, cumulative lengths and bias."""
    a = attributes(node)
    heads = a["num_heads"]
    offset, cumulative, bias = packing
    query, key, value = (split_heads(e, restore(e, x, offset), heads) for x in parts)
    own = e.unsqueeze(lengths(e, cumulative), 1, 2, 3)
    places = e.arange(e.dim(key, 2))
    visible = e.all_of(e.op("Less", places, own), e.op("Less", e.unsqueeze(places, 1), own))
    size = width // heads if width else None
    scale, number = default_scale(e, a.get("scale") or None, size, query)
    context = attend(
        e, query, key, value, heads=heads, kv_heads=heads, scale=scale, add=[e.real(bias)] if bias else [],
        visible=visible, guard=True,
    )  # fmt: skip
    padded = e.reshape(e.transpose(context, 0, 2, 1, 3), 0, 0, -1)
    e.back(remove(e, padded, real_places(e, parts[0], offset)), node.input[0], out=node.output[0])
    return found(
        e, node, required=True, heads=heads, kv_heads=heads, head_size=size, scale=number,
        scale_place=f"inside {node.op_type}", causal=None if bias else False, bias=bias_name(e, bias),
        query_from=names[0], key_from=names[1], value_from=names[2],
        linear=node.op_type == "PackedMultiHeadAttention" and not input_of(node, 3), notes=[NOTE],
    )  # fmt: skip


def restore(e: Emit, tokens: str, offset: str) -> str:
    """[tokens,D] -> [B,S,D] with zeros for padding.

    Args:
        e: Where the nodes go.
        tokens: The real tokens of all sequences, one after another.
        offset: int32 [B,S]: the places (b * S + s) of the real tokens, then those of the padding.
    """
    shape = e.op("Shape", offset)
    width = e.dim(tokens, 1)
    places = real_places(e, tokens, offset)
    cells = e.op("Mul", e.dim(offset, 0), e.dim(offset, 1))
    zeros = e.expand(e.number(0.0), cells, width)
    filled = e.op("ScatterND", zeros, e.unsqueeze(places, 1), tokens)
    return e.op("Reshape", filled, e.concat([shape, width], 0))


def real_places(e: Emit, tokens: str, offset: str) -> str:
    """The places of the real tokens, int64 [tokens]."""
    flat = e.reshape(e.cast(offset, INT64), -1)
    return e.slice(flat, 0, e.dim(tokens, 0), 0)


def remove(e: Emit, padded: str, places: str, out: str = "") -> str:
    """[B,S,D] -> [tokens,D]: the rows at `places` (int64 [tokens], b * S + s)."""
    rows = e.op("Reshape", padded, e.join(-1, e.dim(padded, 2)))
    return e.op("Gather", rows, places, axis=0, out=out)


def lengths(e: Emit, cumulative: str) -> str:
    """Each sequence's number of tokens, int64 [B], from int32 [B+1] cumulative lengths."""
    wide = e.cast(cumulative, INT64)
    return e.op("Sub", e.slice(wide, 1, 2**62, 0), e.slice(wide, 0, -1, 0))


def places_of(e: Emit, visible: str) -> str:
    """The places of the True cells of a boolean [B,S], int64 [tokens]."""
    return e.squeeze(e.op("NonZero", e.reshape(visible, -1)), 0)
