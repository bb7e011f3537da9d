"""Decompositions over drawn shapes, masks and head counts: against the plain numpy attention."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sites import test_group_query_attention as gqa
from tests.sites.replacing import (
    Array,
    attention_node,
    close,
    hold,
    joined,
    model_of,
    numpy_attention,
    parted,
    replaced,
    run,
)

SIZES = st.integers(1, 5)
SLOW = settings(max_examples=25, derandomize=True)


@SLOW
@given(
    batch=st.integers(1, 3), kv=st.integers(1, 3), group=st.integers(1, 3), rows=SIZES, keys=SIZES,
    past=st.integers(0, 3), size=SIZES, width=SIZES, kind=st.sampled_from(["", "bool", "float"]),
    rank=st.integers(1, 4), causal=st.booleans(),
    softcap=st.sampled_from([0.0, 1.5]), seed=st.integers(0, 2**16), data=st.data(),
)  # fmt: skip
def test_onnx_attention(
    batch: int, kv: int, group: int, rows: int, keys: int, past: int, size: int, width: int, kind: str, rank: int,
    causal: bool, softcap: float, seed: int, data: Any,
) -> None:  # fmt: skip
    r = np.random.default_rng(seed)
    total = past + keys
    shapes = {"q": (batch, kv * group, rows, size), "k": (batch, kv, keys, size), "v": (batch, kv, keys, width)}
    feed: dict[str, Array] = {name: r.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    if past:
        feed["pk"] = r.normal(size=(batch, kv, past, size)).astype(np.float32)
        feed["pv"] = r.normal(size=(batch, kv, past, width)).astype(np.float32)
    i, j = np.indices((rows, total))
    see, add = (j <= i + past) | (not causal), np.float32(0)
    if kind:
        full = (batch, kv * group, rows, total)
        keep = [data.draw(st.booleans()) for _ in range(rank - 1)] + [True]
        shape = tuple(n if k else 1 for n, k in zip(full[4 - rank :], keep, strict=True))
        mask = r.random(shape) > 0.4
        feed["mask"] = mask if kind == "bool" else r.normal(size=shape).astype(np.float32)
        see, add = (see & mask, add) if kind == "bool" else (see, feed["mask"])
    inputs = [name if name in feed else "" for name in ("q", "k", "v", "mask", "pk", "pv")]
    while not inputs[-1]:
        inputs.pop()
    node = attention_node("Attention", inputs, ["y"], domain="", is_causal=int(causal), softcap=softcap)
    tapped, (finding,), _ = replaced(model_of([node], feed, ["y"], 23))
    got = run(tapped, feed)
    s = hold(finding, got)
    k = np.concatenate([feed["pk"], feed["k"]], 2) if past else feed["k"]
    v = np.concatenate([feed["pv"], feed["v"]], 2) if past else feed["v"]
    want = numpy_attention(feed["q"], k, v, scale=size**-0.5, softcap=softcap, add=add, visible=see)
    close(got["y"], want["context"], 1e-5)
    close(s["weights"], want["weights"], 1e-5)


@SLOW
@given(
    batch=st.integers(1, 3), heads=st.integers(1, 4), rows=SIZES, keys=SIZES, size=SIZES, width=SIZES,
    mask=st.sampled_from(["", "1d", "2d", "3d"]), bias=st.booleans(), projection=st.booleans(),
    seed=st.integers(0, 2**16),
)  # fmt: skip
def test_multi_head_attention(
    batch: int,
    heads: int,
    rows: int,
    keys: int,
    size: int,
    width: int,
    mask: str,
    bias: bool,
    projection: bool,
    seed: int,
) -> None:
    r = np.random.default_rng(seed)
    shapes = {"q": (batch, rows, heads * size), "k": (batch, keys, heads * size), "v": (batch, keys, heads * width)}
    feed: dict[str, Array] = {name: r.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    see: Any = np.ones((batch, 1, 1, keys), bool)
    if mask == "1d":
        feed["mask"] = r.integers(1, keys + 1, batch).astype(np.int32)
        see = np.arange(keys) < feed["mask"][:, None, None, None]
    elif mask:
        shape = (batch, keys) if mask == "2d" else (batch, rows, keys)
        feed["mask"] = (r.random(shape) > 0.4).astype(np.int32)
        if mask == "2d" and keys == 1:
            feed["mask"][:] = 1
        see = feed["mask"].astype(bool)[:, None, None] if mask == "2d" else feed["mask"].astype(bool)[:, None]
    if bias:
        feed["bias"] = r.normal(size=(1, heads, 1, keys)).astype(np.float32)
    shift = np.zeros(heads * (2 * size + width), np.float32)
    if projection:
        feed["b"] = shift = r.normal(size=shift.shape).astype(np.float32)
    inputs = [name if name in feed else "" for name in ("q", "k", "v", "b", "mask", "bias")]
    node = attention_node("MultiHeadAttention", inputs, ["y"], num_heads=heads)
    tapped, (finding,), _ = replaced(model_of([node], feed, ["y"]))
    got = run(tapped, feed)
    hold(finding, got)
    parts = zip("qkv", np.split(shift, [heads * size, 2 * heads * size]), strict=True)
    q, k, v = (parted(feed[x] + part, heads) for x, part in parts)
    add = feed.get("bias", 0) + np.where(see, 0, -10000.0)
    want = numpy_attention(q, k, v, scale=size**-0.5, add=add)
    # A row that sees nothing keeps its scores 10000 lower, where float32 has steps of 1e-3.
    close(got["y"], joined(want["context"]), 1e-5 if see.any(-1).all() else 5e-3)


@SLOW
@given(
    batch=st.integers(1, 3), new=st.integers(1, 5), past=st.integers(0, 4), spare=st.integers(0, 3),
    window=st.sampled_from([-1, 1, 2, 4]), softcap=st.sampled_from([0.0, 2.0]), sink=st.booleans(),
    causal=st.booleans(), ragged=st.booleans(), packed=st.booleans(), seed=st.integers(0, 2**16),
)  # fmt: skip
def test_group_query_attention(
    batch: int, new: int, past: int, spare: int, window: int, softcap: float, sink: bool, causal: bool, ragged: bool,
    packed: bool, seed: int,
) -> None:  # fmt: skip
    r = np.random.default_rng(seed)
    feed = gqa.feed_of(batch, new, past, capacity=past + spare)
    lengths = np.full(batch, past + new)
    if ragged and new == 1:
        lengths = r.integers(new, past + new + 1, batch)
        lengths[0] = past + new
        feed["seqlens"] = (lengths - 1).astype(np.int32)
    if sink:
        feed["sink"] = r.normal(size=gqa.H).astype(np.float32)
    window = window if causal else -1
    q, k, v = (parted(feed[x], n) for x, n in (("q", gqa.H), ("k", gqa.HKV), ("v", gqa.HKV)))
    keys, values = (np.zeros((batch, gqa.HKV, past + new, gqa.D), np.float32) for _ in range(2))
    see = np.zeros((batch, 1, new, past + new), bool)
    i, j = np.indices((new, past + new))
    for b, length in enumerate(lengths):
        before = length - new
        for target, old, fresh in ((keys, "pk", k), (values, "pv", v)):
            target[b, :, :before] = feed[old][b, :, :before]
            target[b, :, before:length] = fresh[b]
        see[b, 0] = (j < length) & ((j <= i + before) | (not causal)) & ((j > i + before - window) | (window < 0))
    want = numpy_attention(
        q, keys, values, scale=gqa.D**-0.5, softcap=softcap, visible=see, sink=feed.get("sink")
    )  # fmt: skip
    if packed:
        feed["q"] = np.concatenate([feed.pop(x) if x != "q" else feed["q"] for x in "qkv"], -1)
    tapped, (finding,), _ = replaced(gqa.model(feed, local_window_size=window, softcap=softcap, causal=int(causal)))
    got = run(tapped, feed)
    s = hold(finding, got, sink=feed.get("sink"))
    close(got["y"], joined(want["context"]), 1e-5)
    close(s["weights"], want["weights"], 1e-5)
    assert got["present_k"].shape[2] == max(past + spare, past + new)
