"""com.microsoft DynamicSparseAttention has no CPU kernel: held against a numpy that goes query by query."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.sites.replacing import Array, attention_node, close, hold, model_of, parted, replaced, run

B, H, HKV, D, S, PAST, M = 2, 4, 2, 8, 3, 5, 4
T = PAST + S
ORDER = (
    "q", "k", "v", "pk", "pv", "ak", "av", "indices", "counts", "seqlens", "total", "cos", "sin", "positions",
    "qn", "kn", "sink",
)  # fmt: skip


def feed_of(auxiliary: int = 0) -> dict[str, Array]:
    r = np.random.default_rng(auxiliary)
    feed: dict[str, Array] = {x: r.normal(size=(B, S, n * D)) for x, n in (("q", H), ("k", HKV), ("v", HKV))}
    feed |= {p: r.normal(size=(B, HKV, PAST, D)) for p in ("pk", "pv")}
    if auxiliary:
        feed |= {p: r.normal(size=(B, HKV, auxiliary, D)) for p in ("ak", "av")}
    feed = {k: v.astype(np.float32) for k, v in feed.items()}
    indices, counts = np.full((B * S, M), -1, np.int32), np.zeros(B * S, np.int32)
    for n in range(B * S):
        reach = auxiliary or PAST + n % S + 1
        counts[n] = r.integers(1, M + 1)
        indices[n, : counts[n]] = r.choice(reach, counts[n], replace=False)
    feed |= {"indices": indices, "counts": counts}
    feed["seqlens"], feed["total"] = np.full(B, T - 1, np.int32), np.array(T, np.int32)
    return feed


def model(feed: dict[str, Array], **attributes: Any) -> Any:
    inputs = [name if name in feed else "" for name in ORDER]
    while not inputs[-1]:
        inputs.pop()
    outputs = ["y", "present_k", "present_v"]
    node = attention_node("DynamicSparseAttention", inputs, outputs, num_heads=H, kv_num_heads=HKV, **attributes)
    return model_of([node], feed, outputs)


def expected(feed: dict[str, Array], window: int, sink: Array | None) -> tuple[Array, Array]:
    """Output [B,S,H*D] and weights [B,H,S,T or T+A]; for each query, a softmax over the list of keys that it reads."""
    keys = np.concatenate([feed["pk"], parted(feed["k"], HKV)], 2).astype(np.float64)
    values = np.concatenate([feed["pv"], parted(feed["v"], HKV)], 2).astype(np.float64)
    if "ak" in feed:
        keys, values = np.concatenate([keys, feed["ak"]], 2), np.concatenate([values, feed["av"]], 2)
    queries = parted(feed["q"], H).astype(np.float64)
    out, weights = np.zeros((B, H, S, D)), np.zeros((B, H, S, keys.shape[2]))
    for b in range(B):
        for i in range(S):
            n, p = b * S + i, PAST + i
            chosen = [int(x) for x in feed["indices"][n, : feed["counts"][n]]]
            reads = [*range(max(0, p - window + 1), p + 1), *(T + c for c in chosen)] if "ak" in feed else chosen
            for h in range(H):
                kv = h // (H // HKV)
                e = np.exp(keys[b, kv, reads] @ queries[b, h, i] * D**-0.5)
                e = e / (e.sum() + (0 if sink is None else np.exp(sink[h])))
                weights[b, h, i, reads] = e
                out[b, h, i] = e @ values[b, kv, reads]
    return out.transpose(0, 2, 1, 3).reshape(B, S, -1), weights


@pytest.mark.parametrize("auxiliary", [0, 6])
@pytest.mark.parametrize("sink", ["", "smooth", "heads"])
def test_both_modes(auxiliary: int, sink: str) -> None:
    feed = feed_of(auxiliary)
    attributes: dict[str, Any] = {}
    if auxiliary:
        attributes = {
            "attention_mode": "local_plus_selected", "selected_kv_source": "auxiliary", "local_window_size": 3,
        }  # fmt: skip
    sinks = None
    if sink == "smooth":
        attributes["smooth_softmax"], sinks = 1, np.zeros(H)
    elif sink == "heads":
        feed["sink"] = sinks = np.array([-1.0, 0.0, 0.5, 2.0], np.float32)
    tapped, (finding,), _ = replaced(model(feed, **attributes))
    assert finding.replacement is not None
    assert finding.replacement.required
    assert (finding.causal, finding.sink, finding.head_size) == (True, bool(sink), D)
    got = run(tapped, feed)
    s = hold(finding, got, sink=sinks)
    out, weights = expected(feed, 3, sinks)
    close(got["y"], out, 1e-5)
    close(s["weights"], weights, 1e-5)
    close(got["present_k"], np.concatenate([feed["pk"], parted(feed["k"], HKV)], 2), 1e-6)


def test_a_shared_auxiliary_cache() -> None:
    feed = feed_of(6)
    feed["av"] = feed["ak"]
    out, _ = expected(feed, 2, None)
    del feed["av"]
    tapped, _, _ = replaced(
        model(
            feed, attention_mode="local_plus_selected", selected_kv_source="auxiliary", local_window_size=2,
            auxiliary_kv_shared=1,
        )
    )  # fmt: skip
    close(run(tapped, feed)["y"], out, 1e-5)


def test_a_mode_that_is_not_defined() -> None:
    _, findings, (miss,) = replaced(model(feed_of(), attention_mode="local_plus_selected"))
    assert not findings
    assert "local_plus_selected" in miss.reason
