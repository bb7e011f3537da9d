"""`attnx word`: cosines of the vectors that onnxruntime gives at each layer's input."""

from pathlib import Path

import numpy as np
import pytest

from tests.cli.analysed import bundled, causal, two_sided, values
from tests.cli.conftest import Run

RIVER, MONEY = "He sat on the bank of the river.", "He put money in the bank of the town."


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def test_the_word_and_its_baselines_at_every_layer(attnx: Run) -> None:
    got = attnx("word", RIVER, MONEY, "--word", "bank", "--json").document
    one, two = bundled(RIVER), bundled(MONEY)
    at = (one.pieces.index("bank"), two.pieces.index("bank"))
    words = [(n, p) for n, p in enumerate(one.pieces) if p not in ("[CLS]", "[SEP]", "bank")]
    others = [(n, p) for n, p in enumerate(two.pieces) if p not in ("[CLS]", "[SEP]", "bank")]
    stacked = (np.concatenate([one.states, one.last[None]]), np.concatenate([two.states, two.last[None]]))
    for layer, row in enumerate(values(got["cosine"])):
        a, b = stacked[0][layer], stacked[1][layer]
        pairs = [(p == q, cosine(a[n], b[m])) for n, p in words for m, q in others]
        want = [
            cosine(a[at[0]], b[at[1]]),
            np.mean([c for s, c in pairs if s]),
            np.mean([c for s, c in pairs if not s]),
        ]
        assert row.tolist() == pytest.approx(want, abs=2e-5)
    assert got["cosine"]["axes"][0]["labels"] == ["L0", "L1", "L2", "L3", "L4", "L5", "output"]
    assert [text["word"]["pieces"] for text in got["texts"]] == [[at[0]], [at[1]]]


def test_the_table(attnx: Run) -> None:
    text = attnx("word", RIVER, MONEY, "-w", "bank").out
    a, b = bundled(RIVER), bundled(MONEY)
    first = cosine(a.states[0][a.pieces.index("bank")], b.states[0][b.pieces.index("bank")])
    assert f"L0         {first:.3f}" in text
    assert "Ethayarajh 2019" in attnx("word", RIVER, MONEY, "-w", "bank", "--explain").out
    assert all(len(line) <= 80 for line in text.splitlines())


def test_pieces_of_a_word_are_averaged(attnx: Run) -> None:
    texts = ("The defenestrated bank refused.", "A defenestrated king.")
    got = attnx("word", *texts, "-w", "defenestrated", "--json").document
    found = [text["word"]["pieces"] for text in got["texts"]]
    assert all(len(pieces) > 1 for pieces in found)
    one, two = (bundled(text).states[3][pieces].mean(0) for text, pieces in zip(texts, found, strict=True))
    assert values(got["cosine"])[3, 0] == pytest.approx(cosine(one, two), abs=2e-5)


def test_a_causal_model(attnx: Run, tmp_path: Path) -> None:
    case, other = causal(tmp_path / "a"), causal(tmp_path / "b", ids=[[1, 2, 5, 8]])
    done = attnx("word", "-m", str(case.model), "--inputs", str(case.feed), "--other-inputs", str(other.feed),
                 "-w", "5", "--other-word", "2", "--json")  # fmt: skip
    w = case.weights
    one, two = (w["table"][5] + w["places"][at] for at in (5, 2))
    assert values(done.document["cosine"])[0, 0] == pytest.approx(cosine(one, two), abs=1e-5)


def test_an_encoder_decoder_is_read_on_its_encoders_side(attnx: Run, tmp_path: Path) -> None:
    case = two_sided(tmp_path / "a")
    got = attnx("word", "-m", str(case.model), "--inputs", str(case.feed), "--other-inputs", str(case.feed),
                "-w", "1", "--other-word", "3", "--json").document  # fmt: skip
    w = case.weights
    one, two = (w["table"][token] + w["places"][at] for token, at in ((5, 1), (2, 3)))
    assert values(got["cosine"])[0, 0] == pytest.approx(cosine(one, two), abs=1e-5)
    assert got["cosine"]["axes"][0]["labels"] == ["L0", "L1"]
    assert len(got["texts"][0]["tokens"]["pieces"]) == 5


def test_it_says_which_of_two(attnx: Run) -> None:
    err = attnx("word", "The bank by the bank.", MONEY, "-w", "bank", code=2).err
    assert "bank@2, bank@5" in err
    got = attnx("word", "The bank by the bank.", MONEY, "-w", "bank@5", "--other-word", "bank", "--json").document
    assert got["texts"][0]["word"]["pieces"] == [5]


@pytest.mark.parametrize(("args", "code"), [
    ((RIVER, MONEY), 2), ((RIVER, "-w", "bank"), 2), ((RIVER, MONEY, "-w", "dog"), 4), (("", MONEY, "-w", "bank"), 4),
])  # fmt: skip
def test_misuse(attnx: Run, args: tuple[str, ...], code: int) -> None:
    attnx("word", *args, code=code)


def test_long_texts(attnx: Run) -> None:
    assert "L5" in attnx("word", "bank " + "so it goes " * 300, MONEY, "-w", "bank").out
