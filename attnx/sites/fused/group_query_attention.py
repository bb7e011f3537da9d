"""com.microsoft GroupQueryAttention: the node that onnxruntime-genai's builder writes for every decoder.

Everything is inside: splitting, per-head norms, rotary embedding, a cache whose rows are filled batch by batch, the
causal mask and a window, soft cap, sinks. Source: onnxruntime contrib operators, GroupQueryAttention; the window (W
keys, including the query's own), the alignment, the positions of a prompt and the cells of `output_qk` as measured on
its CPU kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnx.graph.load.nodes import attributes, op_name
from attnx.records import Miss
from attnx.sites.emit import Emit, prefix_of
from attnx.sites.finding import Finding
from attnx.sites.fused.caches import slide, write
from attnx.sites.fused.grouped import Grouped, grouped, head_size, long_vector, sink_of, visible_cells
from attnx.sites.fused.quantised_cache import Store, loaded, opened, scale_of, shut, store_of, stored
from attnx.sites.stages import attend, bias_name, default_scale, found, input_of, merge_heads, output_of

if TYPE_CHECKING:
    from onnx import NodeProto

    from attnx.graph.shapes.index import Graph


def recognise(graph: Graph, node: NodeProto) -> Finding | Miss | None:
    """The attention site of a GroupQueryAttention node."""
    a = attributes(node)
    heads, kv_heads = a["num_heads"], a["kv_num_heads"]
    e = Emit(graph, prefix_of(graph, node), node.input[0])
    quantised = {a.get("k_quant_type", "NONE"), a.get("v_quant_type", "NONE")} != {"NONE"}
    window = max(a.get("local_window_size", -1), 0)
    past_key = input_of(node, 3)
    if a.get("sliding_window_cache") and not (past_key and window):
        return Miss(node.name, op_name(node), "a sliding window cache without a past or a window")

    turn = (input_of(node, 7), input_of(node, 8), input_of(node, 9)) if a.get("do_rotary") else None
    new = grouped(
        e, (node.input[0], input_of(node, 1), input_of(node, 2)), (heads, kv_heads),
        (long_vector(e, input_of(node, 6)), e.op("Add", long_vector(e, input_of(node, 5)), e.ints(1))),
        norms=(input_of(node, 14), input_of(node, 15)), epsilon=a.get("qk_norm_epsilon", 1e-6),
        turn=turn, counted=True, pairs=bool(a.get("rotary_interleaved")),
    )  # fmt: skip
    store = store_of(e, past_key)
    if store is None or (quantised and not past_key):
        return Miss(node.name, op_name(node), "the type of its cache is not known")
    if store == "float8" and e.opset < 19:
        return Miss(node.name, op_name(node), "its cache has 8-bit floats, which need opset 19")
    key, value = _cached(e, node, a, new, store)
    visible = visible_cells(e, new, bool(a.get("causal", 1)), window)
    bias = input_of(node, 10)
    add = [e.slice(e.real(bias), 0, new.total, 3)] if bias else []
    size = head_size(e, node, heads, kv_heads)
    scale, number = default_scale(e, a.get("scale") or None, size, new.query)
    sink = sink_of(e, node, 11)
    context = attend(
        e, new.query, key, value, heads=heads, kv_heads=kv_heads, scale=scale, softcap=a.get("softcap", 0.0), add=add,
        visible=visible, guard=bool(window), sink=sink,
    )  # fmt: skip
    merge_heads(e, context, node.input[0], node.output[0])
    if output_of(node, 3):
        inner = e.op("Where", visible, e.name("masked"), e.number(0.0))
        e.back(e.name("weights") if a.get("qk_output") == 2 else inner, node.input[0], out=node.output[3])
    causal = a.get("causal", 1) != 0
    cached = [f"keys and values are cached as {store}, and read back from there"] if store != "float" else []
    return found(
        e, node, required=_refused(node, a) or store == "float8", heads=heads, kv_heads=kv_heads, head_size=size,
        scale=number, scale_place="inside GroupQueryAttention", softcap=a.get("softcap") or None, window=window or None,
        causal=True if causal else None if bias else False, bias=bias_name(e, bias), sink=bool(sink),
        query_from=node.input[0], key_from=input_of(node, 1) or node.input[0],
        value_from=input_of(node, 2) or node.input[0], linear=not input_of(node, 14), notes=cached,
    )  # fmt: skip


def _cached(e: Emit, node: NodeProto, a: dict[str, Any], new: Grouped, store: Store) -> tuple[str, str]:
    """Keys and values [B,Hkv,total,D] including the past; also makes the node's present outputs."""
    parts: list[str] = []
    for index, fresh in enumerate((new.key, new.value)):
        past, out = input_of(node, 3 + index), output_of(node, 1 + index)
        scale = scale_of(e, input_of(node, 12 + index), a["kv_num_heads"]) if store != "float" else ""
        old = opened(e, past, store) if past else ""
        # Cached values have the type of the graph: half-precision keys are rounded before they are multiplied.
        rounded = stored(e, e.real(e.back(fresh, node.input[0])), store, scale)
        if a.get("sliding_window_cache"):
            whole, present = slide(e, old, rounded, new.start, new.total, a["local_window_size"])
        else:
            present = write(e, old, rounded, new.start, new.total)
            whole = e.slice(present, 0, new.total, 2)
        parts.append(loaded(e, whole, store, scale))
        if out:
            shut(e, present, store, node.input[0], out)
    return parts[0], parts[1]


def _refused(node: NodeProto, a: dict[str, Any]) -> bool:
    """Whether onnxruntime's CPU kernel cannot run the node as written, or gives wrong results."""
    if input_of(node, 14) or (input_of(node, 3) and not (output_of(node, 1) and output_of(node, 2))):
        return True
    return bool(output_of(node, 3)) and (not a.get("qk_output") or bool(a.get("sliding_window_cache")))
