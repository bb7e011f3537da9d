"""ai.onnx Attention (opset 23 and later): one node for a whole attention.

Source: ONNX operator specification, Attention-23, -24 and -25. Two rules are easy to get wrong and are followed here:
`is_causal` is counted from the past or from the non-padded length (so it is top-left where there is neither), and a row
that sees nothing has weights and output of 0. onnxruntime's CPU kernel refuses masks that broadcast over queries or are
shorter than the keys; the replacement nodes accept them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from attnx.graph.load.nodes import attributes
from attnx.records import Miss, Place
from attnx.sites.emit import BOOL, DOUBLE, INT64, LOWEST, Emit, prefix_of
from attnx.sites.finding import Finding
from attnx.sites.placing import kv_heads as heads_before
from attnx.sites.stages import attend, default_scale, found, input_of, merge_heads, output_of, split_heads

if TYPE_CHECKING:
    from onnx import NodeProto

    from attnx.graph.shapes.index import Graph


def recognise(graph: Graph, node: NodeProto) -> Finding | Miss | None:
    """The attention site of an ai.onnx Attention node, with primitive nodes to replace it."""
    a = attributes(node)
    mask, past_key, past_value = (input_of(node, i) for i in (3, 4, 5))
    e = Emit(graph, prefix_of(graph, node), node.input[0])
    flat = e.rank(node.input[0]) == 3 or (e.rank(node.input[0]) is None and "q_num_heads" in a)
    heads = a.get("q_num_heads") or e.size(node.input[0], 1)
    kv_heads = a.get("kv_num_heads") or e.size(node.input[1], 1)
    if heads and kv_heads and heads % kv_heads:
        return Miss(node.name, "Attention", f"{heads} query heads cannot share {kv_heads} key heads")
    if flat and not (heads and kv_heads):
        return Miss(node.name, "Attention", "inputs of rank 3 need q_num_heads and kv_num_heads")
    if mask and e.dtype(mask) is None:
        return Miss(node.name, "Attention", "whether the mask is boolean or added is not known: it has no type")

    new = [
        split_heads(e, x, n or 1) if flat else x
        for x, n in zip(node.input[:3], (heads, kv_heads, kv_heads), strict=True)
    ]
    query, key, value = new
    for index, past, fresh in ((1, past_key, key), (2, past_value, value)):
        joined = e.concat([past, fresh], 2) if past else fresh
        if output_of(node, index):
            e.op("Identity", joined, out=node.output[index])
        key, value = (joined, value) if index == 1 else (key, joined)

    width = e.size(node.input[0], -1)
    head_size = width // heads if flat and heads and width else width
    scale, number = default_scale(e, a.get("scale"), head_size, query)
    add, visible = _mask(e, node, a, query, key)
    context = attend(
        e, e.real(query), e.real(key), e.real(value), heads=heads, kv_heads=kv_heads, scale=scale,
        softcap=a.get("softcap", 0.0), add=add, visible=visible, guard=bool(visible or add),
        precision=a.get("softmax_precision", 0),
    )  # fmt: skip
    if output_of(node, 0):
        if flat:
            merge_heads(e, context, node.input[0], node.output[0])
        else:
            e.back(context, node.input[0], out=node.output[0])
    _product_output(e, node, a, visible)
    left, right = a.get("left_window_size", -1), a.get("right_window_size", -1)
    causal = bool(a.get("is_causal")) or right == 0
    ahead = 0 if causal else right
    # Exporters may repeat each key head for its group before the node, as if it had as many key heads as query heads.
    own = kv_heads if flat else heads_before(graph, Place(node.input[1], "b h k d"), kv_heads)
    return found(
        e, node, required=_refused(e, node, a, flat), heads=heads, kv_heads=own, head_size=head_size,
        scale=number, scale_place="inside Attention, its root on query and on key", softcap=a.get("softcap") or None,
        causal=True if causal else None if mask else False,
        window=left + ahead + 1 if left >= 0 and ahead >= 0 else None,
        query_from=node.input[0], key_from=node.input[1], value_from=node.input[2], linear=True,
    )  # fmt: skip


def _mask(e: Emit, node: NodeProto, a: dict[str, Any], query: str, key: str) -> tuple[list[str], str]:
    """What is added to the scores, and which cells are visible ("" for all)."""
    mask, past, lengths = input_of(node, 3), input_of(node, 4), input_of(node, 6)
    rows, total = e.dim(query, 2), e.dim(key, 2)
    add: list[str] = []
    visible = ""
    if mask:
        boolean = e.dtype(mask) == BOOL
        term = mask if boolean else e.real(mask)
        if e.opset >= 24:
            term = _pad(e, term, total, boolean)
        if boolean:
            visible = term
        else:
            add.append(term)
    j = e.arange(total)
    if lengths:
        length = e.unsqueeze(e.cast(lengths, INT64), 1, 2, 3)
        visible = e.all_of(visible, e.op("Less", j, length))
    left, right = a.get("left_window_size", -1), a.get("right_window_size", -1)
    if a.get("is_causal") or left >= 0 or right >= 0:
        i = e.unsqueeze(e.arange(rows), 1)
        if past:
            i = e.op("Add", i, e.dim(past, 2))
        elif lengths:
            i = e.op("Add", i, e.op("Sub", length, rows))
        if a.get("is_causal"):
            visible = e.all_of(visible, e.at_most(j, i))
        if left >= 0:
            visible = e.all_of(visible, e.at_most(e.op("Sub", i, e.ints(left)), j))
        if right >= 0:
            visible = e.all_of(visible, e.at_most(j, e.op("Add", i, e.ints(right))))
    return add, visible


def _pad(e: Emit, mask: str, total: str, boolean: bool) -> str:
    """A mask that is shorter than the keys, padded with hidden cells (Attention-24)."""
    whole = e.expand(mask, 1, 1, 1, 1)
    pads = e.join(0, 0, 0, 0, 0, 0, 0, e.op("Sub", total, e.dim(whole, 3)))
    fill = e.const(np.array(False)) if boolean else e.number(-np.inf)
    return e.op("Pad", whole, pads, fill)


def _product_output(e: Emit, node: NodeProto, a: dict[str, Any], visible: str) -> None:
    """The node's own score output, where the model uses it; hidden cells as the CPU kernel writes them."""
    if not (out := output_of(node, 3)):
        return
    stage = e.name(("scaled", "capped", "masked", "weights")[a.get("qk_matmul_output_mode", 0)])
    if stage.endswith("/masked") and visible:
        stage = e.op("Where", visible, stage, e.number(LOWEST))
    e.back(stage, node.input[0], out=out)


def _refused(e: Emit, node: NodeProto, a: dict[str, Any], flat: bool) -> bool:
    """Whether onnxruntime's CPU kernel cannot run the node as written."""
    if max(a.get("left_window_size", -1), a.get("right_window_size", -1)) >= 0 or a.get("scale", 1.0) <= 0:
        return True
    past, mask = input_of(node, 4), input_of(node, 3)
    if past and not (output_of(node, 1) and output_of(node, 2)):
        return True
    if not mask:
        return False
    if e.work == DOUBLE and a.get("is_causal"):  # its expansion for float64 mixes types
        return True
    axis = 1 if flat else 2
    shapes = [e.graph.shape(name) for name in (mask, node.input[0], node.input[1])]
    cached = e.graph.shape(past) if past else (0, 0, 0, 0)
    if any(s is None for s in shapes) or cached is None:
        return False
    masks, queries, keys = (s or () for s in shapes)
    if len(masks) < 2:
        return True
    rows, new, old = queries[axis], keys[axis], cached[2]
    total = None if new is None or old is None else new + old
    pairs = ((masks[-2], rows), (masks[-1], total))
    return any(mine is not None and theirs is not None and mine != theirs for mine, theirs in pairs)
