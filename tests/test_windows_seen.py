"""Sliding windows, read off a mask without running the model, however wide they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from attnx.records import Site
from tests.graphs import D, G, qkv, sites


def places(g: G, x: str) -> tuple[str, str]:
    """Rows and columns of a square over the tokens of [b, s, 16]."""
    length = g.op("Gather", g.op("Shape", x), g.const(1, np.int64))
    count = g.op("Range", g.const(0, np.int64), length, g.const(1, np.int64))
    return str(g.op("Unsqueeze", count, g.const([1], np.int64))), str(g.op("Unsqueeze", count, g.const([0], np.int64)))


def attending(g: G, x: str, visible: str, folder: Path) -> Site:
    """The one site of a graph that hides all but the visible cells."""
    q, k, v = qkv(g, x)
    masked = g.op("Where", visible, g.scores(q, k), g.const(-1e9, np.float32))
    (site,) = sites(g.save(folder, g.out(str(g.op("MatMul", g.softmax(str(masked)), v)))))
    return site


def window_mask(g: G, x: str, width: int, causal: bool) -> str:
    row, column = places(g, x)
    near = g.op("Less", g.op("Sub", row, column), g.const(width, np.int64))
    other = (
        g.op("GreaterOrEqual", row, column)
        if causal
        else g.op("Less", g.op("Sub", column, row), g.const(width, np.int64))
    )
    return str(g.op("Where", g.op("And", near, other), g.const(0.0, np.float32), g.const(-1e9, np.float32)))


@pytest.mark.parametrize(
    ("width", "causal", "sees"),
    [
        (3, True, 3),
        (8, True, 8),
        (40, True, 40),
        (4096, True, 4096),
        (4, False, 7),
        (64, False, 127),
        (131072, True, 131072),
    ],
)
def test_sliding_windows_are_read_off_the_mask(width: int, causal: bool, sees: int, tmp_path: Path) -> None:
    g = G()
    x = g.input("x", ["b", "s", 16])
    q, k, v = qkv(g, x)
    masked = g.op("Add", g.scores(q, k), window_mask(g, x, width, causal))
    (site,) = sites(g.save(tmp_path, g.out(str(g.op("MatMul", g.softmax(str(masked)), v)))))
    assert (site.causal, site.window) == (causal, sees)


@pytest.mark.parametrize(("side", "width"), [(48, 6), (300, 20), (1024, 256), (2048, 700)])
def test_a_window_in_a_stored_mask_is_read_off_it(side: int, width: int, tmp_path: Path) -> None:
    g = G()
    x = g.input("x", ["b", "s", 16])
    q, k, v = qkv(g, x)
    whole = np.tril(np.ones((1, 1, side, side), bool)) ^ np.tril(np.ones((1, 1, side, side), bool), -width)
    length = g.op("Gather", g.op("Shape", x), g.const([1], np.int64))
    axes = [g.const([i], np.int64) for i in (2, 3)]
    mask = g.const(whole)
    for axis in axes:
        mask = str(g.op("Slice", mask, g.const([0], np.int64), length, axis))
    masked = g.op("Where", mask, g.scores(q, k), g.const(np.finfo(np.float32).min, np.float32))
    (site,) = sites(g.save(tmp_path, g.out(str(g.op("MatMul", g.softmax(str(masked)), v)))))
    assert (site.causal, site.window) == (True, width)


def test_a_whole_triangle_that_is_stored_is_no_window(tmp_path: Path) -> None:
    g = G()
    x = g.input("x", ["b", "s", 16])
    q, k, v = qkv(g, x)
    length = g.op("Gather", g.op("Shape", x), g.const([1], np.int64))
    mask = g.const(np.tril(np.ones((1, 1, 2048, 2048), bool)))
    for axis in (2, 3):
        mask = str(g.op("Slice", mask, g.const([0], np.int64), length, g.const([axis], np.int64)))
    masked = g.op("Where", mask, g.scores(q, k), g.const(-1e9, np.float32))
    (site,) = sites(g.save(tmp_path, g.out(str(g.op("MatMul", g.softmax(str(masked)), v)))))
    assert (site.causal, site.window) == (True, None)


@pytest.mark.parametrize(("radius", "sees"), [(2, 5), (3, 7)])
def test_a_block_that_sees_its_neighbours_is_not_causal(radius: int, sees: int, tmp_path: Path) -> None:
    """LongT5: blocks of 4 queries over 12 keys, the blocks before and behind included."""
    g = G()
    q, k, v = g.input("q", ["b", 4, D]), g.input("k", ["b", 12, D]), g.input("v", ["b", 12, D])
    far = np.abs(np.arange(12)[None, :] - 4 - np.arange(4)[:, None]) > radius
    mask = g.const(np.where(far, -1e10, 0.0).astype(np.float32))
    scores = g.op("Add", g.op("MatMul", q, g.op("Transpose", k, perm=[0, 2, 1])), mask)
    (site,) = sites(g.save(tmp_path, str(g.op("MatMul", g.softmax(str(scores)), v))))
    assert (site.causal, site.window) == (False, sees)


@pytest.mark.parametrize("causal", [True, False])
def test_keys_that_all_see_behind_a_triangle_leave_it_one(causal: bool, tmp_path: Path) -> None:
    """torch's add_bias_kv and add_zero_attn: two keys more than there are tokens, which no query may not see."""
    g = G()
    q, k, v = g.input("q", ["b", 6, D]), g.input("k", ["b", 8, D]), g.input("v", ["b", 8, D])
    hidden = np.triu(np.ones((6, 8), bool), 1) if causal else np.arange(8)[None, :] < np.full((6, 1), 2)
    hidden[:, 6:] = False
    mask = g.const(np.where(hidden, -1e10, 0.0).astype(np.float32))
    scores = g.op("Add", g.op("MatMul", q, g.op("Transpose", k, perm=[0, 2, 1])), mask)
    (site,) = sites(g.save(tmp_path, str(g.op("MatMul", g.softmax(str(scores)), v))))
    assert site.causal is causal


@pytest.mark.parametrize(
    ("left", "op", "right", "causal"),
    [
        ("column", "GreaterOrEqual", "row", False),
        ("column", "LessOrEqual", "row + 1", False),
        ("column", "LessOrEqual", "row + 5", False),
        ("column + 2", "GreaterOrEqual", "row", False),
    ],
)
def test_a_band_that_ends_on_one_side_is_no_window(
    left: str, op: str, right: str, causal: bool, tmp_path: Path
) -> None:
    """Right to left, and looking one or five tokens ahead, or two behind."""
    g = G()
    x = g.input("x", ["b", "s", 16])
    at = dict(zip(("row", "column"), places(g, x), strict=True))

    def moved(words: str) -> str:
        name, _, by = words.partition(" + ")
        return str(g.op("Add", at[name], g.const(int(by or 0), np.int64)))

    site = attending(g, x, str(g.op(op, moved(left), moved(right))), tmp_path)
    assert (site.causal, site.window) == (causal, None)


@pytest.mark.parametrize("step", [3, 4, 5, 8, 40, 128])
@pytest.mark.parametrize("how", ["strided", "chunked"])
def test_what_repeats_itself_is_no_window(how: str, step: int, tmp_path: Path) -> None:
    """Sparse Transformer's window and every n-th key behind it; Llama 4's chunks, each a triangle of its own."""
    g = G()
    x = g.input("x", ["b", "s", 16])
    row, column = places(g, x)
    size = g.const(step, np.int64)
    if how == "strided":
        near = g.op("Less", g.op("Sub", row, column), size)
        last = g.op("Equal", g.op("Mod", column, size), g.const(step - 1, np.int64))
        more = g.op("Or", near, last)
    else:
        more = g.op("Equal", g.op("Div", row, size), g.op("Div", column, size))
    site = attending(g, x, str(g.op("And", g.op("LessOrEqual", column, row), more)), tmp_path)
    assert (site.causal, site.window) == (True, None)


def test_a_window_is_seen_beside_what_repeats_itself(tmp_path: Path) -> None:
    g = G()
    x = g.input("x", ["b", "s", 16])
    row, column = places(g, x)
    near = g.op("Less", g.op("Sub", row, column), g.const(40, np.int64))
    always = g.op("GreaterOrEqual", g.op("Mod", column, g.const(7, np.int64)), g.const(0, np.int64))
    seen = g.op("And", g.op("And", near, always), g.op("LessOrEqual", column, row))
    assert attending(g, x, str(seen), tmp_path).window == 40


def test_a_window_that_some_heads_have_is_not_the_sites(tmp_path: Path) -> None:
    g = G()
    x = g.input("x", ["b", "s", 16])
    row, column = places(g, x)
    widths = g.const(np.array([3, 3, 3, 100]).reshape(4, 1, 1), np.int64)
    seen = g.op("And", g.op("Less", g.op("Sub", row, column), widths), g.op("LessOrEqual", column, row))
    site = attending(g, x, str(seen), tmp_path)
    assert (site.causal, site.window) == (True, None)


@pytest.mark.parametrize("kind", ["float keeps", "float pads", "bool pads", "two senses"])
def test_what_full_padding_leaves_visible_is_no_pattern(kind: str, tmp_path: Path) -> None:
    """XLNet keeps each token's own cell under padding, so that "all is padding" looks like a window of one."""
    g = G()
    x = g.input("x", ["b", "s", 16])
    row, column = places(g, x)
    mask = g.input("keys", ["b", "s"], 9 if kind == "bool pads" else 1)
    here = g.op("Unsqueeze", mask, g.const([1, 2], np.int64))
    if kind == "bool pads":
        keep = g.op("Not", here)
    else:
        keep = g.op("Greater" if kind != "float pads" else "Less", here, g.const(0.5, np.float32))
    if kind == "two senses":  # one float mask says what to keep, another what to leave out
        out = g.input("left_out", ["b", "s", "s"])
        keep = g.op("And", keep, g.op("Less", g.op("Unsqueeze", out, g.const([1], np.int64)), g.const(0.5, np.float32)))
    site = attending(g, x, str(g.op("Or", keep, g.op("Equal", row, column))), tmp_path)
    assert (site.causal, site.window) == (False, None)


def test_keys_that_are_put_behind_the_padding_are_no_window(tmp_path: Path) -> None:
    """torch's add_bias_kv and add_zero_attn beside a padding mask that is True where there is nothing."""
    g = G()
    q, k, v = g.input("q", ["b", "s", D]), g.input("k", ["b", "s", D]), g.input("v", ["b", "s", D])
    mask = g.input("padding", ["b", "s"], 9)
    batch = g.op("Gather", g.op("Shape", q), g.const([0], np.int64))
    more = g.op("Expand", g.weight(1, 2, D), g.op("Concat", batch, g.const([2, D], np.int64), axis=0))
    none = g.op("Expand", g.const([[False, False]]), g.op("Concat", batch, g.const([2], np.int64), axis=0))
    key, value = (g.op("Concat", one, more, axis=1) for one in (k, v))
    hidden = g.op("Unsqueeze", g.op("Concat", mask, none, axis=1), g.const([1], np.int64))
    scores = g.op("MatMul", q, g.op("Transpose", key, perm=[0, 2, 1]))
    masked = g.op("Where", hidden, g.const(-np.inf, np.float32), scores)
    (site,) = sites(g.save(tmp_path, str(g.op("MatMul", g.softmax(str(masked)), value))))
    assert (site.causal, site.window) == (False, None)


@pytest.mark.parametrize("side", [24, 64])
def test_rows_of_a_stored_triangle_cut_at_an_offset_are_causal(side: int, tmp_path: Path) -> None:
    """OpenAI's own Whisper with a cache: rows offset to offset + n of a triangle, over all places of the cache."""
    g = G()
    x, cache = g.input("x", ["b", "n", 16]), g.input("cache", ["b", "t", 16])
    offset = g.input("offset", [1], 7)
    start = g.op("Gather", offset, g.const(0, np.int64))
    stop = g.op("Add", start, g.op("Gather", g.op("Shape", x), g.const(1, np.int64)))
    triangle = g.const(np.triu(np.full((side, side), -np.inf, np.float32), 1))
    lead = g.const([0], np.int64)
    rows = g.op("Slice", triangle, g.op("Unsqueeze", start, lead), g.op("Unsqueeze", stop, lead), lead)
    total = g.op("Gather", g.op("Shape", cache), g.const([1], np.int64))
    mask = g.op("Slice", rows, lead, total, g.const([1], np.int64))
    q, k, v = qkv(g, x, cache)
    (site,) = sites(g.save(tmp_path, g.out(str(g.op("MatMul", g.softmax(str(g.op("Add", g.scores(q, k), mask))), v)))))
    assert (site.causal, site.window) == (True, None)
