"""--save of commands that show something: tidy CSV, a row a value, and the JSON document."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from tests.cli.analysed import bundled, two_sided
from tests.cli.conftest import ANIMAL, Run

WIDE = ANIMAL.replace("tired", "wide")
COMMANDS = {
    "diff": ("diff", "minilm", "minilm", ANIMAL, "--other-text", WIDE),
    "mask": ("mask", "The cat sat", "-m", "tiny-gpt"),
    "flow": ("flow", "It was tired."),
}


def rows(name: str) -> list[dict[str, str]]:
    with Path(name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("name", COMMANDS)
def test_json_is_what_json_prints(name: str, attnx: Run) -> None:
    done = attnx(*COMMANDS[name], "-o", "a.json")
    assert done.out.splitlines()[-1] == "wrote a.json"
    saved, printed = json.loads(Path("a.json").read_text()), attnx(*COMMANDS[name], "--json").document
    assert {key for key in saved if saved[key] != printed[key]} <= {"heads", "stages", "outputs", "verdict"}
    assert saved["schema"] == f"attnx/{name}"
    assert "a.json exists" in attnx(*COMMANDS[name], "-o", "a.json", code=2).err
    attnx(*COMMANDS[name], "-o", "a.json", "--force")
    assert "--force would do nothing" in attnx(*COMMANDS[name], "--force", code=2).err


def test_diff_has_a_row_for_each_measure_of_each_head(attnx: Run) -> None:
    attnx(*COMMANDS["diff"], "--save", "a.csv")
    found = rows("a.csv")
    assert list(found[0]) == ["layer", "layer_label", "head", "head_label", "measure", "measure_label", "value"]
    assert len(found) == 6 * 12 * 5
    gap = np.abs(bundled(ANIMAL).weights - bundled(WIDE).weights).max((2, 3))
    largest = [float(row["value"]) for row in found if row["measure_label"] == "largest difference"]
    np.testing.assert_allclose(largest, gap.ravel(), atol=1e-5)


def test_mask_has_a_row_for_each_cell(attnx: Run) -> None:
    attnx(*COMMANDS["mask"], "--save", "a.csv")
    found = rows("a.csv")
    assert list(found[0]) == ["layer", "layer_label", "query", "query_label", "key", "key_label", "visible"]
    visible = np.array([float(row["visible"]) for row in found]).reshape(4, 4, 4)
    np.testing.assert_array_equal(visible, np.broadcast_to(np.tri(4), (4, 4, 4)))


def test_flow_has_a_row_for_each_layer_query_and_key(attnx: Run) -> None:
    attnx(*COMMANDS["flow"], "--save", "a.csv")
    found = rows("a.csv")
    weights = bundled("It was tired.").weights.mean(1)
    want = np.eye(6)
    for layer, one in enumerate(weights):
        want = (0.5 * one + 0.5 * np.eye(6)) @ want
        got = [float(row["rollout"]) for row in found if row["layer"] == str(layer)]
        np.testing.assert_allclose(got, want.ravel(), atol=1e-4)


def test_masks_over_different_tokens_are_one_table(attnx: Run, tmp_path: Path) -> None:
    case = two_sided(tmp_path / "m")  # 5 tokens on the encoder's side, 3 on the decoder's, two layers of each
    attnx("mask", *case.args, "-o", "a.csv")
    found = rows("a.csv")
    assert len(found) == 2 * (5 * 5 + 3 * 3 + 3 * 5)
    cells = {
        name: sum(row["layer_label"] == name for row in found) for name in ("encoder L0", "decoder L1", "cross L0")
    }
    assert cells == {"encoder L0": 25, "decoder L1": 9, "cross L0": 15}
