"""Attention held as a band: torch's own softmaxes (scripts/make_bands.py), put to their places here by hand."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import attnx
from attnx.records import Attention
from attnx.session.ort import open_session
from attnx.sites.recognise import find
from attnx.taps.tap import tap
from tests.graphs import G, softmax

FOLDER = Path(__file__).parent / "bands"
MODEL = FOLDER / "model.onnx"
REACH, LENGTH = 4, 16
Array = np.ndarray[Any, Any]


def truth() -> tuple[dict[str, Array], Array, Array]:
    """What was fed, and the weights of band and rows [B,H,S,S]."""
    with np.load(FOLDER / "truth.npz") as held:
        arrays = dict(held)
    band, rows = arrays.pop("band"), arrays.pop("rows")
    batch, length, heads, columns = band.shape
    most = columns - (2 * REACH + 1)
    whole = np.zeros((2, batch, heads, length, length))
    for b in range(batch):
        marked = np.nonzero(arrays["global_attention_mask"][b])[0]
        for i in range(length):
            if not arrays["attention_mask"][b, i]:
                continue  # torch sets the rows of padding to 0
            for at, j in enumerate(marked):
                whole[0, b, :, i, j] += band[b, i, :, at]
            for j in range(max(0, i - REACH), min(length, i + REACH + 1)):
                whole[0, b, :, i, j] += band[b, i, :, most + j - i + REACH]
        for at, i in enumerate(marked):
            whole[1, b, :, i] = rows.reshape(batch, heads, most, length)[b, :, at]
    return arrays, whole[0], whole[1]


@cache
def opened() -> attnx.Model:
    """The model, whose graph is read and walked once for all tests."""
    return attnx.open(MODEL, device="cpu")


def traced(feed: dict[str, Array]) -> tuple[Attention, Attention]:
    first, second = opened().trace(inputs=feed, required=True).attentions
    for attention in (first, second):
        assert attention.trusted, attention.checks
    return first, second


def drawn(batch: int, marked: list[list[int]], padded: int) -> dict[str, Array]:
    ids = np.random.default_rng(2).integers(3, 40, (batch, LENGTH))
    mask, flags = np.ones((batch, LENGTH), np.int64), np.zeros((batch, LENGTH), np.int64)
    mask[-1, LENGTH - padded :] = 0
    for row, tokens in enumerate(marked):
        flags[row, tokens] = 1
    return {"input_ids": ids, "attention_mask": mask, "global_attention_mask": flags}


def test_weights_are_torchs() -> None:
    feed, band, rows = truth()
    first, second = traced(feed)
    np.testing.assert_allclose(first.need("weights"), band, atol=1e-6)
    np.testing.assert_allclose(second.need("weights"), rows, atol=1e-6)


def test_what_the_sites_are() -> None:
    first, second = opened().graph().sites
    told = [(s.heads, s.kv_heads, s.head_size, s.scale, s.causal, s.kind, s.component) for s in (first, second)]
    assert told == [(2, 2, 4, 0.5, False, "self", "encoder")] * 2
    assert (first.window, second.window) == (2 * REACH + 1, None)
    assert first.scale_place == "on the query"
    assert "each cell is brought to its query and key" in first.notes[0]
    assert "written over" in first.notes[1]
    assert "the rows of all others are hidden here" in second.notes[0]


@pytest.mark.parametrize(("batch", "marked"), [(1, [[0]]), (2, [[0, 3, 15], [5, 6]]), (3, [[2], [0, 9], []])])
@pytest.mark.parametrize("padded", [0, 5])
def test_weights_follow_from_query_and_key(batch: int, marked: list[list[int]], padded: int) -> None:
    """Whatever is fed: each row is a softmax over its window and the tokens that all see, computed here."""
    feed = drawn(batch, marked, padded)
    first, second = traced(feed)
    query, key, value = (np.asarray(first.need(q), np.float64) for q in ("query", "key", "value"))
    near = np.abs(np.subtract.outer(np.arange(LENGTH), np.arange(LENGTH))) <= REACH
    for b in range(batch):
        real, flags = feed["attention_mask"][b] > 0, feed["global_attention_mask"][b] > 0
        seen = (near | flags) & real & real[:, None]
        scores = np.where(seen, query[b] @ key[b].swapaxes(1, 2) / 2, -np.inf)
        powers = np.exp(scores - scores.max())
        want = powers / np.maximum(powers.sum(-1, keepdims=True), 1e-300)
        np.testing.assert_allclose(first.need("weights")[b], want, atol=1e-5)
        np.testing.assert_allclose(first.need("masked")[b][:, real], scores[:, real], atol=1e-4)
        assert (first.need("weights")[b][:, ~seen] == 0).all()
        np.testing.assert_allclose(first.need("context")[b][:, real], (want @ value[b])[:, real], atol=1e-4)
        assert (second.need("weights")[b][:, ~flags] == 0).all()
        np.testing.assert_allclose(second.need("weights")[b][:, flags].sum(-1), 1, atol=1e-5)
        assert (second.need("weights")[b][:, :, ~real] == 0).all()


def test_what_onnxruntime_saves_is_the_same(tmp_path: Path) -> None:
    """Its optimiser fuses transposes into products (FusedMatMul)."""
    path = tmp_path / "saved.onnx"
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(path)
    onnxruntime.InferenceSession(MODEL, options)
    assert any(node.op_type == "FusedMatMul" for node in onnx.load(path).graph.node)
    feed, band, rows = truth()
    found = attnx.open(path, device="cpu").trace(inputs=feed, required=True).attentions
    for attention, want in zip(sorted(found, key=lambda a: a.query is None), (band, rows), strict=True):
        assert attention.trusted, attention.checks
        np.testing.assert_allclose(attention.need("weights"), want, atol=1e-5)


def test_taps_change_nothing() -> None:
    feed, _, _ = truth()
    notes = opened().trace(inputs=feed, verify_outputs=True).notes
    (gap,) = [float(note.rsplit(" ", 1)[1]) for note in notes if "with and without taps differs by" in note]
    assert gap < 1e-6


def test_rows_are_reduced_in_the_graph() -> None:
    """Statistics of a matrix that the graph holds only once it is put together."""
    feed, band, _ = truth()
    tapped = tap(opened().graph(), {0: ["largest", "entropy", "received"]}, outputs=())
    names = [tapped.taps[0][stat] for stat in ("largest", "entropy", "received")]
    ran = open_session(tapped.model, tapped.folder, "cpu").run(feed)
    largest, entropy, received = (ran[name] for name in names)
    np.testing.assert_allclose(largest, band.max(-1), atol=1e-6)
    np.testing.assert_allclose(entropy, (band * np.log(np.maximum(band, 1e-37))).sum(-1), atol=1e-5)
    np.testing.assert_allclose(received, band.sum(-2), atol=1e-5)


def band(g: G, query: str, key: str, length: int) -> str:
    """Scores of a window of 3, cut from blocks of 4 queries against the 6 keys around them: [N,length,3]."""

    def cut(x: str, start: int, stop: int, axis: int) -> str:
        return str(g.op("Slice", x, *(g.const([n], np.int64) for n in (start, stop, axis))))

    padded = g.op("Pad", key, g.const([0, 1, 0, 0, 1, 0], np.int64))
    parts = []
    for start in range(0, length, 4):
        block = g.op(
            "Einsum", cut(query, start, start + 4, 1), cut(padded, start, start + 6, 1), equation="bqd,bkd->bqk"
        )
        # Row i begins at cell 6 i; in rows of 7 cells each begins one cell further on, at its own window.
        line = g.op("Reshape", block, g.const([0, 24], np.int64))
        longer = g.op("Pad", line, g.const([0, 0, 0, 4], np.int64))
        parts.append(cut(g.op("Reshape", longer, g.const([0, 4, 7], np.int64)), 0, 3, 2))
    return str(g.op("Concat", *parts, axis=1))


def shifted(g: G, x: str, length: int) -> str:
    """Three keys around each query, [N,length,3,size]."""
    around = g.op("Pad", x, g.const([0, 1, 0, 0, 1, 0], np.int64))
    parts = []
    for c in range(3):
        bounds = [g.const([n], np.int64) for n in (c, c + length, 1)]
        parts.append(g.op("Unsqueeze", g.op("Slice", around, *bounds), g.const([2], np.int64)))
    return str(g.op("Concat", *parts, axis=2))


def banded(folder: Path, straight: bool, unfolded: bool = False, length: int = 12, unrolled: bool = False) -> Path:
    """Two heads in a window of 3, over any number of texts; heads and tokens mixed where not straight.

    All texts have this length; where the steps are unrolled for it, the graph calls it free.
    """
    g = G()
    x = g.input("x", ["batch", "length" if unrolled else length, 6])
    one, two, three = (g.const([n], np.int64) for n in (1, 2, 3))
    count = g.op("Slice", g.op("Shape", x), one, two) if unrolled else g.const([length], np.int64)
    flat = g.op("Concat", g.const([-1], np.int64), count, three, axis=0)
    sides = []
    for _ in range(3):
        split = g.op("Reshape", g.linear(x, 6, 6), g.const([0, 0, 2, 3], np.int64))
        turned = g.op("Transpose", split, perm=[0, 2, 1, 3]) if straight else split
        sides.append(g.op("Reshape", turned, flat))
    inside = np.ones((1, length, 3), bool)
    inside[0, 0, 0] = inside[0, -1, 2] = False
    if unfolded:
        product = g.op("Einsum", sides[0], shifted(g, sides[1], length), equation="bqd,bqcd->bqc")
    else:
        product = band(g, sides[0], sides[1], length)
    scores = g.op("Mul", product, g.const(0.5, np.float32))
    weights = g.softmax(g.op("Where", g.const(inside), scores, g.const(-np.inf, np.float32)))
    context = g.op("Einsum", weights, shifted(g, sides[2], length), equation="bqc,bqcd->bqd")
    return g.save(folder, str(g.op("Reshape", context, g.const([-1, 2, length, 3], np.int64))))


@pytest.mark.parametrize(("unfolded", "length", "unrolled"), [(False, 12, False), (True, 12, False), (False, 40, True)])
@pytest.mark.parametrize("batch", [1, 3])
def test_any_way_of_cutting_a_band(tmp_path: Path, batch: int, unfolded: bool, length: int, unrolled: bool) -> None:
    """Unrolled over ten blocks, the graph says nowhere how long its text must be."""
    x = np.random.default_rng(4).normal(size=(batch, length, 6)).astype(np.float32)
    model = attnx.open(banded(tmp_path, True, unfolded, length, unrolled), device="cpu")
    (a,) = model.trace(inputs={"x": x}, required=True).attentions
    assert (a.site.heads, a.site.scale, a.site.window, a.site.scale_place) == (2, 0.5, 3, "after QK^T")
    assert a.trusted, a.checks
    near = np.abs(np.subtract.outer(np.arange(length), np.arange(length))) <= 1
    scores = np.where(near, a.need("query") @ a.need("key").swapaxes(2, 3) / 2, -np.inf)
    np.testing.assert_allclose(a.need("weights"), softmax(scores), atol=1e-6)
    np.testing.assert_allclose(a.need("masked"), scores, atol=1e-5)
    np.testing.assert_allclose(a.need("context"), softmax(scores) @ a.need("value"), atol=1e-5)


def test_rows_that_mix_heads_are_refused(tmp_path: Path) -> None:
    found = find(banded(tmp_path, straight=False))
    assert found.sites == ()
    assert [m.op for m in found.misses] == ["Softmax"]
    assert "mix scores of different heads or texts" in found.misses[0].reason
