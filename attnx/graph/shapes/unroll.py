"""Unroll loops over layers: a Loop or Scan with a known number of steps becomes that many copies of its body.

JAX writes a stack of layers as one body that runs over stacked weights (lax.scan, flax's nn.scan). Each step is a layer
with its own attention, which is found, numbered and tapped like any other once the steps are laid out in a row. A loop
whose number of steps is known only at run time (one that generates text) stays as it is.

Source: ONNX operator specifications, Loop-21 and Scan-21.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from attnx.graph.load.flatten import renamed
from attnx.graph.load.nodes import attribute, attributes
from attnx.graph.shapes.symbols import PROBE

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto

    from attnx.graph.shapes.index import Graph

MOST_STEPS = 512
MOST_NODES = 100_000
MOST_BYTES = 64 << 20
"""Limits beyond which a loop stays a loop: steps, and the nodes and bytes of all copies made in one pass."""


@dataclass(slots=True)
class _Unrolled:
    """What replaces a loop."""

    nodes: list[NodeProto] = field(default_factory=list)
    tensors: list[TensorProto] = field(default_factory=list)


@dataclass(slots=True)
class _Budget:
    """How much may still be copied."""

    nodes: int = MOST_NODES
    size: int = MOST_BYTES

    def spend(self, steps: int, body: GraphProto) -> bool:
        """Whether this many copies of a body fit in the remaining budget; if so, they are deducted from it."""
        if not 0 < steps <= MOST_STEPS or steps * len(body.node) > self.nodes:
            return False
        size = steps * sum(node.ByteSize() for node in body.node)
        if size > self.size:
            return False
        self.nodes -= steps * len(body.node)
        self.size -= size
        return True


def unroll(graph: Graph, wanted: Callable[[GraphProto], bool]) -> ModelProto | None:
    """The model with its loops unrolled.

    Args:
        graph: The flat graph.
        wanted: Returns whether a body is worth unrolling.

    Returns:
        A copy of the model; None where no loop can be unrolled or needs to be.
    """
    stand_ins: dict[int, _Unrolled] = {}
    budget = _Budget()
    for at, node in enumerate(graph.nodes):
        if node.op_type in ("Loop", "Scan") and node.domain in ("", "ai.onnx"):
            body = attribute(node, "body")
            if body is not None and wanted(body.g):
                write = _loop if node.op_type == "Loop" else _scan
                made = write(graph, node, body.g, budget)
                if made is not None:
                    stand_ins[at] = made
    if not stand_ins:
        return None
    from onnx import ModelProto

    proto = ModelProto()
    proto.CopyFrom(graph.proto)
    del proto.graph.node[:]
    for at, node in enumerate(graph.nodes):
        made = stand_ins.get(at)
        proto.graph.node.extend([node] if made is None else made.nodes)
        if made is not None:
            proto.graph.initializer.extend(made.tensors)
    return proto


def _loop(graph: Graph, node: NodeProto, body: GraphProto, budget: _Budget) -> _Unrolled | None:
    """Steps of a Loop: (iteration, condition, carried...) -> (condition, carried..., scanned...)."""
    steps = _number(graph, node.input[0]) if node.input[0] else None
    start = graph.known(node.input[1]) if len(node.input) > 1 and node.input[1] else np.array(True)
    if steps is None or start is None or not start.all() or not _goes_on(graph, body) or not budget.spend(steps, body):
        return None
    made = _Unrolled()
    base = node.name or node.output[0]
    shared = _share(made, base, body)
    carried = list(node.input[2:])
    scanned: list[list[str]] = [[] for _ in body.output[1 + len(carried) :]]
    go = _constant(made, f"{base}/condition", np.array(True))
    for step in range(steps):
        count = _constant(made, f"{base}/{step}/iteration", np.array(step, np.int64))
        given = dict(zip((i.name for i in body.input), (count, go, *carried), strict=False))
        outs = _copy(made, f"{base}/{step}", body, {**shared, **given})
        carried = outs[1 : 1 + len(carried)]
        for column, name in zip(scanned, outs[1 + len(carried) :], strict=True):
            column.append(name)
    _finish(graph, made, base, node.output, carried, scanned, [0] * len(scanned))
    return made


def _scan(graph: Graph, node: NodeProto, body: GraphProto, budget: _Budget) -> _Unrolled | None:
    """Steps of a Scan: (carried..., a slice of each sequence...) -> (carried..., a slice of each result...)."""
    if graph.opset < 9:
        return None  # a separate batch axis, long abandoned
    a = attributes(node)
    count = int(a["num_scan_inputs"])
    carried, sequences = list(node.input[:-count]), list(node.input[-count:])
    axes = list(a.get("scan_input_axes") or [0] * count)
    backward = list(a.get("scan_input_directions") or [0] * count)
    shape = graph.shape(sequences[0])
    steps = None if shape is None else shape[axes[0] % len(shape)]
    if steps is None or steps > PROBE or not budget.spend(steps, body):
        return None
    made = _Unrolled()
    base = node.name or node.output[0]
    shared = _share(made, base, body)
    results = len(body.output) - len(carried)
    scanned: list[list[str]] = [[] for _ in range(results)]
    for step in range(steps):
        slices = []
        for i, name in enumerate(sequences):
            at = steps - 1 - step if backward[i] else step
            index = _constant(made, f"{base}/{step}/at{i}", np.array(at, np.int64))
            slices.append(_node(made, "Gather", [name, index], f"{base}/{step}/slice{i}", axis=axes[i]))
        given = dict(zip((i.name for i in body.input), (*carried, *slices), strict=True))
        outs = _copy(made, f"{base}/{step}", body, {**shared, **given})
        carried = outs[: len(carried)]
        for column, name in zip(scanned, outs[len(carried) :], strict=True):
            column.append(name)
    directions = a.get("scan_output_directions") or [0] * results
    columns = [c[::-1] if d else c for c, d in zip(scanned, directions, strict=True)]
    _finish(graph, made, base, node.output, carried, columns, list(a.get("scan_output_axes") or [0] * results))
    return made


def _number(graph: Graph, value: str) -> int | None:
    """A whole number that is the same whatever the inputs are."""
    held = graph.stable(value)
    return None if held is None or held.size != 1 else int(held.ravel()[0])


def _goes_on(graph: Graph, body: GraphProto) -> bool:
    """Whether the condition that a body returns is the one it received, or always true."""
    name = body.output[0].name
    makers = {out: node for node in body.node for out in node.output}
    while name in makers and makers[name].op_type in ("Identity", "Cast"):
        name = makers[name].input[0]
    if name == body.input[1].name:
        return True
    held = next((graph.read_small(t) for t in body.initializer if t.name == name), None)
    if held is None and name in makers and makers[name].op_type == "Constant":
        held = graph.constant_of(makers[name])
    if held is None and name not in makers:
        held = graph.known(name)
    return held is not None and bool(held.all())


def _share(made: _Unrolled, base: str, body: GraphProto) -> dict[str, str]:
    """Copy the body's own weights once for all steps; returns their new names."""
    from onnx import TensorProto

    names = {}
    for tensor in body.initializer:
        copy = TensorProto()
        copy.CopyFrom(tensor)
        copy.name = names[tensor.name] = f"{base}/{tensor.name}"
        made.tensors.append(copy)
    return names


def _copy(made: _Unrolled, base: str, body: GraphProto, given: dict[str, str]) -> list[str]:
    """Copy one step: the body's nodes, under new names. Returns the names of its outputs."""
    names = {**given, **{out: f"{base}/{out}" for node in body.node for out in node.output if out}}
    for node in body.node:
        copy = renamed(node, names)
        copy.name = f"{base}/{node.name or node.output[0]}"
        made.nodes.append(copy)
    return [names.get(o.name, o.name) for o in body.output]


def _finish(
    graph: Graph, made: _Unrolled, base: str, outputs: Sequence[str], carried: list[str], scanned: list[list[str]],
    axes: list[int],
) -> None:  # fmt: skip
    """Give the loop's outputs their names: values carried out of the last step, and the steps' stacked results."""
    for name, source in zip(outputs, carried, strict=False):
        if name:
            _node(made, "Identity", [source], name, name=True)
    for name, parts, axis in zip(outputs[len(carried) :], scanned, axes, strict=False):
        if not name:
            continue
        whole = []
        for i, part in enumerate(parts):
            if graph.opset < 13:
                whole.append(_node(made, "Unsqueeze", [part], f"{base}/{name}/{i}", axes=[axis]))
            else:
                at = _constant(made, f"{base}/{name}/{i}/axis", np.array([axis], np.int64))
                whole.append(_node(made, "Unsqueeze", [part, at], f"{base}/{name}/{i}"))
        _node(made, "Concat", whole, name, name=True, axis=axis)


def _constant(made: _Unrolled, name: str, value: np.ndarray) -> str:
    from onnx import numpy_helper

    made.tensors.append(numpy_helper.from_array(value, name))
    return name


def _node(
    made: _Unrolled, op: str, inputs: list[str], out: str, *, name: bool = False, **attrs: int | list[int]
) -> str:
    from onnx import helper

    made.nodes.append(helper.make_node(op, inputs, [out], name=f"{out}/{op}" if name else out, **attrs))
    return out
