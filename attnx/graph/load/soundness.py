"""Whether a model is built as ONNX demands, checked once at opening, before anything relies on it.

Text must be valid, data types must exist, sizes must be possible, and nodes must have the inputs and attributes that
their operators require. All later code may index inputs and attributes without checking.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any

from attnx.errors import ModelError, lacks_memory
from attnx.graph.load.contrib import Demand, contrib_demand
from attnx.graph.load.outline import Outlines

if TYPE_CHECKING:
    from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

_HINT = "The file is damaged, or was not written by an exporter; export the model again."
MOST_NODES = 1_000_000
"""The most nodes that a model may have once its local functions are inlined."""


_BITS = {21: 4, 22: 4, 23: 4, 25: 2, 26: 2}
"""The bits of each number of UINT4, INT4, FLOAT4E2M1, UINT2 and INT2."""
_COUNTS = ("num_heads", "kv_num_heads", "q_num_heads", "groups")
"""Attributes of onnxruntime's operators that hold a count of at least one."""


def check_model(proto: ModelProto, outlines: Outlines) -> None:
    """Check what every reader of a model relies on: names, data types, sizes, functions that end.

    Args:
        proto: The model.
        outlines: Keeps what its nodes hold.

    Raises:
        ModelError: The message says what is wrong, and where.
    """
    _text(proto.opset_import, "opset import", "domain")
    if any(o.version < 1 for o in proto.opset_import if o.domain in ("", "ai.onnx")):
        raise ModelError("the model imports an opset below 1", _HINT)
    _check_graph(proto.graph, outlines)
    for function in proto.functions:
        _text([function], "function", "name", "domain", "input", "output", "attribute")
        _check_nodes(function.node, outlines)
        _text(function.opset_import, "opset import", "domain")
    _check_functions(proto)


def check_nodes(nodes: Iterable[NodeProto], opset: int, outlines: Outlines) -> None:
    """Check that each node has the inputs and attributes that its operator requires.

    Args:
        nodes: Nodes of a model whose local functions were inlined.
        opset: Version of the default domain.
        outlines: What nodes hold.

    Raises:
        ModelError: The message names the first node that does not.
    """
    sound: set[tuple[int, tuple[bool, ...], bool]] = set()
    for node in nodes:
        outline = outlines.keep(node)
        if outline.kind is not None:
            alike = outline.kind, tuple(map(bool, outline.inputs)), any(outline.outputs)
            if alike in sound:
                continue
            sound.add(alike)
        fault = fault_of(node, opset)
        if fault:
            raise ModelError(f"node {node.name or node.op_type!r} ({node.op_type}) is malformed: {fault}", _HINT)
        for graph in _inner(node.attribute):
            check_nodes(graph.node, opset, outlines)


def fault_of(node: NodeProto, opset: int) -> str:
    """What a node lacks that its operator requires; "" where it lacks nothing or the operator is unknown."""
    if not any(node.output):
        return "it has no output"
    domain = node.domain
    demand = _demand(node.op_type, domain, opset)
    if demand is None:
        return ""
    if demand.inputs:
        read = list(node.input)
        for at in demand.inputs:
            if at >= len(read) or not read[at]:
                return f"it lacks its input {at} (it has {sum(map(bool, read))})"
    held = list(node.attribute)
    if not held and not demand.needed:
        return ""
    given = {a.name: a for a in held}
    if missing := demand.needed.difference(given):
        return f"it lacks its attribute {min(missing)}"
    for name, attribute in given.items():
        if name not in demand.attributes:
            continue
        if attribute.type != demand.attributes[name][0]:
            return f"its attribute {name} is of the wrong type"
        if domain == "com.microsoft" and name in _COUNTS and attribute.i < 1:
            return f"its attribute {name} is {attribute.i}"
        if name == "qkv_hidden_sizes" and (len(attribute.ints) != 3 or min(attribute.ints) < 1):
            return f"its attribute {name} is {list(attribute.ints)}"
    return ""


@cache
def _demand(op_type: str, domain: str, opset: int) -> Demand | None:
    if domain == "com.microsoft":
        return contrib_demand(op_type)
    if domain not in ("", "ai.onnx", "ai.onnx.preview"):
        return None
    from onnx import defs

    schema = None
    newest = defs.onnx_opset_version()
    for version in (min(opset, newest), newest) if domain != "ai.onnx.preview" else (1,):
        try:
            schema = defs.get_schema(op_type, version, domain)
            break
        except defs.SchemaError:
            continue  # not in that opset: check against what the operator has required since it was introduced
    if schema is None:
        return None
    single = defs.OpSchema.FormalParameterOption.Single
    variadic = defs.OpSchema.FormalParameterOption.Variadic
    inputs = tuple(i for i, p in enumerate(schema.inputs) if p.option == single)
    if schema.inputs and schema.inputs[-1].option == variadic:
        inputs = tuple(dict.fromkeys((*inputs, *range(len(schema.inputs) - 1, schema.min_input))))
    attributes = {name: (int(a.type.value), bool(a.required)) for name, a in schema.attributes.items()}
    return Demand(inputs, attributes)


def ends_process(nodes: Iterable[NodeProto]) -> str | None:
    """A node, in any subgraph, that makes onnxruntime end the process: com.microsoft Attention without its bias.

    The schema calls the bias optional, but the CPU kernel of onnxruntime 1.31 reads it anyway. attnx replaces such
    nodes by primitive ones where it can, and must not run any that are left. Source: onnxruntime issue 25005.
    """
    for node in nodes:
        if node.op_type == "Attention" and node.domain == "com.microsoft" and not any(node.input[2:3]):
            return str(node.name or node.op_type)
        for graph in _inner(node.attribute):
            if (found := ends_process(graph.node)) is not None:
                return found
    return None


def contradiction(proto: ModelProto) -> str | None:
    """The first place where shapes, types or attributes contradict one another, as found by onnx's own inference.

    Returns:
        One line; None where onnx finds no fault with the model.
    """
    from onnx import shape_inference

    try:
        shape_inference.infer_shapes(proto, check_type=True, strict_mode=True, data_prop=True)
    except Exception as error:
        if lacks_memory(error):
            raise
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return (lines[0] if lines else type(error).__name__)[:300]
    return None


def _check_graph(graph: GraphProto, outlines: Outlines) -> None:
    _text([graph], "graph", "name")
    for tensor in graph.initializer:
        _check_tensor(tensor)
    for sparse in graph.sparse_initializer:
        _check_tensor(sparse.values)
        _check_tensor(sparse.indices)
    for infos in (graph.input, graph.output, graph.value_info):
        for info in infos:
            _check_info(info)
    _check_nodes(graph.node, outlines)


def _check_info(info: ValueInfoProto) -> None:
    _text([info], "input or output", "name")
    tensor = info.type.tensor_type
    _text(tensor.shape.dim, f"shape of {info.name!r}", "dim_param")
    if tensor.elem_type and tensor.elem_type not in _known_types():
        raise ModelError(f"the value {info.name!r} has the unknown data type {tensor.elem_type}", _HINT)


def _check_nodes(nodes: Iterable[NodeProto], outlines: Outlines) -> None:
    sound: set[int] = set()
    for node in nodes:
        outline = outlines.keep(node)
        if bytes in map(type, (node.name, *outline.inputs, *outline.outputs)):
            _text([node], "node", "name", "input", "output")
        if outline.kind in sound:
            continue
        if outline.kind is not None:
            sound.add(outline.kind)
        _text([node], "node", "op_type", "domain")
        held = list(node.attribute)
        if not held:
            continue
        names = [a.name for a in held]
        if bytes in map(type, (*names, *(a.ref_attr_name for a in held))):
            _text(held, f"node {node.name or node.op_type!r}", "name", "ref_attr_name")
        if len(set(names)) < len(names):
            raise ModelError(f"node {node.name or node.op_type!r} gives an attribute twice", _HINT)
        for attribute in held:
            if attribute.type == 4 and not attribute.ref_attr_name:
                _check_tensor(attribute.t)
            for tensor in attribute.tensors:
                _check_tensor(tensor)
        for graph in _inner(held):
            _check_graph(graph, outlines)


def _check_tensor(tensor: TensorProto) -> None:
    if not isinstance(tensor.name, str):
        _text([tensor], "weight", "name")
    if tensor.external_data:
        _text(tensor.external_data, f"weight {tensor.name!r}", "key", "value")
    if tensor.data_type not in _known_types():
        raise ModelError(f"the weight {tensor.name!r} has the unknown data type {tensor.data_type}", _HINT)
    if any(d < 0 for d in tensor.dims):
        raise ModelError(f"the weight {tensor.name!r} has a negative size: {list(tensor.dims)}", _HINT)
    if tensor.data_location != 1 and tensor.HasField("raw_data"):
        expected = expected_bytes(tensor)
        if len(tensor.raw_data) != expected:
            raise ModelError(
                f"the weight {tensor.name!r} of shape {list(tensor.dims)} needs {expected} bytes, "
                f"and {len(tensor.raw_data)} are stored",
                _HINT,
            )


def expected_bytes(tensor: TensorProto) -> int:
    """The number of bytes that a tensor of this shape and type takes.

    Raises:
        ModelError: Its type does not exist, or has no fixed size.
    """
    count: int = prod(tensor.dims)
    bits = _BITS.get(tensor.data_type)
    if bits:
        return (count * bits + 7) // 8
    try:
        return count * _bytes_each(tensor.data_type)
    except (KeyError, TypeError):
        raise ModelError(f"the weight {tensor.name!r} has the unknown data type {tensor.data_type}", _HINT) from None


@cache
def _bytes_each(kind: int) -> int:
    import numpy as np
    from onnx.helper import tensor_dtype_to_np_dtype

    return int(np.dtype(tensor_dtype_to_np_dtype(kind)).itemsize)


@cache
def _known_types() -> frozenset[int]:
    from onnx import TensorProto

    return frozenset(TensorProto.DataType.values()) - {TensorProto.UNDEFINED}


def _text(messages: Iterable[Any], where: str, *fields: str) -> None:
    """Names that are not valid UTF-8 arrive as bytes (proto2 lets them pass)."""
    for message in messages:
        for field in fields:
            value = getattr(message, field)
            if isinstance(value, str):
                continue
            for text in (value,) if isinstance(value, bytes) else value:
                if isinstance(text, bytes):
                    raise ModelError(f"a {field} of a {where} is not valid text: {text[:40]!r}", _HINT)


def _inner(attributes: Iterable[AttributeProto]) -> Sequence[GraphProto]:
    held = [a for a in attributes if a.type in (5, 10)]
    return list(_graphs(held)) if held else ()


def _graphs(attributes: Iterable[AttributeProto]) -> Iterator[GraphProto]:
    for attribute in attributes:
        if attribute.type == 5 and attribute.HasField("g"):
            yield attribute.g
        elif attribute.type == 10:
            yield from attribute.graphs


def _check_functions(proto: ModelProto) -> None:
    """Refuse local functions that call themselves, or that expand to more nodes than a model may have."""
    functions = {(f.domain, f.name): f for f in proto.functions}
    sizes: dict[tuple[str, str], int] = {}
    open_: set[tuple[str, str]] = set()

    def size_of(key: tuple[str, str], depth: int) -> int:
        if key in sizes:
            return sizes[key]
        if key in open_ or depth > 256:
            raise ModelError(f"the local function {key[1]!r} calls itself", _HINT)
        open_.add(key)
        sizes[key] = total(functions[key].node, depth + 1)
        open_.discard(key)
        return sizes[key]

    def total(nodes: Iterable[NodeProto], depth: int) -> int:
        count = 0
        for node in nodes:
            key = (node.domain, node.op_type)
            count += size_of(key, depth) if key in functions else 1
            for graph in _inner(node.attribute):
                count += total(graph.node, depth + 1)
            if count > MOST_NODES:
                raise ModelError(
                    f"the model's local functions multiply to more than {MOST_NODES:,} nodes",
                    "attnx refuses to write them out; do not trust this file.",
                )
        return count

    if functions:
        total(proto.graph.node, 0)


__all__ = ["check_model", "check_nodes", "contradiction", "ends_process", "expected_bytes", "fault_of"]
