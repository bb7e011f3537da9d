"""Queries that are picked out of all heads' at once (Informer's ProbSparse): their heads, and nameless positions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

import attnx
from attnx.errors import UnsupportedError
from attnx.measure.rollout import rollout
from tests.graphs import D, G, H

S, ASK, W = 6, 3, D * H


def picked(g: G, x: str) -> tuple[str, str]:
    """Of each head's queries the three that are largest ask; the rest of the context is the values' mean."""
    q, k, v = (g.heads(g.linear(x, W, W)) for _ in range(3))
    size = g.op("ReduceSum", g.op("Mul", q, q), g.const([-1], np.int64), keepdims=0)
    _, top = g.op("TopK", size, g.const([ASK], np.int64), outputs=2, axis=-1)
    at = g.op("Add", top, g.const(np.arange(H).reshape(1, H, 1) * S, np.int64))
    rows = g.op("Gather", g.op("Flatten", q, axis=3), at, axis=0)
    scores = g.scores(str(rows), str(g.op("Transpose", k, perm=[0, 1, 3, 2])))
    weights = g.softmax(scores)
    made = g.op("Reshape", g.op("MatMul", weights, v), g.const([H * ASK, D], np.int64))
    mean = g.op("Expand", g.op("ReduceMean", v, axes=[2]), g.const([1, H, S, D], np.int64))
    flat = g.op("Reshape", at, g.const([H * ASK, 1], np.int64))
    written = g.op("ScatterND", g.op("Reshape", mean, g.const([H * S, D], np.int64)), flat, made)
    return g.out(str(g.op("Reshape", written, g.const([1, H, S, D], np.int64)))), weights


def test_their_heads_are_heads_and_their_positions_are_numbers(tmp_path: Path) -> None:
    g = G()
    drawn = np.random.default_rng(4)
    g.weight = lambda *shape: g.const(drawn.standard_normal(shape).astype(np.float32) / 4)  # type: ignore[method-assign]
    x = g.input("x", [1, S, W])
    out, weights = picked(g, x)
    path = g.save(tmp_path, out, weights)
    given = {"x": drawn.standard_normal((1, S, W)).astype(np.float32)}
    (want,) = ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run([weights], given)
    trace = attnx.open(path, device="cpu").trace(inputs=given, verify_outputs=True)
    (a,) = trace.attentions
    assert (a.site.heads, a.site.head_size) == (H, D)
    np.testing.assert_allclose(a.need("weights"), want, atol=1e-6)
    assert trace.queries_of(a).pieces == tuple(map(str, range(ASK)))
    assert trace.keys_of(a).pieces == tuple(map(str, range(S)))  # and none of them is said to be a past one
    with pytest.raises(UnsupportedError, match=f"attends from {ASK} to {S} positions"):
        rollout(trace)
