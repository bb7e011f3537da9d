"""`attnx contacts` on a small encoder that reads letter by letter, held to the formula in numpy."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnx.session.ort import Session
from attnx.study import contacts as study
from tests import small_models as small
from tests.cli.conftest import Run
from tests.measure.test_contacts import by_hand
from tests.small_senses import letters

W = small.weights(4)
PROTEIN = "abcdefghijklmnopqrst"
IDS = [21, *range(20), 22]
N = len(PROTEIN)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = small.save(tmp_path_factory.mktemp("protein"), model=small.encoder(W))
    letters(folder)
    return folder


def maps() -> np.ndarray:
    """[L,H,N,N] by numpy alone, <s> and </s> left out."""
    ran = small.encoder_decoder(W, IDS, [21]).encoder
    return np.array([[by_hand(head[1:-1, 1:-1]) for head in layer["weights"][0]] for layer in ran])


def test_the_map_is_the_mean_over_heads(attnx: Run, model: Path) -> None:
    got = attnx("contacts", PROTEIN, "-m", model, "--json").document
    want = maps().mean((0, 1))
    np.testing.assert_allclose(got["map"]["values"], want, atol=1e-5)
    assert got["map"]["axes"][0]["labels"][11] == "l12"
    assert [one["letter"] for one in got["residues"]] == list(PROTEIN)
    assert [one["token"] for one in got["residues"]] == list(range(1, N + 1))
    ranked = sorted((-want[i, j], i, j) for i in range(N) for j in range(i + 6, N))
    assert [one["residues"] for one in got["strongest"]] == [[i + 1, j + 1] for _, i, j in ranked[:10]]
    np.testing.assert_allclose([one["score"] for one in got["strongest"]], [-s for s, *_ in ranked[:10]], atol=1e-5)
    assert (got["where"], got["precision"], got["apart"]) == ("mean of 4 heads", None, 6)


@pytest.mark.parametrize(
    ("asked", "kept", "where"),
    [
        (("--head", "1.0"), [(1, 0)], "L1 H0"),
        (("--head", "0.1", "--head", "1.0"), [(0, 1), (1, 0)], "L0 H1 L1 H0"),
        (("--head", "1"), [(0, 1), (1, 1)], "L0 H1 L1 H1"),
        (("--layer", "1"), [(1, 0), (1, 1)], "mean of 2 heads"),
        (("--layer", "1", "--head", "0"), [(1, 0)], "L1 H0"),
    ],
)
def test_heads_that_are_chosen(
    attnx: Run, model: Path, tmp_path: Path, asked: tuple[str, ...], kept: list[tuple[int, int]], where: str
) -> None:
    want = np.mean([maps()[at] for at in kept], axis=0)
    (tmp_path / "gold").write_text("1 9\n2 12\n")
    for more in ((), ("--gold", "gold")):  # heads are picked in the graph, or out of all of them
        got = attnx("contacts", PROTEIN, "-m", model, *asked, *more, "--json").document
        np.testing.assert_allclose(got["map"]["values"], want, atol=1e-5)
        assert got["where"] == where


def test_precision_by_head(attnx: Run, model: Path, tmp_path: Path) -> None:
    real = {(0, 8), (1, 11), (3, 10), (13, 19), (2, 4)}
    (tmp_path / "gold").write_text("".join(f"{i + 1} {j + 1}\n" for i, j in sorted(real)))
    done = attnx("contacts", PROTEIN, "-m", model, "--gold", "gold", "--json")
    got = done.document["precision"]
    far = [(i, j) for i in range(N) for j in range(i + 6, N)]

    def rates(scores: np.ndarray) -> list[float]:
        ranked = sorted(far, key=lambda at: -scores[at])
        return [sum(at in real for at in ranked[:k]) / k for k in (N, N // 2, N // 5)]

    for at in np.ndindex(2, 2):
        np.testing.assert_allclose(np.array(got["heads"]["values"])[at], rates(maps()[at]))
    np.testing.assert_allclose(got["map"], rates(maps().mean((0, 1))))
    assert (got["chance"], got["contacts"]) == (4 / len(far), 4)
    assert "1 real contact lies" in done.err
    assert sum(rates(maps()[at])[0] for at in np.ndindex(2, 2)) > 0
    out = attnx("contacts", PROTEIN, "-m", model, "--gold", "gold").out
    assert "precision against 4 real contacts" in out
    (line,) = [line for line in out.splitlines() if line.startswith("chance ")]
    assert line.split()[1] == f"{4 / len(far):.3f}"


def test_of_a_long_protein_some_layers_are_run_at_a_time(
    attnx: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same map and precisions, from one run a layer, none of which holds another layer's matrices."""
    (tmp_path / "gold").write_text("1 9\n2 12\n")
    asked = [("contacts", PROTEIN, "-m", model, *more, "--json") for more in ((), ("--gold", "gold"), ("--head", "1"))]
    want = [attnx(*one).document for one in asked]
    shapes: list[list[tuple[int, ...]]] = []
    whole = Session.run

    def run(self: Session, feed: Any, *more: Any) -> dict[str, np.ndarray]:
        values = whole(self, feed, *more)
        shapes.append([v.shape for v in values.values() if v.ndim == 4])
        return values

    monkeypatch.setattr(Session, "run", run)
    monkeypatch.setattr(study, "AT_ONCE", 0)
    assert [attnx(*one).document for one in asked] == want
    assert [len(one) for one in shapes] == [2] * 6  # masked scores and weights
    monkeypatch.setattr(study, "AT_ONCE", 2 * 8 * 2 * (N + 2) ** 2)
    assert attnx(*asked[0]).document == want[0]
    assert [len(one) for one in shapes[6:]] == [4]


def test_ids_have_no_text(attnx: Run, model: Path) -> None:
    told = attnx("contacts", "--ids", ",".join(map(str, IDS)), "-m", model, "--json").document
    plain = attnx("contacts", PROTEIN, "-m", model, "--json").document
    assert told["map"]["values"] == plain["map"]["values"]
    assert told["residues"] == plain["residues"]


def test_a_masked_residue_keeps_its_place(attnx: Run, tmp_path: Path) -> None:
    """In a text and among ids; what stands around the protein does not count."""
    folder = small.save(tmp_path / "esm", model=small.encoder(small.weights(3)))
    pieces = ["<cls>", "<pad>", "<eos>", "<unk>", *"LAGVSERTIDPKQNFYMHW", "<mask>"]
    (folder / "vocab.txt").write_text("\n".join(pieces))
    ids = [0, *(pieces.index(one) for one in "MKLA"), 23, *(pieces.index(one) for one in "GVS"), 23, 2]
    told = attnx("contacts", "MKLA<mask>GVS<mask>", "-m", "esm", "--json").document
    assert told["tokens"]["ids"] == ids
    assert [one["letter"] for one in told["residues"]] == ["M", "K", "L", "A", "<mask>", "G", "V", "S", "<mask>"]
    assert [one["token"] for one in told["residues"]] == list(range(1, 10))
    again = attnx("contacts", "--ids", ",".join(map(str, ids)), "-m", "esm", "--json").document
    assert (again["map"]["values"], again["residues"]) == (told["map"]["values"], told["residues"])


def test_table_map_and_files(attnx: Run, model: Path, tmp_path: Path) -> None:
    want = maps().mean((0, 1))
    i, j = max(((i, j) for i in range(N) for j in range(i + 6, N)), key=lambda at: want[at])
    out = attnx("contacts", PROTEIN, "-m", model, "--top", "1").out
    assert f"{PROTEIN[i]}{i + 1} {PROTEIN[j]}{j + 1}" in out
    assert f"{want[i, j]:.3f}" in out
    assert "the map: --all" in out
    out = attnx("contacts", PROTEIN, "-m", model, "--top", "1", "--all").out
    assert "residues less than 6 apart have no value" in out
    for name in ("a.txt", "a.csv", "a.npz", "a.json", "a.svg"):
        attnx("contacts", PROTEIN, "-m", model, "--save", name)
    with (tmp_path / "a.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == N * N
    with np.load(tmp_path / "a.npz") as saved:
        assert any(np.allclose(saved[name], want, atol=1e-5) for name in saved if saved[name].shape == want.shape)
    assert "already" not in attnx("contacts", PROTEIN, "-m", model, "--save", "a.npz", "--force").err
    assert "exists" in attnx("contacts", PROTEIN, "-m", model, "--save", "a.npz", code=2).err


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (("abc",), 4, "no two residues lie 6 positions apart: the protein has 3"),
        ((PROTEIN, "--head", "0.7"), 2, "there is no head 7"),
        ((PROTEIN, "--head", "5.0"), 2, "there is no layer 5"),
        ((PROTEIN, "--layer", "5"), 2, "there is no layer 5"),
        ((PROTEIN, "--gold-from", "3"), 2, "--gold-from would do nothing without --gold"),
        ((PROTEIN, "--force"), 2, "--force would do nothing without --save"),
        ((PROTEIN, "--target", "x"), 2, "--target would do nothing"),
        ((PROTEIN, "--gold", "none"), 4, "cannot be read"),
    ],
)
def test_what_is_refused(attnx: Run, model: Path, args: tuple[str, ...], code: int, said: str) -> None:
    assert said in attnx("contacts", *args, "-m", model, code=code).err


def test_words_are_no_residues(attnx: Run) -> None:
    assert "'he' is a token of the text" in attnx("contacts", "the cat sat", "-m", "tiny-gpt", code=4).err
    assert "'␠' is a token" in attnx("contacts", "j q x z v k w f", "-m", "tiny-gpt", code=4).err


def test_a_model_with_two_sides(attnx: Run, tmp_path: Path) -> None:
    small.save(tmp_path / "pair", encoder_model=small.encoder(W), decoder_model=small.cross_decoder(W, cached=False))
    letters(tmp_path / "pair")
    assert "has an encoder and a decoder" in attnx("contacts", PROTEIN, "-m", "pair", code=2).err
