"""A logit as the sum of its parts, against numpy models that share nothing with attnx."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import attnx
from attnx.errors import UnsupportedError, UsageError
from attnx.interventions.running import Intervening
from attnx.study.attribution import Attribution, attribution
from attnx.tokens.axes import labelled
from tests.interventions import models
from tests.interventions.test_lens import parts


def take_apart(name: str, folder: Path, pieces: str = "abcdefg", **asked) -> tuple[Attribution, dict, dict, np.ndarray]:
    """What attnx finds; the model's weights and feed, and its logits in numpy."""
    kind = models.KINDS[name]
    w = models.weights(kind)
    feed = {key: array[:1] for key, array in models.feeds(kind)[0].items()}
    model = attnx.open(models.build(kind, w, folder), device="cpu")
    found = attribution(model, Intervening(model, {"inputs": feed}), labelled(list(pieces)), **asked)
    return found, w, feed, models.run(kind, w, feed["input_ids"], feed["attention_mask"])[0]


@pytest.mark.parametrize("name", ["pre", "sandwich", "parallel", "capped", "last", "gqa skip"])
def test_the_parts_of_the_first_choice(name: str, tmp_path: Path) -> None:
    found, w, feed, logits = take_apart(name, tmp_path)
    answer = int(logits[-1].argmax())
    assert (found.readout.answer, found.readout.position) == (answer, 6)
    want = parts(models.KINDS[name], w, feed, (0, 6, answer))
    for key, array in want.items():
        np.testing.assert_allclose(getattr(found, key), array, atol=5e-5, err_msg=key)
    assert found.own == pytest.approx(logits[-1, answer], abs=5e-5)
    assert sum(part.added for part in found.parts) == pytest.approx(want["logit"], abs=5e-5)
    assert found.parts[-1].label == "missed"
    assert abs(found.missed) < 1e-4


def test_a_difference_is_that_of_its_parts(tmp_path: Path) -> None:
    found, w, feed, logits = take_apart("pre", tmp_path, answer="3", foil="5", at=2)
    one, two = (parts(models.KINDS["pre"], w, feed, (0, 2, token)) for token in (3, 5))
    for key in one:
        np.testing.assert_allclose(getattr(found, key), one[key] - two[key], atol=1e-4, err_msg=key)
    assert found.own == pytest.approx(logits[2, 3] - logits[2, 5], abs=5e-5)
    assert found.what == "logit(#3) - logit(#5)"
    largest = found.ranked[0]
    assert abs(largest.added) == max(abs(part.added) for part in found.parts)
    values = found.map().values
    np.testing.assert_array_equal(values[:, :4], found.heads)
    np.testing.assert_array_equal(values[:, 4:], np.stack([found.mlps, found.attention_biases], 1))


def test_a_mask_is_read_in_a_masked_model(tmp_path: Path) -> None:
    found, _, _, logits = take_apart("both ways", tmp_path, ["a", "b", "[MASK]", "d", "e", "f", "g"])
    assert (found.readout.position, found.readout.answer) == (2, logits[2].argmax())


def test_what_cannot_be_taken_apart_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="norms stand on the residual stream"):
        take_apart("post", tmp_path, at=1)
    with pytest.raises(UsageError, match="both '#3'"):
        take_apart("pre", tmp_path, answer="3", foil="3")
    with pytest.raises(UnsupportedError, match=r"more than one position|one position"):
        take_apart("last", tmp_path, at=2)
