"""`attnx mask`: who may look at whom, against masks that are known."""

from pathlib import Path

import numpy as np
import pytest

from tests.cli.analysed import causal, two_sided, values
from tests.cli.conftest import ANIMAL, Run


def test_bidirectional(attnx: Run) -> None:
    got = attnx("mask", ANIMAL, "--json").document["masks"]
    assert [one["pattern"] for one in got] == ["bidirectional"] * 6
    assert all(one["hidden"] == 0 and one["cells"] == 256 and one["stand_in"] is None for one in got)
    text = attnx("mask", ANIMAL).out
    assert text == "minilm · 16 tokens · cpu\nL0 to L5: bidirectional; nothing is hidden\n"
    more = attnx("mask", ANIMAL, "--explain").out
    assert more == f"{text}1 visible, 0 hidden: masked is -inf, or the mask added -9000 or less (attnx)\n"


def test_causal_with_the_value_that_hides(attnx: Run, tmp_path: Path) -> None:
    case = causal(tmp_path / "m")
    got = attnx("mask", *case.args, "--json").document["masks"]
    for one in got:
        np.testing.assert_array_equal(values(one["matrix"]), np.tri(6))
        assert (one["pattern"], one["hidden"], one["window"]) == ("causal", 15, None)
        assert one["stand_in"] == pytest.approx(np.finfo(np.float32).min, rel=1e-5)
    text = attnx("mask", *case.args).out
    lines = [line.split(" ", 2)[2] for line in text.splitlines() if "#" in line]
    assert [line.count("█") for line in lines] == [2, 4, 6, 8, 10, 12]
    assert [line.count("·") for line in lines] == [5, 4, 3, 2, 1, 0]
    assert "-3.40282e+38" in text


def test_padding(attnx: Run, tmp_path: Path) -> None:
    case = causal(tmp_path / "m", ids=[[0, 0, 5, 7, 2, 9]], mask=[[0, 0, 1, 1, 1, 1]])
    got = attnx("mask", *case.args, "--json").document["masks"][0]
    want = np.tri(6)
    want[:, :2] = 0
    np.testing.assert_array_equal(values(got["matrix"]), want)
    assert got["padding"] == [0, 1]
    assert got["pattern"] == "causal"
    assert got["empty_rows"] == [0, 1]


def test_an_encoder_decoder_has_three(attnx: Run, tmp_path: Path) -> None:
    case = two_sided(tmp_path / "m")
    got = attnx("mask", *case.args, "--json").document["masks"]
    assert {one["label"]: (one["pattern"], one["cells"]) for one in got} == {
        "encoder L0": ("bidirectional", 25), "encoder L1": ("bidirectional", 25),
        "decoder L0": ("causal", 9), "cross L0": ("cross", 15), "decoder L1": ("causal", 9), "cross L1": ("cross", 15),
    }  # fmt: skip
    text = attnx("mask", *case.args).out
    assert text.index("encoder L0, encoder L1: bidirectional") < text.index("decoder L0, decoder L1: causal")
    only = attnx("mask", *case.args, "--site", "decoder", "-l", "1").out
    assert "cross L" not in only
    assert "L1: causal" in only


def test_a_text_that_does_not_fit_is_drawn_in_blocks(attnx: Run) -> None:
    text = attnx("mask", "word " * 90, "-m", "tiny-gpt").out
    assert "a cell stands for up to" in text
    assert all(len(line) <= 80 for line in text.splitlines())


@pytest.mark.parametrize("text", ["\u200b", "a"])
def test_empty_and_short_texts(attnx: Run, text: str) -> None:
    assert "bidirectional" in attnx("mask", text).out


def test_misuse(attnx: Run) -> None:
    attnx("mask", code=2)
    attnx("mask", ANIMAL, "--site", "cross", code=2)
    attnx("mask", ANIMAL, "-l", "9", code=2)


def test_a_sort_of_attention_may_be_named_in_full(attnx: Run) -> None:
    assert attnx("mask", ANIMAL, "--site", "encoder.self").out == attnx("mask", ANIMAL, "--site", "encoder").out
    for args in (("mask", ANIMAL), ("inspect", ANIMAL), ("diff", "minilm", "minilm", ANIMAL)):
        assert attnx(*args, "--site", "cross", code=2).err.endswith("attention\n  It has encoder.\n")
