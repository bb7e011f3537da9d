"""What one node holds: its operator, its attributes, its subgraphs, and the values that it reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onnx import AttributeProto, GraphProto, NodeProto


QUANTISES = frozenset(
    "QuantizeLinear DynamicQuantizeLinear TRT_FP8QuantizeLinear TRT_FP4DynamicQuantize TRT_MXFP8DynamicQuantize".split()
)
"""Operators that round a tensor to few bits, including TensorRT's (ModelOpt writes them, in the domain trt)."""
DEQUANTISES = frozenset("DequantizeLinear TRT_FP8DequantizeLinear TRT_MXFP8DequantizeLinear".split())
"""Operators that turn it back into floats."""
ROUNDS = QUANTISES | DEQUANTISES | {"TRT_FP4QDQ"}
"""Both kinds, and operators that do both at once."""
CURVES = (
    *("Elu", "Softplus", "Gelu", "Tanh", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Cos", "Cosh", "Sin"),
    *("Sinh", "Tan", "Erf", "Log", "Selu", "Celu", "Mish", "Swish", "Softsign", "LeakyRelu", "ThresholdedRelu"),
    *("HardSigmoid", "HardSwish", "Shrink", "Abs", "Reciprocal", "Sqrt"),
)
"""ONNX's functions of one number, besides those that have a name of their own in attention (Exp, Relu, Sigmoid)."""


_SINGLE = {1: "f", 2: "i", 4: "t", 5: "g"}
"""The kinds of attributes that hold one number, tensor or graph -> the field that it is in."""


def attribute_value(a: Any) -> Any:
    """An AttributeProto's value as a Python object."""
    if a.type in _SINGLE and not a.ref_attr_name:
        return getattr(a, _SINGLE[a.type])
    from onnx import helper

    value = helper.get_attribute_value(a)
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def is_stored(node: NodeProto) -> bool:
    """Whether a node computes nothing and only holds numbers: ONNX's Constant."""
    return node.op_type == "Constant" and not node.domain and not node.input


def attributes(node: NodeProto) -> dict[str, Any]:
    """A node's attributes as Python objects, by name."""
    return {a.name: attribute_value(a) for a in node.attribute}


def op_name(node: NodeProto) -> str:
    """The operator, with its domain if that is not ONNX's own: "Softmax", "com.microsoft.Attention"."""
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"


def attribute(node: NodeProto, name: str) -> AttributeProto | None:
    """The attribute of that name, or None."""
    return next((a for a in node.attribute if a.name == name), None)


def joined(node: NodeProto) -> list[str]:
    """The tensors that a Concat joins, or onnxruntime's Concat of integers; none for any other operator."""
    if node.op_type == "QLinearConcat":  # scale and zero point of the result, then three inputs for each tensor
        return [str(name) for name in node.input[2::3]]
    return [str(name) for name in node.input] if node.op_type == "Concat" else []


def subgraphs(node: NodeProto) -> list[tuple[str, GraphProto]]:
    """The subgraphs of a node, by attribute name."""
    held = [a for a in node.attribute if a.type in (5, 10)]
    if not held:
        return []
    found = [(a.name, a.g) for a in held if a.type == 5]
    return found + [(f"{a.name}[{i}]", g) for a in held if a.type == 10 for i, g in enumerate(a.graphs)]


def outer_names(graph: GraphProto) -> set[str]:
    """Names that a subgraph reads from the graphs around it."""
    own = {t.name for t in graph.initializer} | {i.name for i in graph.input}
    read: set[str] = set()
    for node in graph.node:
        read.update(name for name in node.input if name)
        for _, inner in subgraphs(node):
            read |= outer_names(inner)
        own.update(node.output)
    read.update(o.name for o in graph.output)
    return read - own


def reads_of(node: NodeProto) -> set[str]:
    """The values that a node reads, including in its subgraphs."""
    read = set(node.input)
    read.discard("")
    for _, inner in subgraphs(node):
        read |= outer_names(inner)
    return read
