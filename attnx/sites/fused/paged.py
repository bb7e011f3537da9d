"""com.microsoft PagedAttention: sequences without padding over a cache in blocks, as used by inference servers.

The tokens are laid out as a padded batch, and each sequence's keys are gathered from its blocks. Rows of padding exist
in the stages, with weights of 0. With a latent cache (absorbed MLA) the values are the first channels of the keys.
CUDA only. Source: Kwon et al. 2023 (PagedAttention); onnxruntime contrib operators and their CUDA kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnx.graph.load.nodes import attributes, op_name
from attnx.records import Miss
from attnx.sites.emit import INT64, Emit, prefix_of
from attnx.sites.finding import Finding
from attnx.sites.fused.packed import lengths, remove
from attnx.sites.fused.quantised_cache import Store, loaded, scale_of, shut, store_of, stored
from attnx.sites.stages import attend, default_scale, found, input_of, output_of, rms_norm, rotary, split_heads

if TYPE_CHECKING:
    from onnx import NodeProto

    from attnx.graph.shapes.index import Graph

NOTE = "the batch is packed: padding rows are not tokens, and have weights of 0"


@dataclass(frozen=True, slots=True)
class _Tokens:
    """Names of the tensors that say where each token is, all int64."""

    row: str
    """Its sequence, [tokens]."""
    step: str
    """Its place among the new tokens of its sequence, [tokens]."""
    position: str
    """Its place in its sequence, past included, [tokens]."""
    new: str
    """How many new tokens each sequence has, [B]."""
    past: str
    """How many tokens each sequence has in the cache, [B]."""


def recognise(graph: Graph, node: NodeProto) -> Finding | Miss | None:
    """The attention site of a PagedAttention node."""
    a = attributes(node)
    heads, kv_heads = a["num_heads"], a["kv_num_heads"]
    latent = a.get("kv_cache_layout") == "LATENT"
    e = Emit(graph, prefix_of(graph, node), node.input[0])
    store = store_of(e, node.input[3])
    if store is None or store == "int4" or (store == "float8" and e.opset < 19) or (latent and store != "float"):
        kind = a.get("k_cache_dtype") or store or "of a type that is not known"
        return Miss(node.name, op_name(node), f"its cache is {kind}, whose numbers are not read here")
    tokens = _tokens(e, node)
    query, key, value = _heads(e, node, a, tokens)
    keys, seen = _blocks(e, node, 0, key, store, tokens, kv_heads)
    if latent:
        values = e.slice(keys, 0, a.get("v_head_size") or 2**62, 3)
    else:
        values, _ = _blocks(e, node, 1, value, store, tokens, kv_heads)
    query = _padded(e, query, tokens)

    rows, total = e.arange(e.dim(query, 2)), e.arange(e.dim(keys, 2))
    step = e.unsqueeze(rows, 1)
    place = e.op("Add", e.unsqueeze(tokens.past, 1, 2, 3), step)
    visible = e.all_of(seen, e.op("Less", step, e.unsqueeze(tokens.new, 1, 2, 3)))
    window = max(a.get("local_window_size", -1), 0)
    causal = bool(a.get("is_causal", 1))
    if causal:
        visible = e.all_of(visible, e.at_most(total, place))
    if window:
        visible = e.all_of(visible, e.op("Greater", total, e.op("Sub", place, e.ints(window))))
    width = e.size(node.input[0], 1)
    alone = bool(input_of(node, 1)) and (latent or bool(input_of(node, 2)))
    size = width // (heads if alone else heads + 2 * kv_heads) if width else None
    scale, number = default_scale(e, a.get("scale") or None, size, query)
    sink = e.reshape(e.real(input_of(node, 11)), 1, -1, 1, 1) if input_of(node, 11) else ""
    context = attend(
        e, query, keys, values, heads=heads, kv_heads=kv_heads, scale=scale, softcap=a.get("softcap", 0.0),
        visible=visible, guard=True, sink=sink,
    )  # fmt: skip
    merged = e.reshape(e.transpose(context, 0, 2, 1, 3), 0, 0, -1)
    places = e.op("Add", e.op("Mul", tokens.row, e.dim(merged, 1)), tokens.step)
    e.back(remove(e, merged, places), node.input[0], out=node.output[0])
    return found(
        e, node, required=True, heads=heads, kv_heads=kv_heads, head_size=size, scale=number,
        scale_place="inside PagedAttention", softcap=a.get("softcap") or None, causal=causal,
        window=window if window and causal else None, sink=bool(sink), query_from=node.input[0],
        key_from=input_of(node, 1) or node.input[0], value_from=input_of(node, 2) or node.input[0],
        linear=not input_of(node, 12), notes=[NOTE],
    )  # fmt: skip


def _tokens(e: Emit, node: NodeProto) -> _Tokens:
    ends = e.slice(e.cast(node.input[5], INT64), 1, 2**62, 0)
    starts = e.slice(e.cast(node.input[5], INT64), 0, -1, 0)
    t = e.arange(e.dim(node.input[0], 0))
    over = e.cast(e.at_most(e.unsqueeze(ends, 0), e.unsqueeze(t, 1)), INT64)
    row = e.reduce("ReduceSum", over, 1, keep=False)
    step = e.op("Sub", t, e.op("Gather", starts, row, axis=0))
    past = e.cast(node.input[6], INT64)
    position = e.op("Add", e.op("Gather", past, row, axis=0), step)
    return _Tokens(row, step, position, lengths(e, node.input[5]), past)


def _heads(e: Emit, node: NodeProto, a: dict[str, Any], tokens: _Tokens) -> tuple[str, str, str]:
    """Query, key and value of the new tokens, [1,heads,tokens,D]; "" for the value of a latent cache."""
    heads, kv_heads = a["num_heads"], a["kv_num_heads"]
    key_in, value_in = input_of(node, 1), input_of(node, 2)
    value = ""
    if key_in:
        query, key = (
            split_heads(e, e.unsqueeze(e.real(x), 0), n) for x, n in ((node.input[0], heads), (key_in, kv_heads))
        )
        if value_in:
            value = split_heads(e, e.unsqueeze(e.real(value_in), 0), kv_heads)
    else:
        every = split_heads(e, e.unsqueeze(e.real(node.input[0]), 0), heads + 2 * kv_heads)
        query, key, value = e.split(every, [heads, kv_heads, kv_heads], 1)
    if input_of(node, 12) and input_of(node, 13):
        epsilon = a.get("qk_norm_epsilon", 1e-6)
        query, key = rms_norm(e, query, input_of(node, 12), epsilon), rms_norm(e, key, input_of(node, 13), epsilon)
    if a.get("do_rotary"):
        where = e.unsqueeze(tokens.position, 0)
        pairs, offset = bool(a.get("rotary_interleaved")), a.get("rotary_offset", 0)
        query, key = (rotary(e, x, input_of(node, 8), input_of(node, 9), where, pairs, offset) for x in (query, key))
    return query, key, value


def _blocks(
    e: Emit, node: NodeProto, index: int, new: str, store: Store, tokens: _Tokens, kv_heads: int
) -> tuple[str, str]:
    """Write new keys (index 0) or values (1) to the cache; read those of every sequence.

    Returns:
        [B,Hkv,K,D] with zeros where a sequence has no key, and which keys it has, boolean [B,1,1,K].
    """
    cache, table, mapping = node.input[3 + index], e.cast(node.input[7], INT64), input_of(node, 10)
    scale = scale_of(e, input_of(node, 14 + index), kv_heads) if store != "float" else ""
    block = e.dim(cache, 1)
    numbers = e.real(cache) if store == "float" else e.cast(cache, e.work)
    flat = e.reshape(numbers, -1, kv_heads, e.dim(cache, 3))
    slots = e.dim(flat, 0)
    if mapping:
        slot = e.cast(mapping, INT64)
        slot = e.op("Where", e.op("Less", slot, e.ints(0)), slots, slot)  # -1 is not written: it goes to a cut-off row
    else:
        at = [e.unsqueeze(x, 1) for x in (tokens.row, e.op("Div", tokens.position, block))]
        page = e.op("GatherND", table, e.concat(at, 1))
        inside = e.op("Sub", tokens.position, e.op("Mul", e.op("Div", tokens.position, block), block))
        slot = e.op("Add", e.op("Mul", page, block), inside)
    rounded = stored(e, e.real(e.back(new, node.input[0])), store, scale)
    rows = e.squeeze(e.transpose(rounded, 0, 2, 1, 3), 0)
    spare = e.concat([flat, e.zeros(1, kv_heads, e.dim(cache, 3))], 0)
    written = e.slice(e.op("ScatterND", spare, e.unsqueeze(slot, 1), rows), 0, slots, 0)
    if out := output_of(node, 1 + index):
        shut(e, e.op("Reshape", written, e.op("Shape", cache)), store, cache, out)

    total = e.op("Add", tokens.past, tokens.new)
    j = e.arange(e.reduce("ReduceMax", total, 0))
    page = e.op("Gather", table, e.op("Div", j, block), axis=1)
    inside = e.op("Sub", j, e.op("Mul", e.op("Div", j, block), block))
    has = e.all_of(e.op("Less", j, e.unsqueeze(total, 1)), e.at_most(e.ints(0), page))
    source = e.op("Where", has, e.op("Add", e.op("Mul", page, block), inside), e.ints(0))
    read = e.transpose(e.op("Gather", written, source, axis=0), 0, 2, 1, 3)
    seen = e.unsqueeze(has, 1, 2)
    values = loaded(e, read, store, scale)
    return e.op("Where", e.unsqueeze(e.unsqueeze(has, 1), 3), values, e.number(0.0)), seen


def _padded(e: Emit, x: str, tokens: _Tokens) -> str:
    """[1,H,tokens,D] -> [B,H,S,D] with zeros for padding."""
    rows = e.squeeze(e.transpose(x, 0, 2, 1, 3), 0)
    longest = e.reduce("ReduceMax", tokens.new, 0)
    empty = e.zeros(e.dim(tokens.new, 0), longest, e.dim(rows, 1), e.dim(rows, 2))
    at = e.concat([e.unsqueeze(tokens.row, 1), e.unsqueeze(tokens.step, 1)], 1)
    return e.transpose(e.op("ScatterND", empty, at, rows), 0, 2, 1, 3)
