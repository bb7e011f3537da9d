"""ai.onnx.preview FlexAttention: attention whose scores and weights the model modifies with graphs of its own.

The two modifier graphs are copied into the decomposition, so what they do is an ordinary part of it. No current runtime
supports the operator. Source: ONNX operator specification, ai.onnx.preview FlexAttention-1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnx.graph.load.flatten import renamed
from attnx.graph.load.nodes import attribute, attributes, op_name
from attnx.records import Miss
from attnx.sites.emit import Emit, prefix_of
from attnx.sites.finding import Finding
from attnx.sites.stages import attend, default_scale, found

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto

    from attnx.graph.shapes.index import Graph


def recognise(graph: Graph, node: NodeProto) -> Finding | Miss | None:
    """The attention site of a FlexAttention node."""
    a = attributes(node)
    query, key, value = node.input[:3]
    e = Emit(graph, prefix_of(graph, node), query)
    heads, kv_heads, size = e.size(query, 1), e.size(key, 1), e.size(query, 3)
    if heads and kv_heads and heads % kv_heads:
        return Miss(node.name, op_name(node), f"{heads} query heads cannot share {kv_heads} key heads")
    precision = a.get("softmax_precision") or e.work
    mods = {name: found_.g for name in ("score_mod", "prob_mod") if (found_ := attribute(node, name)) is not None}

    def change(name: str, x: str) -> str:
        return e.cast(_inlined(e, mods[name], name, e.cast(x, precision)), e.work)

    scale, number = default_scale(e, a.get("scale"), size, query)
    context = attend(
        e, e.real(query), e.real(key), e.real(value), heads=heads, kv_heads=kv_heads, scale=scale, precision=precision,
        score_change=(lambda x: change("score_mod", x)) if "score_mod" in mods else None,
        weight_change=(lambda x: change("prob_mod", x)) if "prob_mod" in mods else None,
    )  # fmt: skip
    e.back(context, query, out=node.output[0])
    notes = ["score_mod: the masked scores are what a graph of the model makes of them"] if "score_mod" in mods else []
    if "prob_mod" in mods:
        notes.append("prob_mod: the weights are what a graph of the model makes of the softmax's result")
    return found(
        e, node, required=True, heads=heads, kv_heads=kv_heads, head_size=size, scale=number,
        scale_place="inside FlexAttention", causal=None if "score_mod" in mods else False,
        query_from=query, key_from=key, value_from=value, linear=True, notes=notes,
    )  # fmt: skip


def _inlined(e: Emit, body: GraphProto, name: str, x: str) -> str:
    """Copy the nodes of a modifier graph, with its one input bound to `x`; returns the name of its one output."""
    own = [t.name for t in body.initializer] + [o for n in body.node for o in n.output if o]
    rename = {old: e.name(f"{name}/{old}") for old in own}
    rename[body.input[0].name] = x
    for tensor in body.initializer:
        copy = type(tensor)()
        copy.CopyFrom(tensor)
        copy.name = rename[tensor.name]
        e.initializers.append(copy)
    for i, inner in enumerate(body.node):
        copied = renamed(inner, rename)
        copied.name = e.name(f"{name}/{inner.name or i}")
        e.nodes.append(copied)
    result = str(body.output[0].name)
    return rename.get(result, result)
