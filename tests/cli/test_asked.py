"""Commands fetch only what they show: no matrix leaves the session where nobody asked for one, and nothing changes."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnx.session.ort import Session
from tests.cli.analysed import causal
from tests.cli.conftest import ANIMAL, BANK, Run

LONG = " ".join([ANIMAL, BANK] * 5)
TOKENS = 112


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Shapes of all that sessions gave."""
    shapes: list[tuple[int, ...]] = []
    run = Session.run

    def spy(self: Session, *args: Any, **named: Any) -> dict[str, np.ndarray]:
        values = run(self, *args, **named)
        shapes.extend(value.shape for value in values.values())
        return values

    monkeypatch.setattr(Session, "run", spy)
    return shapes


def alike(got: Any, want: Any, at: str = "") -> None:
    """The same document, numbers to float32's rounding."""
    if isinstance(want, dict):
        assert got.keys() == want.keys(), at
        for name, value in want.items():
            alike(got[name], value, f"{at}.{name}")
    elif isinstance(want, list):
        assert len(got) == len(want), at
        for i, value in enumerate(want):
            alike(got[i], value, f"{at}[{i}]")
    elif isinstance(want, float):
        assert math.isclose(got, want, rel_tol=1e-4, abs_tol=2e-6), (at, got, want)
    else:
        assert got == want, at


def whole(attnx: Run, *args: str) -> Any:
    """What a command says where everything is fetched."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("attnx.run.prompt.Prompt.is_plain", False)
        return attnx(*args).document


@pytest.mark.parametrize(
    "args",
    [
        ("heads",),
        ("heads", "--layer", "1-2"),
        ("heads", "--probe", "induction", "--layer", "0"),
        ("coref", "--from", "it@10"),
        ("coref", "--from", "it@10", "--to", "animal@2,street@8"),
        ("coref", "--from", "didn@3"),
        ("inspect", "--query", "it@10"),
        ("inspect", "--query", "it@10", "--top", "3", "--mute"),
        ("inspect", "--query", "it@10", "--layer", "2", "--stage", "scores"),
        ("inspect", "--query", "9", "--head", "5.11", "--stage", "masked"),
        ("inspect", "--query", "it@10", "--mean", "heads"),
    ],
    ids=" ".join,
)
def test_no_matrix_is_fetched_and_nothing_changes(
    attnx: Run, fetched: list[tuple[int, ...]], args: tuple[str, ...]
) -> None:
    command, *options = args
    got = attnx(command, LONG, *options, "--json").document
    assert len(got["tokens"]["pieces"]) == TOKENS
    assert fetched
    assert not [shape for shape in fetched if shape.count(TOKENS) > 1 or math.prod(shape) > 6 * TOKENS**2]
    alike(got, whole(attnx, command, LONG, *options, "--json"))


@pytest.mark.parametrize(
    "args",
    [
        ("heads",),
        ("mask",),
        ("coref", "--from", "3", "--to", "1,2"),
        ("inspect", "--query", "2"),
        ("inspect", "--query", "3", "--head", "1.0"),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("mask", [None, ((1, 1, 1, 1, 0, 0),), ((0, 1, 1, 1, 1, 1),)], ids=str)
def test_arrays_of_ones_own(attnx: Run, tmp_path: Path, args: tuple[str, ...], mask: Any) -> None:
    case = causal(tmp_path, mask=mask)
    command, *options = args
    alike(
        attnx(command, *case.args, *options, "--json").document, whole(attnx, command, *case.args, *options, "--json")
    )


@pytest.mark.parametrize("args", [("heads",), ("mask",), ("inspect", "--query", "2"), ("inspect", "--mean", "heads")])
def test_of_a_batch_the_first_sequence_is_shown(attnx: Run, tmp_path: Path, args: tuple[str, ...]) -> None:
    case = causal(tmp_path, ids=((3, 5, 7, 2, 9, 5), (4, 4, 1, 2, 6, 8)))
    command, *options = args
    got = attnx(command, *case.args, *options, "--json").document
    alike(got, whole(attnx, command, *case.args, *options, "--json"))


def test_a_mask_is_fetched_once_for_all_heads(attnx: Run, fetched: list[tuple[int, ...]], tmp_path: Path) -> None:
    got = attnx("mask", LONG, "--json").document
    assert max(math.prod(shape) for shape in fetched) <= TOKENS**2
    alike(got, whole(attnx, "mask", LONG, "--json"))
    fetched.clear()
    case = causal(tmp_path)
    got = attnx("mask", *case.args, "--layer", "1", "--json").document
    assert all(len(shape) == 2 for shape in fetched if shape.count(6) > 1)
    alike(got, whole(attnx, "mask", *case.args, "--layer", "1", "--json"))


@pytest.mark.parametrize("over", [("--mean", "heads"), ("--max", "heads")], ids=" ".join)
def test_a_mean_over_heads_is_made_in_the_graph(
    attnx: Run, fetched: list[tuple[int, ...]], tmp_path: Path, over: tuple[str, ...]
) -> None:
    args = ("inspect", LONG, "--layer", "2-3", *over, "--json")
    got = attnx(*args).document
    assert [shape for shape in fetched if shape.count(TOKENS) > 1] == [(TOKENS, TOKENS)] * 4
    alike(got, whole(attnx, *args))
    case = causal(tmp_path, mask=((1, 1, 1, 1, 0, 0),))
    args = ("inspect", *case.args, *over, "--view", "heatmap", "--json")
    alike(attnx(*args).document, whole(attnx, *args))
    assert "mean of 12 heads" in attnx("inspect", ANIMAL, "--layer", "5", "--mean", "heads").out


@pytest.mark.parametrize("args", [(), ("--view", "overview", "--layer", "0-2")], ids=" ".join)
def test_the_overview_of_a_long_text_is_reduced_in_the_graph(
    attnx: Run, fetched: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...]
) -> None:
    monkeypatch.setattr("attnx.session.memory.LARGE", 0)
    text = " ".join([ANIMAL, BANK] * 2)
    got = attnx("inspect", text, *args, "--json").document
    count = len(got["tokens"]["pieces"])
    assert [shape[-2:] for shape in fetched if shape.count(count) > 1] == [(count, count)] * 2  # over heads, the last
    shown = attnx("inspect", text, *args).out
    alike(got, whole(attnx, "inspect", text, *args, "--json"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("attnx.run.prompt.Prompt.is_plain", False)
        assert attnx("inspect", text, *args).out == shown


@pytest.mark.parametrize("ids", [True, False])
def test_the_overview_of_a_decoder(attnx: Run, monkeypatch: pytest.MonkeyPatch, ids: bool) -> None:
    monkeypatch.setattr("attnx.session.memory.LARGE", 0)
    given = ("--ids", "5,6,7,8,5,6,7,8,9,5,6,7") if ids else ("The cat sat on the mat. The cat sat on the mat.",)
    args = ("inspect", "-m", "tiny-gpt", *given, "--json")
    alike(attnx(*args).document, whole(attnx, *args))


@pytest.mark.parametrize(
    "args",
    [(), ("--query", "it@10"), ("--query", "it@10", "--key", "animal@2")],
    ids=lambda args: " ".join(args) or "-",
)
def test_of_a_long_text_one_layer_is_taken_apart(
    attnx: Run, fetched: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...]
) -> None:
    monkeypatch.setattr("attnx.session.memory.LARGE", 0)
    got = attnx("qkv", LONG, *args, "--json").document
    assert len([shape for shape in fetched if shape.count(TOKENS) > 1]) <= 4  # scores, scaled, masked, weights
    alike(got, whole(attnx, "qkv", LONG, *args, "--json"))


@pytest.mark.parametrize("args", [(), ("--query", "it@10")], ids=["all", "query"])
def test_a_long_text_flows_through_means(
    attnx: Run, fetched: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...]
) -> None:
    monkeypatch.setattr("attnx.session.memory.LARGE", 0)
    got = attnx("flow", LONG, *args, "--json").document
    assert {shape for shape in fetched if shape.count(TOKENS) > 1} == {(TOKENS, TOKENS)}
    alike(got, whole(attnx, "flow", LONG, *args, "--json"))


def test_only_the_layers_asked_for_run(attnx: Run, fetched: list[tuple[int, ...]]) -> None:
    attnx("inspect", ANIMAL, "--query", "it", "--head", "3.1")
    arrays = [shape for shape in fetched if len(shape) > 1]  # besides them, how many queries and keys there are
    assert arrays == [(1, 12, 1, 16)] * 2  # the row of the weights and of what the softmax got


@pytest.mark.parametrize("command", ["heads", "inspect"])
def test_texts_of_a_file_are_as_one_by_one(attnx: Run, tmp_path: Path, command: str) -> None:
    texts = [ANIMAL, BANK, "It slept.", LONG, "The bank refused the loan, and the bank closed.", "it"]
    (tmp_path / "texts").write_text("\n".join(texts), encoding="utf-8")
    if command == "inspect":
        done = attnx("inspect", "--file", "texts", "--layer", "2", "--query", "1", "--jsonl").out
        together = [json.loads(line) for line in done.splitlines()]
        alone = [attnx("inspect", text, "--layer", "2", "--query", "1", "--json").document for text in texts]
        alike(together, alone)
        return
    got = attnx("heads", "--file", "texts", "-m", "tiny-gpt", "--json").document
    alone = [attnx("heads", text, "-m", "tiny-gpt", "--json").document for text in texts]
    for at, measure in enumerate(got["measures"]):
        parts = np.array([one["measures"][at]["values"] for one in alone], dtype=np.float64)
        there = ~np.isnan(parts)
        with np.errstate(invalid="ignore"):
            want = np.where(there, parts, 0).sum(0) / there.sum(0)
        got_values = np.array(measure["values"], np.float64)
        np.testing.assert_allclose(got_values, want, rtol=2e-6, atol=2e-6, err_msg=measure["name"])


@pytest.mark.parametrize("command", ["heads", "scale", "mask", "flow", "qkv", "inspect"])
def test_inputs_and_sizes_are_set_alike_everywhere(attnx: Run, tmp_path: Path, command: str) -> None:
    case = causal(tmp_path)
    values = ("input_ids=3,5,7,2,9,5", "attention_mask=ones", "position_ids=arange")
    told = [part for value in values for part in ("--set", value)]
    got = attnx(command, "-m", str(case.model), *told, "--dim", "batch=1", "--dim", "sequence=6", "--json").document
    alike(got, attnx(command, *case.args, "--json").document)
