"""Dynamic time warping, the median and the normalisation before it, against plain loops."""

import numpy as np
import pytest

from attnx.measure import warping

RNG = np.random.default_rng(9)


def by_loops(cost: np.ndarray) -> tuple[list[int], list[int]]:
    """Cell by cell, ties to the right."""
    rows, columns = cost.shape
    sums = np.full((rows + 1, columns + 1), np.inf, np.float32)
    sums[0, 0] = 0
    came = {}
    for t in range(1, rows + 1):
        for f in range(1, columns + 1):
            both, down, right = sums[t - 1, f - 1], sums[t - 1, f], sums[t, f - 1]
            if both < down and both < right:
                came[t, f], before = (t - 1, f - 1), both
            elif down < both and down < right:
                came[t, f], before = (t - 1, f), down
            else:
                came[t, f], before = (t, f - 1), right
            sums[t, f] = cost[t - 1, f - 1] + before
    path, at = [], (rows, columns)
    while at != (0, 0):
        path.append((at[0] - 1, at[1] - 1))
        at = came.get(at, (at[0], at[1] - 1) if at[0] == 0 else (at[0] - 1, at[1]))
    return [t for t, _ in path[::-1]], [f for _, f in path[::-1]]


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (6, 1), (5, 17), (17, 5), (12, 12)])
@pytest.mark.parametrize("levels", [None, 3])
def test_the_path_is_the_cheapest(shape: tuple[int, int], levels: int | None) -> None:
    cost = RNG.standard_normal(shape) if levels is None else RNG.integers(0, levels, shape).astype(float)
    rows, columns = warping.warp(cost)
    want = by_loops(cost)
    assert (rows.tolist(), columns.tolist()) == want
    assert (rows[0], columns[0]) == (0, 0)
    assert (rows[-1], columns[-1]) == (shape[0] - 1, shape[1] - 1)
    assert set(rows.tolist()) == set(range(shape[0]))
    steps = set(zip(np.diff(rows).tolist(), np.diff(columns).tolist(), strict=True))
    assert steps <= {(0, 1), (1, 0), (1, 1)}


def test_median_reflects_at_the_ends() -> None:
    row = [5.0, 1.0, 4.0, 2.0, 3.0]
    want = []
    for at in range(5):
        near = [row[abs(i) if i < 5 else 8 - i] for i in range(at - 1, at + 2)]
        want.append(sorted(near)[1])
    assert warping.median(np.array([row]), 3).tolist() == [want]
    short = RNG.standard_normal((2, 3))
    np.testing.assert_array_equal(warping.median(short, 7), short)  # as transformers: too short to be reflected
    with pytest.raises(ValueError, match="no middle"):
        warping.median(short, 4)


def test_each_frame_is_normalised_over_tokens_in_each_head() -> None:
    weights = RNG.random((3, 4, 11)).astype(np.float32)
    weights[0, :, 2] = 0.5  # where all tokens are equal, nothing tells them apart
    got = warping.smoothed(weights, 3)
    total = np.zeros((4, 11))
    for head in weights.astype(np.float64):
        scores = np.zeros((4, 11))
        for f in range(11):
            spread = np.sqrt(np.mean((head[:, f] - np.mean(head[:, f])) ** 2))
            scores[:, f] = 0 if spread == 0 else (head[:, f] - np.mean(head[:, f])) / spread
        for f in range(11):
            near = [abs(f - 1), f, f + 1 if f + 1 < 11 else 9]
            total[:, f] += np.median(scores[:, near], axis=1)
    np.testing.assert_allclose(got, total / 3, atol=1e-6)


def test_tokens_that_look_at_one_stretch_each_begin_there() -> None:
    weights = np.full((2, 3, 30), 0.01)
    for token, (start, stop) in enumerate(((0, 8), (8, 21), (21, 30))):
        weights[:, token, start:stop] = 0.5
    assert warping.frames(weights).tolist() == [0, 8, 21]
    assert warping.frames(weights[:, :1]).tolist() == [0]
    assert warping.frames(weights[:, :0]).tolist() == []
