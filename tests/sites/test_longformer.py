"""com.microsoft LongformerAttention has no CPU kernel: held against a numpy that goes row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.sites.replacing import Array, attention_node, close, hold, model_of, parted, replaced, run

N, D, W, S, B = 2, 4, 3, 12, 2
ORDER = ("x", "w", "b", "mask", "gw", "gb", "flags")


def feed_of(global_tokens: list[list[int]], padded: int, dtype: Any = np.float32) -> dict[str, Array]:
    r = np.random.default_rng(0)
    feed = {"x": r.normal(size=(B, S, N * D))}
    for name in ("w", "gw"):
        feed[name] = r.normal(size=(N * D, 3 * N * D))
    for name in ("b", "gb"):
        feed[name] = r.normal(size=3 * N * D)
    feed["mask"] = np.zeros((B, S))
    feed["mask"][1, S - padded :] = -10000.0
    feed = {k: v.astype(dtype) for k, v in feed.items()}
    feed["flags"] = np.zeros((B, S), np.int32)
    for row, tokens in enumerate(global_tokens):
        feed["flags"][row, tokens] = 1
    return {name: feed[name] for name in ORDER}


def expected(feed: dict[str, Array]) -> tuple[Array, Array, Array]:
    """Output [B,S,N*D], weights of local rows and of global rows [B,N,S,S]; one row at a time."""
    wide = {k: v.astype(np.float64) for k, v in feed.items()}
    local = [parted(x, N) for x in np.split(wide["x"] @ wide["w"] + wide["b"], 3, -1)]
    other = [parted(x, N) for x in np.split(wide["x"] @ wide["gw"] + wide["gb"], 3, -1)]
    out = np.zeros((B, N, S, D))
    weights = np.zeros((2, B, N, S, S))
    for b in range(B):
        flags, mask = feed["flags"][b] > 0, wide["mask"][b]
        for i in range(S):
            if mask[i] < 0:
                continue
            keys = list(range(S)) if flags[i] else [j for j in range(S) if abs(i - j) <= W or flags[j]]
            q, k, v = other if flags[i] else local
            for n in range(N):
                x = k[b, n, keys] @ q[b, n, i] / np.sqrt(D) + mask[keys]
                p = np.exp(x - x.max())
                p /= p.sum()
                weights[int(flags[i]), b, n, i, keys] = p
                out[b, n, i] = p @ v[b, n, keys]
    return out.transpose(0, 2, 1, 3).reshape(B, S, -1), weights[0], weights[1]


@pytest.mark.parametrize("global_tokens", [[[0], [0, 1]], [[], []], [[0, 5, 11], [3]]])
@pytest.mark.parametrize("padded", [0, 4])
def test_both_sites(global_tokens: list[list[int]], padded: int) -> None:
    feed = feed_of(global_tokens, padded)
    node = attention_node("LongformerAttention", ORDER, ["y"], num_heads=N, window=W)
    tapped, (first, second), _ = replaced(model_of([node], feed, ["y"]))
    assert first.replacement is not None
    assert first.replacement.required
    assert second.replacement is None
    assert (first.causal, first.head_size, second.head_size) == (False, D, D)
    got = run(tapped, feed)
    local, other = hold(first, got), hold(second, got)
    output, local_weights, global_weights = expected(feed)
    close(got["y"], output, 1e-5)
    close(local["weights"], local_weights, 1e-5)
    close(other["weights"], global_weights, 1e-5)


def test_half_precision() -> None:
    feed = feed_of([[0], [0]], 4, np.float16)
    node = attention_node("LongformerAttention", ORDER, ["y"], num_heads=N, window=W)
    tapped, findings, _ = replaced(model_of([node], feed, ["y"]))
    got = run(tapped, feed)
    hold(findings[0], got)
    assert got["y"].dtype == np.float16
    close(got["y"], expected(feed)[0], 5e-3)
