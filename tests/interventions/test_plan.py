"""Plans as JSON, read strictly; and `attnx intervene`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attnx
from attnx.errors import InputError
from attnx.interventions.plan import Attribute, Edit, Intervention, Lens
from attnx.interventions.plan_file import parse_plan, read_plan
from attnx.view.json import schema
from tests.hostile import Runner
from tests.interventions import models

GOOD = {"id": "a", "kind": "ablate", "with": "zero"}


def test_a_plan_is_read() -> None:
    steps = parse_plan([
        {"id": "a", "kind": "ablate", "run": "inputs", "from": None, "component": None, "layers": [0], "heads": [1, 2],
         "queries": None, "keys": None, "with": "mean", "over": "unpadded"},
        {"id": "b", "kind": "knockout", "component": "decoder", "queries": [6], "keys": [0], "keep_self": True},
        {"id": "c", "kind": "patch", "run": "other", "from": "inputs", "quantity": "value", "keys": [3]},
        {"id": "d", "kind": "patch", "run": "other", "quantity": "mlp"},
        {"id": "lens", "kind": "lens"},
        {"id": "attribute", "kind": "attribute", "targets": [[0, 8, 82], [1, 0, 0]], "run": "other"},
    ])  # fmt: skip
    a, b, c, d, lens, attribute = steps
    assert isinstance(a, Intervention)
    assert isinstance(b, Intervention)
    assert isinstance(c, Intervention)
    assert isinstance(d, Intervention)
    assert (a.id, a.run) == ("a", "inputs")
    (edit,) = a.edits
    assert (edit.kind, edit.layers, edit.heads, edit.queries, edit.method, edit.over) == (
        "ablate", (0,), (1, 2), None, "mean", "unpadded",
    )  # fmt: skip
    (edit,) = b.edits
    assert (edit.component, edit.queries, edit.keys, edit.keep_self) == ("decoder", (6,), (0,), True)
    (edit,) = c.edits
    assert (c.run, edit.source, edit.quantity, edit.keys) == ("other", "inputs", "value", (3,))
    assert d.edits[0].source == "inputs", "a patch takes from the other feed where none is named"
    assert lens == Lens("lens")
    assert attribute == Attribute(((0, 8, 82), (1, 0, 0)), "attribute", "other")
    assert parse_plan({"interventions": [GOOD]})[0].id == "a"


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ([], "the plan is empty"),
        ({}, "a plan is a list of interventions, and this is an object"),
        ("x", "this is a text"),
        (3, "this is a number"),
        ([3], "entry 0 of the plan is a number"),
        ([GOOD, []], "entry 1 of the plan is a list"),
        ([GOOD, GOOD], "has the id 'a' 2 times"),
        ([{**GOOD, "id": ""}], 'its id is ""'),
        ([{**GOOD, "id": 3}], "its id is 3"),
        ([{**GOOD, "id": "../x"}], "its id is"),
        ([{**GOOD, "id": "base"}], "its id is 'base'"),
        ([{**GOOD, "layer": [0]}], 'there is no field "layer"'),
        ([{"id": "a"}], "it has no kind"),
        ([{**GOOD, "kind": "remove"}], 'kind is "remove"'),
        ([{**GOOD, "run": "clean"}], 'run is "clean"'),
        ([{**GOOD, "component": "both"}], 'component is "both"'),
        ([{**GOOD, "layers": 0}], "layers is 0"),
        ([{**GOOD, "layers": []}], r"layers is \[\]"),
        ([{**GOOD, "layers": [-1]}], r"layers is \[-1\]"),
        ([{**GOOD, "heads": [True]}], r"heads is \[true\]"),
        ([{**GOOD, "heads": [1.0]}], r"heads is \[1.0\]"),
        ([{**GOOD, "with": None}], "it does not say with what to ablate"),
        ([{**GOOD, "with": "noise"}], 'with is "noise"'),
        ([{**GOOD, "over": "unpadded"}], "over is given without a mean"),
        ([{**GOOD, "keys": [1]}], "keys is given, and ablate does not take it"),
        ([{**GOOD, "quantity": "value"}], "quantity is given, and ablate does not take it"),
        ([{**GOOD, "keep_self": True}], "keep_self is given, and ablate does not take it"),
        ([{"id": "a", "kind": "knockout", "keep_self": 1}], "keep_self is 1"),
        ([{"id": "a", "kind": "patch"}], "it does not say what to patch"),
        ([{"id": "a", "kind": "patch", "quantity": "scores"}], 'quantity is "scores"'),
        ([{"id": "a", "kind": "patch", "quantity": "mlp", "heads": [0]}], "heads are given, and mlp has none"),
        ([{"id": "a", "kind": "patch", "quantity": "key", "queries": [0]}], "queries are given, and key has none"),
        ([{"id": "a", "kind": "patch", "quantity": "value", "from": "third"}], 'from is "third"'),
        ([{"id": "a", "kind": "lens", "layers": [0]}], "layers is given, and lens does not take it"),
        ([{"id": "a", "kind": "lens", "layers": 0}], "layers is given, and lens does not take it"),
        ([{"id": "a", "kind": "attribute"}], "targets is null"),
        ([{"id": "a", "kind": "attribute", "targets": [[0, 1]]}], "targets is"),
        ([{"id": "a", "kind": "attribute", "targets": [[0, 1, -2]]}], "targets is"),
        ([{"id": "a", "kind": "attribute", "targets": 3}], "targets is 3"),
    ],
)
def test_what_is_no_plan_is_told(plan: Any, said: str) -> None:
    with pytest.raises(InputError, match=said) as error:
        parse_plan(plan)
    assert error.value.hint


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"NaN", b'"x"'])
def test_files_that_are_no_plan(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(content)
    with pytest.raises(InputError):
        read_plan(path)
    path.write_text('[{"layer": 0, "layer": 1}]')
    with pytest.raises(InputError, match="has 'layer' twice in one entry, with different values"):
        read_plan(path)
    with pytest.raises(InputError, match="there is no file"):
        read_plan(tmp_path / "none.json")
    with pytest.raises(InputError, match="cannot be read"):
        read_plan(tmp_path)


@pytest.fixture
def run(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Runner:
    return Runner(capsys, monkeypatch, folder)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    kind = models.KINDS["grouped"]
    models.build(kind, models.weights(kind), tmp_path)
    for name, feed in zip(("clean", "corrupt"), models.feeds(kind), strict=True):
        np.savez(tmp_path / f"{name}.npz", **feed)
    return tmp_path


def _plan(folder: Path, *entries: dict[str, Any]) -> None:
    (folder / "plan.json").write_text(json.dumps(list(entries)), encoding="utf-8")


ARGS = ("intervene", "model.onnx", "--inputs", "clean.npz", "--plan", "plan.json")


def test_the_command_writes_what_the_interface_gives(folder: Path, run: Runner) -> None:
    import jsonschema

    entries = [
        {"id": "zero", "kind": "ablate", "layers": [1], "heads": [2], "with": "zero"},
        {"id": "patch", "kind": "patch", "run": "other", "from": "inputs", "quantity": "residual", "queries": [2, 3]},
        {"id": "lens", "kind": "lens"},
        {"id": "attribute", "kind": "attribute", "targets": [[0, 6, 3]]},
    ]
    _plan(folder, *entries)
    code, out, err = run(*ARGS, "--other", "corrupt.npz", "--save", "out.npz", "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    jsonschema.validate(document, schema("intervene"))
    arrays = dict(np.load(folder / "out.npz"))
    one, other = models.feeds(models.KINDS["grouped"])
    model = attnx.open(folder / "model.onnx", device="cpu")
    results = model.run_with(parse_plan(entries), {"inputs": one}, {"inputs": other})
    want = results.arrays()
    assert (
        set(arrays) == set(want) >= {"base.logits", "corrupt.logits", "zero.logits", "lens.hidden", "attribute.heads"}
    )
    for name, array in want.items():
        np.testing.assert_allclose(arrays[name], array, atol=1e-5)
    said = {entry["id"]: entry for entry in document["interventions"]}
    gap = np.abs(arrays["zero.logits"] - arrays["base.logits"]).max() / max(1, np.abs(arrays["base.logits"]).max())
    assert said["zero"]["moved"]["logits"] == pytest.approx(gap, rel=1e-4)
    assert said["zero"]["arrays"]["zero.logits"] == {"shape": [2, 7, models.VOCABULARY], "type": "float32"}
    assert said["lens"]["moved"] == {}
    assert [entry["id"] for entry in document["unedited"]] == ["base", "corrupt"]


def test_the_command_shows_how_far_outputs_move(folder: Path, run: Runner) -> None:
    _plan(
        folder,
        {"id": "zero", "kind": "ablate", "layers": [1], "heads": [2], "with": "zero"},
        {"id": "l", "kind": "lens"},
    )
    code, out, err = run(*ARGS)
    assert (code, err) == (0, "")
    assert "zero" in out
    assert "logits" in out


@pytest.mark.parametrize(
    ("entry", "code", "said"),
    [
        ({**GOOD, "layers": [2]}, 2, "there is no layer 2"),
        ({**GOOD, "heads": [4]}, 2, "there is no head 4"),
        ({**GOOD, "queries": [7]}, 2, "there is no query 7"),
        ({**GOOD, "component": "encoder"}, 2, "no component 'encoder'"),
        ({"id": "a", "kind": "patch", "quantity": "value"}, 2, "no such feed"),
        ({"id": "a", "kind": "patch", "run": "other", "quantity": "value"}, 2, "no such feed"),
        ({"id": "a", "kind": "attribute", "targets": [[0, 0, 99]]}, 4, "there is no token 99"),
        ({"id": "a", "kind": "ablate"}, 4, "with what to ablate"),
    ],
)
def test_mistakes_are_told(entry: dict[str, Any], code: int, said: str, folder: Path, run: Runner) -> None:
    _plan(folder, entry)
    got, out, err = run(*ARGS, "--json")
    assert (got, out) == (code, "")
    assert said in err
    assert "Traceback" not in err


def test_a_plan_is_not_written_over(folder: Path, run: Runner) -> None:
    _plan(folder, GOOD)
    code, _, err = run(*ARGS, "--save", "clean.npz", "--force")
    assert code == 2
    assert "would be overwritten" in err


def test_an_edit_is_equal_to_itself_alone() -> None:
    assert Edit("ablate") != Edit("ablate")
    assert len({Edit("ablate"), Edit("ablate")}) == 2
