"""Scores multiplied or divided by numbers that are no constant scale: told, and never taken for the scaled scores."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from attnx.records import Attention
from tests.graphs import RNG, D, G, H, qkv, trace

TEMPERATURE = 10.0
TOLD = "multiplied or divided by numbers that differ between cells or inputs"


def attention(folder: Path, form: str) -> tuple[Attention, np.ndarray]:
    """The one site of a layer in which the scores meet a factor, and what its softmax reads in the graph as it is."""
    g = G()
    x = g.input("x", [1, "n", 16])
    q, k, v = qkv(g, x)
    product = str(g.op("MatMul", q, k))
    if form == "cosine behind the product":
        by_query = g.op("ReduceL2", q, axes=[-1], keepdims=1)
        by_key = g.op("ReduceL2", k, axes=[-2], keepdims=1)
        product = str(g.op("Div", product, g.op("Mul", by_query, by_key)))
    scaled = str(g.op("Mul", product, g.const(TEMPERATURE, np.float32)))
    if form in ("a temperature of each query", "divided by it"):
        made = g.op("Softplus", g.op("Transpose", g.linear(x, H), perm=[0, 2, 1]))
        by_query = g.op("Unsqueeze", made, g.const([3], np.int64))
        scaled = str(g.op("Div" if form == "divided by it" else "Mul", scaled, by_query))
    elif form == "one number from the input":
        scaled = str(g.op("Mul", scaled, g.op("Softplus", g.op("ReduceMean", g.linear(x, 1), keepdims=0))))
    elif form == "the logarithm of the length":
        length = g.op("Gather", g.op("Shape", x), g.const(1, np.int64))
        scaled = str(g.op("Mul", scaled, g.op("Log", g.op("Cast", length, to=1))))
    elif form == "a stored table":
        scaled = str(g.op("Mul", scaled, g.const(np.linspace(0.5, 2, 5)[:, None], np.float32)))
    elif form == "zeros that hide":
        scaled = str(g.op("Mul", scaled, g.const(np.tril(np.ones((5, 5))), np.float32)))
    out = g.out(str(g.op("MatMul", g.softmax(scaled), v)))
    path = g.save(folder, out, scaled)
    feed = RNG.standard_normal((1, 5, 16)).astype(np.float32)
    (own,) = ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run([scaled], {"x": feed})
    (found,) = trace(path, x=feed).attentions
    return found, own


@pytest.mark.parametrize(
    "form",
    [
        "cosine behind the product",
        "a temperature of each query",
        "divided by it",
        "one number from the input",
        "the logarithm of the length",
        "a stored table",
    ],
)
def test_a_varying_factor_is_told_and_kept_out_of_the_scale(tmp_path: Path, form: str) -> None:
    found, own = attention(tmp_path, form)
    assert found.site.scale == pytest.approx(TEMPERATURE)
    assert found.query is not None
    assert found.key is not None
    assert found.query.shape == found.key.shape == (1, H, 5, D)
    product = found.query.astype(np.float64) @ found.key.astype(np.float64).swapaxes(-1, -2)
    np.testing.assert_allclose(found.scores, product, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found.scaled, product * TEMPERATURE, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(found.masked, own, rtol=1e-5, atol=1e-5)
    assert any(TOLD in note for note in found.site.notes)
    assert found.site.bias == "varying factor"
    assert found.trusted


@pytest.mark.parametrize("form", ["none", "zeros that hide"])
def test_scores_without_one_say_nothing(tmp_path: Path, form: str) -> None:
    found, _ = attention(tmp_path, form)
    assert not any(TOLD in note for note in found.site.notes)
    assert found.site.bias is None
