"""A sink's share where weights are shown, and where rows are made to sum to 1."""

import numpy as np
import pytest

from attnx.measure.rollout import rollout
from attnx.records import Check
from attnx.study.residual_flow import last_attention
from tests.measure.planted import plain, trace, uniform, weighted


def test_the_last_layers_weights_are_shown_as_they_are() -> None:
    """A head that leaves nearly all to its sink counts as little as it weighs; rollout makes rows sum to 1 first."""
    small = np.tri(4) / np.tri(4).sum(1, keepdims=True) * 0.1
    t = trace(plain(4), weighted([uniform(4), small], sink=True))
    got = last_attention(t, 0, [3]).values
    np.testing.assert_allclose(got, (uniform(4)[3] + small[3]) / 2, atol=1e-7)
    mean = (uniform(4)[3] + 10 * small[3]) / 2
    found = rollout(t)
    np.testing.assert_allclose(found.values[-1][3], 0.5 * mean + 0.5 * np.eye(4)[3], atol=1e-6)
    assert "made to sum to 1" in found.formula


@pytest.mark.parametrize(
    ("difference", "said"), [(0.25, "is off by 0.25"), (np.inf, "NaN or infinite"), (np.nan, "NaN")]
)
def test_what_a_check_has_found_is_said(difference: float, said: str) -> None:
    assert said in Check("rows sum to 1", difference, 1e-4).off
