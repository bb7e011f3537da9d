"""com.microsoft DecoderAttention has no CPU kernel: against numpy, for every setting of its switches."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from tests.sites.replacing import Array, attention_node, close, hold, model_of, numpy_attention, replaced, run

N, D, S, L, P, B = 2, 4, 3, 5, 4, 2
W = N * D
ORDER = ("q", "k", "qw", "kvw", "b", "mask", "kc", "vc", "static", "past", "state", "masked")


def split(x: Array) -> Array:
    """[S,B,H*D] -> [B,H,S,D]."""
    return x.reshape(*x.shape[:2], N, D).transpose(1, 2, 0, 3)


@pytest.mark.parametrize(("static", "past", "state", "masked"), list(product([False, True], repeat=4)))
def test_every_setting(static: bool, past: bool, state: bool, masked: bool) -> None:
    r = np.random.default_rng(0)
    cached = past and state
    keys = (P if static else P + S) if cached else (L if static else S)
    feed: dict[str, Any] = {
        "q": r.normal(size=(S, B, W)), "k": r.normal(size=(L, B, W)), "kc": r.normal(size=(B, N, P, D)),
        "vc": r.normal(size=(B, N, P, D)),
    }  # fmt: skip
    weights: dict[str, Any] = {"qw": r.normal(size=(W, W)), "kvw": r.normal(size=(W, 2 * W))}
    weights["b"] = r.normal(size=3 * W)
    feed = {k: v.astype(np.float32) for k, v in feed.items()}
    weights = {k: v.astype(np.float32) for k, v in weights.items()}
    feed["mask"] = r.random((B, keys)) > 0.6
    feed["mask"][:, 0] = False
    for name, value in (("static", static), ("past", past), ("state", state), ("masked", masked)):
        weights[name] = np.array([value])
    node = attention_node("DecoderAttention", ORDER, ["y", "nk", "nv"], num_heads=N)
    tapped, (finding,), _ = replaced(model_of([node], feed, ["y", "nk", "nv"], weights=weights))
    assert finding.replacement is not None
    assert finding.replacement.required
    assert (finding.kind, finding.head_size) == ("cross" if static else "self", D)
    got = run(tapped, feed)
    hold(finding, got)
    q = split(feed["q"] @ weights["qw"] + weights["b"][:W])
    source = feed["k"] if static else feed["q"]
    k, v = (split(x) for x in np.split(source @ weights["kvw"] + weights["b"][W:], 2, -1))
    if cached:
        k = feed["kc"] if static else np.concatenate([feed["kc"], k], 2)
        v = feed["vc"] if static else np.concatenate([feed["vc"], v], 2)
    see = ~feed["mask"][:, None, None] if masked else True
    want = numpy_attention(q, k, v, scale=D**-0.5, visible=see)
    close(got["y"], want["context"].transpose(2, 0, 1, 3).reshape(S, B, W), 1e-5)
    close(got["nk"], k, 1e-5)
    close(got["nv"], v, 1e-5)


def test_switches_that_only_the_run_knows() -> None:
    feed: dict[str, Array] = {name: np.zeros((S, B, W), np.float32) for name in "qk"}
    feed |= {"static": np.array([True]), "past": np.array([False])}
    weights: dict[str, Array] = {"state": np.array([False]), "masked": np.array([False])}
    for name, shape in (("qw", (W, W)), ("kvw", (W, 2 * W)), ("b", (3 * W,))):
        weights[name] = np.zeros(shape, np.float32)
    order = ["q", "k", "qw", "kvw", "b", "", "", "", "static", "past", "state", "masked"]
    node = attention_node("DecoderAttention", order, ["y"], num_heads=N)
    _, findings, (miss,) = replaced(model_of([node], feed, ["y"], weights=weights))
    assert not findings
    assert "static_kv, use_past" in miss.reason
