"""Heads in a Python list, loops over heads, parallel blocks: what is joined is one site, what is parallel one layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

import attnx
from attnx.measure.rollout import rollout
from attnx.records import Trace
from tests.graphs import G, softmax

B, S, W, D, N = 2, 6, 16, 4, 3


@dataclass
class Made:
    """A model in the making, and where its numbers are: by layer, by head."""

    g: G
    weights: list[list[str]] = field(default_factory=list)
    queries: list[list[str]] = field(default_factory=list)
    contexts: list[list[str]] = field(default_factory=list)


def head(m: Made, x: str, size: int = D, scale: float = 0.5, value: str = "", causal: bool = True) -> str:
    g = m.g
    q, k, v = g.linear(x, size, W), g.linear(x, size, W), value or g.linear(x, size, W)
    scores = g.op("Mul", g.op("MatMul", q, g.op("Transpose", k, perm=[0, 2, 1])), g.const(scale, np.float32))
    if causal:
        scores = g.op("Where", g.const(np.tril(np.ones((1, S, S), bool))), scores, g.const(-np.inf, np.float32))
    weights = g.softmax(str(scores))
    context = str(g.op("MatMul", weights, v))
    m.weights[-1].append(weights)
    m.queries[-1].append(q)
    m.contexts[-1].append(context)
    return context


def listed(m: Made, x: str) -> str:
    """Heads side by side: Concat over features, then W_O."""
    heads = [head(m, x) for _ in range(N)]
    return m.g.linear(str(m.g.op("Concat", *heads, axis=-1)), W, N * D)


def stacked(m: Made, x: str) -> str:
    """Temporal Fusion Transformer: one value for all heads, whose contexts are stacked and averaged."""
    value = m.g.linear(x, D, W)
    heads = [m.g.op("Unsqueeze", head(m, x, value=value), m.g.const([2], np.int64)) for _ in range(N)]
    mean = m.g.op("ReduceMean", m.g.op("Concat", *heads, axis=2), axes=[2], keepdims=0)
    return m.g.linear(str(mean), W, D)


def scaled(m: Made, x: str) -> str:
    """Heads with scales of their own."""
    heads = [head(m, x, scale=s) for s in (0.5, 0.25, 1.0)]
    return m.g.linear(str(m.g.op("Concat", *heads, axis=2)), W, N * D)


def model(make: Callable[[Made, str], str], folder: Path, layers: int = 2) -> tuple[Path, Made, dict[str, np.ndarray]]:
    g, drawn = G(), np.random.default_rng(4)
    g.weight = lambda *shape: g.const(drawn.standard_normal(shape).astype(np.float32) / 2)  # type: ignore[method-assign]
    m, x = Made(g), g.input("x", ["b", "s", W])
    for _ in range(layers):
        for part in (m.weights, m.queries, m.contexts):
            part.append([])
        x = str(g.op("Add", x, make(m, x)))
    names = [n for part in (m.weights, m.queries, m.contexts) for layer in part for n in layer]
    path = g.save(folder, x, *names)
    feed = {"x": drawn.standard_normal((B, S, W)).astype(np.float32)}
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    return path, m, dict(zip(names, session.run(names, feed), strict=True)) | feed


def traced(path: Path, x: np.ndarray) -> Trace:
    return attnx.open(path, device="cpu").trace(inputs={"x": x}, verify_outputs=True)


@pytest.mark.parametrize("make", [listed, stacked, scaled])
def test_heads_that_are_joined_are_heads_of_one_site(make: Callable[[Made, str], str], tmp_path: Path) -> None:
    path, m, arrays = model(make, tmp_path)
    trace = traced(path, arrays["x"])
    assert [(a.site.layer, a.site.heads, a.site.causal) for a in trace.attentions] == [(0, N, True), (1, N, True)]
    for layer, at in enumerate(trace.attentions):
        for name, held in (("weights", m.weights), ("query", m.queries), ("context", m.contexts)):
            want = np.stack([arrays[one] for one in held[layer]], axis=1)
            np.testing.assert_allclose(at.need(name), want, atol=1e-5, err_msg=name)
        np.testing.assert_allclose(softmax(at.need("masked")), at.need("weights"), atol=1e-5)
        assert all(check.holds for check in at.checks)
        assert at.site.kv_heads == N
        assert at.site.notes[-1].startswith(f"{N} heads")
    if make is scaled:
        assert trace.attentions[0].site.scale == pytest.approx((0.5, 0.25, 1.0))
    else:
        assert trace.attentions[0].site.scale == pytest.approx(0.5)


def test_rollout_goes_through_layers_not_through_heads(tmp_path: Path) -> None:
    path, m, arrays = model(listed, tmp_path)
    below = np.eye(S)
    for layer in m.weights:
        mean = np.mean([arrays[name][0] for name in layer], axis=0)
        below = (mean + np.eye(S)) / 2 @ below
    np.testing.assert_allclose(rollout(traced(path, arrays["x"])).values[-1], below, atol=1e-6)


def grouped(m: Made, x: str) -> str:
    """Two modules of two heads each, [b,h,s,d]."""
    g, outs = m.g, []
    for _ in range(2):
        q, k, v = (g.heads(g.linear(x, 2 * D, W), count=2, size=D) for _ in range(3))
        weights = g.softmax(g.scores(q, str(g.op("Transpose", k, perm=[0, 1, 3, 2])), 0.5))
        merged = g.op("Transpose", g.op("MatMul", weights, v), perm=[0, 2, 1, 3])
        outs.append(g.op("Reshape", merged, g.const([0, 0, 2 * D], np.int64)))
        m.weights[-1].append(weights)
    return g.linear(str(g.op("Concat", *outs, axis=2)), W, 4 * D)


def test_modules_of_several_heads_are_joined_in_order(tmp_path: Path) -> None:
    path, m, arrays = model(grouped, tmp_path)
    trace = traced(path, arrays["x"])
    assert [(a.site.layer, a.site.heads) for a in trace.attentions] == [(0, 4), (1, 4)]
    for layer, at in enumerate(trace.attentions):
        want = np.concatenate([arrays[name] for name in m.weights[layer]], axis=1)
        np.testing.assert_allclose(at.need("weights"), want, atol=1e-5)
        assert at.site.notes[-1].startswith("2 groups of heads")


def parallel(m: Made, x: str) -> str:
    """Touvron's parallel blocks: two attentions read x, and both are added to it."""
    g = m.g
    outs = []
    for _ in range(2):
        outs.append(g.linear(head(m, x, causal=False), W, D))
    return str(g.op("Add", *outs))


def test_parallel_attentions_on_one_stream_are_one_layer(tmp_path: Path) -> None:
    path, m, arrays = model(parallel, tmp_path)
    trace = traced(path, arrays["x"])
    assert [(a.site.layer, a.site.heads) for a in trace.attentions] == [(0, 1), (0, 1), (1, 1), (1, 1)]
    assert len(set(trace.labels)) == 4
    below = np.eye(S)
    for layer in m.weights:
        mean = np.mean([arrays[name][0] for name in layer], axis=0)
        below = (mean + np.eye(S)) / 2 @ below
    found = rollout(trace)
    assert found.axes[0].labels == ("L0", "L1")
    np.testing.assert_allclose(found.values[-1], below, atol=1e-6)


def cascaded(m: Made, x: str) -> str:
    """EfficientViT: each head reads what the one before gave, so that they follow one another, joined as they are."""
    g, outs, now = m.g, [], x
    for _ in range(N):
        outs.append(head(m, now, causal=False))
        now = str(g.op("Add", x, g.linear(outs[-1], W, D)))
    return g.linear(str(g.op("Concat", *outs, axis=2)), W, N * D)


def test_heads_that_feed_one_another_are_no_single_site(tmp_path: Path) -> None:
    path, _, arrays = model(cascaded, tmp_path, layers=1)
    trace = traced(path, arrays["x"])
    assert [(a.site.layer, a.site.heads) for a in trace.attentions] == [(0, 1), (1, 1), (2, 1)]


def fused(m: Made, x: str) -> str:
    """The same list where each head is an Attention of opset 23."""
    g, outs = m.g, []
    for _ in range(N):
        sides = [g.linear(x, D, W) for _ in range(3)]
        outs.append(g.op("Attention", *sides, q_num_heads=1, kv_num_heads=1, is_causal=1))
        m.queries[-1].append(sides[0])
        m.contexts[-1].append(str(outs[-1]))
        m.weights[-1].append(sides[1])
    return g.linear(str(g.op("Concat", *outs, axis=2)), W, N * D)


def test_fused_heads_in_a_list_are_one_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = helper.make_opsetid
    monkeypatch.setattr(helper, "make_opsetid", lambda domain, version: make(domain, 23 if not domain else version))
    path, m, arrays = model(fused, tmp_path)
    assert onnx.load(path).opset_import[0].version == 23
    trace = traced(path, arrays["x"])
    assert [(a.site.layer, a.site.heads, a.site.causal) for a in trace.attentions] == [(0, N, True), (1, N, True)]
    for layer, at in enumerate(trace.attentions):
        query, key = (np.stack([arrays[n] for n in part[layer]], axis=1) for part in (m.queries, m.weights))
        scores = np.where(np.tril(np.ones((S, S), bool)), query @ key.swapaxes(-1, -2) * D**-0.5, -np.inf)
        np.testing.assert_allclose(at.need("weights"), softmax(scores), atol=1e-5)
        np.testing.assert_allclose(at.need("context"), np.stack([arrays[n] for n in m.contexts[layer]], 1), atol=1e-5)


def test_what_joins_tokens_joins_no_heads(tmp_path: Path) -> None:
    """Two halves of the queries, put behind one another: pieces of rows, not heads."""
    g = G()
    x = g.input("x", [1, S, W])
    halves = g.op("Split", x, outputs=2, axis=1)
    outs, weights = [], []
    for half in halves:
        q, k, v = g.linear(half, D, W), g.linear(x, D, W), g.linear(x, D, W)
        weights.append(g.softmax(g.scores(q, str(g.op("Transpose", k, perm=[0, 2, 1])))))
        outs.append(g.op("MatMul", weights[-1], v))
    sites = attnx.open(g.save(tmp_path, str(g.op("Concat", *outs, axis=1))), device="cpu").sites
    assert all(s.heads == 1 for s in sites)


def test_rollout_says_which_layers_it_does_not_follow(tmp_path: Path) -> None:
    """Class attention (CaiT): the first position alone asks; its layer is of the same kind, and over one query."""
    g = G()
    m, x = Made(g, [[]], [[]], [[]]), g.input("x", ["b", S, W])
    x = str(g.op("Add", x, listed(m, x)))
    first = str(g.op("Slice", x, *(g.const([n], np.int64) for n in (0, 1, 1))))
    q, k, v = g.linear(first, D, W), g.linear(x, D, W), g.linear(x, D, W)
    weights = g.softmax(str(g.op("MatMul", q, g.op("Transpose", k, perm=[0, 2, 1]))))
    path = g.save(tmp_path, str(g.op("MatMul", weights, v)))
    trace = traced(path, np.random.default_rng(5).standard_normal((1, S, W)).astype(np.float32))
    found = rollout(trace)
    assert found.values.shape == (1, S, S)
    assert found.notes == ("not followed: L1, which is over other queries than these",)
