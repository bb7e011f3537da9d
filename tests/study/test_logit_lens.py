"""What each layer would say, against numpy models that share nothing with attnx."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import attnx
from attnx.errors import UnsupportedError, UsageError
from attnx.interventions.running import Intervening
from attnx.study.logit_lens import LogitLens, logit_lens
from attnx.tokens.axes import labelled
from tests.interventions import models

Array = np.ndarray


def opened(name: str, folder: Path) -> tuple[attnx.Model, Intervening, models.Kind, Array]:
    """A model with a text of seven tokens, and what numpy says behind each of its layers, [L+1,Q,V]."""
    kind = models.KINDS[name]
    w = models.weights(kind)
    feed = {key: array[:1] for key, array in models.feeds(kind)[0].items()}
    model = attnx.open(models.build(kind, w, folder), device="cpu")
    known = models.recorded(kind, w, feed["input_ids"], feed["attention_mask"])
    states = [known["given", 0], *(known["residual", layer] for layer in range(kind.layers))]
    wide = {key: array.astype(np.float64) for key, array in w.items()}
    said = np.stack([models.head(kind, wide, state)[0] for state in states])
    return model, Intervening(model, {"inputs": feed}), kind, said


def look(name: str, folder: Path, **asked) -> tuple[LogitLens, Array]:
    model, running, _, said = opened(name, folder)
    return logit_lens(model, running, labelled(list("abcdefg")), **asked), said


@pytest.mark.parametrize("name", ["pre", "capped", "gqa skip", "skip post"])
def test_every_layer_says_what_numpy_says(name: str, tmp_path: Path) -> None:
    found, said = look(name, tmp_path, at=range(7), top=3)
    shares = np.exp(said) / np.exp(said).sum(-1, keepdims=True)
    answers = said[-1].argmax(-1)
    assert found.answers == tuple(answers)
    own = shares[:, np.arange(7), answers]
    np.testing.assert_allclose(found.probability, own, atol=1e-5)
    np.testing.assert_allclose(found.entropy, -(shares * np.log(shares)).sum(-1), atol=1e-4)
    np.testing.assert_array_equal(found.rank, (shares >= own[..., None]).sum(-1))
    np.testing.assert_array_equal(found.top, np.argsort(-shares, axis=-1)[..., :3])
    np.testing.assert_allclose(found.shares, -np.sort(-shares, axis=-1)[..., :3], atol=1e-5)
    assert found.layers == ("embeddings", "L0", "L1")


def test_a_decoder_is_read_at_its_last_token_and_an_answer_is_watched(tmp_path: Path) -> None:
    found, said = look("pre", tmp_path, answer="4")
    shares = np.exp(said[:, 6]) / np.exp(said[:, 6]).sum(-1, keepdims=True)
    assert (found.kind, found.positions, found.answers, found.places) == ("next token", (6,), (4,), ("g",))
    np.testing.assert_allclose(found.probability[:, 0], shares[:, 4], atol=1e-5)
    np.testing.assert_array_equal(found.rank[:, 0], [1 + (row > row[4]).sum() for row in shares])


def test_a_masked_model_is_read_at_its_masks(tmp_path: Path) -> None:
    model, running, _, said = opened("both ways", tmp_path)
    found = logit_lens(model, running, labelled(["a", "[MASK]", "c", "d", "[MASK]", "f", "g"]))
    assert (found.kind, found.positions) == ("masked token", (1, 4))
    assert found.answers == tuple(said[-1, [1, 4]].argmax(-1))
    with pytest.raises(UsageError, match="answers at a mask"):
        logit_lens(model, running, labelled(list("abcdefg")))
    assert logit_lens(model, running, labelled(list("abcdefg")), at=[2]).answers == (said[-1, 2].argmax(),)


def test_logits_of_the_last_position_alone(tmp_path: Path) -> None:
    found, said = look("last", tmp_path)
    assert (found.positions, found.answers) == ((6,), (said[-1, -1].argmax(),))
    with pytest.raises(UnsupportedError, match="last position alone"):
        look("last", tmp_path, at=[2])


@pytest.mark.parametrize(
    ("asked", "said"), [({"at": [7]}, "no position 7"), ({"answer": "13"}, "no token 13"), ({"answer": "x"}, "number")]
)
def test_what_is_not_there(asked: dict, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said):
        look("one layer", tmp_path, **asked)
