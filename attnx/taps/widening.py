"""bfloat16 as float32, in a copy of a graph: the CPU has almost no kernels for bfloat16, and numpy no such type.

Every bfloat16 number is a float32 number, so weights and inputs stay the same; what is computed from them is no longer
rounded to 8 bits after each step.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from attnx.graph.load.nodes import subgraphs

if TYPE_CHECKING:
    from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto

FLOAT, BFLOAT16 = 1, 16
_TYPES = ("to", "dtype", "output_dtype", "softmax_precision", "stash_type")
"""Attributes that hold a data type."""
WIDENED = "bfloat16 is computed as float32 here, which the CPU has the kernels for; the file is untouched"


def widen(proto: ModelProto) -> bool:
    """Replace bfloat16 by float32 everywhere in a model. Weights stay in their files and are cast at run time.

    Returns:
        Whether there was any bfloat16.
    """
    return _graph(proto.graph)


def widen_inputs(proto: ModelProto) -> None:
    """Let a model that computes in bfloat16 take float32 inputs, and cast them: nothing else can be fed."""
    from onnx import helper

    casts = []
    for info in proto.graph.input:
        if info.type.tensor_type.elem_type == BFLOAT16:
            given = f"attnx/narrow/{info.name}"
            for node in proto.graph.node:
                _rename(node, {info.name: given})
            casts.append(helper.make_node("Cast", [info.name], [given], name=given, to=BFLOAT16))
            info.type.tensor_type.elem_type = FLOAT
    _put_behind(proto.graph, casts)


def _graph(graph: GraphProto) -> bool:
    from onnx import helper

    found = False
    for info in (*graph.input, *graph.output, *graph.value_info):
        found = _type(info.type) or found
    casts = []

    def cast(name: str) -> str:
        """The new name of a bfloat16 tensor: its own name is now that of its float32 numbers."""
        narrow = f"attnx/narrow/{name}"
        casts.append(helper.make_node("Cast", [narrow], [name], name=f"{narrow}/Cast", to=FLOAT))
        return narrow

    for tensor in graph.initializer:
        if tensor.data_type == BFLOAT16:
            for info in [i for i in graph.input if i.name == tensor.name]:
                graph.input.remove(info)  # old exporters list weights among the inputs
            tensor.name = cast(tensor.name)
    for node in graph.node:
        if node.op_type == "Constant" and any(t.data_type == BFLOAT16 for a in node.attribute for t in _tensors(a)):
            node.output[0] = cast(node.output[0])
        else:
            found = _node(node) or found
    _put_behind(graph, casts)
    return found or bool(casts)


def _put_behind(graph: GraphProto, casts: list[NodeProto]) -> None:
    """Add nodes right after the nodes that they read, or first where they read no node's output."""
    from onnx import NodeProto

    if not casts:
        return
    makers = {name for node in graph.node for name in node.output}
    first = [node for node in casts if node.input[0] not in makers]
    behind = {node.input[0]: node for node in casts if node.input[0] in makers}
    order = list(first)
    for node in graph.node:
        order.append(NodeProto.FromString(node.SerializeToString()))
        order += [behind[name] for name in node.output if name in behind]
    del graph.node[:]
    graph.node.extend(order)


def _rename(node: NodeProto, names: dict[str, str]) -> None:
    """Rename the values that a node reads, also inside its bodies."""
    for i, name in enumerate(node.input):
        if name in names:
            node.input[i] = names[name]
    for _, body in subgraphs(node):
        own = {t.name for t in body.initializer} | {i.name for i in body.input}
        own |= {o for inner in body.node for o in inner.output}
        outer = {old: new for old, new in names.items() if old not in own}
        for inner in body.node:
            _rename(inner, outer)
        for info in body.output:
            info.name = outer.get(info.name, info.name)


def _node(node: NodeProto) -> bool:
    found = False
    for attribute in node.attribute:
        if attribute.name in _TYPES and attribute.i == BFLOAT16:
            attribute.i, found = FLOAT, True
        for tensor in _tensors(attribute):
            if tensor.data_type == BFLOAT16:
                _widen_tensor(tensor)
                found = True
        if attribute.HasField("tp"):
            found = _type(attribute.tp) or found
    for _, body in subgraphs(node):
        found = _graph(body) or found
    return found


def _tensors(attribute: AttributeProto) -> Iterator[TensorProto]:
    if attribute.HasField("t"):
        yield attribute.t
    yield from attribute.tensors


def _widen_tensor(tensor: TensorProto) -> None:
    """Widen a tensor that is part of a node and holds its own numbers."""
    from onnx import numpy_helper

    array = np.asarray(numpy_helper.to_array(tensor)).astype(np.float32)
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def _type(kind: TypeProto) -> bool:
    if kind.HasField("tensor_type"):
        if kind.tensor_type.elem_type != BFLOAT16:
            return False
        kind.tensor_type.elem_type = FLOAT
        return True
    for name in ("sequence_type", "optional_type"):
        if kind.HasField(name):
            return _type(getattr(kind, name).elem_type)
    return False
