"""Write primitive ONNX nodes that fit a model's opset, for the decompositions of fused operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attnx.records import Array

if TYPE_CHECKING:
    from onnx import NodeProto, TensorProto, TypeProto

    from attnx.graph.shapes.index import Graph

OLDEST = 11
"""The first opset whose operators (Range, Slice by inputs, ScatterND ...) are enough for every decomposition."""
GIVEN = 17
"""The opset given to a model that imports none of ONNX's own operators, once some are added."""
FLOAT, UINT8, INT8, INT32, INT64, BOOL, FLOAT16, DOUBLE, BFLOAT16 = 1, 2, 3, 6, 7, 9, 10, 11, 16
"""TensorProto data types."""
LOWEST = float(np.finfo(np.float32).min)
"""What onnxruntime's kernels write into a hidden cell, where it is not minus infinity."""


def opset_of(graph: Graph) -> int:
    """The opset for nodes of ONNX's own; a model that imports only other domains is given one."""
    imported = any(o.domain in ("", "ai.onnx") for o in graph.proto.opset_import)
    return graph.opset if imported else GIVEN


_PREFIX = "attnx/"


def prefix_of(graph: Graph, node: NodeProto) -> str:
    """Prefix of every name that replaces `node`: "attnx/" and a name that no other node of the graph has."""
    unique = bool(node.name) and graph.names[node.name] == 1
    return f"{_PREFIX}{node.name if unique else next(o for o in node.output if o)}"


def emitted(node: NodeProto) -> bool:
    """Whether a node was written here, to replace one of the model's own."""
    return bool(node.name.startswith(_PREFIX))


class Emit:
    """Collects nodes and initializers under one prefix; methods return the names of the values they make.

    Equal nodes are made once: asking twice for the same operator on the same inputs gives the same name.

    Args:
        graph: The graph that the nodes will live in (its opset decides their form).
        prefix: Prefix of every name; unique in the model.
        like: A value of the graph. Where it is float64 the nodes compute in float64, else in float32, as the CPU
            kernels do for half-precision graphs too.
    """

    def __init__(self, graph: Graph, prefix: str, like: str = "") -> None:
        self.graph, self.prefix, self.opset = graph, prefix, opset_of(graph)
        self._declared: dict[str, TypeProto] | None = None
        self.work = DOUBLE if like and self.dtype(like) == DOUBLE else FLOAT
        self.nodes: list[NodeProto] = []
        self.initializers: list[TensorProto] = []
        self._count = 0
        self._constants: dict[tuple[Any, ...], str] = {}
        self._made: dict[str, str] = {}

    def name(self, label: str) -> str:
        """A name for a value under the prefix."""
        return f"{self.prefix}/{label}"

    def fresh(self, op: str) -> str:
        """An unused name under the prefix."""
        self._count += 1
        return f"{self.prefix}/{op}_{self._count}"

    def op(self, op: str, *inputs: str, out: str | Sequence[str] = "", domain: str = "", **attributes: Any) -> str:
        """Add one node; returns the name of its first output (`out`, or a fresh one)."""
        from onnx import helper

        outs = [out] if isinstance(out, str) else list(out)
        key = f"{domain}:{op}({inputs})({sorted(attributes.items(), key=lambda item: item[0])})"
        if outs == [""]:
            if key in self._made:
                return self._made[key]
            outs[0] = self._made[key] = self.fresh(op)
        name = f"{self.prefix}/node_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), outs, name=name, domain=domain, **attributes))
        return outs[0]

    # Constants

    def const(self, value: Any, dtype: Any = None) -> str:
        """An initializer with these numbers (one for equal numbers of one type)."""
        from onnx import numpy_helper

        array = np.asarray(value, dtype=dtype)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            name = self.fresh("const")
            self.initializers.append(numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name))
            self._constants[key] = name
        return self._constants[key]

    def ints(self, *values: int) -> str:
        """A 1-D int64 constant."""
        return self.const(np.array(values, dtype=np.int64))

    def number(self, value: Array | float) -> str:
        """A constant of the type that the nodes compute in."""
        return self.const(value, np.float64 if self.work == DOUBLE else np.float32)

    # What is known of a value of the graph

    def dtype(self, value: str) -> int | None:
        """The TensorProto data type of a value of the graph, or None if unknown."""
        fact = self.graph.facts.get(value)
        if fact is not None and fact.dtype:
            return fact.dtype
        declared = self._declaration(value)
        return (declared.tensor_type.elem_type or None) if declared is not None else None

    def _declaration(self, value: str) -> TypeProto | None:
        """What the file itself declares about a value, where shape inference found nothing."""
        if self._declared is None:
            graph = self.graph.proto.graph
            self._declared = {i.name: i.type for i in (*graph.value_info, *graph.output, *graph.input)}
        return self._declared.get(value)

    def rank(self, value: str) -> int | None:
        """The number of axes of a value of the graph, or None."""
        shape = self.graph.shape(value)
        if shape is not None:
            return len(shape)
        declared = self._declaration(value)
        known = declared is not None and declared.tensor_type.HasField("shape")
        return len(declared.tensor_type.shape.dim) if declared is not None and known else None

    def size(self, value: str, axis: int) -> Any:
        """The size of one axis of a value of the graph where it is the same for every input, else None."""
        shape = self.graph.shape(value)
        if shape is None or not -len(shape) <= axis < len(shape):
            return None
        return shape[axis] if is_fixed(shape[axis]) else None

    # Types

    def real(self, x: str) -> str:
        """A value of the graph in the type that the nodes compute in."""
        return x if self.dtype(x) == self.work else self.cast(x, self.work)

    def gather_real(self, table: str, rows: str) -> str:
        """Rows of a table of the graph, in the type that the nodes compute in."""
        taken = self.op("Gather", table, rows, axis=0)
        return taken if self.dtype(table) == self.work else self.cast(taken, self.work)

    def cast(self, x: str, to: int, out: str = "") -> str:
        """`x` as another type."""
        return self.op("Cast", x, to=to, out=out)

    def back(self, x: str, like: str, out: str = "") -> str:
        """`x`, which these nodes computed, in the type of the graph's own value `like`."""
        dtype = self.dtype(like)
        if dtype == self.work or (dtype is None and self.opset < 15):
            return self.op("Identity", x, out=out) if out else x
        return self.cast(x, dtype, out=out) if dtype is not None else self.op("CastLike", x, like, out=out)

    # Shapes

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

    def transpose(self, x: str, *perm: int, out: str = "") -> str:
        """Reorder the axes of `x`."""
        return self.op("Transpose", x, perm=list(perm), out=out)

    def reshape(self, x: str, *dims: int | str, out: str = "") -> str:
        """`x` with sizes that are numbers (0 copies, -1 takes the rest) or names of 1-element int64 tensors [1]."""
        if all(not isinstance(d, str) for d in dims):
            return self.op("Reshape", x, self.const(np.array(dims, dtype=np.int64)), out=out)
        return self.op("Reshape", x, self.join(*dims), out=out)

    def join(self, *sizes: int | str) -> str:
        """A 1-D int64 tensor of numbers and 1-element tensors."""
        return self.concat([s if isinstance(s, str) else self.ints(s) for s in sizes], 0)

    def dim(self, x: str, axis: int) -> str:
        """The size of one axis at run time, as a 1-element int64 tensor [1]."""
        return self.op("Gather", self.op("Shape", x), self.ints(axis), axis=0)

    def concat(self, parts: Sequence[str], axis: int, out: str = "") -> str:
        """Parts joined along an axis."""
        if len(parts) == 1 and not out:
            return parts[0]
        return self.op("Concat", *parts, axis=axis, out=out)

    def slice(self, x: str, start: int | str, stop: int | str, axis: int, out: str = "") -> str:
        """x[start:stop] along one axis; bounds are numbers or names of 1-element int64 tensors."""
        first = start if isinstance(start, str) else self.ints(start)
        last = stop if isinstance(stop, str) else self.ints(stop)
        return self.op("Slice", x, first, last, self.ints(axis), out=out)

    def split(self, x: str, sizes: Sequence[int], axis: int) -> list[str]:
        """Split along an axis into parts of the given sizes."""
        outs = [self.fresh("Split") for _ in sizes]
        if self.opset >= 13:
            self.op("Split", x, self.ints(*sizes), out=outs, axis=axis)
        else:
            self.op("Split", x, out=outs, axis=axis, split=list(sizes))
        return outs

    def thirds(self, x: str, axis: int) -> list[str]:
        """Split along an axis into three equal parts, whatever its size."""
        outs = [self.fresh("Split") for _ in range(3)]
        if self.opset >= 18:
            self.op("Split", x, out=outs, axis=axis, num_outputs=3)
        else:
            self.op("Split", x, out=outs, axis=axis)
        return outs

    def expand(self, x: str, *dims: int | str) -> str:
        """`x` broadcast to sizes that are numbers or names of 1-element int64 tensors."""
        return self.op("Expand", x, self.join(*dims))

    def zeros(self, *dims: int | str) -> str:
        """Zeros of sizes that are numbers or names of 1-element tensors, in the type that the nodes compute in."""
        return self.expand(self.number(0.0), *dims)

    def arange(self, count: str) -> str:
        """0, 1, ... below a 1-element int64 tensor."""
        zero, one = self.const(np.array(0, dtype=np.int64)), self.const(np.array(1, dtype=np.int64))
        return self.op("Range", zero, self.squeeze(count, 0), one)

    # Arithmetic and comparison

    def reduce(self, op: str, x: str, axis: int, keep: bool = True, out: str = "") -> str:
        """ReduceSum, ReduceMax, ReduceMean ... over one axis."""
        by_input = self.opset >= (13 if op == "ReduceSum" else 18)
        if by_input:
            return self.op(op, x, self.ints(axis), out=out, keepdims=int(keep))
        return self.op(op, x, out=out, axes=[axis], keepdims=int(keep))

    def at_most(self, a: str, b: str) -> str:
        """Whether a <= b, cell by cell."""
        return self.op("LessOrEqual", a, b) if self.opset >= 12 else self.op("Not", self.op("Greater", a, b))

    def all_of(self, *masks: str) -> str:
        """And of boolean masks; "" where there are none."""
        found = ""
        for mask in masks:
            found = mask if not found else self.op("And", found, mask) if mask else found
        return found

    def softmax(self, x: str, out: str = "") -> str:
        """Softmax over the last axis (before opset 13 the operator flattens, which is the same for the last axis)."""
        return self.op("Softmax", x, out=out, axis=-1)


def is_fixed(size: int | None) -> bool:
    """Whether a size is a real one: sizes that stand for a symbolic dimension are multiples of a prime above 1000."""
    if size is None or size < 0:
        return False
    rest, factor = size, 2
    while factor * factor <= rest:
        while rest % factor == 0 and rest > 1:
            rest //= factor
        factor += 1
    return rest < 1009
