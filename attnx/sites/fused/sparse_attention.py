"""com.microsoft SparseAttention: grouped heads that see only some blocks of the past (Phi-3 small).

The blocks that a block of queries sees are given in compressed rows, one layout for heads h, h + layouts, h + 2 layouts
... Source: Zaheer et al. 2020 (BigBird) for the idea; onnxruntime contrib operators, with the order of layouts as
measured on its CPU kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnx.graph.load.nodes import attributes
from attnx.sites.emit import INT64, Emit, prefix_of
from attnx.sites.finding import Finding
from attnx.sites.fused.caches import write
from attnx.sites.fused.grouped import grouped, head_size, long_vector, visible_cells
from attnx.sites.stages import attend, default_scale, found, input_of, merge_heads, output_of

if TYPE_CHECKING:
    from onnx import NodeProto

    from attnx.graph.shapes.index import Graph


def recognise(graph: Graph, node: NodeProto) -> Finding | None:
    """The attention site of a SparseAttention node."""
    a = attributes(node)
    heads, kv_heads = a["num_heads"], a["kv_num_heads"]
    e = Emit(graph, prefix_of(graph, node), node.input[0])
    key_in = input_of(node, 1)
    new = grouped(
        e, (node.input[0], key_in, input_of(node, 2)), (heads, kv_heads),
        (long_vector(e, node.input[7]), long_vector(e, node.input[8])),
        turn=(input_of(node, 9), input_of(node, 10), "") if a.get("do_rotary") else None,
        pairs=bool(a.get("rotary_interleaved")),
    )  # fmt: skip
    whole: list[str] = []
    for index, fresh in enumerate((new.key, new.value)):
        rounded = e.real(e.back(fresh, node.input[0]))
        present = write(e, e.real(node.input[3 + index]), rounded, new.start, new.total, clear=False)
        if output_of(node, 1 + index):
            e.back(present, node.input[0], out=node.output[1 + index])
        whole.append(e.slice(present, 0, new.total, 2))
    blocks = _blocks(e, node, a["sparse_block_size"], heads, new.position, e.arange(new.total))
    visible = e.all_of(visible_cells(e, new, causal=True, window=0), blocks)
    size = head_size(e, node, heads, kv_heads)
    scale, number = default_scale(e, a.get("scale") or None, size, new.query)
    context = attend(
        e, new.query, whole[0], whole[1], heads=heads, kv_heads=kv_heads, scale=scale, visible=visible, guard=True
    )
    merge_heads(e, context, node.input[0], node.output[0])
    return found(
        e, node, required=True, heads=heads, kv_heads=kv_heads, head_size=size, scale=number,
        scale_place="inside SparseAttention", causal=True, query_from=node.input[0],
        key_from=key_in or node.input[0], value_from=input_of(node, 2) or node.input[0], linear=True,
        notes=[f"sparse: each head sees only some blocks of {a['sparse_block_size']} keys"],
    )  # fmt: skip


def _blocks(e: Emit, node: NodeProto, block: int, heads: int, position: str, j: str) -> str:
    """Which keys lie in a block that the query's block sees, boolean [B,H,S,K]."""
    row_ends, columns = (e.cast(node.input[i], INT64) for i in (5, 6))
    layouts, count = e.dim(columns, 0), e.dim(columns, 1)
    # The row of the n-th entry is the number of rows that end at or before n; entries past the last row fall into an
    # extra row, and so do the -1 that fill short layouts.
    ends = e.slice(row_ends, 1, 2**62, 1)
    n = e.unsqueeze(e.arange(count), 0, 2)
    row = e.reduce("ReduceSum", e.cast(e.at_most(e.unsqueeze(ends, 1), n), INT64), 2, keep=False)
    blocks = e.dim(ends, 1)
    lost = e.op("Less", columns, e.ints(0))
    row = e.op("Where", lost, blocks, row)
    column = e.op("Where", lost, e.ints(0), columns)
    layout = e.expand(e.unsqueeze(e.arange(layouts), 1), layouts, count)
    index = e.concat([e.unsqueeze(x, 2) for x in (layout, row, column)], 2)
    side = e.op("Add", blocks, e.ints(1))
    empty = e.zeros(layouts, side, blocks)
    dense = e.op("ScatterND", empty, index, e.expand(e.number(1.0), layouts, count))
    head = e.arange(e.ints(heads))
    of_head = e.op("Gather", dense, e.op("Sub", head, e.op("Mul", e.op("Div", head, layouts), layouts)), axis=0)
    size = e.ints(block)
    by_key = e.op("Gather", of_head, e.op("Div", j, size), axis=2)
    cells = e.op("Gather", by_key, e.op("Div", position, size), axis=1)
    return e.op("Greater", e.transpose(cells, 1, 0, 2, 3), e.number(0.0))
