"""`attnx attribute`: the parts sum to the logit that onnxruntime gives; what cannot be is refused."""

import csv
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from tests.cli.conftest import ANIMAL, Run

CAT = "The cat sat on the mat. The cat"
GPT = Path(__file__).parents[2] / "models" / "tiny-gpt"


def test_the_parts_sum_to_the_models_own_logit(attnx: Run, tmp_path: Path) -> None:
    got = attnx("attribute", CAT, "-m", "tiny-gpt", "--json").document
    ids = np.array([got["tokens"]["ids"]], np.int64)
    feed = {"input_ids": ids, "attention_mask": np.ones_like(ids), "position_ids": np.arange(ids.shape[1])[None]}
    session = onnxruntime.InferenceSession(GPT / "model.onnx", providers=["CPUExecutionProvider"])
    for slot in session.get_inputs():
        if slot.name.startswith("past"):
            feed[slot.name] = np.zeros((1, 6, 0, 32), np.float32)
    logits = session.run(["logits"], feed)[0][0, -1]
    assert got["answer"] == {"token": int(logits.argmax()), "piece": "sat"}
    assert sum(part["added"] for part in got["parts"]) == pytest.approx(float(logits.max()), abs=1e-3)
    assert len(got["parts"]) == 1 + 4 * (6 + 2) + 2
    attnx("attribute", CAT, "-m", "tiny-gpt", "--save", "parts.csv")
    with (tmp_path / "parts.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["added"]) for row in rows] == pytest.approx([part["added"] for part in got["parts"]])


def test_the_screen_fits_and_shows_the_sum(attnx: Run) -> None:
    out = attnx("attribute", CAT, "-m", "tiny-gpt", "--foil", "mat").out
    assert len(out.splitlines()) <= 24
    assert "logit(sat) - logit(mat) at cat@9" in out
    assert "the parts sum to" in out


@pytest.mark.parametrize(
    ("args", "said", "code"),
    [
        ([ANIMAL], "gives no logits", 3),
        ([CAT, "-m", "tiny-gpt", "--at", "zebra"], "zebra", 2),
        ([CAT, "-m", "tiny-gpt", "--at", "cat@2..cat@9"], "takes one token here", 2),
        ([CAT, "-m", "tiny-gpt", "--answer", "antidisestablishment"], "10 tokens: an, t, id", 2),
        ([CAT, "-m", "tiny-gpt", "--answer", "sat", "--foil", "sat"], "both 'sat'", 2),
    ],
)
def test_what_cannot_be_is_said(attnx: Run, args: list[str], said: str, code: int) -> None:
    done = attnx("attribute", *args, code=code)
    assert said in done.err
    assert "Traceback" not in done.err
