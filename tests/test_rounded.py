"""Graphs that round floats to integers between float operators (QDQ): what is shown is the graph's own, bit for bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

import attnx
from tests.graphs import D, G, H

B, S, W, LAYERS = 1, 6, D * H, 3


def rounded(g: G, x: str, step: float = 0.05) -> str:
    """Through uint8 and back."""
    marks = g.const(step, np.float32), g.const(128, np.uint8)
    return str(g.op("DequantizeLinear", g.op("QuantizeLinear", x, *marks), *marks))


def times(g: G, x: str, width: int) -> str:
    """A weight in int8, behind rounded activations."""
    drawn = np.random.default_rng(len(g.nodes)).integers(-127, 128, (W, width))
    weight = g.op("DequantizeLinear", g.const(drawn, np.int8), g.const(0.003, np.float32), g.const(0, np.int8))
    return str(g.op("MatMul", rounded(g, x), weight))


def normed(g: G, x: str) -> str:
    """LayerNorm, written out: onnxruntime has an operator of its own for that."""
    away = g.op("Sub", x, g.op("ReduceMean", x, axes=[-1]))
    spread = g.op("ReduceMean", g.op("Pow", away, g.const(2.0, np.float32)), axes=[-1])
    root = g.op("Sqrt", g.op("Add", spread, g.const(1e-5, np.float32)))
    scaled = g.op("Mul", g.op("Div", away, root), g.const(np.full(W, 1.1, np.float32)))
    return str(g.op("Add", scaled, g.const(np.full(W, 0.01, np.float32))))


def gelu(g: G, x: str) -> str:
    """Gelu, written out: likewise."""
    one = g.op("Add", g.op("Erf", g.op("Div", x, g.const(2**0.5, np.float32))), g.const(1.0, np.float32))
    return str(g.op("Mul", g.op("Mul", x, one), g.const(0.5, np.float32)))


def model(folder: Path) -> tuple[Path, list[str], str]:
    g = G()
    x, weights = g.input("x", ["b", "s", W]), []
    for _ in range(LAYERS):
        q, k, v = (g.heads(times(g, x, W)) for _ in range(3))
        weights.append(g.softmax(g.scores(q, str(g.op("Transpose", k, perm=[0, 1, 3, 2])))))
        merged = g.op("Transpose", g.op("MatMul", rounded(g, weights[-1], 1 / 255), v), perm=[0, 2, 1, 3])
        flat = str(g.op("Reshape", merged, g.const([0, -1, W], np.int64)))
        x = normed(g, str(g.op("Add", x, times(g, flat, W))))
        x = normed(g, str(g.op("Add", x, times(g, gelu(g, times(g, x, W)), W))))
    return g.save(folder, x, *weights), weights, x


@pytest.mark.parametrize("runs", [1, 4])
def test_the_run_is_that_of_the_graph_as_it_is_written(runs: int, tmp_path: Path) -> None:
    """Of a session for a run or two, and of one for more."""
    path, names, out = model(tmp_path)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.disable_prepacking", "1")  # the same sums on every processor
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    opened = attnx.open(path, device="cpu")
    for seed in range(runs):
        x = np.random.default_rng(seed).standard_normal((B, S, W)).astype(np.float32)
        *weights, last = session.run([*names, out], {"x": x})
        trace = opened.trace(inputs={"x": x}, quantities=("weights",), outputs=True)
        assert len(trace.attentions) == LAYERS
        for a, want in zip(trace.attentions, weights, strict=True):
            assert np.array_equal(a.need("weights"), want)
        assert np.array_equal(trace.outputs[out], last)
