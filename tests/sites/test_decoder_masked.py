"""One-token decoder attention: against onnxruntime's CPU kernel, and numpy where there is none."""

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

N, D, M, P, WIDTH = 3, 8, 7, 4, 3
ORDER = ("q", "k", "v", "mask", "bias", "pk", "pv", "length", "width", "beams", "b")


def feed_of(rows: int = 2, bias: bool = False) -> dict[str, Array]:
    r = np.random.default_rng(rows)
    feed = {x: r.normal(size=(rows, 1, N * D)).astype(np.float32) for x in "qkv"}
    feed |= {p: r.normal(size=(rows, N, M, D)).astype(np.float32) for p in ("pk", "pv")}
    feed["length"] = np.array([P], np.int32)
    if bias:
        feed["b"] = r.normal(size=3 * N * D).astype(np.float32)
    return feed


def model(feed: dict[str, Array], qk: bool = False, share: int = 1, presents: bool = True) -> Any:
    inputs = [name if name in feed else "" for name in ORDER]
    while not inputs[-1]:
        inputs.pop()
    outputs = ["y", "present_k" if presents else "", "present_v" if presents else "", "qk" if qk else ""]
    while not outputs[-1]:
        outputs.pop()
    node = attention_node(
        "DecoderMaskedMultiHeadAttention",
        inputs,
        outputs,
        num_heads=N,
        past_present_share_buffer=share,
        output_qk=int(qk),
    )
    return model_of([node], feed, [o for o in outputs if o], types={"qk": np.float32})


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("bias", ["", "2n", "11", "1n"])
@pytest.mark.parametrize("qk", [False, True])
@pytest.mark.parametrize("projection", [False, True])
def test_self_attention_matches_the_kernel(mask: bool, bias: str, qk: bool, projection: bool) -> None:
    feed = feed_of(bias=projection)
    r = np.random.default_rng(1)
    if mask:
        feed["mask"] = np.array([[1] * (P + 1), [0, 1, 1, 0, 1]], np.int32)
    if bias:
        shape = {"2n": (2, N, 1, P + 1), "11": (1, 1, 1, P + 1), "1n": (1, N, 1, P + 1)}[bias]
        feed["bias"] = r.normal(size=shape).astype(np.float32)
    finding, s = compare(model(feed, qk), feed)
    assert finding.replacement is not None
    assert not finding.replacement.required
    assert s["key"].shape == (2, N, P + 1, D)
    assert finding.causal is (None if bias else False)


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("qk", [False, True])
def test_cross_attention_matches_the_kernel(mask: bool, qk: bool) -> None:
    feed = {k: v for k, v in feed_of().items() if k == "q"}
    r = np.random.default_rng(3)
    feed |= {x: r.normal(size=(2, N, M, D)).astype(np.float32) for x in "kv"}
    if mask:
        feed["mask"] = np.array([[1] * M, [0, 1, 1, 0, 1, 1, 1]], np.int32)
    _, s = compare(model(feed, qk, share=0, presents=False), feed)
    close(s["key"], feed["k"], 1e-7)


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("qk", [False, True])
def test_beams_match_the_kernel(mask: bool, qk: bool) -> None:
    feed = feed_of(2 * WIDTH)
    feed["width"] = np.array([WIDTH], np.int32)
    feed["beams"] = np.random.default_rng(4).integers(0, WIDTH, (2, WIDTH, M)).astype(np.int32)
    if mask:
        feed["mask"] = np.ones((2 * WIDTH, P + 1), np.int32)
        feed["mask"][4, 1:3] = 0
    finding, s = compare(model(feed, qk), feed)
    assert finding.replacement is not None
    assert not finding.replacement.required
    for row in range(2 * WIDTH):
        for t in range(P):
            source = row // WIDTH * WIDTH + feed["beams"][row // WIDTH, row % WIDTH, t]
            close(s["key"][row, :, t], feed["pk"][source, :, t], 1e-7)


def test_beams_with_a_bias_of_their_own() -> None:
    """The kernel adds the bias of the row that a past position came from; the row's own is meant."""
    feed = feed_of(2 * WIDTH)
    r = np.random.default_rng(5)
    feed["beams"] = np.broadcast_to(np.arange(WIDTH, dtype=np.int32)[None, :, None], (2, WIDTH, M)).copy()
    feed["bias"] = r.normal(size=(2 * WIDTH, 1, 1, P + 1)).astype(np.float32)
    tapped, (finding,), _ = replaced(model(feed))
    assert finding.replacement is not None
    assert finding.replacement.required
    got = run(tapped, feed)
    hold(finding, got)
    k, v = (np.concatenate([feed[p][:, :, :P], parted(feed[x], N)], 2) for p, x in (("pk", "k"), ("pv", "v")))
    want = numpy_attention(parted(feed["q"], N), k, v, scale=D**-0.5, add=feed["bias"])
    close(got["y"], joined(want["context"]), 1e-5)


def test_packed_query_which_the_kernel_refuses() -> None:
    feed = feed_of(bias=True)
    plain = run(model(feed), feed)
    packed = {k: v for k, v in feed.items() if k not in "qkv"}
    packed["q"] = np.concatenate([feed[x] for x in "qkv"], -1)
    tapped, (finding,), _ = replaced(model(packed))
    assert finding.replacement is not None
    assert finding.replacement.required
    assert finding.head_size == D
    got = run(tapped, packed)
    hold(finding, got)
    for name, array in plain.items():
        close(got[name], array, 1e-5)


def test_a_plain_past_which_the_kernel_refuses() -> None:
    feed = feed_of()
    del feed["length"]
    tapped, (finding,), _ = replaced(model(feed, share=0))
    assert finding.replacement is not None
    assert finding.replacement.required
    got = run(tapped, feed)
    hold(finding, got)
    k, v = (np.concatenate([feed[p], parted(feed[x], N)], 2) for p, x in (("pk", "k"), ("pv", "v")))
    close(got["y"], joined(numpy_attention(parted(feed["q"], N), k, v, scale=D**-0.5)["context"]), 1e-5)
    close(got["present_v"], v, 1e-7)


@pytest.mark.parametrize("share", [0, 1])
@pytest.mark.parametrize("beams", [False, True])
def test_self_attention_with_its_projection_runs_on_cuda_only(share: int, beams: bool) -> None:
    r = np.random.default_rng(6)
    rows, din = 2 * WIDTH, 10
    feed: dict[str, Array] = {
        "x": r.normal(size=(rows, 1, din)), "w": r.normal(size=(din, 3 * N * D)), "b": r.normal(size=3 * N * D),
        "past": r.normal(size=(2, rows, N, M if share else P, D)), "bias": r.normal(size=(1, N, 1, P + 1)),
    }  # fmt: skip
    feed = {k: v.astype(np.float32) for k, v in feed.items()}
    feed["mask"] = (r.random((rows, P + 1)) > 0.3).astype(np.int32)
    feed["mask"][:, -1] = 1
    feed["length"] = np.array([P], np.int32)
    origin = r.integers(0, WIDTH, (2, WIDTH, M)).astype(np.int32)
    if beams:
        feed["beams"] = origin
    order = ("x", "w", "b", "mask", "past", "bias", "length", "", "beams" if beams else "")
    node = attention_node(
        "DecoderMaskedSelfAttention", order, ["y", "present"], num_heads=N, past_present_share_buffer=share
    )
    tapped, (finding,), _ = replaced(model_of([node], feed, ["y", "present"]))
    assert finding.replacement is not None
    assert finding.replacement.required
    assert finding.head_size == D
    got = run(tapped, feed)
    hold(finding, got)
    x = feed["x"].astype(np.float64) @ feed["w"] + feed["b"]
    q, k, v = (parted(part, N) for part in np.split(x, 3, -1))
    source = np.arange(rows)[:, None].repeat(P, 1)
    if beams:
        source = source // WIDTH * WIDTH + origin.reshape(rows, M)[:, :P]
    old = [feed["past"][i][source, :, np.arange(P)].transpose(0, 2, 1, 3) for i in (0, 1)]
    want = numpy_attention(
        q, np.concatenate([old[0], k], 2), np.concatenate([old[1], v], 2), scale=D**-0.5,
        add=feed["bias"] + np.where(feed["mask"], 0, -10000.0)[:, None, None],
    )  # fmt: skip
    close(got["y"], joined(want["context"]), 1e-5)
    close(got["present"][1, :, :, P], v[:, :, 0], 1e-5)
    assert got["present"].shape[3] == (M if share else P + 1)


def test_rotary_inside_turns_by_the_number_of_tokens_before() -> None:
    r = np.random.default_rng(7)
    feed = {"x": r.normal(size=(2, 1, 6)), "w": r.normal(size=(6, 3 * N * D)), "b": r.normal(size=3 * N * D),
            "past": r.normal(size=(2, 2, N, M, D))}  # fmt: skip
    feed = {k: v.astype(np.float32) for k, v in feed.items()} | {"length": np.array([P], np.int32)}
    order = ("x", "w", "b", "", "past", "", "length")
    node = attention_node(
        "DecoderMaskedSelfAttention", order, ["y", "present"], num_heads=N, do_rotary=1, past_present_share_buffer=1
    )
    tapped, (finding,), _ = replaced(model_of([node], feed, ["y", "present"]))
    s = hold(finding, run(tapped, feed))
    x = feed["x"].astype(np.float64) @ feed["w"] + feed["b"]
    turn = np.exp(1j * P / 10000 ** (np.arange(0, D, 2) / D))
    for part, got in ((x[..., : N * D], s["query"]), (x[..., N * D : 2 * N * D], s["key"][:, :, P:])):
        z = (parted(part, N)[..., : D // 2] + 1j * parted(part, N)[..., D // 2 :]) * turn
        close(got, np.concatenate([z.real, z.imag], -1), 1e-5)
