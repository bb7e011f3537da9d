"""com.microsoft GroupQueryAttention: against onnxruntime's kernel, against numpy where it cannot run."""

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

H, HKV, D = 4, 2, 16
ORDER = (
    "q", "k", "v", "pk", "pv", "seqlens", "total", "cos", "sin", "positions", "bias", "sink", "ks", "vs", "qn", "kn",
)  # fmt: skip


def feed_of(
    batch: int = 2, new: int = 6, past: int = 0, capacity: int | None = None, packed: bool = False,
    dtype: Any = np.float32, size: int = D,
) -> dict[str, Array]:  # fmt: skip
    """A prompt (past 0) or a step; the past buffer has `capacity` rows, of which `past` are filled."""
    r = np.random.default_rng(new * 10 + past)
    q, k, v = (r.normal(size=(batch, new, n * size)) for n in (H, HKV, HKV))
    feed = {"q": np.concatenate([q, k, v], -1)} if packed else {"q": q, "k": k, "v": v}
    rows = past if capacity is None else capacity
    feed |= {p: r.normal(size=(batch, HKV, rows, size)) for p in ("pk", "pv")}
    feed = {name: x.astype(dtype) for name, x in feed.items()}
    feed["seqlens"] = np.full(batch, past + new - 1, np.int32)
    feed["total"] = np.array(past + new, np.int32)
    return feed


def with_rotary(feed: dict[str, Array], channels: int = D, longest: int = 32) -> dict[str, Array]:
    angle = np.arange(longest)[:, None] / 10000 ** (np.arange(0, channels, 2) / channels)
    dtype = feed["q"].dtype
    return feed | {"cos": np.cos(angle).astype(dtype), "sin": np.sin(angle).astype(dtype)}


def model(feed: dict[str, Array], outs: int = 3, **attributes: Any) -> Any:
    inputs = [name if name in feed else "" for name in ORDER]
    while not inputs[-1]:
        inputs.pop()
    outputs = ["y", "present_k", "present_v", "qk"][:outs]
    node = attention_node("GroupQueryAttention", inputs, outputs, num_heads=H, kv_num_heads=HKV, **attributes)
    return model_of([node], feed, outputs)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"scale": 0.4},
    {"softcap": 1.5},
    {"local_window_size": 3},
    {"local_window_size": 1, "softcap": 2.0},
    {"smooth_softmax": 1},
    {"do_rotary": 1},
    {"do_rotary": 1, "rotary_interleaved": 1},
]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("attributes", OPTIONS, ids=str)
@pytest.mark.parametrize(("new", "past", "batch"), [(6, 0, 2), (1, 5, 2), (4, 5, 1)])
def test_options_match_the_kernel(new: int, past: int, batch: int, attributes: dict[str, Any], packed: bool) -> None:
    feed = feed_of(batch, new, past, packed=packed)
    if attributes.get("do_rotary"):
        feed = with_rotary(feed)
    smooth = 0.0 if attributes.get("smooth_softmax") else None
    finding, s = compare(model(feed, **attributes), feed, sink=smooth)
    assert finding.replacement is not None
    assert not finding.replacement.required
    assert (finding.heads, finding.kv_heads, finding.head_size) == (H, HKV, D)
    assert finding.causal is True
    assert finding.window == attributes.get("local_window_size")
    assert finding.sink is bool(smooth is not None)
    i, j = np.indices((new, past + new))
    hidden = (j > i + past) | (j <= i + past - attributes.get("local_window_size", 99))
    assert np.all(s["weights"][..., hidden] == 0)
    assert np.all(s["weights"][..., ~hidden] > 0)
    if smooth is not None:
        assert s["weights"].sum(-1).max() < 1


@pytest.mark.parametrize("size", [16, 32])
@pytest.mark.parametrize("pairs", [0, 1])
def test_rotary_of_some_channels_and_given_positions(size: int, pairs: int) -> None:
    feed = with_rotary(feed_of(2, 1, 5, size=size), 16)
    feed["positions"] = np.array([[7], [2]], np.int64)
    _, s = compare(model(feed, do_rotary=1, rotary_interleaved=pairs), feed)
    angle = feed["positions"][:, :, None] / 10000 ** (np.arange(0, 16, 2) / 16)
    x, rest = np.split(parted(feed["q"], H), [16], -1)
    z = x[..., ::2] + 1j * x[..., 1::2] if pairs else x[..., :8] + 1j * x[..., 8:]
    z = z * np.exp(1j * angle)[:, None]
    turned = np.stack([z.real, z.imag], -1).reshape(x.shape) if pairs else np.concatenate([z.real, z.imag], -1)
    close(s["query"], np.concatenate([turned, rest], -1), 1e-5)


@pytest.mark.parametrize(
    ("new", "past", "given"),
    [(6, 0, [[3, 4, 5, 6, 7, 8], [0, 1, 2, 3, 4, 5]]), (6, 0, [[2, 9, 4, 1, 0, 7]]), (4, 5, [[9, 2, 7, 1]])],
)
def test_of_a_prompt_the_kernel_reads_the_first_position_only(new: int, past: int, given: list[list[int]]) -> None:
    feed = with_rotary(feed_of(len(given), new, past)) | {"positions": np.array(given, np.int64)}
    compare(model(feed, do_rotary=1), feed)


@pytest.mark.parametrize("shape", [(2, H, 6, 6), (1, H, 6, 6), (2, 1, 6, 6), (1, 1, 6, 6)])
@pytest.mark.parametrize("causal", [0, 1])
def test_attention_bias_and_both_directions(shape: tuple[int, ...], causal: int) -> None:
    feed = feed_of() | {"bias": np.random.default_rng(0).normal(size=shape).astype(np.float32)}
    finding, _ = compare(model(feed, softcap=2.0, causal=causal), feed)
    assert finding.causal is (True if causal else None)
    assert finding.bias == "attention_bias"
    del feed["bias"]
    finding, s = compare(model(feed, causal=causal), feed)
    assert finding.causal is bool(causal)
    assert np.all(s["weights"] > 0) == (not causal)


@pytest.mark.parametrize("smooth", [0, 1])
def test_sinks(smooth: int) -> None:
    feed = feed_of() | {"sink": np.array([-1.0, 0.0, 1.5, 3.0], np.float32)}
    finding, s = compare(model(feed, smooth_softmax=smooth), feed, sink=feed["sink"])
    assert finding.sink
    sums = s["weights"].sum(-1)
    want = numpy_attention(
        parted(feed["q"], H), parted(feed["k"], HKV), parted(feed["v"], HKV), scale=D**-0.5,
        visible=np.tri(6, dtype=bool), sink=feed["sink"],
    )  # fmt: skip
    close(sums, want["weights"].sum(-1), 1e-5)
    assert sums.max() < 1


@pytest.mark.parametrize("mode", [1, 2])
@pytest.mark.parametrize(("new", "past"), [(6, 0), (1, 5)])
def test_its_own_score_output_is_kept(mode: int, new: int, past: int) -> None:
    feed = feed_of(2, new, past) | {"sink": np.ones(H, np.float32)}
    whole = model(feed, outs=4, qk_output=mode, softcap=2.0)
    compare(whole, feed, sink=feed["sink"])


def test_a_score_output_without_a_mode_holds_nothing_in_the_kernel() -> None:
    _, (finding,), _ = replaced(model(feed_of(), outs=4))
    assert finding.replacement is not None
    assert finding.replacement.required


@pytest.mark.parametrize("window", [-1, 3])
def test_a_ragged_prompt(window: int) -> None:
    """The second sequence has three tokens and three of padding, whose rows the kernel leaves undefined."""
    feed = with_rotary(feed_of())
    feed["seqlens"] = np.array([5, 2], np.int32)
    whole = model(feed, do_rotary=1, local_window_size=window)
    tapped, (finding,), _ = replaced(whole)
    want, got = run(whole, feed), run(tapped, feed)
    hold(finding, got)
    close(got["y"][0], want["y"][0], 1e-5)
    close(got["y"][1, :3], want["y"][1, :3], 1e-5)
    close(got["present_k"], want["present_k"], 1e-5)
    weights = got[finding.places["weights"].value]
    assert np.isfinite(weights).all()
    assert np.all(weights[1, :, :, 3:] == 0)


def test_a_ragged_step() -> None:
    feed = with_rotary(feed_of(2, 1, 5))
    feed["seqlens"] = np.array([5, 2], np.int32)
    _, s = compare(model(feed, do_rotary=1), feed)
    assert np.all(s["weights"][1, ..., 3:] == 0)
    close(s["key"][1, :, :2], feed["pk"][1, :, :2], 1e-7)


@pytest.mark.parametrize(("new", "past"), [(6, 0), (1, 5), (4, 5)])
@pytest.mark.parametrize("ragged", [False, True])
def test_a_static_buffer(new: int, past: int, ragged: bool) -> None:
    if ragged and new != 1:
        pytest.skip("the kernel takes several new tokens after a past for one sequence only")
    feed = with_rotary(feed_of(1 if past and new > 1 else 2, new, past, capacity=12))
    if ragged:
        feed["seqlens"] = np.array([5, 3], np.int32)
    _, s = compare(model(feed, do_rotary=1), feed)
    assert s["key"].shape[2] == past + new


@pytest.mark.parametrize("capacity", [4, 6, 8])
@pytest.mark.parametrize("steps", [(1,), (3,), (7,), (11,), (5, 1, 1, 1, 1, 1), (2, 4, 1, 3), (9, 2)])
def test_a_window_sized_cache(capacity: int, steps: tuple[int, ...]) -> None:
    """Token by token or in chunks: what is cached and what comes out is what the kernel makes of it."""
    feed = with_rotary(feed_of(1, 1, 0, capacity=capacity))
    done = 0
    for new in steps:
        fresh = feed_of(1, new, done)
        feed |= {x: fresh[x] for x in "qkv"}
        feed["seqlens"] = np.array([done + new - 1], np.int32)
        feed["total"] = np.array(done + new, np.int32)
        whole = model(feed, do_rotary=1, local_window_size=4, sliding_window_cache=1)
        tapped, (finding,), _ = replaced(whole)
        want, got = run(whole, feed), run(tapped, feed)
        s = hold(finding, got)
        close(got["y"], want["y"], 1e-5)
        done += new
        step = capacity - 4 + 1
        held = done if done <= capacity else done - step * -(-(done - capacity) // step)
        for present in ("present_k", "present_v"):
            assert got[present].shape == want[present].shape
            close(got[present][:, :, :held], want[present][:, :, :held], 1e-5)
        assert s["key"].shape[2] == done
        assert (s["weights"] > 0).sum(-1).max() == min(4, done)
        feed |= {"pk": want["present_k"], "pv": want["present_v"]}


def test_a_ragged_window_sized_cache() -> None:
    feed = with_rotary(feed_of(2, 1, 9, capacity=5))
    feed["seqlens"] = np.array([9, 2], np.int32)
    whole = model(feed, do_rotary=1, local_window_size=4, sliding_window_cache=1)
    tapped, (finding,), _ = replaced(whole)
    want, got = run(whole, feed), run(tapped, feed)
    hold(finding, got)
    close(got["y"], want["y"], 1e-5)
    for present in ("present_k", "present_v"):
        for row, held in ((0, 4), (1, 3)):
            close(got[present][row, :, :held], want[present][row, :, :held], 1e-5)


def test_query_and_key_norms_which_the_kernel_refuses() -> None:
    r = np.random.default_rng(0)
    feed = with_rotary(feed_of())
    plain = dict(feed)
    feed |= {"qn": r.normal(size=D).astype(np.float32), "kn": r.normal(size=D).astype(np.float32)}
    for x, heads, weight in (("q", H, "qn"), ("k", HKV, "kn")):
        split = plain[x].reshape(2, 6, heads, D).astype(np.float64)
        normed = split / np.sqrt((split**2).mean(-1, keepdims=True) + 1e-5) * feed[weight]
        plain[x] = normed.reshape(2, 6, -1).astype(np.float32)
    tapped, (finding,), _ = replaced(model(feed, do_rotary=1, qk_norm_epsilon=1e-5))
    assert finding.replacement is not None
    assert finding.replacement.required
    got = run(tapped, feed)
    hold(finding, got)
    close(got["y"], run(model(plain, do_rotary=1), plain)["y"], 1e-5)


def test_past_without_present() -> None:
    feed = feed_of(2, 1, 5)
    tapped, (finding,), _ = replaced(model(feed, outs=1))
    assert finding.replacement is not None
    assert finding.replacement.required
    got = run(tapped, feed)
    hold(finding, got)
    close(got["y"], run(model(feed), feed)["y"], 1e-5)


def test_without_any_past() -> None:
    feed = {k: v for k, v in feed_of().items() if k not in ("pk", "pv")}
    tapped, (finding,), _ = replaced(model(feed, outs=1))
    got = run(tapped, feed)
    hold(finding, got)
    want = numpy_attention(
        parted(feed["q"], H),
        parted(feed["k"], HKV),
        parted(feed["v"], HKV),
        scale=D**-0.5,
        visible=np.tri(6, dtype=bool),
    )
    close(got["y"], joined(want["context"]), 1e-5)


@pytest.mark.parametrize(("new", "past"), [(6, 0), (1, 5)])
def test_half_precision(new: int, past: int) -> None:
    feed = with_rotary(feed_of(2, new, past, dtype=np.float16))
    compare(model(feed, do_rotary=1), feed, tolerance=3e-3)
