"""Nodes added to a graph that is being tapped, each only once, in the form that its opset requires."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from attnx.records import Array

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

    from attnx.graph.shapes.index import Graph


class Nodes:
    """Adds nodes to a graph."""

    def __init__(self, graph: Graph, proto: ModelProto) -> None:
        self._graph, self._proto = graph, proto
        self._made: dict[tuple[object, ...], str] = {}

    def _is_float32(self, value: str) -> bool:
        fact = self._graph.facts.get(value)
        return fact is not None and fact.dtype == 1

    def summed(self, value: str, axis: int = -1, keep: int = 0) -> str:
        if self._graph.opset >= 13:
            return self.node("ReduceSum", [value, self.ints([axis])], keepdims=keep)
        return self.node("ReduceSum", [value], axes=[axis], keepdims=keep)

    def _axes(self) -> list[str]:
        return [self.ints([-1])] if self._graph.opset >= 18 else []

    def _axes_attribute(self) -> dict[str, list[int]]:
        return {} if self._graph.opset >= 18 else {"axes": [-1]}

    def ints(self, values: Sequence[int]) -> str:
        return self.constant(np.asarray(values, np.int64))

    def index(self, place: int) -> str:
        """A single int64 without axes."""
        return self.constant(np.asarray(place, np.int64))

    def at_least(self, value: str, least: float) -> str:
        """The value with every number raised to at least this."""
        kind = "Clip" if self._graph.opset >= 11 else "Max"  # Clip, which does not broadcast, is a tenth faster
        return self.node(kind, [value, self.number(least)])

    def number(self, value: float) -> str:
        return self.constant(np.asarray(value, np.float32))

    def filled(self, shape: Sequence[int], value: float) -> str:
        """A float32 constant in which every number is the same."""
        return self.constant(np.full(shape, value, np.float32))

    def constant(self, array: Array) -> str:
        from onnx import numpy_helper

        key = ("constant", array.tobytes(), array.shape, array.dtype.str)
        if key not in self._made:
            self._made[key] = f"attnx/constant/{len(self._made)}"
            self._proto.graph.initializer.append(numpy_helper.from_array(array, self._made[key]))
        return self._made[key]

    def node(self, kind: str, inputs: Sequence[str], **attributes: object) -> str:
        """Add a node, only once for each computation."""
        from onnx import helper

        key = (kind, *inputs, repr(sorted(attributes.items())))
        if key not in self._made:
            name = f"attnx/{kind}/{len(self._made)}"
            self._made[key] = name
            node: NodeProto = helper.make_node(kind, list(inputs), [name], name=name, **attributes)
            self._proto.graph.node.append(node)
        return self._made[key]

    def copied(self, node: NodeProto, inputs: Sequence[str], output: str) -> None:
        """Add a copy of a node with one output, with other inputs and that output."""
        copy = type(node)()
        copy.CopyFrom(node)
        copy.name, copy.output[0] = output, output
        del copy.input[:]
        copy.input.extend(inputs)
        self._proto.graph.node.append(copy)

    def holds(self, value: str) -> bool:
        """Whether the graph that will run has a tensor of that name, or the name is empty."""
        graph = self._proto.graph
        there = {tensor.name for tensor in graph.initializer} | {slot.name for slot in graph.input}
        return not value or value in there or any(value in node.output for node in graph.node)

    def dtype(self, value: str) -> int:
        """A tensor's type as ONNX numbers it; float32 where it is not known."""
        fact = self._graph.facts.get(value)
        return fact.dtype if fact is not None and fact.dtype else 1

    def rename_made(self, value: str) -> str:
        """Rename a tensor at the node that makes it; returns the new name, or `value` if no node makes it."""
        for node in self._proto.graph.node:
            for i, name in enumerate(node.output):
                if name == value:
                    node.output[i] = f"attnx/before/{value}"
                    return str(node.output[i])
        return value

    def begin(self, value: str) -> None:
        """Turn a tensor into an input of the same name: what computes it is not run."""
        from onnx import helper

        shape = self._graph.shape(value)
        dims = [f"attnx_begin_{i}" for i in range(len(shape or ()))]
        self.rename_made(value)
        self._proto.graph.input.append(helper.make_tensor_value_info(value, self.dtype(value), dims))

    def as_float32(self, value: str) -> str:
        """The tensor in float32."""
        return value if self._is_float32(value) else self.node("Cast", [value], to=1)

    def transposed(self, value: str, order: Sequence[int]) -> str:
        """The tensor with its axes in another order."""
        plain = tuple(order) == tuple(range(len(order)))
        return value if plain else self.node("Transpose", [value], perm=list(order))

    def reshaped(self, value: str, shape: Sequence[int]) -> str:
        """The tensor with axes split and merged; 0 keeps the axis at that place, -1 takes the rest."""
        return self.node("Reshape", [value, self.ints(shape)])

    def one_by_one(self, compute: Callable[..., str], values: Sequence[str], outer: int) -> str:
        """Reduce the rows of float32 matrices, one matrix at a time: what `compute` makes on the way is held for one.

        Args:
            compute: Given the names of matrices [Q,K], adds nodes that make a number for each row; returns its name.
            values: Tensors of one shape, with Q and K as their last axes.
            outer: How many axes they have before these.

        Returns:
            A tensor with the outer axes and Q.
        """
        from onnx import helper

        if self._graph.opset < 9:  # an older Scan takes a batch
            return compute(*values)
        shape = self.node("Shape", [values[0]])
        ends = self.node("Gather", [shape, self.ints([outer, outer + 1])])
        stacked = self.node("Concat", [self.ints([-1]), ends], axis=0)
        matrices = [f"{value}/matrix" for value in values]
        nodes = self._proto.graph.node
        before = len(nodes)
        row = compute(*matrices)
        inside = [type(node).FromString(node.SerializeToString()) for node in nodes[before:]]
        del nodes[before:]
        takes = [helper.make_tensor_value_info(m, 1, [f"{m}/queries", f"{m}/keys"]) for m in matrices]
        gives = [helper.make_tensor_value_info(row, 1, [f"{row}/queries"])]
        body = helper.make_graph(inside, f"{row}/body", takes, gives)
        flat = [self.node("Reshape", [value, stacked]) for value in values]
        rows = self.node("Scan", flat, body=body, num_scan_inputs=len(flat))
        return self.node("Reshape", [rows, self.node("Gather", [shape, self.ints(range(outer + 1))])])

    def extreme(self, kind: str, value: str, keep: int = 0) -> str:
        """ReduceMax or ReduceMin over the last axis."""
        return self.node(kind, [value, *self._axes()], **self._axes_attribute(), keepdims=keep)
