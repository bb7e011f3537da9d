"""Shapes by onnx's own rule for an operator: slower than ours, but available for every standard operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnx.errors import lacks_memory
from attnx.graph.fact import UNKNOWN, Fact
from attnx.graph.load.flat import FlatGraph

if TYPE_CHECKING:
    from onnx import NodeProto


def infer_by_schema(graph: FlatGraph, node: NodeProto, inputs: Sequence[Fact]) -> list[Fact] | None:
    """Facts of a node's outputs by the operator's schema; None where onnx does not know it or infers nothing."""
    from onnx import defs, helper, numpy_helper, shape_inference
    from onnx.checker import ValidationError

    named = {name: fact for name, fact in zip(node.input, inputs, strict=False) if name}
    if any(f.shape is None or f.dtype is None for f in named.values()):
        return None
    types = {n: helper.make_tensor_type_proto(f.dtype or 1, list(f.shape or ())) for n, f in named.items()}
    data = {
        n: numpy_helper.from_array(f.value, n) for n, f in named.items() if f.value is not None and f.value.size < 1024
    }
    try:
        schema = defs.get_schema(node.op_type, graph.opset, "")
        found = shape_inference.infer_node_outputs(
            schema, node, types, data, opset_imports=[helper.make_opsetid("", graph.opset)]
        )
    except (
        defs.SchemaError, shape_inference.InferenceError, ValidationError, RuntimeError, ValueError, TypeError,
    ) as error:  # fmt: skip
        if lacks_memory(error):
            raise
        return None
    facts = []
    for name in node.output:
        kind = found.get(name)
        if kind is None or not kind.tensor_type.HasField("shape"):
            facts.append(UNKNOWN)
            continue
        dims = tuple(d.dim_value if d.HasField("dim_value") else None for d in kind.tensor_type.shape.dim)
        facts.append(Fact(dims, kind.tensor_type.elem_type or None))
    return facts
