"""com.microsoft DynamicSparseAttention: each query reads the keys that a selector chose for it.

With only a main cache, the keys are the sequence's own, and the chosen ones are visible. With an auxiliary cache, the
key axis holds the main keys and then the auxiliary ones: a window of the main keys is visible together with the chosen
auxiliary keys.
CUDA only. Source: onnxruntime contrib operators, DynamicSparseAttention.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnx.graph.load.nodes import attributes, op_name
from attnx.records import Miss
from attnx.sites.emit import INT64, Emit, prefix_of
from attnx.sites.finding import Finding
from attnx.sites.fused.caches import write
from attnx.sites.fused.grouped import grouped, head_size, long_vector, sink_of, visible_cells
from attnx.sites.stages import attend, default_scale, found, input_of, merge_heads, output_of

if TYPE_CHECKING:
    from onnx import NodeProto

    from attnx.graph.shapes.index import Graph


def recognise(graph: Graph, node: NodeProto) -> Finding | Miss | None:
    """The attention site of a DynamicSparseAttention node."""
    a = attributes(node)
    heads, kv_heads = a["num_heads"], a["kv_num_heads"]
    mode, source = str(a.get("attention_mode", "selected_only")), str(a.get("selected_kv_source", "main"))
    auxiliary = source == "auxiliary"
    if (mode, source) not in (("selected_only", "main"), ("local_plus_selected", "auxiliary")):
        return Miss(node.name, op_name(node), f"the mode {mode!r} with the source {source!r} is not defined")
    e = Emit(graph, prefix_of(graph, node), node.input[0])
    key_in = input_of(node, 1)
    turn = (input_of(node, 11), input_of(node, 12), input_of(node, 13)) if a.get("do_rotary") else None
    new = grouped(
        e, (node.input[0], key_in, input_of(node, 2)), (heads, kv_heads),
        (long_vector(e, input_of(node, 10)), e.op("Add", long_vector(e, input_of(node, 9)), e.ints(1))),
        norms=(input_of(node, 14), input_of(node, 15)), epsilon=a.get("qk_norm_epsilon", 1e-6),
        turn=turn, pairs=bool(a.get("rotary_interleaved")), offset=a.get("rotary_offset", 0),
    )  # fmt: skip
    extra = (input_of(node, 5), input_of(node, 6) or input_of(node, 5))
    parts: list[str] = []
    for index, fresh in enumerate((new.key, new.value)):
        past = e.real(input_of(node, 3 + index)) if input_of(node, 3 + index) else ""
        present = write(e, past, e.real(e.back(fresh, node.input[0])), new.start, new.total)
        if output_of(node, 1 + index):
            e.back(present, node.input[0], out=node.output[1 + index])
        main = e.slice(present, 0, new.total, 2)
        parts.append(e.concat([main, e.real(extra[index])], 2) if auxiliary else main)
    key, value = parts

    window = a.get("local_window_size", 0) if auxiliary else 0
    visible = visible_cells(e, new, causal=True, window=max(window, 0))
    if auxiliary:
        chosen = _chosen(e, node, new.query, e.dim(extra[0], 2))
        whole = e.op("Shape", chosen)
        shape = e.concat([e.slice(whole, 0, 3, 0), new.total], 0)
        visible = e.concat([e.op("Expand", visible, shape), chosen], 3)
    else:
        visible = e.all_of(visible, _chosen(e, node, new.query, new.total))
    size = head_size(e, node, heads, kv_heads)
    scale, number = default_scale(e, a.get("scale") or None, size, new.query)
    sink = sink_of(e, node, 16)
    context = attend(
        e, new.query, key, value, heads=heads, kv_heads=kv_heads, scale=scale, visible=visible, guard=True, sink=sink
    )
    merge_heads(e, context, node.input[0], node.output[0])
    notes = ["each query sees only the keys that a selector chose for it"]
    if auxiliary:
        notes.append("the key axis holds the main keys, then the auxiliary ones, which are not tokens of the sequence")
    return found(
        e, node, required=True, heads=heads, kv_heads=kv_heads, head_size=size, scale=number,
        scale_place="inside DynamicSparseAttention", causal=True, sink=bool(sink), query_from=node.input[0],
        key_from=key_in or node.input[0], value_from=input_of(node, 2) or node.input[0],
        linear=not auxiliary and not input_of(node, 14), notes=notes,
    )  # fmt: skip


def _chosen(e: Emit, node: NodeProto, query: str, keys: str) -> str:
    """Which keys were chosen for each query, boolean [B,1,S,K], from padded key lists [B*S,M] and their lengths."""
    indices, counts = e.cast(node.input[7], INT64), e.cast(node.input[8], INT64)
    used = e.op("Less", e.arange(e.dim(indices, 1)), e.unsqueeze(e.reshape(counts, -1), 1))
    place = e.op("Where", used, indices, keys)  # unused entries fall into a column that is cut off
    empty = e.zeros(e.dim(indices, 0), e.op("Add", keys, e.ints(1)))
    marked = e.op("ScatterElements", empty, place, e.op("Expand", e.number(1.0), e.op("Shape", place)), axis=1)
    cells = e.op("Greater", e.slice(marked, 0, keys, 1), e.number(0.0))
    return e.unsqueeze(e.reshape(cells, e.dim(query, 0), e.dim(query, 2), keys), 1)
