"""Additive attention with several queries, and sizes that a graph leaves open: they are never a number of heads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import attnx
from attnx.errors import UnsupportedError
from tests.cli.conftest import Run
from tests.graphs import G, softmax, trace

FEED = {"y": (1, 3, 16), "x": (1, 6, 16)}


def additive(folder: Path, queries: int | str, keys: int | str) -> tuple[Path, dict[str, np.ndarray], np.ndarray]:
    """Bahdanau's scores of y over x: v tanh(W y + U x); the file, a feed, and the weights by numpy."""
    g = G()
    y, x = g.input("y", [1, queries, 16]), g.input("x", [1, keys, 16])
    asked = g.op("Unsqueeze", g.linear(y, 8), g.const([2], np.int64))
    held = g.op("Unsqueeze", g.linear(x, 8), g.const([1], np.int64))
    scores = g.op("Squeeze", g.linear(str(g.op("Tanh", g.op("Add", asked, held))), 1, 8), g.const([3], np.int64))
    path = g.save(folder, str(g.op("MatMul", g.softmax(str(scores)), x)))
    drawn = np.random.default_rng(6)
    feed = {name: drawn.standard_normal(shape).astype(np.float32) for name, shape in FEED.items()}
    w, u, v = g.weights.values() if len(g.weights) == 3 else [a for a in g.weights.values() if a.dtype == np.float32]
    added = (feed["y"] @ w)[:, :, None] + (feed["x"] @ u)[:, None]
    return path, feed, softmax((np.tanh(added) @ v)[..., 0])


@pytest.mark.parametrize(("queries", "keys"), [("q", "k"), (3, "k"), ("q", 6), (3, 6), ("", "k"), ("n", "n2")])
def test_queries_of_additive_attention_are_no_heads(queries: int | str, keys: int | str, tmp_path: Path) -> None:
    path, feed, weights = additive(tmp_path, queries or None, keys)  # type: ignore[arg-type]
    at = trace(path, **feed).attentions[0]
    assert (at.site.kind, at.site.heads, at.site.head_size) == ("additive", 1, None)
    np.testing.assert_allclose(at.need("weights"), weights[:, None], atol=1e-6)
    np.testing.assert_allclose(at.need("context"), (weights @ feed["x"])[:, None], atol=1e-5)


def over_one_text(folder: Path) -> tuple[Path, np.ndarray, np.ndarray]:
    """Bahdanau's scores of a text over itself; the file, the text's vectors, and the weights by numpy."""
    g = G()
    x = g.input("x", [1, "t", 16])
    asked = g.op("Unsqueeze", g.linear(x, 8), g.const([2], np.int64))
    held = g.op("Unsqueeze", g.linear(x, 8), g.const([1], np.int64))
    scores = g.op("Squeeze", g.linear(str(g.op("Tanh", g.op("Add", asked, held))), 1, 8), g.const([3], np.int64))
    path = g.save(folder, str(g.op("MatMul", g.softmax(str(scores)), x)))
    vectors = np.random.default_rng(6).standard_normal((1, 6, 16)).astype(np.float32)
    w, u, v = (a for a in g.weights.values() if a.dtype == np.float32)
    added = (vectors @ w)[:, :, None] + (vectors @ u)[:, None]
    return path, vectors, softmax((np.tanh(added) @ v)[..., 0])[0]


def test_over_one_text_it_is_self_attention(attnx: Run, tmp_path: Path) -> None:
    path, x, weights = over_one_text(tmp_path)
    at = trace(path, x=x).attentions[0]
    assert (at.site.kind, at.site.causal, at.site.scale, at.site.head_size) == ("self", False, None, None)
    assert any("additive" in note for note in at.site.notes)
    np.testing.assert_allclose(at.need("weights")[0, 0], weights, atol=1e-6)
    np.savez(tmp_path / "feed.npz", x=x)
    asked = ("-m", str(path), "--inputs", str(tmp_path / "feed.npz"))
    assert "L0: bidirectional; nothing is hidden" in attnx("mask", *asked).out
    flow = attnx("flow", *asked, "--json").document
    np.testing.assert_allclose(flow["rollout"]["values"][0], (weights + np.eye(6)) / 2, atol=1e-4)
    stats = {one["name"]: np.ravel(one["values"]) for one in attnx("heads", *asked, "--json").document["measures"]}
    mean = float((weights * np.abs(np.subtract.outer(np.arange(6), np.arange(6)))).sum(-1).mean())
    assert stats["mean distance"] == pytest.approx([mean], abs=1e-3)
    assert stats["self"] == pytest.approx([np.diagonal(weights).mean()], abs=1e-3)


@pytest.mark.parametrize("wanted", ["scores", "query", "key", "scaled", "key,scores"])
def test_what_no_site_has_is_refused_by_name(attnx: Run, wanted: str, tmp_path: Path) -> None:
    path, feed, _ = additive(tmp_path, "q", "k")
    np.savez(tmp_path / "feed.npz", **feed)
    ran = attnx("trace", str(path), "--inputs", str(tmp_path / "feed.npz"), "--only", wanted, code=3)
    assert f"has no {wanted.replace(',', ', ')} (additive: " in ran.err
    assert "onnxruntime" not in ran.err
    asked = ("--inputs", str(tmp_path / "feed.npz"), "--stage", "scaled", "--head", "0.0")
    ran = attnx("inspect", "-m", str(path), *asked, code=3)
    assert "has no" in ran.err


def test_what_no_site_has_is_refused_in_python(tmp_path: Path) -> None:
    path, feed, _ = additive(tmp_path, "q", "k")
    with pytest.raises(UnsupportedError, match="has no scores"):
        attnx.open(path, device="cpu").trace(inputs=feed, quantities=("scores",))
    path, x, _ = over_one_text(tmp_path)
    with pytest.raises(UnsupportedError, match=r"has no query \(additive: "):
        attnx.open(path, device="cpu").trace(inputs={"x": x}, quantities=("query",))


@pytest.mark.parametrize("free", [0, 1, 2])
def test_no_size_that_stands_for_a_free_one_is_shown(free: int, tmp_path: Path) -> None:
    """Axes before the queries that an input leaves open: texts, not heads, wherever they stand."""
    g = G()
    shape: list[int | str] = [2, 3, 5, 8]
    shape[free] = "n"
    q, k, v = (g.input(name, shape) for name in "qkv")
    weights = g.softmax(g.scores(q, str(g.op("Transpose", k, perm=[0, 1, 3, 2]))))
    (site,) = attnx.open(g.save(tmp_path, str(g.op("MatMul", weights, v))), device="cpu").sites
    for size in (site.heads, site.kv_heads, site.head_size):
        assert size is None or size < 100
