"""What a model says is read where it stands, and how far it moved is held to the formulas, written out once more."""

import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from attnx.errors import UsageError
from attnx.study.readout import Readout, readout
from attnx.tokens.axes import labelled
from tests.study.said import Stub


def test_the_next_token_is_read_at_the_last_real_position(tmp_path: Path) -> None:
    logits = np.zeros((1, 3, 4), np.float32)
    logits[0, 2] = [0.0, math.log(2), math.log(5), 0.0]
    edited = logits.copy()
    edited[0, 2] = [0.0, math.log(6), 0.0, 0.0]
    found = readout(Stub(tmp_path, vocabulary=4), {"logits": logits}, labelled(["a", "b", "c"]))
    assert (found.kind, found.position, found.answer) == ("next token", 2, 2)
    got = found.change({"logits": logits}, {"logits": edited})
    p, q = [1 / 9, 2 / 9, 5 / 9, 1 / 9], [1 / 9, 6 / 9, 1 / 9, 1 / 9]
    assert got.moved == pytest.approx(sum(a * math.log(a / b) for a, b in zip(p, q, strict=True)))
    assert got.reading.scores["p(#2)"] == pytest.approx(1 / 9)
    assert (got.reading.first, got.kept) == ("#1", False)


def test_a_foil_makes_it_a_difference_of_logits() -> None:
    found = Readout("next token", "logits", 0, answer=1, foil=0, names={0: "cat", 1: "dog"})
    base, edited = np.array([[[1.0, 4.0]]]), np.array([[[2.0, 1.5]]])
    got = found.change({"logits": base}, {"logits": edited})
    assert got.reading.scores["dog - cat"] == pytest.approx(-0.5)
    assert got.moved == pytest.approx(3.5)


def test_a_masked_model_is_read_at_its_mask(tmp_path: Path) -> None:
    logits = np.zeros((1, 3, 4), np.float32)
    found = readout(Stub(tmp_path, vocabulary=4), {"logits": logits}, labelled(["a", "[MASK]", "c"]))
    assert (found.kind, found.position) == ("masked token", 1)
    with pytest.raises(UsageError, match="2 masks, at 0, 1"):
        readout(Stub(tmp_path, vocabulary=4), {"logits": logits}, labelled(["[MASK]", "[MASK]", "c"]))


def test_a_classifier_has_labels(tmp_path: Path) -> None:
    logits = np.array([[1.0, 3.0, 2.0]], np.float32)
    model = Stub(tmp_path, labels={"0": "bad", "1": "good", "2": "so so"})
    found = readout(model, {"logits": logits}, labelled(["a", "b"]), answer="so so")
    assert (found.kind, found.answer) == ("label", 2)
    shares = np.exp(logits[0]) / np.exp(logits[0]).sum()
    assert found.read({"logits": logits}).scores == {"p(so so)": pytest.approx(shares[2])}
    with pytest.raises(UsageError, match="no label 'ugly'"):
        readout(model, {"logits": logits}, labelled(["a", "b"]), answer="ugly")


def test_an_embedding_turns(tmp_path: Path) -> None:
    base = np.array([[[1.0, 0.0], [1.0, 0.0]]], np.float32)
    edited = np.array([[[1.0, 0.0], [0.0, 1.0]]], np.float32)
    tokens = labelled(["a", "b"])
    of_text = readout(Stub(tmp_path), {"last_hidden_state": base}, tokens)
    assert of_text.kind == "embedding"
    moved = of_text.change({"last_hidden_state": base}, {"last_hidden_state": edited}).moved
    assert moved == pytest.approx(1 - math.cos(math.pi / 4))  # (1, 0) against (1/2, 1/2)
    of_token = readout(Stub(tmp_path), {"last_hidden_state": base}, tokens, position=1)
    assert of_token.change({"last_hidden_state": base}, {"last_hidden_state": edited}).moved == pytest.approx(1.0)
    with pytest.raises(UsageError, match="gives no logits"):
        readout(Stub(tmp_path), {"last_hidden_state": base}, tokens, answer="x")


def test_other_outputs_are_compared_by_their_size(tmp_path: Path) -> None:
    base = {"boxes": np.array([[3.0, 4.0]]), "scores": np.array([[1.0]])}
    edited = {"boxes": np.array([[3.0, 6.0]]), "scores": np.array([[1.1]])}
    found = readout(Stub(tmp_path), base, labelled(["a", "b", "c"]))
    assert found.kind == "outputs"
    assert found.change(base, edited).moved == pytest.approx(2 / 5)


def test_a_masked_model_has_no_next_token(tmp_path: Path) -> None:
    """Without a mask its outputs are compared; an answer has no place to be read."""
    model = Stub(tmp_path, vocabulary=4)
    model.sites = (SimpleNamespace(causal=False),)
    logits = np.zeros((1, 3, 4), np.float32)
    assert readout(model, {"logits": logits}, labelled(["a", "b", "c"])).kind == "outputs"
    with pytest.raises(UsageError, match="answers at a mask"):
        readout(model, {"logits": logits}, labelled(["a", "b", "c"]), answer="1")
