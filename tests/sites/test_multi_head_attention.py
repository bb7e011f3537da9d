"""com.microsoft MultiHeadAttention: against onnxruntime's kernel, against numpy where it cannot run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.sites.replacing import (
    Array,
    attention_node,
    close,
    compare,
    hold,
    joined,
    model_of,
    numpy_attention,
    parted,
    replaced,
    run,
)

B, S, N, D = 2, 5, 3, 8
ORDER = ("q", "k", "v", "b", "mask", "bias", "pk", "pv", "length", "beams")


def feed_of(keys: int = S, past: int = 0, dv: int = D, bias: bool = False, dtype: Any = np.float32) -> dict[str, Array]:
    r = np.random.default_rng(keys * 10 + past)
    feed = {
        "q": r.normal(size=(B, S, N * D)),
        "k": r.normal(size=(B, keys, N * D)),
        "v": r.normal(size=(B, keys, N * dv)),
    }
    if past:
        feed |= {"pk": r.normal(size=(B, N, past, D)), "pv": r.normal(size=(B, N, past, dv))}
    if bias:
        feed["b"] = r.normal(size=2 * N * D + N * dv)
    return {name: (x * 1.3).astype(dtype) for name, x in feed.items()}


def model(feed: dict[str, Array], qk: bool = False, presents: bool = True, **attributes: Any) -> Any:
    inputs = [name if name in feed else "" for name in ORDER]
    while not inputs[-1]:
        inputs.pop()
    outputs = ["y", "present_k" if "pk" in feed and presents else "", "present_v" if "pk" in feed and presents else ""]
    outputs.append("qk" if qk else "")
    while not outputs[-1]:
        outputs.pop()
    node = attention_node("MultiHeadAttention", inputs, outputs, num_heads=N, **attributes)
    return model_of([node], feed, [o for o in outputs if o], types={"qk": feed["q"].dtype})


def random_mask(*shape: int) -> Array:
    mask = (np.random.default_rng(sum(shape)).random(shape) > 0.35).astype(np.int32)
    mask[..., 0] = 1
    return mask


@pytest.mark.parametrize("keys", [S, 7, 3])
@pytest.mark.parametrize("mask", ["", "1d", "cumulative", "2d", "3d"])
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("qk", [False, True])
def test_masks_and_direction_match_the_kernel(keys: int, mask: str, causal: int, qk: bool) -> None:
    feed = feed_of(keys)
    masks = {
        "1d": np.array([keys, 2], np.int32),
        "cumulative": np.array([keys, 2, 0, S, 2 * S, 0, keys, 2 * keys], np.int32),
        "2d": random_mask(B, keys),
        "3d": random_mask(B, S, keys),
    }
    if mask:
        feed["mask"] = masks[mask]
    finding, s = compare(model(feed, qk=qk, unidirectional=causal), feed)
    assert finding.replacement is not None
    assert not finding.replacement.required
    if causal and keys == S:
        i, j = np.indices((S, keys))
        assert finding.causal is True
        assert np.all(s["weights"][..., j > i] == 0)
    elif causal:
        assert finding.causal is None
        if keys > S:  # the kernel's triangle is top-left and spares the last query
            assert np.all(s["masked"][:, :, 0, 1:] < -1e38)
            assert np.all(s["masked"][:, :, S - 1] > -1e38)
    else:
        assert finding.causal is (None if mask == "3d" else False)


@pytest.mark.parametrize("past", [1, 4])
@pytest.mark.parametrize("mask", ["", "2d", "3d"])
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("qk", [False, True])
def test_past_matches_the_kernel(past: int, mask: str, causal: int, qk: bool) -> None:
    feed = feed_of(past=past)
    if mask:
        feed["mask"] = random_mask(B, past + S) if mask == "2d" else random_mask(B, S, past + S)
    finding, s = compare(model(feed, qk=qk, unidirectional=causal), feed)
    assert s["key"].shape == (B, N, past + S, D)
    if causal:
        assert finding.causal is True
        i, j = np.indices((S, past + S))
        assert np.all(s["weights"][..., j > i + past] == 0)


def test_an_empty_past() -> None:
    feed = feed_of() | {name: np.zeros((B, N, 0, D), np.float32) for name in ("pk", "pv")}
    compare(model(feed, unidirectional=1), feed)


def test_past_without_present_which_the_kernel_answers_wrongly() -> None:
    feed = feed_of(past=3)
    tapped, (finding,), _ = replaced(model(feed, presents=False))
    assert finding.replacement is not None
    assert finding.replacement.required
    got = run(tapped, feed)
    hold(finding, got)
    k, v = (np.concatenate([feed[p], parted(feed[x], N)], 2) for p, x in (("pk", "k"), ("pv", "v")))
    want = numpy_attention(parted(feed["q"], N), k, v, scale=D**-0.5)
    close(got["y"], joined(want["context"]), 1e-5)
    close(got["y"], run(model(feed), feed)["y"], 1e-5)


@pytest.mark.parametrize("shape", [(B, N, S, S), (1, N, S, S), (B, 1, S, S), (1, 1, S, S)])
@pytest.mark.parametrize("mask", [False, True])
def test_attention_bias(shape: tuple[int, ...], mask: bool) -> None:
    feed = feed_of(bias=True) | {"bias": np.random.default_rng(0).normal(size=shape).astype(np.float32)}
    if mask:
        feed["mask"] = random_mask(B, S)
    finding, _ = compare(model(feed), feed)
    assert (finding.bias, finding.causal) == ("attention_bias", None)
    assert finding.replacement is not None
    assert not finding.replacement.required


def test_attention_bias_over_queries_which_the_kernel_refuses() -> None:
    feed = feed_of(7)
    feed["bias"] = np.random.default_rng(0).normal(size=(B, 1, 1, 7)).astype(np.float32)
    tapped, (finding,), _ = replaced(model(feed))
    assert finding.replacement is not None
    assert finding.replacement.required
    got = run(tapped, feed)
    hold(finding, got)
    q, k, v = (parted(feed[x], N) for x in "qkv")
    want = numpy_attention(q, k, v, scale=D**-0.5, add=feed["bias"])
    close(got["y"], joined(want["context"]), 1e-5)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dv", [D, 5])
def test_bias_and_value_size(bias: bool, dv: int) -> None:
    feed = feed_of(7, dv=dv, bias=bias)
    _, s = compare(model(feed), feed)
    shift = feed.get("b", np.zeros(2 * N * D + N * dv))
    close(s["query"], parted(feed["q"] + shift[: N * D], N), 1e-5)
    close(s["key"], parted(feed["k"] + shift[N * D : 2 * N * D], N), 1e-5)
    close(s["value"], parted(feed["v"] + shift[2 * N * D :], N), 1e-5)


@pytest.mark.parametrize("bias", [False, True])
def test_keys_that_are_already_split(bias: bool) -> None:
    feed = feed_of(7, bias=bias)
    feed |= {x: np.ascontiguousarray(parted(feed[x], N)) for x in "kv"}
    _, s = compare(model(feed), feed)
    close(s["key"], feed["k"], 1e-7)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("form", ["qkv", "kv"])
def test_packed_inputs_which_the_kernel_refuses(form: str, bias: bool) -> None:
    feed = feed_of(S if form == "qkv" else 7, bias=bias)
    parts = {x: feed[x].reshape(B, -1, N, D) for x in "qkv"}
    q, k, v = (
        parted(feed[x] + feed.get("b", np.zeros(3 * N * D))[i * N * D : (i + 1) * N * D], N)
        for i, x in enumerate("qkv")
    )
    want = numpy_attention(q, k, v, scale=D**-0.5)
    plain = run(model(feed), feed)["y"]
    if form == "qkv":
        feed["q"] = np.stack([parts["q"], parts["k"], parts["v"]], 3)
        del feed["k"], feed["v"]
    else:
        feed["k"] = np.stack([parts["k"], parts["v"]], 3)
        del feed["v"]
    tapped, (finding,), _ = replaced(model(feed))
    assert finding.replacement is not None
    assert finding.replacement.required
    got = run(tapped, feed)
    s = hold(finding, got)
    close(got["y"], joined(want["context"]), 1e-5)
    close(got["y"], plain, 1e-5)
    close(s["key"], k, 1e-6)
    assert (finding.query_from, finding.key_from) == ("q", "q" if form == "qkv" else "k")


@pytest.mark.parametrize("attributes", [{"scale": 0.4}, {"mask_filter_value": -30.0}])
def test_attributes(attributes: dict[str, Any]) -> None:
    feed = feed_of(7) | {"mask": random_mask(B, 7)}
    finding, s = compare(model(feed, **attributes), feed)
    assert finding.scale == pytest.approx(attributes.get("scale", D**-0.5))
    hidden = np.broadcast_to(feed["mask"][:, None, None] == 0, s["masked"].shape)
    close(s["masked"][hidden], s["capped"][hidden] + attributes.get("mask_filter_value", -10000.0), 1e-6)


def test_half_precision() -> None:
    feed = feed_of(past=2, dtype=np.float16)
    _, s = compare(model(feed, unidirectional=1, qk=True), feed, tolerance=2e-3)
    assert s["weights"].shape == (B, N, S, S + 2)


def test_a_shared_buffer_and_beams() -> None:
    """One new token, four positions filled of a buffer of six, three beams that share their pasts."""
    r = np.random.default_rng(5)
    width, filled = 3, 4
    rows = B * width
    feed: dict[str, Array] = {x: r.normal(size=(rows, 1, N * D)).astype(np.float32) for x in "qkv"}
    feed |= {p: r.normal(size=(rows, N, 6, D)).astype(np.float32) for p in ("pk", "pv")}
    feed["length"] = np.array([filled], np.int32)
    feed["beams"] = r.integers(0, width, (B, width, 6)).astype(np.int32)
    tapped, (finding,), _ = replaced(model(feed))
    got = run(tapped, feed)
    s = hold(finding, got)
    key = np.zeros((rows, N, filled + 1, D), np.float32)
    value = np.zeros_like(key)
    for row in range(rows):
        for t in range(filled):
            source = row // width * width + feed["beams"][row // width, row % width, t]
            key[row, :, t], value[row, :, t] = feed["pk"][source, :, t], feed["pv"][source, :, t]
        key[row, :, filled], value[row, :, filled] = feed["k"][row].reshape(N, D), feed["v"][row].reshape(N, D)
    want = numpy_attention(parted(feed["q"], N), key, value, scale=D**-0.5)
    close(s["key"], key, 1e-7)
    close(got["y"], joined(want["context"]), 1e-5)
    close(got["present_k"][:, :, filled], feed["k"].reshape(rows, N, D), 1e-7)
    close(got["present_k"][:, :, filled + 1 :], feed["pk"][:, :, filled + 1 :], 1e-7)
