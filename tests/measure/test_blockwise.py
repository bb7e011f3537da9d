"""Means and deviations of blocks of rows are those of all rows, by numpy."""

from __future__ import annotations

import numpy as np
import pytest

from attnx.measure.blockwise import Means, Spreads


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("rows", [1, 4, 9])
def test_blocks_give_what_numpy_gives_of_all(heads: int, rows: int) -> None:
    rng = np.random.default_rng(0)
    one, two = rng.normal(1e3, 1, (2, 3, 9, 5))
    one[0, 4, 2] = two[1, 0] = np.nan
    cells = rng.random(one.shape) < 0.7
    real = rng.random((3, 9)) < 0.7
    cells[2], real[2] = False, False
    means, spreads = Means(), Spreads()
    assert not means.known
    for head in range(0, 3, heads):
        for row in range(0, 9, rows):
            some = (slice(head, head + heads), slice(row, row + rows))
            spreads.add(head, (one[some], two[some]), cells[some])
            means.add("both", head, np.stack([one[some][..., 2], two[some][..., 0]]), real[some])
    assert means.known
    for at, values in enumerate((one, two)):
        wanted = [values[h][cells[h] & ~np.isnan(values[h])] for h in range(2)]
        np.testing.assert_allclose(spreads.of()[:2, at], [np.std(cell) for cell in wanted], rtol=1e-9)
        column = values[..., (2, 0)[at]]
        rowwise = [column[h][real[h] & ~np.isnan(column[h])].mean() for h in range(2)]
        np.testing.assert_allclose(means.of("both")[:2, at], rowwise, rtol=1e-12)
    assert np.isnan(spreads.of()[2]).all()
    assert np.isnan(means.of("both")[2]).all()
