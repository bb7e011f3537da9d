"""com.microsoft LongformerAttention: a window for every token, and some tokens that see all and are seen by all.

Two attentions in one node, each with its own projections: the windowed one, whose rows are the local tokens, and the
global one, whose rows are the global tokens. Rows of the other kind, and of padding, have weights of 0.
CUDA only. Source: Beltagy et al. 2020 (Longformer), section 3.1; masks as in onnxruntime's CUDA kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnx.graph.load.nodes import attributes
from attnx.sites.emit import INT64, Emit, prefix_of
from attnx.sites.finding import Finding
from attnx.sites.stages import attend, default_scale, found, merge_heads, split_heads

if TYPE_CHECKING:
    from onnx import NodeProto

    from attnx.graph.shapes.index import Graph


def recognise(graph: Graph, node: NodeProto) -> Finding | None:
    """The two attention sites of a LongformerAttention node; the second is in the first's `also`."""
    a = attributes(node)
    heads, window = a["num_heads"], a["window"]
    prefix = prefix_of(graph, node)
    local, wide = Emit(graph, prefix, node.input[0]), Emit(graph, f"{prefix}/global", node.input[0])
    x, weight, bias, mask, global_weight, global_bias, flags = node.input[:7]
    padding = local.real(mask)
    rows = local.dim(x, 1)
    i, j = local.unsqueeze(local.arange(rows), 1), local.arange(rows)
    near = local.all_of(
        local.at_most(j, local.op("Add", i, local.ints(window))),
        local.at_most(i, local.op("Add", j, local.ints(window))),
    )
    is_global = local.op("Greater", local.cast(flags, INT64), local.ints(0))
    kept = local.op("Not", local.op("Less", padding, local.number(0.0)))
    seen = local.op("Or", near, local.unsqueeze(is_global, 1, 2))
    local_rows = local.op("And", kept, local.op("Not", is_global))
    global_rows = local.op("And", kept, is_global)
    add = [local.unsqueeze(padding, 1, 2)]
    columns = local.size(weight, 1)
    size = columns // (3 * heads) if columns else None

    contexts: list[str] = []
    findings: list[Finding] = []
    for e, w, b, visible in (
        (local, weight, bias, local.op("And", seen, local.unsqueeze(local.unsqueeze(local_rows, 1), 3))),
        (wide, global_weight, global_bias, local.unsqueeze(local.unsqueeze(global_rows, 1), 3)),
    ):
        projected = e.op("Add", e.op("MatMul", e.real(x), e.real(w)), e.real(b))
        query, key, value = (split_heads(e, part, heads) for part in e.thirds(projected, 2))
        scale, number = default_scale(e, None, size, query)
        contexts.append(
            attend(e, query, key, value, heads=heads, kv_heads=heads, scale=scale, add=add, visible=visible, guard=True)
        )
        findings.append(
            found(
                e, node, required=True, heads=heads, kv_heads=heads, head_size=size, scale=number, kind="self",
                scale_place="inside LongformerAttention", causal=False, query_from=x, key_from=x, value_from=x,
            )
        )  # fmt: skip
    first, second = findings
    first.notes = [f"rows of local tokens: {window} keys to either side, and the global tokens"]
    second.notes = ["rows of global tokens, which see every key through projections of their own"]
    local.nodes += wide.nodes
    local.initializers += wide.initializers
    chosen = local.op("Where", local.unsqueeze(local.unsqueeze(is_global, 1), 3), contexts[1], contexts[0])
    merge_heads(local, chosen, x, node.output[0])
    second.replacement = None
    first.also.append(second)
    return first
