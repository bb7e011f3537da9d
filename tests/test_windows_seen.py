"""Sliding windows, read off a mask without running the model, however wide they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.graphs import G, qkv, sites


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


@pytest.mark.parametrize(("width", "causal", "sees"), [(3, True, 3), (40, True, 40), (4, False, 7)])
def test_sliding_windows_are_read_off_the_mask(width: int, causal: bool, sees: int, tmp_path: Path) -> None:
    g = G()
    x = g.input("x", ["b", "s", 16])
    q, k, v = qkv(g, x)
    masked = g.op("Add", g.scores(q, k), window_mask(g, x, width, causal))
    (site,) = sites(g.save(tmp_path, g.out(str(g.op("MatMul", g.softmax(str(masked)), v)))))
    assert (site.causal, site.window) == (causal, sees)
