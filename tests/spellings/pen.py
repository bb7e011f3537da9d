"""Nodes, constants and inputs of a graph that is written by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

Arrays = dict[str, np.ndarray]


class Pen:
    """Writes the nodes of a graph; every method returns the name of a value."""

    def __init__(self, opset: int, constants: str) -> None:
        self.opset, self.constants = opset, constants
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.feed: Arrays = {}
        self.count = 0

    def op(self, op: str, *inputs: str, out: int = 1, domain: str = "", **attributes: Any) -> Any:
        self.count += 1
        outs = [f"{op.lower()}_{self.count}_{i}" for i in range(out)]
        name = f"{op}_{self.count}"
        self.nodes.append(helper.make_node(op, list(inputs), outs, name=name, domain=domain, **attributes))
        return outs[0] if out == 1 else outs

    def c(self, value: Any, dtype: Any = np.float32) -> str:
        self.count += 1
        name = f"c_{self.count}"
        tensor = numpy_helper.from_array(np.asarray(value, dtype), name)
        if self.constants == "node":
            self.nodes.append(helper.make_node("Constant", [], [name], value=tensor))
        else:
            self.tensors.append(tensor)
        return name

    def i(self, *values: int) -> str:
        return self.c(values, np.int64)

    def given(self, name: str, array: np.ndarray, dims: list[Any]) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), dims))
        self.feed[name] = array
        return name

    def axes(self, op: str, x: str, *axes: int) -> str:
        if self.opset >= 13:
            return str(self.op(op, x, self.i(*axes)))
        return str(self.op(op, x, axes=list(axes)))

    def reduce(self, op: str, x: str, *axes: int, keep: int = 1) -> str:
        if self.opset >= (13 if op == "ReduceSum" else 18):
            return str(self.op(op, x, self.i(*axes), keepdims=keep))
        return str(self.op(op, x, axes=list(axes), keepdims=keep))

    def dim(self, x: str, axis: int) -> str:
        return str(self.op("Gather", self.op("Shape", x), self.i(axis)))

    def shape(self, *parts: int | str) -> str:
        """A shape as one tensor: numbers, and names of one-element tensors."""
        if all(isinstance(p, int) for p in parts):
            return self.i(*[int(p) for p in parts])
        return str(self.op("Concat", *[self.i(p) if isinstance(p, int) else p for p in parts], axis=0))

    def reshape(self, x: str, *parts: int | str) -> str:
        return str(self.op("Reshape", x, self.shape(*parts)))

    def turn(self, x: str, *perm: int) -> str:
        return str(self.op("Transpose", x, perm=list(perm)))

    def slice(self, x: str, start: int, stop: int, axis: int) -> str:
        return str(self.op("Slice", x, self.i(start), self.i(stop), self.i(axis)))

    def split(self, x: str, parts: int, axis: int, size: int) -> list[str]:
        if self.opset >= 18:
            out = self.op("Split", x, out=parts, axis=axis, num_outputs=parts)
        elif size < 0:  # as long as the axis says
            out = self.op("Split", x, out=parts, axis=axis)
        elif self.opset >= 13:
            out = self.op("Split", x, self.i(*[size] * parts), out=parts, axis=axis)
        else:
            out = self.op("Split", x, out=parts, axis=axis, split=[size] * parts)
        return [out] if isinstance(out, str) else list(out)
