"""Shapes of operators for which attnx has no rule, from onnxruntime: it loads the node alone and infers them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnx.graph.fact import UNKNOWN, Fact
from attnx.session.ort import outputs_of

if TYPE_CHECKING:
    from onnx import NodeProto, OperatorSetIdProto

_FEW = 1024
"""Up to this many known numbers of an input are passed on: they may be sizes."""
_TYPES = {
    "float": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7, "string": 8, "bool": 9,
    "float16": 10, "double": 11, "uint32": 12, "uint64": 13, "bfloat16": 16,
}  # fmt: skip
"""Type as onnxruntime writes it -> ONNX's data type."""
_asked: dict[bytes, list[Fact] | None] = {}


def facts_by_onnxruntime(
    node: NodeProto, inputs: Sequence[Fact], opsets: Sequence[OperatorSetIdProto]
) -> list[Fact] | None:
    """Facts of a node's outputs as onnxruntime infers them.

    Returns:
        None where it does not know the operator, has no kernel for it on the CPU, or an input's shape or type is open.
    """
    from onnx import helper, numpy_helper

    named = {name: fact for name, fact in zip(node.input, inputs, strict=False) if name}
    if any(f.shape is None or None in f.shape or not f.dtype for f in named.values()):
        return None
    if any(a.type in (5, 10) for a in node.attribute):
        return None  # a body may read values from outside it
    held = {n: f.value for n, f in named.items() if f.value is not None and f.value.size <= _FEW}
    given = {n: f for n, f in named.items() if n not in held}
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info(n, f.dtype or 1, list(f.shape or ())) for n, f in given.items()],
        [helper.make_empty_tensor_value_info(name) for name in node.output if name],
        [numpy_helper.from_array(value, n) for n, value in held.items()],
    )
    model = helper.make_model(graph, opset_imports=list(opsets), ir_version=8).SerializeToString(deterministic=True)
    if model not in _asked:
        _asked[model] = _ask(node, model)
    return _asked[model]


def _ask(node: NodeProto, model: bytes) -> list[Fact] | None:
    found = {slot.name: slot for slot in outputs_of(model)}
    if not found:
        return None
    out = []
    for name in node.output:
        slot = found.get(name)
        if slot is None:
            out.append(UNKNOWN)
            continue
        shape = tuple(d if isinstance(d, int) else None for d in slot.shape)
        # A scalar looks the same as a tensor of unknown shape: both have a shape without axes.
        out.append(Fact(shape or None, _TYPES.get(slot.type.removeprefix("tensor(").removesuffix(")"))))
    return out
