"""Keys that come from a cache, however new rows are written to it: self-attention, whatever the dataflow says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto

from tests.graphs import RNG, D, G, H, sites, trace


def test_one_query_a_call_behind_a_cache_is_causal(tmp_path: Path) -> None:
    g = G()
    x, past_k, past_v = (
        g.input("x", ["b", 1, 16]),
        g.input("past_k", ["b", H, "p", D]),
        g.input("past_v", ["b", H, "p", D]),
    )
    q, k, v = (g.heads(g.linear(x, D * H)) for _ in range(3))
    k, v = g.op("Concat", past_k, k, axis=2), g.op("Concat", past_v, v, axis=2)
    scores = g.scores(q, str(g.op("Transpose", k, perm=[0, 1, 3, 2])))
    (site,) = sites(g.save(tmp_path, g.out(str(g.op("MatMul", g.softmax(scores), v)))))
    assert (site.kind, site.causal, site.component) == ("self", True, "decoder")


def _where(g: G, new: str, old: str, at: str) -> str:
    return str(g.op("Where", g.op("Cast", at, to=TensorProto.BOOL), new, old))


def _blend(g: G, new: str, old: str, at: str) -> str:
    kept = g.op("Mul", old, g.op("Sub", g.const(1.0, np.float32), at))
    return str(g.op("Add", kept, g.op("Mul", at, new)))


def _outer(g: G, new: str, old: str, at: str) -> str:
    kept = g.op("Mul", old, g.op("Sub", g.const(1.0, np.float32), at))
    return str(g.op("Add", g.op("MatMul", at, new), kept))


def _step(g: G, new: str, old: str, at: str) -> str:
    return str(g.op("Add", old, g.op("Mul", at, g.op("Sub", new, old))))


@pytest.mark.parametrize("write", [_where, _blend, _outer, _step])
def test_a_cache_written_by_a_one_hot_product_is_a_cache(write: Callable[..., str], tmp_path: Path) -> None:
    g = G()
    x, at = g.input("x", ["b", 1, 16]), g.input("at", ["b", 1, 9, 1])
    old = [g.input(name, ["b", H, 9, D]) for name in ("past_k", "past_v")]
    q, *new = (g.heads(g.linear(x, D * H)) for _ in range(3))
    k, v = (write(g, n, o, at) for n, o in zip(new, old, strict=True))
    scores = g.scores(q, str(g.op("Transpose", k, perm=[0, 1, 3, 2])))
    path = g.save(tmp_path, g.out(str(g.op("MatMul", g.softmax(scores), v))), k)
    (site,) = sites(path)
    assert (site.kind, site.causal, site.component) == ("self", True, "decoder")
    keys = RNG.standard_normal((2, 2, H, 9, D)).astype(np.float32)
    feed = {"x": RNG.standard_normal((2, 1, 16)).astype(np.float32), "past_k": keys[0], "past_v": keys[1]}
    where = np.zeros((2, 1, 9, 1), np.float32)
    where[:, :, 4] = 1
    run = trace(path, at=where, **feed)
    key = run.attentions[0].key
    assert key is not None
    assert np.allclose(np.delete(key, 4, axis=2), np.delete(keys[0], 4, axis=2))
    assert run.attentions[0].trusted


def test_a_memory_with_positions_added_is_no_cache(tmp_path: Path) -> None:
    g = G()
    x, memory, places = (g.input(n, ["b", H, length, D]) for n, length in (("x", "s"), ("m", "t"), ("p", "t")))
    k = g.op("Add", memory, g.op("Tanh", places))
    scores = g.scores(g.op("Relu", x), str(g.op("Transpose", k, perm=[0, 1, 3, 2])))
    (site,) = sites(g.save(tmp_path, g.out(str(g.op("MatMul", g.softmax(scores), memory)))))
    assert site.kind == "cross"


def test_scores_of_cached_and_new_keys_side_by_side_are_one_attention(tmp_path: Path) -> None:
    """Keys that are never joined: one softmax over two products, whose weights are split again."""
    g = G()
    x = g.input("x", ["b", 1, 16])
    old = [g.input(name, ["b", H, 9, D]) for name in ("past_k", "past_v")]
    q, *new = (g.heads(g.linear(x, D * H)) for _ in range(3))
    products = [g.scores(q, str(g.op("Transpose", k, perm=[0, 1, 3, 2]))) for k in (old[0], new[0])]
    weights = g.softmax(str(g.op("Concat", *products, axis=3)))
    parts = g.op("Split", weights, g.const([9, 1], np.int64), outputs=2, axis=3)
    context = g.op("Add", *(g.op("MatMul", p, v) for p, v in zip(parts, (old[1], new[1]), strict=True)))
    path = g.save(tmp_path, g.out(str(context)), *new)
    (site,) = sites(path)
    assert (site.kind, site.causal, site.sink, site.heads) == ("self", True, False, H)
    keys = RNG.standard_normal((2, 2, H, 9, D)).astype(np.float32)
    feed = {"x": RNG.standard_normal((2, 1, 16)).astype(np.float32), "past_k": keys[0], "past_v": keys[1]}
    (a,) = trace(path, **feed).attentions
    assert a.trusted
    assert a.weights is not None
    assert a.query is not None
    assert (a.key, a.value, a.context, a.scores) == (None, None, None, None)
    assert a.weights.shape == (2, H, 1, 10)
    by_hand = np.einsum("bhqd,bhkd->bhqk", a.query, keys[0]) * D**-0.5
    ratio = np.log(a.weights[..., :9]) - by_hand
    assert np.ptp(ratio, axis=-1).max() < 1e-4, "the weights of the cached keys are their scores' exponentials"
