"""Windows put back to their place, against windows cut by rolling and slicing."""

import numpy as np
import pytest

from attnx.feed.patches import Frame
from attnx.records import Attention, Site
from attnx.run.windows import Windows, find_windows, put_back

SITE = Site(0, 0, "encoder", "self", "Softmax", "n", 2, 2, 3, 0.5)


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def cut(x: np.ndarray, side: int, shift: int) -> np.ndarray:
    """[rows,columns,...] -> [windows, side * side, ...] as Swin does it: roll, then slice row by row."""
    x = np.roll(x, (-shift, -shift), (0, 1))
    return np.array(
        [
            x[r : r + side, c : c + side].reshape(side * side, *x.shape[2:])
            for r in range(0, x.shape[0], side)
            for c in range(0, x.shape[1], side)
        ]
    )


def swin(rows: int, columns: int, side: int, shift: int, batch: int = 2) -> tuple[Attention, np.ndarray, np.ndarray]:
    """Windowed attention of random queries; these, [B,rows,columns,2,3]; and which pairs share a region."""
    rng = np.random.default_rng(rows + side + shift)
    query = rng.standard_normal((batch, rows, columns, 2, 3)).astype(np.float32)
    regions = np.zeros((rows, columns))
    edges = (slice(0, -side), slice(-side, -shift), slice(-shift, None)) if shift else (slice(None),)
    for i, down in enumerate(edges):
        for j, across in enumerate(edges):
            regions[down, across] = 3 * i + j
    region = cut(np.roll(regions, (shift, shift), (0, 1)), side, shift)
    apart = region[:, :, None] != region[:, None, :]
    parts = np.concatenate([cut(q, side, shift) for q in query]).transpose(0, 2, 1, 3)
    scores = parts @ parts.transpose(0, 1, 3, 2)
    masked = scores * 0.5 + np.tile(np.where(apart, -100.0, 0), (batch, 1, 1))[:, None]
    attention = Attention(SITE, query=parts, key=parts, scores=scores, masked=masked, weights=softmax(masked))
    # Which pairs of places on the map share a window and a region: by the numbers of both, cut in the same way.
    window = np.zeros(rows * columns, int)
    where = np.zeros(rows * columns, int)
    for number, (at, own) in enumerate(
        zip(cut(np.arange(rows * columns).reshape(rows, columns), side, shift), region, strict=True)
    ):
        window[at], where[at] = number, own
    return attention, query, (window[:, None] == window) & (where[:, None] == where)


CASES = [(8, 8, 4, 0), (8, 8, 4, 2), (8, 12, 4, 1), (6, 6, 3, 1), (4, 4, 4, 0)]


@pytest.mark.parametrize(("rows", "columns", "side", "shift"), CASES)
def test_every_pair_comes_to_its_place(rows: int, columns: int, side: int, shift: int) -> None:
    attention, query, together = swin(rows, columns, side, shift)
    (got,), notes = put_back([attention], [Frame("p", rows * 4, columns * 4)], 2)
    if (rows, columns) == (side, side):
        assert got is attention
        assert notes == ()
        return
    assert notes == ("windows of 1 site put back to their place on the picture",)
    flat = query.reshape(2, rows * columns, 2, 3).transpose(0, 2, 1, 3).astype(np.float64)
    np.testing.assert_allclose(got.need("query"), flat, atol=1e-6)
    scores = flat @ flat.transpose(0, 1, 3, 2)
    want = softmax(np.where(together, scores * 0.5, -np.inf))
    np.testing.assert_allclose(got.need("weights"), want, atol=1e-5)
    inside = np.isfinite(got.need("scores"))
    np.testing.assert_allclose(got.need("scores")[inside], scores[inside], atol=1e-4)
    assert (got.need("masked")[~inside] == -np.inf).all()
    assert inside[0, 0].sum(1).tolist() == [side * side] * (rows * columns)


def test_the_shift_is_told_by_what_is_hidden() -> None:
    for rows, columns, side, shift in CASES[:4]:
        attention, _, _ = swin(rows, columns, side, shift)
        found = find_windows(attention.need("weights"), Frame("p", rows * 2, columns * 2), 2)
        assert found == Windows(rows, columns, side, shift)


def test_what_is_no_window_stays_as_it_is() -> None:
    attention, _, _ = swin(8, 8, 4, 2)
    weights = attention.need("weights").copy()
    weights[0, :, 3, 5] = 0
    frame = Frame("p", 32, 32)
    assert find_windows(weights, frame, 2) is None
    assert find_windows(attention.need("weights"), Frame("p", 30, 34), 2) is None
    assert find_windows(attention.need("weights")[:, :, :15, :15], frame, 2) is None
    alone = Attention(SITE, weights=attention.need("weights")[:2])
    (same,), notes = put_back([alone], [frame], 2)
    assert same is alone
    assert notes == ()
    large, _, _ = swin(48, 48, 4, 0, 1)
    (same,), notes = put_back([large], [Frame("p", 48, 48)], 1)
    assert same is large
    assert "shown as they are" in notes[0]
