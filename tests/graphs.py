"""Small graphs written node by node, for tests that each have one thing to tell."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import attnx
from attnx.records import Site, Trace

RNG = np.random.default_rng(3)
D, H, S = 8, 4, 5


class G:
    """A graph in the making; methods return the names of values."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, np.ndarray] = {}
        self.inputs: dict[str, tuple[int, list[Any]]] = {}

    def input(self, name: str, shape: Sequence[Any], kind: int = TensorProto.FLOAT) -> str:
        self.inputs[name] = (kind, list(shape))
        return name

    def weight(self, *shape: int) -> str:
        return self.const(RNG.standard_normal(shape).astype(np.float32))

    def const(self, value: Any, dtype: Any = None) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = np.asarray(value, dtype=dtype)
        return name

    def op(self, op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        outs = [f"v{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op, list(inputs), outs, name=f"n{len(self.nodes)}_{op}", **attributes))
        return outs[0] if outputs == 1 else outs

    def linear(self, x: str, width: int, from_width: int = 16) -> str:
        return str(self.op("MatMul", x, self.weight(from_width, width)))

    def heads(self, x: str, perm: Sequence[int] = (0, 2, 1, 3), count: int = H, size: int = D) -> str:
        split = self.op("Reshape", x, self.const([0, -1, count, size], np.int64))
        return str(self.op("Transpose", split, perm=list(perm)))

    def softmax(self, x: str, axis: int = -1) -> str:
        return str(self.op("Softmax", x, axis=axis))

    def out(self, context: str, width: int = D * H) -> str:
        merged = self.op(
            "Reshape", self.op("Transpose", context, perm=[0, 2, 1, 3]), self.const([0, -1, width], np.int64)
        )
        return self.linear(merged, 16, width)

    def scores(self, q: str, k: str, scale: float | None = D**-0.5) -> str:
        product = self.op("MatMul", q, k)
        return str(product if scale is None else self.op("Mul", product, self.const(scale, np.float32)))

    def save(self, folder: Path, *outputs: str) -> Path:
        inputs = [helper.make_tensor_value_info(n, k, s) for n, (k, s) in self.inputs.items()]
        outs = [helper.make_empty_tensor_value_info(o) for o in outputs]
        tensors = [numpy_helper.from_array(v, n) for n, v in self.weights.items()]
        graph = helper.make_graph(self.nodes, "g", inputs, outs, tensors)
        path = folder / "model.onnx"
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
        return path


def qkv(g: G, x: str, memory: str | None = None) -> tuple[str, str, str]:
    memory = memory or x
    return g.heads(g.linear(x, D * H)), g.heads(g.linear(memory, D * H), (0, 2, 3, 1)), g.heads(g.linear(memory, D * H))


def plain(g: G, x: str, memory: str | None = None) -> str:
    q, k, v = qkv(g, x, memory)
    return g.out(str(g.op("MatMul", g.softmax(g.scores(q, k)), v)))


def sites(path: Path) -> tuple[Site, ...]:
    return attnx.open(path, device="cpu").sites


def trace(path: Path, **inputs: np.ndarray) -> Trace:
    return attnx.open(path, device="cpu").trace(inputs=inputs, verify_outputs=True)


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))
