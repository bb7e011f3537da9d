from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnx.errors import UnsupportedError, UsageError
from attnx.records import Axis, Measurement
from attnx.view.matrix import Matrix, block_means, edges, of_attention, of_measurement
from attnx.view.scale import choose
from tests.view import samples


def made(pieces: list[str] = samples.ENGLISH, causal: bool = False, stage: str = "weights", head: int = 3) -> Matrix:
    trace = samples.trace(pieces, causal=causal)
    return of_attention(trace, trace.attentions[1], head, stage)  # type: ignore[arg-type]


def test_takes_the_head_that_was_asked_for() -> None:
    trace = samples.trace()
    matrix = of_attention(trace, trace.attentions[1], 2)
    np.testing.assert_array_equal(matrix.values, trace.attentions[1].weights[0, 2])  # type: ignore[index]
    assert matrix.title == "L1 H2"
    assert matrix.queries.labels == matrix.keys.labels == tuple(samples.ENGLISH)
    assert (matrix.queries.name, matrix.keys.name) == ("query", "key")
    assert matrix.keys.special[0]
    assert not matrix.keys.special[1]
    assert not matrix.hidden.any()


@pytest.mark.parametrize(
    ("stage", "hides"), [("weights", True), ("masked", True), ("scaled", False), ("scores", False)]
)
def test_hidden_is_what_the_mask_hides_once_it_is_applied(stage: str, hides: bool) -> None:
    matrix = made(causal=True, stage=stage)
    query, key = np.indices(matrix.values.shape)
    np.testing.assert_array_equal(matrix.hidden, (key > query) & hides)
    assert np.isnan(matrix.shown[matrix.hidden]).all()


def test_keys_of_the_past_come_first() -> None:
    trace = samples.trace(["a", "b", "c"])
    one = trace.attentions[0]
    longer = np.concatenate([np.zeros((1, 4, 3, 2), np.float32), one.weights], axis=-1)  # type: ignore[list-item]
    attention = dataclasses.replace(one, weights=longer, masked=None, capped=None)
    matrix = of_attention(dataclasses.replace(trace, attentions=(attention,)), attention, 0)
    assert matrix.keys.labels == ("past 0", "past 1", "a", "b", "c")
    assert len(matrix.keys.special) == 5


def test_refuses_what_is_not_there() -> None:
    trace = samples.trace()
    with pytest.raises(UsageError, match="heads 0 to 3"):
        of_attention(trace, trace.attentions[0], 4)
    with pytest.raises(UsageError, match="is not a stage"):
        of_attention(trace, trace.attentions[0], 0, "context")
    with pytest.raises(UnsupportedError, match="no weights"):
        of_attention(trace, dataclasses.replace(trace.attentions[0], weights=None), 0)
    with pytest.raises(UsageError, match="0 to 15"):
        made().row_of(16)
    with pytest.raises(UsageError, match="1 axis, and this view shows two"):
        of_measurement(samples.by_candidate())


def test_measurement_as_a_matrix() -> None:
    matrix = of_measurement(samples.by_head())
    assert matrix.queries.name == "layer"
    assert matrix.keys.labels[11] == "H11"
    np.testing.assert_array_equal(matrix.values, samples.by_head().values)


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 39), st.integers(1, 50))
def test_windows_hold_the_query_and_as_much_as_fits(rows: int, columns: int, query: int, count: int) -> None:
    pieces = [f"t{at}" for at in range(count)]
    trace = samples.trace(pieces)
    matrix = of_attention(trace, trace.attentions[0], 1)
    query = min(query, count - 1)
    part = matrix.window(rows, columns, query)
    assert part.values.shape == (min(rows, count), min(columns, count))
    assert query in part.queries.at
    down, across = slice(part.queries.at[0], part.queries.at[-1] + 1), slice(part.keys.at[0], part.keys.at[-1] + 1)
    np.testing.assert_array_equal(part.values, matrix.values[down, across])
    largest = int(np.argmax(matrix.values[query]))
    said = " ".join(part.notes)
    assert largest in part.keys.at or f"key {largest}" in said
    cut = part.values.shape != matrix.values.shape
    assert cut == ("shown" in said)
    if cut and len(part.queries) < count:
        assert f"queries {part.queries.at[0]}–{part.queries.at[-1]} of 0–{count - 1}" in said


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 30), st.integers(1, 30), st.integers(0, 2**32 - 1))
def test_blocks_are_means_of_what_is_visible(rows: int, columns: int, q: int, k: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    values = random.normal(size=(2, q, k))
    values[random.random(values.shape) < 0.3] = np.nan
    down, across = edges(q, rows), edges(k, columns)
    means, empty = block_means(values, down, across)
    assert means.shape == (2, min(rows, q), min(columns, k))
    stops_q, stops_k = [*down[1:], q], [*across[1:], k]
    for a in range(2):
        for i, (top, bottom) in enumerate(zip(down, stops_q, strict=True)):
            for j, (left, right) in enumerate(zip(across, stops_k, strict=True)):
                inside = [v for line in values[a, top:bottom] for v in line[left:right] if not np.isnan(v)]
                assert empty[a, i, j] == (not inside)
                if inside:
                    assert means[a, i, j] == pytest.approx(sum(inside) / len(inside))


def test_blocks_differ_by_one_position_at_most() -> None:
    for length in range(1, 60):
        for most in range(1, 20):
            sizes = np.diff([*edges(length, most), length])
            assert sizes.sum() == length
            assert sizes.max() - sizes.min() <= 1


def test_blocks_are_named_by_their_positions() -> None:
    matrix = made(samples.long(40)).blocks(10, 20)
    assert matrix.queries.labels[0] == "0–3"
    assert matrix.queries.labels[-1] == "36–39"
    assert matrix.keys.labels[1] == "2–3"
    assert matrix.notes == ("each cell is the mean of up to 4 x 2 (queries x keys)",)
    assert matrix.row_of(7) == 1
    assert made().blocks(16, 16).notes == ()


# --- scales -----------------------------------------------------------------------------------------------------------


def test_linear_runs_from_zero_or_the_smallest_to_the_largest() -> None:
    values = np.array([[0.1, 0.4], [np.nan, 0.2]])
    np.testing.assert_allclose(choose(values).places(values), [[0.25, 1], [np.nan, 0.5]])
    scores = np.array([[-2.0, 0.0, 2.0]])
    np.testing.assert_allclose(choose(scores).places(scores), [[0, 0.5, 1]])
    np.testing.assert_allclose(choose(values, bounds=(0, 1)).places(values), values)


def test_log_reaches_down_to_a_thousandth() -> None:
    values = np.array([[1.0, 0.1, 0.001, 0.0001, 0.0, np.nan]])
    np.testing.assert_allclose(choose(values, "log").places(values), [[1, 2 / 3, 0, 0, 0, np.nan]], atol=1e-12)


def test_row_is_each_to_its_own() -> None:
    values = np.array([[0.1, 0.2], [0.5, 0.25], [np.nan, np.nan], [0.0, 0.0]])
    wanted = [[0.5, 1], [1, 0.5], [np.nan, np.nan], [0, 0]]
    np.testing.assert_allclose(choose(values, "row").places(values), wanted)
    np.testing.assert_allclose(choose(-values[:2], "row").places(-values[:2]), [[1, 0], [0, 1]])


def test_diverging_keeps_zero_in_the_middle() -> None:
    values = np.array([[-0.5, 0.0, 0.25, 1.0]])
    np.testing.assert_allclose(choose(values, diverging=True).places(values), [[0.25, 0.5, 0.625, 1]])
    np.testing.assert_allclose(choose(values, "row", diverging=True).places(values), [[0.25, 0.5, 0.625, 1]])


def test_scales_without_extent() -> None:
    for values in (np.zeros((2, 2)), np.full((2, 2), np.nan), np.zeros((0, 0))):
        for kind in ("linear", "log", "row"):
            places = choose(values, kind).places(values)  # type: ignore[arg-type]
            assert ((places == 0) | np.isnan(values)).all()


def test_scales_refuse() -> None:
    with pytest.raises(UsageError, match="never negative"):
        choose(np.array([-1.0, 1.0]), "log")
    with pytest.raises(UsageError, match="never negative"):
        choose(np.array([1.0]), "log", diverging=True)
    with pytest.raises(UsageError, match="not a scale"):
        choose(np.array([1.0]), "cubic")  # type: ignore[arg-type]


def test_a_measurement_keeps_its_notes() -> None:
    m = Measurement("x", "", (Axis("a", ("1",)), Axis("b", ("2",))), np.zeros((1, 1)), notes=("n",))
    assert of_measurement(m).notes == ("n",)


def test_a_block_without_values_is_not_hidden() -> None:
    """What the mask hides and what has no value stay apart, however many cells a block has."""
    axes = (Axis("query", tuple("abcd")), Axis("key", tuple("abcd")))
    values = np.arange(16.0).reshape(4, 4)
    values[:2, :2] = np.nan
    hidden = np.zeros((4, 4), bool)
    hidden[:2, 2:] = True
    whole = dataclasses.replace(of_measurement(Measurement("m", "", axes, values)), hidden=hidden)
    small = whole.blocks(2, 2)
    np.testing.assert_array_equal(small.hidden, [[False, True], [False, False]])
    np.testing.assert_array_equal(small.values, [[np.nan, np.nan], [values[2:, :2].mean(), values[2:, 2:].mean()]])
