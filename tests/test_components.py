"""Encoder or decoder, told by who feeds whom; and deformable attention, which is no site but looks across."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto

import attnx
from attnx.records import Site
from attnx.run.prompt import Prompt
from attnx.study.inspect_run import inspect_prompt
from attnx.study.request import Request
from tests.graphs import D, G, H, qkv


def attend(g: G, x: str, memory: str | None = None, causal: bool = False) -> str:
    """x and what it takes from the memory, or from itself."""
    q, k, v = qkv(g, x, memory)
    scores = g.scores(q, k)
    if causal:
        size = g.op("Gather", g.op("Shape", scores), g.const([2, 3], np.int64))
        ones = g.op("Expand", g.const(1, np.int32), size)
        keep = g.op("Cast", g.op("Trilu", ones, upper=0), to=9)
        scores = str(g.op("Where", keep, scores, g.const(-np.inf, np.float32)))
    return str(g.op("Add", x, g.out(str(g.op("MatMul", g.softmax(scores), v)))))


def sides(g: G, folder: Path, *outputs: str) -> list[tuple[str, str]]:
    return [(s.kind, s.component) for s in found(g, folder, *outputs)]


def found(g: G, folder: Path, *outputs: str) -> tuple[Site, ...]:
    return attnx.open(g.save(folder, *outputs), device="cpu").sites


def test_streams_that_look_at_each_other_are_encoders(tmp_path: Path) -> None:
    """LXMERT, Grounding DINO: two encoders, two layers in which each looks at the other, and on by itself."""
    g = G()
    x, y = g.input("x", ["b", "s", 16]), g.input("y", ["b", "p", 16])
    x, y = attend(g, x), attend(g, y)
    for _ in range(2):
        x, y = attend(g, x, y), attend(g, y, x)
        x, y = attend(g, x), attend(g, y)
    assert {side for _, side in sides(g, tmp_path, x, y)} == {"encoder"}


def test_both_ways_at_once_is_no_decoder_either(tmp_path: Path) -> None:
    g = G()
    x, y = g.input("x", ["b", "s", 16]), g.input("y", ["b", "p", 16])
    assert sides(g, tmp_path, attend(g, x, y), attend(g, y, x)) == [("cross", "encoder")] * 2


def test_global_tokens_of_an_encoder_do_not_make_it_a_decoder(tmp_path: Path) -> None:
    """Pegasus-X: learned global tokens gather from the text, the text reads them; a decoder reads the text."""
    g = G()
    x, y = g.input("x", ["b", "s", 16]), g.input("y", ["b", "t", 16])
    ends = g.op("Shape", x)
    shape = g.op("Concat", g.op("Gather", ends, g.const([0], np.int64)), g.const([3, 16], np.int64), axis=0)
    tokens = str(g.op("Add", g.op("Expand", g.weight(1, 3, 16), shape), g.linear(g.op("ReduceMean", x, axes=[1]), 16)))
    for _ in range(2):
        tokens, x = attend(g, tokens, x), attend(g, x, tokens)
    x = attend(g, x)
    for _ in range(2):
        y = attend(g, attend(g, y, causal=True), x)
    got = sides(g, tmp_path, y)
    assert [side for _, side in got[:4]] == ["encoder"] * 4
    assert ("cross", "encoder") in got
    assert got[-4:] == [("self", "decoder"), ("cross", "decoder")] * 2
    assert got[4] == ("self", "encoder")


@pytest.mark.parametrize("layers", [1, 2])
def test_queries_that_ask_for_another_stream_make_no_decoder(layers: int, tmp_path: Path) -> None:
    """GCViT: global queries, made once, ask each window's keys; what they get is added to what they asked about."""
    g = G()
    x = g.input("x", ["b", "s", 16])
    asking = g.linear(str(g.op("Tanh", g.linear(x, 16))), 16)
    for _ in range(layers):
        x = attend(g, x)
        q, k, v = qkv(g, asking, x)
        context = g.op("MatMul", g.softmax(g.scores(q, k)), v)
        x = str(g.op("Add", x, g.op("Add", g.out(str(context)), g.weight(16))))
        x = str(g.op("Add", x, g.linear(str(g.op("Relu", g.linear(x, 16))), 16)))
    assert sides(g, tmp_path, x) == [("self", "encoder"), ("cross", "encoder")] * layers


def test_global_tokens_among_the_keys_of_the_text_itself(tmp_path: Path) -> None:
    """Pegasus-X as it is exported: the text's own keys stand beside those of the global tokens."""
    g = G()
    x = g.input("x", [1, "s", 16])
    tokens = g.weight(1, 3, 16)
    for _ in range(2):
        both = str(g.op("Concat", tokens, x, axis=1))
        tokens, x = attend(g, tokens, both), attend(g, x, both)
    both = str(g.op("Concat", tokens, x, axis=1))
    made = found(g, tmp_path, attend(g, x, both))
    assert {site.component for site in made} == {"encoder"}


@pytest.mark.parametrize("causal", [True, False])
def test_what_is_looked_at_is_the_encoder_though_it_hides_the_future(causal: bool, tmp_path: Path) -> None:
    """A streaming encoder beside a decoder, causal or not."""
    g = G()
    x, y = g.input("x", ["b", "s", 16]), g.input("y", ["b", "t", 16])
    for _ in range(2):
        x = attend(g, x, causal=True)
    for _ in range(2):
        y = attend(g, attend(g, y, causal=causal), x)
    model = attnx.open(g.save(tmp_path, y), device="cpu")
    assert [(s.kind, s.component) for s in model.sites] == [
        ("self", "encoder"), ("self", "encoder"),
        ("self", "decoder"), ("cross", "decoder"), ("self", "decoder"), ("cross", "decoder"),
    ]  # fmt: skip
    assert [s.layer for s in model.sites] == [0, 1, 0, 0, 1, 1]


def test_a_decoder_alone_is_told_by_its_mask(tmp_path: Path) -> None:
    g = G()
    x = g.input("x", ["b", "s", 16])
    assert sides(g, tmp_path, attend(g, attend(g, x, causal=True))) == [("self", "decoder")] * 2


POINTS = 4


def deformable(g: G, x: str, memory: str, how: str = "grid") -> tuple[str, str]:
    """x [1,q,16] and what it samples of the memory [1,36,16], a map of 6 x 6; and the weights [1,q,H,points]."""
    value = g.op("Reshape", g.op("Transpose", g.linear(memory, 16), perm=[0, 2, 1]), g.const([H, 4, 6, 6], np.int64))
    places = g.op("Tanh", g.op("Reshape", g.linear(x, H * POINTS * 2), g.const([1, -1, H, POINTS, 2], np.int64)))
    weights = g.softmax(str(g.op("Reshape", g.linear(x, H * POINTS), g.const([1, -1, H, POINTS], np.int64))))
    grid = g.op("Squeeze", g.op("Transpose", places, perm=[0, 2, 1, 3, 4]), g.const([0], np.int64))  # H q points 2
    if how == "grid":
        sampled = g.op("GridSample", value, grid)  # H 4 q points
    else:  # the nearest cell, gathered
        cells = g.op("Floor", g.op("Mul", g.op("Add", grid, g.const(1.0, np.float32)), g.const(2.9, np.float32)))
        row, column = g.op("Split", cells, outputs=2, axis=3)
        flat = g.op("Cast", g.op("Add", g.op("Mul", row, g.const(6.0, np.float32)), column), to=7)
        index = g.op("Expand", g.op("Reshape", flat, g.const([H, 1, -1], np.int64)), g.const([H, 4, 1], np.int64))
        picked = g.op("GatherElements", g.op("Reshape", value, g.const([H, 4, 36], np.int64)), index, axis=2)
        sampled = g.op("Reshape", picked, g.const([H, 4, -1, POINTS], np.int64))
    by_head = g.op("Reshape", g.op("Transpose", weights, perm=[2, 0, 1, 3]), g.const([H, 1, -1, POINTS], np.int64))
    summed = g.op("ReduceSum", g.op("Mul", sampled, by_head), g.const([3], np.int64), keepdims=0)  # H 4 q
    merged = g.op("Transpose", g.op("Reshape", summed, g.const([1, 16, -1], np.int64)), perm=[0, 2, 1])
    return str(g.op("Add", x, g.linear(merged, 16))), weights


@pytest.mark.parametrize("how", ["grid", "gathered"])
def test_deformable_attention_is_named_and_tells_decoder_from_encoder(how: str, tmp_path: Path) -> None:
    g = G()
    memory = g.input("x", [1, 36, 16])
    memory, _ = deformable(g, memory, memory, how)
    memory = attend(g, memory)
    y = g.weight(1, 5, 16)
    for _ in range(2):
        y, weights = deformable(g, attend(g, y), memory, how)
    path = g.save(tmp_path, y, weights)
    model = attnx.open(path, device="cpu")
    assert [(s.kind, s.component) for s in model.sites] == [
        ("self", "encoder"), ("self", "decoder"), ("self", "decoder"),
    ]  # fmt: skip
    reasons = [miss.reason for miss in model.misses]
    assert len(reasons) == 3
    assert all("deformable attention" in reason and f"{POINTS} points" in reason for reason in reasons)
    assert repr(weights) in reasons[-1]
    feed = {"x": np.random.default_rng(1).standard_normal((1, 36, 16)).astype(np.float32)}
    shares = ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run([weights], feed)[0]
    assert shares.shape == (1, 5, H, POINTS)
    np.testing.assert_allclose(shares.sum(-1), 1, atol=1e-6)


def test_a_plugin_of_its_own_is_named(tmp_path: Path) -> None:
    """mmdeploy hands the weights to an operator that only TensorRT has."""
    g = G()
    x = g.input("x", [1, 9, 16])
    y = attend(g, x)
    weights = g.softmax(str(g.op("Reshape", g.linear(y, H * POINTS), g.const([1, -1, H, POINTS], np.int64))))
    out = g.op("MMCVMultiScaleDeformableAttention", y, g.linear(y, 2), weights, domain="mmdeploy")

    path = g.save(tmp_path, str(out))
    model = onnx.load(path)
    model.opset_import.append(onnx.helper.make_opsetid("mmdeploy", 1))
    onnx.save(model, path)
    opened = attnx.open(path, device="cpu")
    assert len(opened.sites) == 1
    assert [m for m in opened.misses if "deformable" in m.reason]


def test_a_gate_over_experts_samples_nothing(tmp_path: Path) -> None:
    """A softmax whose weights sum up tensors that were made, and not picked: a router, no deformable attention."""
    g = G()
    x = attend(g, g.input("x", ["b", "s", 16]))
    gate = g.op("Unsqueeze", g.softmax(g.linear(x, 3)), g.const([2], np.int64))
    experts = g.op("Concat", *[g.op("Unsqueeze", g.linear(x, 16), g.const([3], np.int64)) for _ in range(3)], axis=3)
    out = g.op("ReduceSum", g.op("Mul", experts, gate), g.const([3], np.int64), keepdims=0)
    assert attnx.open(g.save(tmp_path, str(out)), device="cpu").misses == ()


@pytest.mark.parametrize("room", [24, 4000])
def test_a_table_that_is_cut_by_the_length_of_past_and_text_is_no_length(room: int, tmp_path: Path) -> None:
    """MPT with a cache: ALiBi's table is sliced from its end, by as many keys as there are, few or many in the file."""
    g = G()
    x = g.input("x", ["b", "s", 16])
    hidden = g.input("hidden", ["b", "past + s"], TensorProto.BOOL)
    old = [g.input(name, ["b", H, "past", D]) for name in ("past_k", "past_v")]
    q, *new = (g.heads(g.linear(x, D * H)) for _ in range(3))
    k, v = (g.op("Concat", o, n, axis=2) for o, n in zip(old, new, strict=True))
    scores = g.scores(q, str(g.op("Transpose", k, perm=[0, 1, 3, 2])))
    keys = g.op("Gather", g.op("Shape", k), g.const([2], np.int64))
    slopes = -np.arange(room)[::-1] / 2.0 ** np.arange(1, H + 1)[:, None]
    table = g.const(slopes[None, :, None].astype(np.float32))
    alibi = g.op("Slice", table, g.op("Neg", keys), g.const([2**31 - 1], np.int64), g.const([3], np.int64))
    queries = g.op("Gather", g.op("Shape", q), g.const([2], np.int64))
    ones = g.op("Expand", g.const(1, np.int32), g.op("Concat", queries, keys, axis=0))
    before = g.op("Sub", keys, queries)
    later = g.op("Trilu", ones, g.op("Add", g.op("Squeeze", before, g.const([0], np.int64)), g.const(1, np.int64)))
    stop = g.op(
        "Or",
        g.op("Cast", later, to=TensorProto.BOOL),
        g.op("Unsqueeze", hidden, g.const([1, 2], np.int64)),
    )
    shown = g.op("Where", stop, g.const(np.finfo(np.float32).min, np.float32), g.op("Add", scores, alibi))
    (site,) = found(g, tmp_path, g.out(str(g.op("MatMul", g.softmax(str(shown)), v))))
    assert (site.kind, site.causal, site.component, site.bias) == ("self", True, "decoder", "by position, one per head")


@pytest.mark.parametrize("hides", [True, False])
def test_a_side_that_a_mask_alone_tells_is_left_open_until_a_run(hides: bool, tmp_path: Path) -> None:
    """What the mask hides hangs on numbers that are fed, in a form of which nothing is known."""
    g = G()
    x = g.input("x", ["b", "s", 16])
    place = g.op("Squeeze", g.input("place", ["b", "s", 1, 1, 1]), g.const([3, 4], np.int64))
    q, k, v = qkv(g, x)
    later = g.op("Less", place, g.op("Transpose", place, perm=[0, 2, 1]))
    later = g.op("Unsqueeze", later, g.const([1], np.int64))
    scores = g.op("Where", later, g.const(-np.inf, np.float32), g.scores(q, k))
    path = g.save(tmp_path, g.out(str(g.op("MatMul", g.softmax(str(scores)), v))))
    model = attnx.open(path, device="cpu")
    (site,) = model.sites
    assert (site.causal, site.component_known) == (None, False)
    assert any("not known before a run" in note for note in site.notes)
    places = np.arange(5, dtype=np.float32) if hides else np.zeros(5, np.float32)
    feed = {"x": np.random.default_rng(0).standard_normal((1, 5, 16)).astype(np.float32)}
    given = {"place": places.reshape(1, 5, 1, 1, 1)}
    trace = model.trace(inputs=feed | given)
    (seen,) = trace.attentions
    assert (seen.site.causal, seen.site.component) == (hides, "decoder" if hides else "encoder")
    assert seen.site.component_known
    assert not any("not known before a run" in note for note in seen.site.notes)
    shown = inspect_prompt(model, Prompt(inputs=feed | given), Request(), matrices=False, rows=False)
    assert [a.site.component for a in shown.trace.attentions] == ["decoder" if hides else "encoder"]
    assert shown.others == ()
