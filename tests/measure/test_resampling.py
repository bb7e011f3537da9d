"""Ends of bootstrap intervals: bit for bit those of numpy's quantiles."""

import numpy as np
import pytest

from attnx.measure.resampling import interval


@pytest.mark.parametrize("count", [1, 2, 3, 40, 41, 1999, 2000])
@pytest.mark.parametrize("level", [0.0, 0.5, 0.9, 0.95, 1.0])
def test_an_interval_has_the_ends_that_numpy_gives(count: int, level: float) -> None:
    rng = np.random.default_rng(count)
    for drawn in (rng.standard_normal(count), rng.integers(0, 4, count) / 3, np.full(count, 0.1)):
        before = drawn.copy()
        assert list(interval(drawn, level)) == np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2]).tolist()
        assert (drawn == before).all()


def test_nothing_is_known_of_draws_with_a_nan() -> None:
    assert np.isnan(interval(np.array([0.1, np.nan, 0.3]), 0.95)).all()
