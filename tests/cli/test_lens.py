"""`attnx lens`: the last layer says what onnxruntime says; what cannot be is refused."""

import csv
import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from tests.cli.conftest import ANIMAL, Run

CAT = "The cat sat on the mat. The cat"
GPT = Path(__file__).parents[2] / "models" / "tiny-gpt"


def said(document: dict) -> np.ndarray:
    """The model's shares at every position, by onnxruntime alone."""
    ids = np.array([document["tokens"]["ids"]], np.int64)
    session = onnxruntime.InferenceSession(GPT / "model.onnx", providers=["CPUExecutionProvider"])
    feed = {"input_ids": ids, "attention_mask": np.ones_like(ids), "position_ids": np.arange(ids.shape[1])[None]}
    for slot in session.get_inputs():
        if slot.name.startswith("past"):
            feed[slot.name] = np.zeros((1, 6, 0, 32), np.float32)
    logits = session.run(["logits"], feed)[0][0].astype(np.float64)
    raised = np.exp(logits - logits.max(-1, keepdims=True))
    return raised / raised.sum(-1, keepdims=True)


def test_the_last_layer_is_the_model(attnx: Run) -> None:
    got = attnx("lens", CAT, "-m", "tiny-gpt", "--at", "all", "--json").document
    shares = said(got)
    assert [one["answer"]["token"] for one in got["positions"]] == shares.argmax(-1).tolist()
    values = np.array(got["probability"]["values"])
    assert values.shape == (5, 10)
    np.testing.assert_allclose(values[-1], shares.max(-1), atol=1e-4)
    np.testing.assert_allclose(got["entropy"][-1], -(shares * np.log(shares)).sum(-1), atol=1e-3)
    assert got["rank"][-1] == [1] * 10
    assert got["top"][-1][9][0]["piece"] == "sat"


def test_the_table_has_a_line_for_each_layer(attnx: Run, tmp_path: Path) -> None:
    done = attnx("lens", CAT, "-m", "tiny-gpt", "--answer", "mat", "--save", "lens.csv")
    assert len(done.out.splitlines()) <= 24
    assert "'mat' is not what the model says" in done.out
    with (tmp_path / "lens.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["layer"] for row in rows] == ["embeddings", "L0", "L1", "L2", "L3"]
    assert (rows[-1]["first"], rows[-1]["answer"], rows[-1]["token"]) == ("sat", "mat", "cat")
    assert "--force" in attnx("lens", CAT, "-m", "tiny-gpt", "--save", "lens.csv", code=2).err
    attnx("lens", CAT, "-m", "tiny-gpt", "--save", "lens.json")
    assert json.loads((tmp_path / "lens.json").read_bytes())["schema"] == "attnx/lens"


def test_the_formula_is_behind_explain(attnx: Run) -> None:
    for at in ("cat@9", "all"):
        told = ("lens", CAT, "-m", "tiny-gpt", "--at", at)
        assert "nostalgebraist" not in attnx(*told).out
        assert attnx(*told, "--explain").out.count("softmax(unembedding(final norm(residual stream)))") == 1


def test_every_position_fits_one_screen(attnx: Run) -> None:
    lines = attnx("lens", CAT, "-m", "tiny-gpt", "--at", "all").out.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("args", "said", "code"),
    [
        ([ANIMAL], "gives no logits", 3),
        ([ANIMAL, "--at", "it"], "says nothing of single tokens", 2),
        ([CAT, "-m", "tiny-gpt", "--at", "zebra"], "zebra", 2),
        ([CAT, "-m", "tiny-gpt", "--answer", "antidisestablishment"], "10 tokens: an, t, id", 2),
        ([CAT, "-m", "tiny-gpt", "--save", "lens.doc"], "not a format", 2),
        ([CAT, "-m", "tiny-gpt", "--force"], "without --save", 2),
    ],
)
def test_what_cannot_be_is_said(attnx: Run, args: list[str], said: str, code: int) -> None:
    done = attnx("lens", *args, code=code)
    assert said in done.err
    assert "Traceback" not in done.err


def test_beside_the_bundled_encoder_a_model_with_logits_is_named(attnx: Run) -> None:
    said = attnx("lens", ANIMAL, code=3).err
    assert "or try another bundled model: --model tiny-gpt." in said
    assert attnx("lens", ANIMAL, "--model", "tiny-gpt").out
