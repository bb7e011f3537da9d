"""Sliding windows, read off a mask without running the model, however wide they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.graphs import D, G, qkv, sites


def window_mask(g: G, x: str, width: int, causal: bool) -> str:
    length = g.op("Gather", g.op("Shape", x), g.const(1, np.int64))
    count = g.op("Range", g.const(0, np.int64), length, g.const(1, np.int64))
    row, column = (g.op("Unsqueeze", count, g.const([i], np.int64)) for i in (1, 0))
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
