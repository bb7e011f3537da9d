"""`attnx patch`: shares are those of runs that are edited elsewhere in the tests; what cannot be is refused."""

import csv
from pathlib import Path

import numpy as np
import pytest

import attnx
from attnx.interventions.plan import Edit, Intervention
from tests.cli.conftest import ANIMAL, Run

CAT, DOG = "The cat sat on the mat. The cat", "The dog ran on the mat. The dog"
WIDE = ANIMAL.replace("tired", "wide")
GPT = ["-m", "tiny-gpt"]


def test_the_share_of_a_logit_difference(attnx: Run, tmp_path: Path) -> None:
    got = attnx("patch", CAT, DOG, *GPT, "--json").document
    assert [(one["position"], one["clean"], one["corrupt"]) for one in got["differences"]] == [
        (2, "cat", "dog"), (3, "sat", "ran"), (9, "cat", "dog"),
    ]  # fmt: skip
    assert (got["metric"], got["answer"]["piece"]) == ("difference", "sat")
    step = Intervention("one", (Edit("patch", (0,), (3,), quantity="context", source="inputs"),), "other")
    results = _open("tiny-gpt").run_with([step], CAT, DOG, outputs=["logits"])
    runs = [results.unedited[n]["logits"][0, -1] for n in ("inputs", "other")]
    clean, corrupt, patched = (
        float(row[got["answer"]["token"]]) - float(row[got["foil"]["token"]])
        for row in (*runs, results.effects["one"].outputs["logits"][0, -1])
    )
    assert (int(runs[0].argmax()), int(runs[1].argmax())) == (got["answer"]["token"], got["foil"]["token"])
    effect = next(one for one in got["effects"] if one["label"] == "L0 H3")
    assert (got["clean"], got["corrupt"], effect["value"]) == pytest.approx((clean, corrupt, patched), abs=1e-3)
    assert effect["share"] == pytest.approx((patched - corrupt) / (clean - corrupt), abs=1e-3)
    assert np.array(got["map"]["values"]).shape == (4, 6)
    attnx("patch", CAT, DOG, *GPT, "--save", "patch.csv")
    with (tmp_path / "patch.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["share"]) for row in rows] == pytest.approx([one["share"] for one in got["effects"]])


def test_an_embedding_is_held_by_its_cosine(attnx: Run) -> None:
    got = attnx("patch", ANIMAL, WIDE, "--what", "residual", "--layer", "5", "--read", "it", "--json").document
    assert (got["metric"], got["clean"]) == ("cosine", pytest.approx(1))
    results = _open("minilm").run_with([], ANIMAL, WIDE)
    one, two = (np.asarray(results.unedited[n]["last_hidden_state"][0, 10], float) for n in ("inputs", "other"))
    assert got["corrupt"] == pytest.approx(one @ two / np.linalg.norm(one) / np.linalg.norm(two), abs=1e-4)
    shares = [one["share"] for one in got["effects"]]
    assert shares[10] == pytest.approx(1, abs=1e-3)  # the last layer's stream at the token is its vector
    assert np.delete(shares, 10) == pytest.approx(0, abs=1e-3)


def test_a_path_is_shown_with_its_ends(attnx: Run) -> None:
    out = attnx("patch", CAT, DOG, *GPT, "--to", "2.2,3.1", "--into", "value").out
    assert "the path to the value of L2 H2, L3 H1" in out
    assert "L2" in out.split("\nrestored\n")[1]
    assert len(out.splitlines()) <= 24


def test_the_screen_fits(attnx: Run) -> None:
    lines = attnx("patch", CAT, DOG, *GPT).out.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert "clean → corrupt: 2 cat → dog, 3 sat → ran, 9 cat → dog" in lines


@pytest.mark.parametrize(
    ("args", "said", "code"),
    [
        ([CAT, "The cat ran.", *GPT], "10 tokens and the corrupt one 5: from position 2 on, 'cat | sat", 2),
        ([CAT, *GPT], "no corrupt text", 2),
        ([CAT, DOG, *GPT, "--head", "9.1"], "there is no layer 9", 2),
        ([CAT, DOG, *GPT, "--head", "1.9"], "no head 9 in layer 1", 2),
        ([CAT, DOG, *GPT, "--head", "5"], "names no layer", 2),
        ([CAT, DOG, *GPT, "--what", "soul"], "no quantity 'soul'", 2),
        ([CAT, DOG, *GPT, "--what", "mlp", "--head", "0.1"], "belongs to a layer", 2),
        ([CAT, DOG, *GPT, "--by", "word"], "no --by 'word'", 2),
        ([CAT, DOG, *GPT, "--at", "zebra"], "zebra", 2),
        ([CAT, DOG, *GPT, "--answer", "antidisestablishment"], "10 tokens: an, t, id", 2),
        ([CAT, DOG, *GPT, "--metric", "magic"], "no metric 'magic'", 2),
        ([CAT, DOG, *GPT, "--metric", "kl", "--foil", "mat"], "--foil is held against", 2),
        ([CAT, DOG, *GPT, "--from", "3.1", "--to", "2.2"], "is not before L2", 2),
        ([CAT, DOG, *GPT, "--into", "key"], "would do nothing without --to", 2),
        ([CAT, DOG, *GPT, "--to", "2.2", "--what", "mlp"], "would do nothing in path patching", 2),
        ([ANIMAL, WIDE, "--answer", "dog"], "gives no logits", 2),
        ([ANIMAL, WIDE, "--metric", "kl"], "held against each other as wholes", 2),
    ],
)
def test_what_cannot_be_is_said(attnx: Run, args: list[str], said: str, code: int) -> None:
    done = attnx("patch", *args, code=code)
    assert said in " ".join(done.err.split())
    assert "Traceback" not in done.err


def test_texts_that_are_the_same_are_said(attnx: Run) -> None:
    done = attnx("patch", CAT, CAT, *GPT)
    assert "there is nothing to restore" in " ".join(done.err.split())
    assert "the two texts have the same tokens" in done.out


def _open(name: str):
    return attnx.open(name)
