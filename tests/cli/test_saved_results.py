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
    "heads": ("heads", "It was tired."),
    "qkv": ("qkv", "It was tired.", "--query", "it", "--key", "tired", "--head", "5.11"),
    "scale": ("scale", "It was tired.", "--head", "5.11", "--query", "it"),
    "word": ("word", "A river bank.", "A bank of gold.", "--word", "bank"),
    "cost": ("cost", "tiny-gpt", "--lengths", "8,64", "--no-measure"),
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


def test_heads_has_a_row_for_each_measure_of_each_head(attnx: Run) -> None:
    attnx(*COMMANDS["heads"], "--save", "a.csv")
    found = rows("a.csv")
    assert list(found[0]) == [
        "layer", "layer_label", "head", "head_label", "kind", "rest_kind", "pattern", "measure", "value",
    ]  # fmt: skip
    assert len(found) == 6 * 12 * (15 + 6 - 3)  # no token repeats: no duplicate, and no induction of either
    a = bundled("It was tired.").weights
    rest = a[..., 1:] / a[..., 1:].sum(-1, keepdims=True)
    own = np.diagonal(rest[:, :, 1:], 0, 2, 3)
    own = np.average(own, axis=-1, weights=a[:, :, 1:, 1:].sum(-1) > 0.01)
    for pattern, measure, want in (
        ("whole", "largest weight", a.max(-1).mean(-1)),
        ("whole", "previous", np.diagonal(a, -1, 2, 3).mean(-1)),
        ("rest", "self", own),
    ):
        got = [float(row["value"]) for row in found if (row["pattern"], row["measure"]) == (pattern, measure)]
        np.testing.assert_allclose(got, want.ravel(), atol=1e-5, err_msg=measure)
    assert {row["layer"] for row in found} == set("012345")
    assert {bool(row["rest_kind"]) for row in found if row["kind"] == "sink"} == {True}
    assert not any(row["rest_kind"] for row in found if row["kind"] != "sink")
    attnx("heads", "It was tired.", "--layer", "2", "--save", "b.csv")
    assert {(row["layer"], row["layer_label"]) for row in rows("b.csv")} == {("2", "L2")}


def test_heads_over_a_file_have_a_spread(attnx: Run) -> None:
    Path("texts.txt").write_text("It was tired.\nThe cat sat.\n", encoding="utf-8")
    attnx("heads", "--file", "texts.txt", "-o", "a.csv")
    one, two = (bundled(text).weights.max(-1).mean(-1)[3, 4] for text in ("It was tired.", "The cat sat."))
    (row,) = [
        row for row in rows("a.csv")
        if (row["layer"], row["head"], row["pattern"], row["measure"]) == ("3", "4", "whole", "largest weight")
    ]  # fmt: skip
    assert float(row["value"]) == pytest.approx((one + two) / 2, abs=1e-5)
    assert float(row["spread"]) == pytest.approx(abs(one - two) / np.sqrt(2), abs=1e-5)


def test_qkv_has_a_row_for_each_step_and_each_dimension(attnx: Run) -> None:
    attnx(*COMMANDS["qkv"], "--save", "a.csv")
    found, b = rows("a.csv"), bundled("It was tired.")
    query, key = b.query[5, 11, 1], b.key[5, 11, 3]  # [CLS] it was tired . [SEP]
    assert {(row["layer"], row["head"]) for row in found if row["measure"] == "q·k"} == {("5", "11")}
    assert {(row["query"], row["query_label"]) for row in found} == {("1", "it")}
    assert {(row["key"], row["key_label"]) for row in found if row["dimension"]} == {("3", "tired")}

    def of(measure: str) -> list[float]:
        return [float(row["value"]) for row in found if row["measure"] == measure]

    np.testing.assert_allclose(of("query"), query, atol=1e-4)
    np.testing.assert_allclose(of("key"), key, atol=1e-4)
    assert of("q·k") == pytest.approx([query @ key], abs=1e-3)
    assert of("weight") == pytest.approx([b.weights[5, 11, 1, 3]], abs=1e-5)
    dimensions = [int(row["dimension"]) for row in found if row["measure"] == "query"]
    assert dimensions == list(range(32))
    assert len(of("head share of output")) == 12


def test_scale_has_a_row_for_each_key_and_each_head(attnx: Run) -> None:
    attnx(*COMMANDS["scale"], "--save", "a.csv")
    found, b = rows("a.csv"), bundled("It was tired.")
    scores = b.query[5, 11, 1] @ b.key[5, 11].T
    keys = [row for row in found if row["key"]]
    assert [row["key_label"] for row in keys if row["measure"] == "q·k"] == [
        "[CLS]",
        "it",
        "was",
        "tired",
        ".",
        "[SEP]",
    ]
    assert {(row["layer"], row["head"], row["query_label"]) for row in keys} == {("5", "11", "it")}
    got = [float(row["value"]) for row in keys if row["measure"] == "q·k"]
    np.testing.assert_allclose(got, scores, atol=1e-3)
    got = [float(row["value"]) for row in keys if row["measure"] == "softmax of scaled"]
    np.testing.assert_allclose(got, b.weights[5, 11, 1], atol=1e-5)
    (largest,) = [
        row for row in found if row["head_label"] == "H3" and row["measure"] == "largest weight, scaled"
    ]  # --head names its layer, and no other was run
    assert float(largest["value"]) == pytest.approx(b.weights[5, 3].max(-1).mean(), abs=1e-5)


def test_numbers_and_theory_are_saved_too(attnx: Run) -> None:
    attnx("scale", "--numbers", "112,96", "--divide", "8", "-o", "a.csv")
    got = [float(row["value"]) for row in rows("a.csv") if row["measure"] == "softmax of divided"]
    assert got == pytest.approx([1 / (1 + np.exp(-2)), 1 / (1 + np.exp(2))])
    attnx("scale", "--theory", "16,64", "-o", "b.csv")
    assert {row["d_label"] for row in rows("b.csv")} == {"16", "64"}


def test_word_has_a_row_for_each_layer_and_comparison(attnx: Run) -> None:
    attnx(*COMMANDS["word"], "--save", "a.csv")
    found = rows("a.csv")
    one, two = bundled("A river bank."), bundled("A bank of gold.")
    first = [row for row in found if row["compared_label"] == "the word"]
    assert [row["layer_label"] for row in first] == ["L0", "L1", "L2", "L3", "L4", "L5", "output"]
    at = one.pieces.index("bank"), two.pieces.index("bank")
    for layer in range(3):
        a, b = one.states[layer][at[0]], two.states[layer][at[1]]
        want = a @ b / np.linalg.norm(a) / np.linalg.norm(b)
        assert float(first[layer]["value"]) == pytest.approx(want, abs=1e-4)


def test_cost_has_a_row_for_each_length_and_measure(attnx: Run) -> None:
    attnx(*COMMANDS["cost"], "--save", "a.csv")
    found = rows("a.csv")
    cells = {row["tokens"]: float(row["value"]) for row in found if row["measure"] == "cells"}
    assert cells == {"8": 24 * 64, "64": 24 * 64 * 64}
    steps = {
        (row["tokens"], row["layer type_label"]): float(row["value"])
        for row in found
        if row["measure"] == "sequential steps"
    }
    assert steps == {("8", "self-attention"): 1, ("8", "recurrent"): 8, ("64", "self-attention"): 1,
                     ("64", "recurrent"): 64}  # fmt: skip


@pytest.mark.parametrize("name", ["heads", "qkv", "scale", "word", "cost"])
def test_parquet_has_the_rows_of_csv(name: str, attnx: Run) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    attnx(*COMMANDS[name], "-o", "a.csv")
    attnx(*COMMANDS[name], "-o", "a.parquet")
    table = parquet.read_table("a.parquet")
    found = rows("a.csv")
    assert table.column_names == list(found[0])
    assert table.column("value").to_pylist() == [float(row["value"]) for row in found]


@pytest.mark.parametrize(("command", "ending"), [("inspect", ".json"), ("heads", ".csv"), ("trace", ".npz")])
def test_a_file_whose_name_has_line_breaks_is_named_on_one_line(attnx: Run, command: str, ending: str) -> None:
    done = attnx(command, "cat", "-m", "tiny-gpt", "--save", f"new\nline\x85\u2028{ending}")
    assert f"wrote new↵line<0x85><U+2028>{ending}\n" in done.out + done.err
