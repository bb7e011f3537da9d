"""`attnx ablate`: the ranking is that of the model's own outputs, of runs that are edited elsewhere in the tests."""

import csv
import json
from pathlib import Path

import numpy as np
import onnx
import pytest

import attnx
from attnx.interventions.plan import Edit, Intervention
from tests import small_models as small
from tests.cli.analysed import causal
from tests.cli.conftest import ANIMAL, Run
from tests.small_senses import SIDE, letters, vit

CAT = "The cat sat on the mat. The cat"


def shares(logits: np.ndarray) -> np.ndarray:
    raised = np.exp(logits.astype(np.float64) - logits.max())
    return raised / raised.sum()


def test_every_head_is_ranked_by_what_the_model_then_says(attnx: Run) -> None:
    got = attnx("ablate", CAT, "-m", "tiny-gpt", "--json").document
    assert (got["reads"], got["unedited"]["first"]) == ("next token", "sat")
    effects = {effect["label"]: effect for effect in got["effects"]}
    assert len(effects) == 24
    model = _open("tiny-gpt")
    steps = [Intervention(f"L{at} H{h}", (Edit("ablate", (at,), (h,)),)) for at, h in ((0, 3), (2, 2))]
    results = model.run_with(steps, CAT, outputs=["logits"])
    base = shares(results.unedited["inputs"]["logits"][0, -1])
    for step in steps:
        edited = shares(results.effects[step.id].outputs["logits"][0, -1])
        assert effects[step.id]["moved"] == pytest.approx(float((base * np.log(base / edited)).sum()), abs=1e-5)
        assert next(iter(effects[step.id]["scores"].values())) == pytest.approx(float(edited[base.argmax()]), abs=1e-5)
    assert max(effects, key=lambda label: effects[label]["moved"]) == "L0 H3"
    assert [label for label, effect in effects.items() if not effect["kept"]] == ["L0 H3"]
    values = np.array(got["map"]["values"])
    assert values.shape == (4, 6)
    assert values[0, 3] == pytest.approx(effects["L0 H3"]["moved"])


def test_the_edge_from_it_to_animal_matters_in_the_head_that_points(attnx: Run) -> None:
    got = attnx("ablate", ANIMAL, "--edge", "it:animal", "--json").document
    best = max(got["effects"], key=lambda effect: effect["moved"])
    assert best["label"] == "L5 H11"
    model = _open("minilm")
    step = Intervention("cut", (Edit("knockout", (5,), (11,), queries=(10,), keys=(2,)),))
    results = model.run_with([step], ANIMAL)
    (name,) = results.unedited["inputs"]
    one, two = (run[name][0, 10].astype(float) for run in (results.unedited["inputs"], results.effects["cut"].outputs))
    apart = 1 - one @ two / np.linalg.norm(one) / np.linalg.norm(two)
    assert best["moved"] == pytest.approx(apart, abs=1e-5)


def test_heads_that_are_named_are_changed_alone_and_together(attnx: Run) -> None:
    got = attnx("ablate", CAT, "-m", "tiny-gpt", "--head", "0.3", "--layer", "2", "--json").document
    assert [effect["label"] for effect in got["effects"]] == ["L0 H3", "L2", "together"]
    assert got["effects"][2]["heads"] == [{"layer": 0, "head": 3}, {"layer": 2, "head": None}]
    assert got["map"] is None


def test_a_mean_over_a_corpus_stands_in_place_of_a_head(attnx: Run, tmp_path) -> None:
    texts = ["A cat slept.", "The animal was too tired to cross."]
    (tmp_path / "texts.txt").write_text("\n".join(texts))
    got = attnx("ablate", ANIMAL, "--head", "5.11", "--reference", str(tmp_path / "texts.txt"), "--json").document
    model = _open("minilm")
    rows = np.concatenate([model.trace(text).attentions[5].context[0, 11] for text in texts])
    values = np.zeros((1, 12, 1, 32), np.float32)
    values[0, 11, 0] = rows.mean(0)
    step = Intervention("mean", (Edit("patch", (5,), (11,), quantity="context", values=values),))
    results = model.run_with([step], ANIMAL)
    (name,) = results.unedited["inputs"]
    one, two = (r[name][0].astype(float).mean(0) for r in (results.unedited["inputs"], results.effects["mean"].outputs))
    apart = 1 - one @ two / np.linalg.norm(one) / np.linalg.norm(two)
    assert got["effects"][0]["moved"] == pytest.approx(apart, abs=1e-4)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--head", "9.1"], "there is no layer 9"),
        (["--head", "5.12"], "there is no head 12"),
        (["--head", "5"], "names no layer"),
        (["--with", "noise"], "there is no --with 'noise'"),
        (["--edge", "it"], "is not an edge"),
        (["--edge", "it:animal", "--with", "mean"], "ablates nothing"),
        (["--answer", "dog"], "gives no logits"),
        (["--site", "cross"], "no cross attention"),
        (["--at", "zebra"], "zebra"),
        (["--reference", "nowhere.txt"], "cannot be read"),
    ],
)
def test_what_cannot_be_is_said(attnx: Run, args: list[str], said: str) -> None:
    done = attnx("ablate", ANIMAL, *args, code=4 if "--reference" in args else 2)
    assert said in done.err
    assert "Traceback" not in done.err


def test_an_answer_is_one_token(attnx: Run) -> None:
    done = attnx("ablate", CAT, "-m", "tiny-gpt", "--answer", "antidisestablishment", code=2)
    assert "tokens" in done.err


def test_the_screen_fits(attnx: Run) -> None:
    lines = attnx("ablate", CAT, "-m", "tiny-gpt").out.splitlines()
    assert "unedited" in "\n".join(lines[:8])
    assert len(lines) <= 24


def _open(name: str):
    return attnx.open(name)


def test_effects_are_saved_a_line_a_head(attnx: Run, tmp_path) -> None:
    path = tmp_path / "effects.csv"
    done = attnx("ablate", CAT, "-m", "tiny-gpt", "--save", str(path), "--json")
    assert f"wrote {path}" in done.err
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    effects = done.document["effects"]
    assert [(row["label"], row["layer"], row["head"]) for row in rows[:2]] == [("L0 H0", "0", "0"), ("L0 H1", "0", "1")]
    assert [float(row["effect"]) for row in rows] == pytest.approx([effect["moved"] for effect in effects])
    assert [float(row["p(sat)"]) for row in rows] == pytest.approx([e["scores"]["p(sat)"] for e in effects])
    assert {row["measure"] for row in rows} == {"KL"}
    assert attnx("ablate", CAT, "-m", "tiny-gpt", "--save", str(path), code=2).err.count("exists") == 1
    whole = tmp_path / "effects.json"
    attnx("ablate", CAT, "-m", "tiny-gpt", "--head", "0.3", "--save", str(whole))
    assert [effect["label"] for effect in json.loads(whole.read_text())["effects"]] == ["L0 H3"]


def test_an_encoder_is_changed_at_its_own_tokens(attnx: Run, tmp_path) -> None:
    small.save(tmp_path / "both", config={"decoder_start_token_id": 5}, model=small.one_file(small.weights(3)))
    letters(tmp_path / "both")
    given = ("ablate", "bdcf", "--target", "hg", "-m", str(tmp_path / "both"), "--site", "encoder", "-H", "0.1")
    c = attnx(*given, "--at", "c", "--json").document
    assert c["effects"] == attnx(*given, "--at", "3", "--json").document["effects"]
    assert "There are: <s>@0, bdcf@1" in attnx(*given, "--at", "h", code=2).err
    done = attnx(*given, "--reference", "texts.txt", code=2)
    assert "takes two at once" in done.err
    assert "--target" not in done.err


def test_patches_of_a_picture_are_named_as_elsewhere(attnx: Run, tmp_path) -> None:
    model = str(vit(tmp_path))
    np.savez("x.npz", pixel_values=np.random.default_rng(0).random((1, 3, SIDE, SIDE)).astype(np.float32))
    given = ("ablate", "-m", model, "--inputs", "x.npz", "-H", "0.0", "--json")
    first, second = (attnx(*given, "--at", at).document["effects"][0]["moved"] for at in ("[CLS]", "r0c1"))
    feed = dict(np.load("x.npz"))
    opened = _open(model)
    for at, moved in ((0, first), (2, second)):
        edit = Edit("ablate", (0,), (0,), (at,), method="zero")
        results = opened.run_with([Intervention("z", (edit,))], feed)
        one, two = results.unedited["inputs"], results.effects["z"].outputs
        want = max(np.linalg.norm(two[n] - one[n]) / np.linalg.norm(one[n]) for n in one)
        assert moved == pytest.approx(want, rel=1e-5)
        assert want > 0
    assert "the 17 tokens are at 0 to 16" in attnx(*given, "--at", "99", code=2).err


def test_a_model_without_outputs_is_refused_in_plain_words(attnx: Run, tmp_path: Path) -> None:
    case = causal(tmp_path / "m")
    model = onnx.load(case.model)
    del model.graph.output[:]
    onnx.save(model, case.model)
    failed = attnx("ablate", *case.args, code=3).err
    said, hint = failed.splitlines()
    assert said == "attnx: the model has no outputs, so there is nothing to run"
    assert "with its outputs" in hint
