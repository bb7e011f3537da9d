"""Models of one integer product each, by operator, with what they must give from their own int32 products."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from attnx.session.processor import Processor

Array = np.ndarray
M, K, N = 3, 10, 6
OLD = Processor("an old one", ("AVX2",), saturates=True, block=8)
NEW = Processor("a new one", ("AVX2", "AVX_VNNI"), saturates=False, block=8)
UNKNOWN = Processor("", None, saturates=None, block=None)
_TYPES = {"float32": TensorProto.FLOAT, "uint8": TensorProto.UINT8, "int8": TensorProto.INT8}


@dataclass(frozen=True)
class Case:
    """A model of one product."""

    proto: onnx.ModelProto
    feed: dict[str, Array]
    want: Callable[[Callable[[Array, Array], Array]], Array]
    """The output, given the product of integers [M,K] and [K,N]."""

    def save(self, folder: Path, *, external: bool = False) -> Path:
        path = folder / "model.onnx"
        onnx.save(self.proto, path, save_as_external_data=external, location="weights", size_threshold=0)
        return path


def model(nodes: list[onnx.NodeProto], feed: dict[str, Array], held: dict[str, Array]) -> onnx.ModelProto:
    """A model of nodes whose output is y; every input of unknown sizes."""
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info(n, _TYPES[str(a.dtype)], [None] * a.ndim) for n, a in feed.items()],
        [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in held.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def sides(left: type = np.uint8, right: type = np.int8, most: int = 127) -> tuple[Array, Array]:
    """Large activations [M,K], and weights [K,N] up to `most`: all columns positive, all negative, or of both signs."""
    r = np.random.default_rng(3)
    a = r.integers(*((200, 256) if left == np.uint8 else (90, 128)), (M, K)).astype(left)
    b = r.integers(most - 20, most + 1, (K, N))
    b[:, 1::3] *= -1
    b[:, 2::3] *= r.choice([-1, 1], (K, N // 3))
    return a, (b + (0 if right == np.int8 else 128)).astype(right)


def of(op: str, a: Array, b: Array) -> Case:
    """A model whose operator multiplies a with b."""
    one, za, zb = np.float32(1), a.dtype.type(0), b.dtype.type(0)
    node, feed, held, want = helper.make_node, {"a": a}, {"b": b, "one": one, "za": za, "zb": zb}, None
    if op == "MatMulInteger":
        nodes = [node(op, ["a", "b"], ["y"])]
    elif op == "MatMulInteger of two inputs":
        feed, held = {"a": a, "b": b}, {}
        nodes = [node("MatMulInteger", ["a", "b"], ["y"])]
    elif op == "MatMulInteger in a branch":
        branch = helper.make_graph([node("MatMulInteger", ["a", "b"], ["p"])], "t", [], [onnx.ValueInfoProto(name="p")])
        other = helper.make_graph([node("MatMulInteger", ["a", "b"], ["q"])], "e", [], [onnx.ValueInfoProto(name="q")])
        feed = {"a": a, "x": np.ones(1, np.float32)}
        nodes = [
            node("ReduceMax", ["x"], ["most"], keepdims=0),
            node("Cast", ["most"], ["c"], to=TensorProto.BOOL),
            node("If", ["c"], ["y"], then_branch=branch, else_branch=other),
        ]
    elif op == "QLinearMatMul":
        held["step"] = np.float32(K * 255)
        nodes = [node(op, ["a", "one", "za", "b", "one", "zb", "step", "middle"], ["y"])]
        held["middle"] = np.array(128 if a.dtype == np.uint8 else 0, a.dtype)
        low, high = (0, 255) if a.dtype == np.uint8 else (-128, 127)
        want = lambda product: np.clip(np.rint(product(a, b) / held["step"]) + held["middle"], low, high)  # noqa: E731
    elif op in ("QGemm", "QGemm turned"):
        turned = op != "QGemm"
        held["b"] = b.T.copy() if turned else b
        nodes = [node("QGemm", ["a", "one", "za", "b", "one", "zb"], ["y"], domain="com.microsoft", transB=int(turned))]
    elif op == "MatMulIntegerToFloat":
        nodes = [node(op, ["a", "b", "one", "one"], ["y"], domain="com.microsoft")]
    elif op == "DynamicQuantizeMatMul":
        a = a.copy()
        a[:, 0], a[:, 1] = 0, 255  # what it rounds to a step of 1
        feed = {"a": a.astype(np.float32)}
        nodes = [node(op, ["a", "b", "one"], ["y"], domain="com.microsoft")]
    elif op == "QAttention":
        feed = {"a": a[None]}
        held |= {"w": np.concatenate([b, b[::-1], b], 1), "bias": np.zeros(3 * N, np.float32), "s": np.float32(1e-2)}
        nodes = [node(op, ["a", "w", "bias", "s", "s", "", "za", "zb"], ["y"], domain="com.microsoft", num_heads=2)]
        want = lambda product: _attended(product(a, held["w"]) * 1e-4)  # noqa: E731
    elif op == "DynamicQuantizeLSTM":
        x = np.ones((1, 1, K), np.float32)
        x[0, 0, 0] = 0  # 0 to 1 in 255 steps
        feed, cell = {"a": x}, np.concatenate([b] * 4, 1)
        held |= {"w": cell[None], "r": np.zeros((1, N, 4 * N), b.dtype), "s": np.full(1, 1e-3, np.float32)}
        held["z"] = np.zeros(1, b.dtype)
        inputs = ["a", "w", "r", *[""] * 5, "s", "z", "s", "z"]
        nodes = [node(op, inputs, ["y"], domain="com.microsoft", hidden_size=N)]
        steps = np.where(x[0] == 0, 0, 255).astype(np.uint8)
        want = lambda product: _cell(product(steps, cell) * (1e-3 / 255))[None, None]  # noqa: E731
    elif op == "QLinearConv":
        # 1 x 1 filters: a product at each pixel
        feed = {"a": a.T.reshape(1, K, M, 1).copy()}
        held |= {"w": b.T.reshape(N, K, 1, 1).copy(), "step": np.float32(K * 255), "middle": np.array(128, a.dtype)}
        nodes = [node(op, ["a", "one", "za", "w", "one", "zb", "step", "middle"], ["y"])]
        want = lambda product: np.clip(np.rint(product(a, b) / held["step"]) + 128, 0, 255).T.reshape(1, N, M, 1)  # noqa: E731
    elif op == "ConvInteger":
        # Its filter is the left side: a is the filter, b the picture.
        feed, held = {"a": b.reshape(1, K, N, 1).copy()}, {"w": a.reshape(M, K, 1, 1).copy()}
        nodes = [node(op, ["a", "w"], ["y"])]
        want = lambda product: product(a, b).reshape(1, M, N, 1)  # noqa: E731
    else:
        nodes = [
            node("QuantizeLinear", ["a", "one", "za"], ["q"]), node("DequantizeLinear", ["q", "one", "za"], ["left"]),
            node("DequantizeLinear", ["b", "one", "zb"], ["right"]), node(op, ["left", "right"], ["y"]),
        ]  # fmt: skip
        feed = {"a": a.astype(np.float32)}
    return Case(model(nodes, feed, held), feed, want or (lambda product: product(a, b)))


def _attended(projected: Array) -> Array:
    query, key, value = np.split(projected.reshape(M, 3, 2, N // 2).astype(np.float64), 3, axis=1)
    scores = np.einsum("qzhd,kzhd->hqk", query, key) / np.sqrt(N // 2)
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("hqk,kzhd->qhd", e / e.sum(-1, keepdims=True), value).reshape(1, M, N)


def _cell(gates: Array) -> Array:
    def sigmoid(x: Array) -> Array:
        return 1 / (1 + np.exp(-x))

    into, out, _, new = np.split(gates, 4, -1)
    return sigmoid(out) * np.tanh(sigmoid(into) * np.tanh(new))
