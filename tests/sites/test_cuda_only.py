"""Operators around attention without a CPU kernel: against plain numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.sites.replacing import attention_node, close, model_of, replaced, run, softmax


@pytest.mark.parametrize("opset", [11, 12, 17])
@pytest.mark.parametrize(("axis", "shape"), [(3, (1, 1, 1, 5)), (-1, (2, 1, 4, 5)), (2, (2, 1, 1, 5))])
def test_bias_softmax(opset: int, axis: int, shape: tuple[int, ...]) -> None:
    r = np.random.default_rng(0)
    feed = {"x": r.normal(size=(2, 3, 4, 5)).astype(np.float32), "b": r.normal(size=shape).astype(np.float32)}
    node = attention_node("BiasSoftmax", ["x", "b"], ["y"], axis=axis, is_inner_broadcast=1)
    tapped, _, misses = replaced(model_of([node], feed, ["y"], opset))
    assert not misses
    total = feed["x"].astype(np.float64) + feed["b"]
    flat = total if axis != 2 else total.reshape(2, 3, 20)
    close(run(tapped, feed)["y"], softmax(flat).reshape(total.shape), 1e-6)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_gemma_rotary(dtype: Any) -> None:
    r = np.random.default_rng(0)
    feed = {"emb": r.normal(size=(2, 3, 8)).astype(np.float32)}
    feed |= {x: r.normal(size=(2, 4, 3, 8)).astype(dtype) for x in ("q", "qr", "k", "kr")}
    node = attention_node("GemmaRotaryEmbedding", list(feed), ["yq", "yk"])
    got = run(replaced(model_of([node], feed, ["yq", "yk"]))[0], feed)
    cos, sin = (f(feed["emb"]).astype(dtype).astype(np.float64)[:, None] for f in (np.cos, np.sin))
    for x in "qk":
        assert got[f"y{x}"].dtype == dtype
        close(got[f"y{x}"], feed[x] * cos + feed[f"{x}r"] * sin, 1e-6 if dtype == np.float32 else 2e-3)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("counts", [[1, 2, 4], [4, 4, 4]])
def test_padding_is_taken_out_and_put_back(dtype: Any, counts: list[int]) -> None:
    feed = {"x": np.random.default_rng(0).normal(size=(3, 4, 5)).astype(dtype), "n": np.array(counts, np.int32)}
    nodes = [
        attention_node("RemovePadding", ["x", "n"], ["tokens", "offset", "sums", "longest"]),
        attention_node("RestorePadding", ["tokens", "offset"], ["y"]),
    ]
    nodes[0].name = "remove"
    outputs = ["tokens", "offset", "sums", "longest", "y"]
    got = run(replaced(model_of(nodes, feed, outputs))[0], feed)
    real = [i * 4 + j for i, n in enumerate(counts) for j in range(n)]
    padding = [i * 4 + j for i, n in enumerate(counts) for j in range(n, 4)]
    assert got["offset"].tolist() == np.array(real + padding).reshape(3, 4).tolist()
    assert got["offset"].dtype == np.int32
    assert got["sums"].tolist() == [0, *np.cumsum(counts)]
    assert got["longest"].tolist() == [max(counts)]
    close(got["tokens"], feed["x"].reshape(12, 5)[real], 0)
    close(got["y"], feed["x"] * (np.arange(4) < feed["n"][:, None])[..., None], 0)
