"""Packed attention has no CPU kernel: held against numpy sequence by sequence, and against the unpacked operator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.sites.replacing import Array, attention_node, close, hold, model_of, numpy_attention, parted, replaced, run

N, D, DIN, S = 3, 8, 10, 5
LENGTHS = [5, 2, 3]
PLACES = [b * S + s for b, n in enumerate(LENGTHS) for s in range(n)]
PADDING = [b * S + s for b, n in enumerate(LENGTHS) for s in range(n, S)]


def layout() -> dict[str, Array]:
    return {
        "offset": np.array(PLACES + PADDING, np.int32).reshape(3, S),
        "sums": np.array([0, *np.cumsum(LENGTHS)], np.int32),
    }


def expected(q: Array, k: Array, v: Array, bias: Array | None, scale: float) -> Array:
    """One sequence after another, as if the batch did not exist; q, k, v [tokens,N*D]."""
    out: list[Array] = []
    start = 0
    for b, n in enumerate(LENGTHS):
        parts = [parted(x[None, start : start + n], N) for x in (q, k, v)]
        add = 0 if bias is None else bias[min(b, len(bias) - 1), :, :n, :n][None]
        want = numpy_attention(*parts, scale=scale, add=add)["context"]
        out.append(want[0].transpose(1, 0, 2).reshape(n, -1))
        start += n
    return np.concatenate(out)


@pytest.mark.parametrize("bias", [None, (3, N, S, S), (1, 1, S, S)])
@pytest.mark.parametrize("dv", [D, 6])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_packed_attention(bias: tuple[int, ...] | None, dv: int, dtype: Any) -> None:
    r = np.random.default_rng(0)
    columns = N * (2 * D + dv)
    feed = {
        "x": r.normal(size=(sum(LENGTHS), DIN)),
        "w": r.normal(size=(DIN, columns)) * 0.5,
        "b": r.normal(size=columns),
    }
    if bias:
        feed["bias"] = r.normal(size=bias)
    feed = {k: v.astype(dtype) for k, v in feed.items()} | layout()
    order = ["x", "w", "b", "offset", "sums", "bias" if bias else ""]
    sizes = [N * D, N * D, N * dv]
    node = attention_node("PackedAttention", order, ["y"], num_heads=N, qkv_hidden_sizes=sizes, scale=0.3)
    tapped, (finding,), _ = replaced(model_of([node], feed, ["y"]))
    assert finding.replacement is not None
    assert finding.replacement.required
    assert finding.head_size == D
    got = run(tapped, feed)
    s = hold(finding, got)
    assert got["y"].dtype == dtype
    x = feed["x"].astype(np.float64) @ feed["w"] + feed["b"]
    want = expected(*np.split(x, [N * D, 2 * N * D], -1), feed.get("bias"), 0.3)
    close(got["y"], want, 1e-5 if dtype == np.float32 else 3e-3)
    for b, n in enumerate(LENGTHS):
        assert np.all(s["weights"][b, :, :, n:] == 0)
        assert np.all(s["weights"][b, :, :n, :n] > 0)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("projection", [False, True])
def test_packed_multi_head_attention(packed: bool, projection: bool) -> None:
    r = np.random.default_rng(1)
    q, k, v = (r.normal(size=(sum(LENGTHS), N * D)).astype(np.float32) for _ in range(3))
    shift = r.normal(size=3 * N * D).astype(np.float32) if projection else np.zeros(3 * N * D, np.float32)
    if packed:
        feed = {"q": np.stack([x.reshape(-1, N, D) for x in (q, k, v)], 2)}
    else:
        feed = {"q": q, "k": k, "v": v}
    if projection:
        feed["b"] = shift
    feed |= layout()
    order = [name if name in feed else "" for name in ("q", "k", "v", "b", "offset", "sums")]
    node = attention_node("PackedMultiHeadAttention", order, ["y"], num_heads=N)
    tapped, (finding,), _ = replaced(model_of([node], feed, ["y"]))
    got = run(tapped, feed)
    hold(finding, got)
    assert finding.scale == pytest.approx(D**-0.5)
    parts = [x + part for x, part in zip((q, k, v), np.split(shift, 3), strict=True)]
    close(got["y"], expected(*parts, None, D**-0.5), 1e-5)
    if not packed:  # the same tokens in the operator that keeps its padding
        padded = {}
        for name, x in zip("qkv", parts, strict=True):
            whole = np.zeros((3 * S, N * D), np.float32)
            whole[PLACES] = x
            padded[name] = whole.reshape(3, S, -1)
        padded["mask"] = np.array(LENGTHS, np.int32)
        plain = attention_node("MultiHeadAttention", ["q", "k", "v", "", "mask"], ["y"], num_heads=N)
        want = run(model_of([plain], padded, ["y"]), padded)["y"].reshape(3 * S, -1)[PLACES]
        close(got["y"], want, 1e-5)
