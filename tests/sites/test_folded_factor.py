"""A number on the value that the product with the weights holds: FusedMatMul's alpha, by onnxruntime's optimiser."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import attnx
from tests.graphs import D, G, H, softmax

S, W, TIMES = 5, D * H, 3.0


def model(folder: Path, where: str) -> tuple[Path, list[str]]:
    """One attention whose value, or context, is multiplied by a number; query, key, value before that, and context."""
    g = G()
    drawn = np.random.default_rng(7)
    g.weight = lambda *shape: g.const(drawn.standard_normal(shape).astype(np.float32) / 2)  # type: ignore[method-assign]
    x = g.input("x", [1, S, W])
    q, k, v = (g.heads(g.linear(x, W, W)) for _ in range(3))
    times = g.const(np.float32(TIMES))
    value = str(g.op("Mul", v, times)) if where == "value" else v
    weights = g.softmax(g.scores(q, str(g.op("Transpose", k, perm=[0, 1, 3, 2]))))
    context = str(g.op("MatMul", weights, value))
    if where == "context":
        context = str(g.op("Mul", context, times))
    path = g.save(folder, g.out(context), q, k, v, context)
    return path, [q, k, v, context]


@pytest.mark.parametrize("where", ["value", "context"])
def test_the_value_is_what_the_weights_make_the_context_of(where: str, tmp_path: Path) -> None:
    path, names = model(tmp_path, where)
    x = np.random.default_rng(8).standard_normal((1, S, W)).astype(np.float32)
    q, k, v, context = ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run(names, {"x": x})
    proto = onnx.load(path)
    del proto.graph.output[1:]
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    fused = [n for n in onnx.load(tmp_path / "optimised.onnx").graph.node if n.op_type == "FusedMatMul"]
    assert any(a.name == "alpha" and a.f == TIMES for n in fused for a in n.attribute)
    (a,) = attnx.open(tmp_path / "optimised.onnx", device="cpu").trace(inputs={"x": x}).attentions
    assert a.trusted, a.checks
    weights = softmax(q @ k.swapaxes(2, 3) / np.sqrt(D))
    np.testing.assert_allclose(a.need("weights"), weights, atol=1e-5)
    np.testing.assert_allclose(a.need("value"), v * TIMES, atol=1e-5)
    np.testing.assert_allclose(a.need("context"), context, atol=1e-5)
    np.testing.assert_allclose(weights @ (v * TIMES), context, atol=1e-5)
