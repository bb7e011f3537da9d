"""com.microsoft Attention and QAttention: against onnxruntime's kernels, against numpy where they cannot run."""

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

B, S, N, D, DIN = 2, 6, 3, 8, 20
H = N * D
ORDER = ("x", "w", "b", "mask", "past", "bias", "length")


def feed_of(past: int = 0, sizes: tuple[int, ...] = (H, H, H), dtype: Any = np.float32) -> dict[str, Array]:
    r = np.random.default_rng(past)
    feed = {
        "x": r.normal(size=(B, S, DIN)),
        "w": r.normal(size=(DIN, sum(sizes))) * 0.5,
        "b": r.normal(size=sum(sizes)),
    }
    if past:
        feed["past"] = r.normal(size=(2, B, N, past, D))
    return {name: x.astype(dtype) for name, x in feed.items()}


def model(feed: dict[str, Array], op: str = "Attention", order: tuple[str, ...] = ORDER, **attributes: Any) -> Any:
    inputs = [name if name in feed else "" for name in order]
    while not inputs[-1]:
        inputs.pop()
    outputs = ["y", "present"] if "past" in feed else ["y"]
    node = attention_node(op, inputs, outputs, num_heads=N, **attributes)
    constant = {name: feed[name] for name in ("w", "b") if name in feed}
    return model_of([node], {k: v for k, v in feed.items() if k not in constant}, outputs, weights=constant)


MASKS = {
    "lengths": np.array([6, 4]),
    "ends and starts": np.array([6, 5, 1, 2]),
    "cumulative": np.array([6, 4, 0, 6, 10, 0, 6, 10]),
    "2d": np.array([[1, 1, 1, 1, 1, 1], [0, 1, 1, 1, 1, 0]]),
    "3d": np.stack([np.tri(S), np.ones((S, S)) - np.eye(S)]).astype(int),
    "ignored": np.zeros((B, 1), int),
}


@pytest.mark.parametrize("mask", ["", *MASKS])
@pytest.mark.parametrize("causal", [0, 1])
def test_every_mask_matches_the_kernel(mask: str, causal: int) -> None:
    feed = feed_of()
    if mask:
        feed["mask"] = MASKS[mask].astype(np.int32)
    finding, s = compare(model(feed, unidirectional=causal), feed)
    assert finding.causal is (True if causal else None if mask == "3d" else False)
    assert (finding.heads, finding.kv_heads, finding.head_size, finding.kind) == (N, N, D, "self")
    assert finding.replacement is not None
    assert not finding.replacement.required
    if causal:
        i, j = np.indices((S, S))
        assert np.all(s["weights"][..., j > i] == 0)
    if mask == "2d" and not causal:
        hidden = MASKS["2d"] == 0
        assert np.all(s["weights"].transpose(0, 3, 1, 2)[hidden] == 0)


@pytest.mark.parametrize("past", [1, 4])
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("mask", [False, True])
def test_past_matches_the_kernel(past: int, causal: int, mask: bool) -> None:
    feed = feed_of(past)
    if mask:
        feed["mask"] = (np.random.default_rng(1).random((B, past + S)) > 0.3).astype(np.int32)
        feed["mask"][:, 0] = 1
    _, s = compare(model(feed, unidirectional=causal), feed)
    assert s["key"].shape == (B, N, past + S, D)
    close(s["key"][:, :, :past], feed["past"][0], 1e-7)


def test_an_empty_past() -> None:
    feed = feed_of() | {"past": np.zeros((2, B, N, 0, D), np.float32)}
    compare(model(feed, unidirectional=1), feed)


@pytest.mark.parametrize("shape", [(B, N, S, S), (1, N, S, S), (B, 1, S, S), (1, 1, S, S)])
def test_attention_bias(shape: tuple[int, ...]) -> None:
    feed = feed_of() | {"bias": np.random.default_rng(0).normal(size=shape).astype(np.float32)}
    finding, s = compare(model(feed), feed)
    assert finding.bias == "attention_bias"
    assert finding.causal is None
    close(s["masked"] - s["capped"], np.broadcast_to(feed["bias"], (B, N, S, S)), 1e-5)


@pytest.mark.parametrize(
    "attributes", [{"scale": 0.3}, {"mask_filter_value": -50.0}, {"qkv_hidden_sizes": [H, H, N * 5]}]
)
def test_attributes(attributes: dict[str, Any]) -> None:
    feed = feed_of(sizes=tuple(attributes.get("qkv_hidden_sizes", (H, H, H))))
    feed["mask"] = MASKS["2d"].astype(np.int32)
    finding, s = compare(model(feed, **attributes), feed)
    assert finding.scale == pytest.approx(attributes.get("scale", D**-0.5))
    x = feed["x"].astype(np.float64) @ feed["w"] + feed["b"]
    close(s["query"], parted(x[..., :H], N), 1e-5)
    close(s["key"], parted(x[..., H : 2 * H], N), 1e-5)
    close(s["value"], parted(x[..., 2 * H :], N), 1e-5)


def reference(feed: dict[str, Array], visible: Any = True, past: Array | None = None) -> dict[str, Array]:
    x = feed["x"].astype(np.float64) @ feed["w"] + feed.get("b", 0)
    q, k, v = (parted(part, N) for part in np.split(x, 3, -1))
    if past is not None:
        k, v = np.concatenate([past[0], k], 2), np.concatenate([past[1], v], 2)
    return numpy_attention(q, k, v, scale=D**-0.5, visible=visible) | {"k": k, "v": v}


def test_without_bias_which_ends_the_process_of_the_kernel() -> None:
    feed = feed_of()
    del feed["b"]
    tapped, (finding,), _ = replaced(model(feed))
    assert finding.replacement is not None
    assert finding.replacement.required
    got = run(tapped, feed)
    hold(finding, got)
    want = reference(feed)
    close(got["y"], joined(want["context"]), 1e-5)
    close(got[finding.places["weights"].value], want["weights"], 1e-5)


def test_a_square_mask_which_the_kernel_refuses() -> None:
    feed = feed_of(past=2)
    square = np.random.default_rng(0).random((B, 1, 10, 10)) > 0.4
    square[..., 0] = True
    feed["mask"] = square.astype(np.int32)
    tapped, (finding,), _ = replaced(model(feed))
    assert finding.replacement is not None
    assert finding.replacement.required
    got = run(tapped, feed)
    hold(finding, got)
    want = reference(feed, square[:, :, 2 : 2 + S, : 2 + S], feed["past"])
    close(got["y"], joined(want["context"]), 1e-5)


def test_a_shared_buffer() -> None:
    feed = feed_of(past=9)
    feed["length"] = np.array([2], np.int32)
    tapped, (finding,), _ = replaced(model(feed, past_present_share_buffer=1, unidirectional=1))
    got = run(tapped, feed)
    hold(finding, got)
    filled = feed["past"][:, :, :, :2]
    want = reference(feed, np.tri(S, S + 2, 2, dtype=bool), filled)
    close(got["y"], joined(want["context"]), 1e-5)
    assert got["present"].shape == feed["past"].shape
    close(got["present"][0, :, :, : 2 + S], want["k"], 1e-5)
    close(got["present"][1, :, :, 2 + S :], feed["past"][1, :, :, 2 + S :], 1e-7)


def test_half_precision() -> None:
    feed = feed_of(past=2, dtype=np.float16)
    feed["mask"] = np.ones((B, S + 2), np.int32)
    feed["mask"][1, :3] = 0
    compare(model(feed, unidirectional=1), feed, tolerance=4e-3)


@pytest.mark.parametrize("channels", [4, D])
@pytest.mark.parametrize("past", [0, 3])
def test_rotary_inside_which_only_cuda_kernels_do(channels: int, past: int) -> None:
    feed = feed_of(past)
    extra = {"rotary_embedding_dim": channels} if channels != D else {}
    tapped, (finding,), _ = replaced(model(feed, do_rotary=1, unidirectional=1, **extra))
    assert finding.replacement is not None
    assert finding.replacement.required
    got = run(tapped, feed)
    s = hold(finding, got)
    x = feed["x"].astype(np.float64) @ feed["w"] + feed["b"]
    angle = (past + np.arange(S))[:, None] / 10000 ** (np.arange(0, channels, 2) / channels)
    for part, name, start in ((x[..., :H], "query", 0), (x[..., H : 2 * H], "key", past)):
        plain = parted(part, N)
        half = channels // 2
        z = (plain[..., :half] + 1j * plain[..., half:channels]) * np.exp(1j * angle)
        want = np.concatenate([z.real, z.imag, plain[..., channels:]], -1)
        close(s[name][:, :, start:], want, 1e-5)
    if past:
        close(s["key"][:, :, :past], feed["past"][0], 1e-7)


QORDER = ("x", "w", "b", "xs", "ws", "mask", "xz", "wz", "past")


@pytest.mark.parametrize("kinds", [(np.uint8, np.int8), (np.uint8, np.uint8), (np.int8, np.int8)])
@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("past", [0, 3])
def test_quantised(kinds: tuple[Any, Any], columns: bool, zeros: bool, past: int) -> None:
    if zeros and columns and kinds[1] == np.uint8:
        pytest.skip("the kernel has no zero points by column for unsigned weights")
    r = np.random.default_rng(past)
    width = 3 * H if columns else 1
    x = (r.normal(size=(B, S, DIN)) * 40).clip(-90, 90)
    w = (r.normal(size=(DIN, 3 * H)) * 40).clip(-60, 60)  # small enough not to saturate without VNNI
    feed: dict[str, Array] = {
        "x": (x + (128 if kinds[0] == np.uint8 else 0)).astype(kinds[0]),
        "w": (w + (128 if kinds[1] == np.uint8 else 0)).astype(kinds[1]),
        "b": r.normal(size=3 * H).astype(np.float32),
        "xs": np.array(0.03, np.float32),
        "ws": r.uniform(0.01, 0.02, width).astype(np.float32).reshape(() if width == 1 else (width,)),
        "mask": np.array([S + past, 4 + past], np.int32),
    }
    if zeros or np.uint8 in kinds:
        feed["xz"] = np.array(128 if kinds[0] == np.uint8 else 3, kinds[0])
        zero = r.integers(-3, 3, width) + (128 if kinds[1] == np.uint8 else 0)
        feed["wz"] = zero.astype(kinds[1]).reshape(() if width == 1 else (width,))
    if past:
        feed["past"] = r.normal(size=(2, B, N, past, D)).astype(np.float32)
    whole = model(feed, "QAttention", QORDER, unidirectional=1)
    if kinds[0] == np.uint8:
        finding, s = compare(whole, feed, tolerance=2e-5)
    else:  # signed inputs run on CUDA only
        tapped, (finding,), _ = replaced(whole)
        s = hold(finding, run(tapped, feed))
        assert finding.replacement is not None
        assert finding.replacement.required
    assert finding.causal is True
    real_x = (feed["x"].astype(np.float64) - feed.get("xz", 0)) * feed["xs"]
    real_w = (feed["w"].astype(np.float64) - feed.get("wz", 0)) * feed["ws"]
    close(s["query"], parted((real_x @ real_w + feed["b"])[..., :H], N), 1e-4)
