"""Inputs beyond one sentence from the command line: written tokens, targets, values of inputs; what does not fit."""

import re
from pathlib import Path

import numpy as np
import pytest

from tests import small_models as small
from tests import small_senses
from tests.cli.analysed import values
from tests.cli.conftest import Run

PROMPT = [3, 7, 1, 12]
W = small.weights()


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small.save(tmp_path_factory.mktemp("decoder"), model=small.merged_decoder(W))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small.save(
        tmp_path_factory.mktemp("pair"),
        config={"decoder_start_token_id": 5},
        encoder_model=small.encoder(W),
        decoder_model=small.cross_decoder(W, cached=False),
        decoder_with_past_model=small.cross_decoder(W, cached=True),
    )


def test_trace_writes_on_and_saves_every_array(attnx: Run, decoder: Path) -> None:
    done = attnx("trace", decoder, "--ids", "3,7,1,12", "--generate", "6", "--save", "out.npz", "--json")
    document = done.document
    want = small.greedy(lambda ids: small.decoder(W, ids).logits[0], PROMPT, 6)
    assert document["tokens"]["ids"] == want
    assert document["generated"] == 6
    assert document["memory"] is None
    assert "wrote 6 tokens, positions 4 to 9" in done.err
    with np.load("out.npz") as arrays:
        for layer, ran in enumerate(small.decoder(W, want).decoder):
            np.testing.assert_allclose(arrays[f"attention.{layer}.weights"], ran["weights"], atol=1e-4)


def test_sampling_from_the_command_line(attnx: Run, decoder: Path) -> None:
    def ids(*more: str) -> list[int]:
        done = attnx("trace", decoder, "--ids", "3,7,1,12", "-g", "8", "--json", *more)
        found: list[int] = done.document["tokens"]["ids"]
        return found

    drawn = ids("--temperature", "2", "--seed", "3")
    assert drawn == ids("--temperature", "2", "--seed", "3")
    assert drawn != ids("--temperature", "2", "--seed", "4")
    assert ids("--temperature", "2", "--top-k", "1") == ids()


def test_inspect_shows_each_sort_of_an_encoder_decoder(attnx: Run, pair: Path) -> None:
    base = ("inspect", "--ids", "4,9,9,2", "-m", pair, "--generate", "5")
    want = small.greedy(lambda ids: small.encoder_decoder(W, [4, 9, 9, 2], ids).logits[0], [5], 5)
    ran = small.encoder_decoder(W, [4, 9, 9, 2], want)
    for sort, arrays in (("encoder", ran.encoder), ("decoder", ran.decoder), ("cross", ran.cross)):
        done = attnx(*base, "--site", sort, "--head", "1.0", "--view", "table", "--json")
        head = done.document["heads"][0]
        np.testing.assert_allclose(head["values"], arrays[1]["weights"][0, 0], atol=1e-4)
    assert done.document["tokens"]["ids"] == want
    assert done.document["memory"]["ids"] == [4, 9, 9, 2]
    done = attnx(*base, code=0)
    assert "4 encoder tokens · " in done.out


def test_set_fills_what_ids_cannot(attnx: Run, decoder: Path) -> None:
    done = attnx(
        "trace", decoder, "--json", "--set", "input_ids=3,7,1,12", "--set", "attention_mask=1,1,1,1", "--set",
        "position_ids=0,1,2,3", "--set", "use_cache_branch=false", "--dim", "past_sequence_length=0",
        *(part for name in small._caches() for part in ("--set", f"{name}=zeros")),
    )  # fmt: skip
    assert done.document["tokens"]["ids"] == PROMPT


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (("--temperature", "1"), 2, "--generate 20"),
        (("--seed", "1"), 2, "--generate 20"),
        (("--generate", "2", "--seed", "0"), 2, "--seed would do nothing without --temperature"),
        (("--generate", "2", "--top-k", "3"), 2, "--top-k would do nothing without --temperature"),
        (("--generate", "0"), 2, "from 1"),
        (("--generate", "2", "--temperature", "-1"), 2, "from 0"),
        (("--generate", "2", "--top-k", "0"), 2, "from 1"),
        (("--target", "x"), 2, "no encoder and decoder"),
        (("--chat",), 2, "--chat takes one text"),
        (("--image", "none.png"), 2, "takes no picture"),
        (("--audio", "none.wav"), 2, "takes no sound"),
        (("--set", "nothing=1"), 2, "names no input"),
        (("--set", "position_ids=zeros"), 2, "sequence is open"),
        (("--dim", "depth=3"), 2, "no dimension depth"),
        (("--dim", "x"), 2, "not of the form NAME=SIZE"),
    ],
)
def test_what_does_not_fit(args: tuple[str, ...], code: int, said: str, attnx: Run, decoder: Path) -> None:
    done = attnx("inspect", "--ids", "3,7,1,12", "-m", decoder, *args, code=code)
    assert said in done.err
    assert done.out == ""
    assert "Traceback" not in done.err


@pytest.mark.parametrize(("args", "code"), [(("ablate",), 0), (("lens",), 0), (("qkv", "--query", "3"), 2)])
def test_one_is_no_plural(args: tuple[str, ...], code: int, attnx: Run) -> None:
    done = attnx(args[0], "--ids", "5", "-m", "tiny-gpt", *args[1:], code=code)
    assert "1 token" in done.out or "the only token" in done.err
    assert not re.search(r"\b1 (tokens|heads|layers|texts)\b", done.out + done.err)


def test_an_encoder_decoder_wants_to_know_what_is_said(attnx: Run, pair: Path) -> None:
    done = attnx("inspect", "--ids", "4,9", "-m", pair, code=2)
    assert "--target TEXT, or --generate N" in done.err


def test_a_decoders_sites_of_a_kind_are_one_row(attnx: Run, pair: Path) -> None:
    """Self- and cross-attention take turns in every layer; a block for each layer of each would fill pages."""
    out = attnx("trace", pair, "--ids", "4,9", "--generate", "2", "--only", "weights").out
    named = [line.rsplit("  weights", 1)[0].strip() for line in out.splitlines() if "  weights" in line]
    assert len(named) == len(set(named)) == len({name.split()[0] for name in named})
    assert {"encoder", "decoder", "cross"} == {name.split()[0] for name in named}


def test_a_word_is_read_in_an_encoder_of_its_own_file(attnx: Run, tmp_path: Path) -> None:
    """What each layer reads is the same whether the encoder stands alone or beside its decoder."""
    both = small.save(
        tmp_path / "both", config={"decoder_start_token_id": 5}, encoder_model=small.encoder(W),
        decoder_model=small.cross_decoder(W, cached=False),
    )  # fmt: skip
    alone = small.save(tmp_path / "alone", model=small.encoder(W))
    for folder in (both, alone):
        small_senses.letters(folder)
    args = ("word", "ejc", "ejd", "-w", "ejc", "--other-word", "ejd", "--json", "-m")
    got = attnx(*args, both, "--target", "a").document
    want = attnx(*args, alone).document
    assert got["cosine"]["axes"] == want["cosine"]["axes"]
    np.testing.assert_allclose(values(got["cosine"]), values(want["cosine"]), atol=1e-6)


def test_a_corpus_has_no_texts_for_a_decoder(attnx: Run, pair: Path, tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_text("ejc\n", encoding="utf-8")
    said = attnx("scan", "c.txt", "-o", "o.parquet", "-m", pair, code=3).err
    assert "is an encoder-decoder, and a corpus has no texts for the second side" in said
    assert not (tmp_path / "o.parquet.parts").exists()
