"""Attention as ModelOpt leaves it for TensorRT: rounded on all sides, in ONNX's operators or in TensorRT's own.

The forms are those of ModelOpt's exporter: int8 with a scale for each column, float8, int4 and float4 in blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

import attnx
from attnx.errors import ModelError
from attnx.study.precision import written
from tests.graphs import D, G, H

WIDE = D * H
BLOCK = 16
Act = Callable[[G, str], str]
Weight = Callable[[G, np.ndarray], str]


class Low(G):
    """A graph that may hold tensors of types that numpy has not, and operators of another domain."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors: list[onnx.TensorProto] = []

    def low(self, values: np.ndarray, kind: int) -> str:
        name = f"low{len(self.tensors)}"
        self.tensors.append(helper.make_tensor(name, kind, values.shape, values.astype(np.float32).ravel()))
        return name

    def write(self, folder: Path, opset: int, *outputs: str) -> Path:
        path = self.save(folder, *outputs)
        proto = onnx.load(path)
        proto.graph.initializer.extend(self.tensors)
        proto.opset_import[0].version, proto.ir_version = opset, 11
        proto.opset_import.append(helper.make_opsetid("trt", 1))
        onnx.save(proto, path)
        return path


def scalar(g: G, value: float) -> str:
    return g.const(value, np.float32)


def as_it_is(_: G, x: str) -> str:
    return x


def int8(g: G, x: str) -> str:
    scale = (scalar(g, 0.03), g.const(0, np.int8))
    return str(g.op("DequantizeLinear", g.op("QuantizeLinear", x, *scale), *scale))


def int8_columns(g: G, w: np.ndarray) -> str:
    scale = (np.abs(w).max(0) / 127).astype(np.float32)
    zero = g.const(np.zeros(len(scale), np.int8))
    return str(g.op("DequantizeLinear", g.const(np.rint(w / scale).astype(np.int8)), g.const(scale), zero, axis=1))


def float8(g: G, x: str) -> str:
    scale = (scalar(g, 0.01), g.low(np.zeros(()), TensorProto.FLOAT8E4M3FN))
    return str(g.op("DequantizeLinear", g.op("QuantizeLinear", x, *scale), *scale))


def float8_whole(g: G, w: np.ndarray) -> str:
    scale = float(np.abs(w).max() / 448)
    return str(g.op("DequantizeLinear", g.low(w / scale, TensorProto.FLOAT8E4M3FN), scalar(g, scale)))


def trt_float8(g: G, x: str) -> str:
    scale = scalar(g, 0.01)
    inner = g.op("TRT_FP8QuantizeLinear", x, scale, domain="trt")
    return str(g.op("TRT_FP8DequantizeLinear", inner, scale, domain="trt"))


def trt_float8_whole(g: G, w: np.ndarray) -> str:
    return trt_float8(g, g.const(w))


def trt_float4(g: G, x: str) -> str:
    scale = scalar(g, 0.01)
    inner, scales = g.op(
        "TRT_FP4DynamicQuantize", x, scale, outputs=2, domain="trt", axis=-1, block_size=BLOCK, scale_type=17
    )
    by_block = g.op("DequantizeLinear", scales, scale)
    return str(g.op("DequantizeLinear", inner, by_block, axis=-1, block_size=BLOCK))


def in_blocks(w: np.ndarray, most: float) -> np.ndarray:
    return np.asarray(np.abs(w).reshape(-1, BLOCK, w.shape[1]).max(1) / most, np.float32)


def float4_blocks(g: G, w: np.ndarray) -> str:
    blocks = in_blocks(w, 6)
    whole = float(blocks.max() / 448)
    scale = g.op("DequantizeLinear", g.low(blocks / whole, TensorProto.FLOAT8E4M3FN), scalar(g, whole))
    stored = g.low(w / np.repeat(blocks, BLOCK, 0), TensorProto.FLOAT4E2M1)
    return str(g.op("DequantizeLinear", stored, scale, axis=0, block_size=BLOCK))


def int4_blocks(g: G, w: np.ndarray, domain: str = "") -> str:
    blocks = in_blocks(w, 7)
    stored = g.low(np.clip(np.rint(w / np.repeat(blocks, BLOCK, 0)), -8, 7), TensorProto.INT4)
    return str(g.op("DequantizeLinear", stored, g.const(blocks), axis=0, block_size=BLOCK, domain=domain))


def trt_int4_blocks(g: G, w: np.ndarray) -> str:
    return int4_blocks(g, w, "trt")


def trt_mx(g: G, x: str) -> str:
    inner, scales = g.op("TRT_MXFP8DynamicQuantize", x, outputs=2, domain="trt", axis=-1, block_size=32)
    return str(g.op("TRT_MXFP8DequantizeLinear", inner, scales, domain="trt", axis=-1, block_size=32))


def model(folder: Path, opset: int, act: Act, weight: Weight) -> tuple[Path, str]:
    """One layer with everything that is multiplied rounded, softmax's output too; and the softmax."""
    g, drawn = Low(), np.random.default_rng(0)
    x = g.input("x", ["b", "s", WIDE])

    def linear(value: str) -> str:
        w = (drawn.standard_normal((WIDE, WIDE)) / np.sqrt(WIDE)).astype(np.float32)
        return str(g.op("MatMul", act(g, value), weight(g, w)))

    q, k, v = (g.heads(linear(x)) for _ in range(3))
    weights = g.softmax(g.scores(act(g, q), act(g, str(g.op("Transpose", k, perm=[0, 1, 3, 2])))))
    context = g.op("Transpose", g.op("MatMul", act(g, weights), act(g, v)), perm=[0, 2, 1, 3])
    out = linear(str(g.op("Reshape", context, g.const([0, -1, WIDE], np.int64))))
    return g.write(folder, opset, str(g.op("Add", x, out)), weights), weights


@pytest.mark.parametrize(
    ("opset", "act", "weight", "kept"),
    [(17, int8, int8_columns, "int8"), (19, float8, float8_whole, "fp8"), (21, as_it_is, int4_blocks, "int4")],
)
def test_what_is_rounded_with_onnx_operators_is_shown_as_it_runs(
    opset: int, act: Act, weight: Weight, kept: str, tmp_path: Path
) -> None:
    path, softmax = model(tmp_path, opset, act, weight)
    feed = {"x": np.random.default_rng(1).standard_normal((1, 6, WIDE)).astype(np.float32)}
    opened = attnx.open(path, device="cpu")
    (site,) = opened.sites
    assert (site.heads, site.head_size, site.scale) == (H, D, pytest.approx(D**-0.5))
    assert written(path).weights == kept
    (attention,) = opened.trace(inputs=feed).attentions
    assert attention.trusted
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(attention.need("weights"), session.run([softmax], feed)[0], atol=1e-6)


@pytest.mark.parametrize(
    ("opset", "act", "weight", "named"),
    [
        (17, trt_float8, trt_float8_whole, "TRT_FP8DequantizeLinear, TRT_FP8QuantizeLinear"),
        (23, trt_float4, float4_blocks, "TRT_FP4DynamicQuantize"),
        (21, as_it_is, trt_int4_blocks, "DequantizeLinear"),
        (19, trt_mx, float8_whole, "TRT_MXFP8DequantizeLinear, TRT_MXFP8DynamicQuantize"),
    ],
)
def test_what_tensorrt_alone_can_run_is_found_and_refused_by_name(
    opset: int, act: Act, weight: Weight, named: str, tmp_path: Path
) -> None:
    path, _ = model(tmp_path, opset, act, weight)
    opened = attnx.open(path, device="cpu")
    (site,) = opened.sites
    assert (site.heads, site.head_size, site.scale) == (H, D, pytest.approx(D**-0.5))
    assert {"query", "key", "value", "weights"} <= set(site.places)
    with pytest.raises(ModelError, match=rf"it has operators of TensorRT \({named}, of the domain trt\)"):
        opened.trace(inputs={"x": np.zeros((1, 6, WIDE), np.float32)})


@pytest.mark.parametrize(
    ("domain", "op"),
    [
        ("trt_edgellm", "AttentionPlugin"),
        ("", "CustomQKVToContextPluginDynamic"),
        ("trt", "FusedMHA"),
        ("ai.else", "FlashAttn"),
    ],
)
def test_a_plug_in_of_which_the_name_alone_is_known_is_a_near_miss(domain: str, op: str, tmp_path: Path) -> None:
    g = Low()
    x = g.input("x", ["b", "s", 16])
    context = g.op(op, *(g.linear(x, WIDE) for _ in range(3)), domain=domain)
    opened = attnx.open(g.write(tmp_path, 17, g.linear(str(context), 16, WIDE)), device="cpu")
    assert not opened.sites
    (miss,) = opened.find().misses
    assert miss.op == (f"{domain}.{op}" if domain else op)
    assert "its name says attention" in miss.reason
