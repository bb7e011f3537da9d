"""Models that pick positions between their last layer and their final norm: what parts add, against numpy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from attnx.errors import UnsupportedError
from attnx.interventions.attribute import attribute
from attnx.interventions.lens import lens
from tests.interventions import models
from tests.interventions.test_lens import opened, parts

LAST = {"slice": (6, 6), "gather": (6, 6), "lengths": (6, 4), "product": (6, 4)}
"""How positions are picked -> the one of each row."""


@pytest.mark.parametrize("picks", LAST)
@pytest.mark.parametrize("norm", ["one operator", "written", "rms"])
def test_parts_are_picked_as_the_stream_is(picks: str, norm: str, tmp_path: Path) -> None:
    kind = models.Kind(picks=picks, written=norm == "written", rms=norm == "rms", cap=3.0 if norm == "rms" else None)
    all_, w, feed = opened(kind, tmp_path)
    targets = [(row, LAST[picks][row], token) for row, token in ((1, 3), (0, 0), (1, 12))]
    found = attribute(all_, targets)
    for i, target in enumerate(targets):
        for key, array in parts(kind, w, feed, target).items():
            np.testing.assert_allclose(getattr(found, key)[i], array, atol=5e-5, err_msg=f"{key} {target}")
    assert np.abs(found.missed).max() <= 1e-4
    states = models.recorded(kind, w, feed["input_ids"], feed["attention_mask"])
    np.testing.assert_allclose(lens(all_).hidden[-1], states["residual", 1], atol=2e-5)


def test_a_position_that_is_not_picked_is_refused_by_name(tmp_path: Path) -> None:
    all_, _, _ = opened(models.Kind(picks="lengths"), tmp_path)
    with pytest.raises(UnsupportedError, match=r"no logit of position 6: .* picks position 4 of row 1"):
        attribute(all_, [(0, 6, 3), (1, 6, 3)])


def test_a_mean_of_positions_is_no_pick(tmp_path: Path) -> None:
    all_, _, _ = opened(models.Kind(picks="mean"), tmp_path)
    with pytest.raises(UnsupportedError, match="what follows the last layer is not linear"):
        attribute(all_, [(0, 6, 3)])
