"""Write primitive ONNX nodes that fit a model's opset: what the decompositions of fused operators are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attnx.records import Array

if TYPE_CHECKING:
    from onnx import NodeProto, TensorProto

    from attnx.graph.index import Graph


class Emit:
    """Collects nodes and initializers under one prefix; methods return the names of the values they make.

    Args:
        graph: The graph that the nodes will live in (its opset decides their form).
        prefix: Leads every name; unique in the model.
    """

    def __init__(self, graph: Graph, prefix: str) -> None:
        self.graph, self.prefix, self.opset = graph, prefix, graph.opset
        self.nodes: list[NodeProto] = []
        self.initializers: list[TensorProto] = []
        self._count = 0
        self._constants: dict[tuple[Any, ...], str] = {}

    def name(self, label: str) -> str:
        """A name for a value under the prefix."""
        return f"{self.prefix}/{label}"

    def _fresh(self, op: str) -> str:
        self._count += 1
        return f"{self.prefix}/{op}_{self._count}"

    def op(self, op: str, *inputs: str, out: str | Sequence[str] = "", domain: str = "", **attributes: Any) -> str:
        """Add one node; returns the name of its first output (`out`, or a fresh one)."""
        from onnx import helper

        outs = [out] if isinstance(out, str) else list(out)
        if not outs[0]:
            outs[0] = self._fresh(op)
        self.nodes.append(
            helper.make_node(op, list(inputs), outs, name=f"{self.prefix}/node_{len(self.nodes)}", domain=domain, **attributes)
        )
        return outs[0]

    def const(self, value: Any, dtype: Any = None) -> str:
        """An initializer with these numbers (one for equal numbers of one type)."""
        from onnx import numpy_helper

        array = np.asarray(value, dtype=dtype)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            name = self._fresh("const")
            self.initializers.append(numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name))
            self._constants[key] = name
        return self._constants[key]

    def ints(self, *values: int) -> str:
        """A 1-D int64 constant."""
        return self.const(np.array(values, dtype=np.int64))

    def unsqueeze(self, x: str, *axes: int, out: str = "") -> str:
        """Insert axes of size 1."""
        if self.opset >= 13:
            return self.op("Unsqueeze", x, self.ints(*axes), out=out)
        return self.op("Unsqueeze", x, out=out, axes=list(axes))

    def squeeze(self, x: str, *axes: int, out: str = "") -> str:
        """Drop axes of size 1."""
        if self.opset >= 13:
            return self.op("Squeeze", x, self.ints(*axes), out=out)
        return self.op("Squeeze", x, out=out, axes=list(axes))

    def reduce(self, op: str, x: str, axis: int, keep: bool = True, out: str = "") -> str:
        """ReduceSum, ReduceMax, ReduceMean ... over one axis."""
        by_input = self.opset >= (13 if op == "ReduceSum" else 18)
        if by_input:
            return self.op(op, x, self.ints(axis), out=out, keepdims=int(keep))
        return self.op(op, x, out=out, axes=[axis], keepdims=int(keep))

    def slice(self, x: str, start: int | str, stop: int | str, axis: int, out: str = "") -> str:
        """x[start:stop] along one axis; bounds are numbers or names of 1-element int64 tensors."""
        first = start if isinstance(start, str) else self.ints(start)
        last = stop if isinstance(stop, str) else self.ints(stop)
        return self.op("Slice", x, first, last, self.ints(axis), out=out)

    def split(self, x: str, sizes: Sequence[int], axis: int) -> list[str]:
        """Split along an axis into parts of the given sizes."""
        outs = [self._fresh("Split") for _ in sizes]
        if self.opset >= 13:
            self.op("Split", x, self.ints(*sizes), out=outs, axis=axis)
        else:
            self.op("Split", x, out=outs, axis=axis, split=list(sizes))
        return outs

    def dim(self, x: str, axis: int) -> str:
        """The size of one axis, as a 1-element int64 tensor [1]."""
        return self.op("Gather", self.op("Shape", x), self.ints(axis), axis=0)

    def softmax(self, x: str, out: str = "") -> str:
        """Softmax over the last axis (before opset 13 the operator flattens, which is the same for the last axis)."""
        return self.op("Softmax", x, out=out, axis=-1)

    def array(self, value: Array | float, like: str) -> str:
        """A constant cast to the type of `like` at run time (the graph may be float16)."""
        return self.op("CastLike", self.const(value, np.float32), like) if self.opset >= 15 else self.const(value, np.float32)
