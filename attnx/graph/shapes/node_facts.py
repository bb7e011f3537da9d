"""Shape and type of a node's outputs from its inputs' facts, by the rule for its operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from attnx.graph.fact import UNKNOWN, Fact
from attnx.graph.load.flat import FlatGraph
from attnx.graph.load.nodes import attributes
from attnx.graph.shapes import contrib_more, contrib_sequences
from attnx.graph.shapes.arithmetic import Rule
from attnx.graph.shapes.contrib_rules import SHAPES as ORT_SHAPES
from attnx.graph.shapes.rules import SHAPES
from attnx.graph.shapes.schema_rules import infer_by_schema

if TYPE_CHECKING:
    from onnx import NodeProto

_BOOL = frozenset(("Equal Less LessOrEqual Greater GreaterOrEqual And Or Xor Not IsNaN IsInf").split())


def _rule(node: NodeProto) -> Rule | None:
    """The rule for a node. An operator of onnxruntime with the name of an ONNX operator may be a different one."""
    op = node.op_type
    if node.domain in ("", "ai.onnx"):
        return SHAPES.get(op) or ORT_SHAPES.get(op)
    own = contrib_more.SHAPES.get(op) or contrib_sequences.SHAPES.get(op) if node.domain == "com.microsoft" else None
    return own or ORT_SHAPES.get(op) or SHAPES.get(op) or contrib_more.BLOCKED.get(op)


def infer_shape(graph: FlatGraph, node: NodeProto, inputs: Sequence[Fact]) -> list[Fact]:
    """Facts (shape and type, no numbers) of a node's outputs; unknown ones where no rule fits."""
    rule = _rule(node)
    if rule is None or not inputs:
        known = None
        if inputs and node.domain in ("", "ai.onnx"):
            known = infer_by_schema(graph, node, inputs)
        if known is None and (ask := graph.loaded.outside) is not None:
            known = ask(node, inputs, graph.proto.opset_import)
        return known if known is not None else [UNKNOWN] * len(node.output)
    a = attributes(node)
    try:
        shapes = rule(node, a, inputs)
    except (IndexError, TypeError, ValueError, KeyError, ZeroDivisionError):
        shapes = [None] * len(node.output)  # a malformed or unforeseen form: unknown, left to onnxruntime to judge
    dtype = _dtype(node, a, inputs)
    shapes = list(shapes) + [None] * (len(node.output) - len(shapes))
    facts = [Fact(shape, dtype) for shape in shapes[: len(node.output)]]
    if node.op_type == "DynamicQuantizeLinear":
        facts = [Fact(shapes[0], 2), Fact((), 1), Fact((), 2)]
    return facts


def _dtype(node: NodeProto, a: dict[str, Any], x: Sequence[Fact]) -> int | None:
    op = node.op_type
    if node.domain == "com.microsoft" and (op in contrib_more.SHAPES or op in contrib_sequences.SHAPES):
        return contrib_more.type_of(node, x)
    if op in _BOOL:
        return 9
    if op == "Shape":
        return 7
    if op == "Cast":
        return int(a["to"])
    if op in ("MatMulInteger", "ConvInteger"):
        return 6
    if op in ("CastLike", "Where", "DequantizeLinear", "MatMulIntegerToFloat") and len(x) > 1:
        return x[2].dtype if op == "MatMulIntegerToFloat" and len(x) > 2 else x[1].dtype
    if op == "QuantizeLinear":
        return x[2].dtype if len(x) > 2 and x[2].dtype else int(a.get("output_dtype") or 2)
    if op == "ConstantOfShape":
        return a["value"].data_type if "value" in a else 1
    if op in ("EmbedLayerNormalization", "QEmbedLayerNormalization"):
        return next((f.dtype for f in x if f.dtype in (1, 10, 16)), None)
    if op in ("QAttention",):
        return x[3].dtype
    return x[0].dtype
