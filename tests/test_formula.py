"""The formula against plain Python, on the cases where softmaxes go wrong."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from attnx import formula
from attnx.errors import UnsupportedError
from tests.measure.planted import drawn

FLOATS = st.floats(-50, 50, width=32)


def test_every_stage_matches_plain_loops():
    for at in (drawn(heads=4, kv=2, n=5, mask="causal", softcap=2.0), drawn(n=1), drawn(n=3, mask="-10000")):
        s = formula.scores(at.query, at.key)
        assert s.dtype == np.float32
        assert s == pytest.approx(at.scores, abs=1e-5)
        scaled = formula.scaled(s, at.site.scale)
        assert scaled == pytest.approx(at.scaled, abs=1e-5)
        capped = formula.capped(scaled, at.site.softcap)
        assert capped == pytest.approx(at.capped, abs=1e-5)
        weights = formula.softmax(at.masked)
        assert weights.dtype == np.float32
        assert weights == pytest.approx(at.weights, abs=1e-6)
        assert formula.context(at.weights, at.value) == pytest.approx(at.context, abs=1e-5)


def test_scale_a_head():
    ones = np.ones((1, 2, 1, 1), np.float32)
    assert formula.scaled(ones, (0.5, 2.0)).ravel().tolist() == [0.5, 2.0]


def test_masked_adds_and_hides():
    got = formula.masked(np.zeros((1, 1, 2, 2), np.float32), np.array([1.0, 2.0], np.float32), np.tri(2, dtype=bool))
    assert got[0, 0].tolist() == [[1.0, -math.inf], [1.0, 2.0]]
    assert got.dtype == np.float32


def test_heads_that_cannot_share():
    with pytest.raises(UnsupportedError, match="3 query heads cannot share 2"):
        formula.repeat_heads(np.zeros((1, 2, 1, 1)), 3)
    with pytest.raises(UnsupportedError, match="4 features a head and key has 3"):
        formula.scores(np.zeros((1, 1, 1, 4)), np.zeros((1, 1, 1, 3)))


def test_hidden_rows_are_zero_and_nan_rows_are_nan():
    rows = np.array([[[-np.inf, -np.inf], [np.nan, 0.0], [0.0, -np.inf]]], np.float32)
    got = formula.softmax(rows)[0]
    assert got[0].tolist() == [0, 0]
    assert np.isnan(got[1]).all()
    assert got[2].tolist() == [1, 0]


def test_no_keys():
    assert formula.softmax(np.zeros((1, 2, 0), np.float32)).shape == (1, 2, 0)


def test_sink_takes_its_share():
    got = formula.softmax(np.zeros((1, 2, 1, 2), np.float32), np.array([0.0, math.log(2)]))
    assert got[0, 0, 0].tolist() == pytest.approx([1 / 3, 1 / 3])
    assert got[0, 1, 0].tolist() == pytest.approx([1 / 4, 1 / 4])
    hidden = formula.softmax(np.full((1, 1, 2), -np.inf, np.float32), np.array([0.0]))
    assert hidden.tolist() == [[[0, 0]]]


@settings(max_examples=60)
@given(arrays(np.float32, (2, 3, 4), elements=FLOATS), st.floats(-30, 30))
def test_softmax_does_not_move_when_all_scores_do(scores, by):
    got = formula.softmax(scores)
    assert got.sum(axis=-1) == pytest.approx(1, abs=1e-6)
    assert formula.softmax(scores.astype(np.float64) + by) == pytest.approx(got, abs=1e-6)


def test_entropy_and_divergences_by_hand():
    assert formula.entropy(np.array([0.5, 0.5, 0])) == pytest.approx(math.log(2))
    assert formula.entropy(np.array([0.25, 0.25])) == pytest.approx(math.log(2))  # a sink has the other half
    assert np.isnan(formula.entropy(np.zeros(3)))
    assert formula.jensen_shannon(np.array([1.0, 0]), np.array([0, 1.0])) == pytest.approx(math.log(2))
    assert formula.jensen_shannon(np.array([0.2, 0.8]), np.array([0.2, 0.8])) == pytest.approx(0)
    m = (0.75, 0.25)
    by_hand = 0.5 * math.log(1 / m[0]) + 0.5 * (0.5 * math.log(0.5 / m[0]) + 0.5 * math.log(0.5 / m[1]))
    assert formula.jensen_shannon(np.array([1.0, 0]), np.array([0.5, 0.5])) == pytest.approx(by_hand)


def test_gradient_size_is_the_trace_of_the_jacobian():
    a = np.array([0.7, 0.2, 0.1])
    jacobian = np.diag(a) - np.outer(a, a)
    assert formula.gradient_size(a) == pytest.approx(np.trace(jacobian))
    assert formula.gradient_size(a) == pytest.approx(1 - (0.49 + 0.04 + 0.01))
    assert formula.gradient_size(np.array([1.0, 0])) == 0


@pytest.mark.parametrize("hides", [-np.inf, -1e4, -1e9, np.finfo(np.float32).min])
def test_what_a_mask_hides_is_found(hides):
    capped = np.array([[3.0, -800.0, 2.0]], np.float32)
    masked = capped + np.array([0, 0, hides], np.float32)
    assert formula.visible(masked, capped).tolist() == [[True, True, False]]
    put = np.where([True, True, False], capped, np.float32(hides))
    assert formula.visible(put, capped).tolist() == [[True, True, False]]


def test_large_matrices_are_looked_at_one_after_another(monkeypatch):
    rng = np.random.default_rng(0)
    capped = rng.normal(size=(2, 3, 5, 5)).astype(np.float32)
    added = rng.choice([0.0, -100.0, -1e9, -np.inf], size=capped.shape).astype(np.float32)
    weights = formula.softmax(capped + added)
    for some in ((capped + added,), (capped + added, capped), (capped + added, capped, weights)):
        monkeypatch.setattr(formula, "AT_ONCE", 1 << 18)
        whole = formula.visible(*some)
        monkeypatch.setattr(formula, "AT_ONCE", 1)
        np.testing.assert_array_equal(formula.visible(*some), whole)
    hidden = (added <= -1e9) | ((added == -100) & (weights == 0))
    np.testing.assert_array_equal(formula.visible(*some), ~hidden)


def test_visible_keeps_alibi_and_knows_swin():
    capped = np.zeros((1, 3), np.float32)
    alibi = np.array([[-6900.0, -0.5, 0.0]], np.float32)
    assert formula.visible(alibi, capped).all()
    swin = np.array([[-100.0, -0.5, 0.0]], np.float32)
    weights = np.array([[0.0, 0.4, 0.6]], np.float32)
    assert formula.visible(swin, capped, weights).tolist() == [[False, True, True]]
    assert formula.visible(None, None, weights).tolist() == [[False, True, True]]
    with pytest.raises(UnsupportedError):
        formula.visible(None)


def test_added_is_what_the_mask_did():
    capped = np.array([[1.0, 2.0, 3.0]], np.float32)
    masked = np.array([[1.5, -9998.0, -np.inf]], np.float32)
    assert formula.added(masked, capped).tolist() == [[0.5, -math.inf, -math.inf]]


def test_average_leaves_nan_out_without_a_warning():
    assert formula.average(np.array([1.0, np.nan, 3.0])) == 2
    assert np.isnan(formula.average(np.array([np.nan])))
    assert formula.average(
        np.array([[1.0, 5.0], [3.0, 7.0]]), axis=1, where=np.array([[True, False]] * 2)
    ).tolist() == [1, 3]


def test_blocks_of_rows_cover_every_cell_once() -> None:
    for shape, most in (((2, 3, 7, 5), 10), ((7, 5), 1), ((1, 2, 4, 3), 100), ((2, 0, 4, 3), 5), ((2, 4, 0), 5)):
        count = np.zeros(shape, int)
        for at in formula.blocks(shape, most):
            count[at] += 1
            assert count[at].size <= max(most, shape[-1])
        assert (count == 1).all()


def test_large_matrices_are_computed_some_rows_at_a_time_with_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    query, key, value = (rng.normal(size=(1, 2, 6, 4)).astype(np.float32) for _ in range(3))
    masked = rng.normal(size=(1, 2, 6, 6)).astype(np.float32)
    masked[0, 0, 2] = -np.inf

    def found() -> list[np.ndarray]:
        weights = formula.softmax(masked, np.array([0.5, -1.0]))
        return [
            formula.scores(query, key), formula.softmax(masked), weights, formula.context(weights, value),
            formula.capped(masked, 2.0), formula.visible(masked, np.zeros_like(masked), weights),
        ]  # fmt: skip

    whole = found()
    monkeypatch.setattr(formula, "AT_ONCE", 1)
    for one, two in zip(whole, found(), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-6)


@pytest.mark.parametrize("hides", [-np.inf, -1e4, np.finfo(np.float32).min])
def test_keys_that_no_row_weighs_are_left_out_and_nothing_changes(
    hides: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(2)
    scores = rng.normal(scale=5, size=(1, 2, 12, 12)).astype(np.float32)
    at = np.arange(12)
    behind = at[:, None] - at[None, :]
    masked = np.where((behind >= 0) & (behind < 4), scores, np.float32(hides))
    masked[0, 1, 3] = hides
    masked[0, 1, 7, 2] = np.nan
    masked[0, 0, 9, 9] = np.inf
    wide = masked.astype(np.float64)
    with np.errstate(all="ignore"):
        power = np.exp(wide - wide.max(-1, keepdims=True))
        wanted = power / power.sum(-1, keepdims=True)
    if hides == -np.inf:
        wanted[0, 1, 3] = 0
    for most in (1 << 18, 24, 1):
        monkeypatch.setattr(formula, "AT_ONCE", most)
        np.testing.assert_allclose(formula.softmax(masked), wanted, rtol=1e-6, atol=1e-30)
    assert formula.weighed(masked[0, 0, 4:6]) == slice(1, 6)
    assert formula.weighed(masked[0, 1, 3:4]) == (slice(0, 0) if hides == -np.inf else slice(0, 12))
    for row in (masked[0, 1, 7:8], masked[0, 0, 9:10]):  # NaN, infinity
        assert formula.weighed(row) == slice(0, 12)
