"""What holds for every analysis: nothing raw reaches the terminal, padding does not count, JSON alone on stdout."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.cli.analysed import Case, causal, two_sided, values
from tests.cli.conftest import ANIMAL, Run

Args = Callable[[Case], tuple[str, ...]]
COMMANDS: dict[str, Args] = {
    "scale": lambda case: ("scale", *case.args),
    "heads": lambda case: ("heads", *case.args),
    "coref": lambda case: ("coref", *case.args, "--from", "4", "--to", "2,3"),
    "qkv": lambda case: ("qkv", *case.args),
    "mask": lambda case: ("mask", *case.args),
    "flow": lambda case: ("flow", *case.args, "-q", "4"),
    "word": lambda case: ("word", *case.args, "--other-inputs", str(case.feed), "-w", "4"),
    "diff": lambda case: ("diff", str(case.model), str(case.model), "--inputs", str(case.feed)),
    "cost": lambda case: ("cost", str(case.model), "--lengths", "4,8"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_padded_text(attnx: Run, tmp_path: Path, name: str) -> None:
    case = causal(tmp_path / "m", ids=[[0, 0, 5, 7, 2, 9]], mask=[[0, 0, 1, 1, 1, 1]])
    assert attnx(*COMMANDS[name](case), "--json").document["schema"] == f"attnx/{name}"
    assert attnx(*COMMANDS[name](case)).out


def test_padding_does_not_count(attnx: Run, tmp_path: Path) -> None:
    padded = causal(tmp_path / "a", ids=[[0, 0, 5, 7, 2, 9]], mask=[[0, 0, 1, 1, 1, 1]])
    plain = causal(tmp_path / "b", ids=[[5, 7, 2, 9]])
    for name in ("entropy", "largest weight", "mean distance", "previous"):
        found = []
        for case in (padded, plain):
            measures = {m["name"]: values(m) for m in attnx("heads", *case.args, "--json").document["measures"]}
            found.append(measures[name])
        np.testing.assert_allclose(found[0], found[1], atol=1e-5)
    one, two = (attnx("scale", *case.args, "--json").document for case in (padded, plain))
    np.testing.assert_allclose(values(one["layers"]), values(two["layers"]), atol=1e-4)
    rows = [values(attnx("flow", *case.args, "--json").document["rollout"])[-1] for case in (padded, plain)]
    np.testing.assert_allclose(rows[0][2:, 2:], rows[1], atol=1e-5)
    assert np.abs(rows[0][2:, :2]).max() == 0


@pytest.mark.parametrize("name", COMMANDS)
def test_json_alone_on_stdout(attnx: Run, tmp_path: Path, name: str) -> None:
    case = two_sided(tmp_path / "m")
    args = COMMANDS[name](case) if name not in ("flow", "word", "coref") else {
        "flow": ("flow", *case.args, "-q", "1"), "coref": ("coref", *case.args, "--from", "4", "--to", "1,2"),
        "word": ("word", *case.args, "--other-inputs", str(case.feed), "-w", "2"),
    }[name]  # fmt: skip
    found = json.loads(attnx(*args, "--json").out)
    assert (found["schema"], found["version"]) == (f"attnx/{name}", 1)


@pytest.mark.parametrize("name", COMMANDS)
def test_names_of_files_are_shown_as_text(attnx: Run, tmp_path: Path, name: str) -> None:
    case = causal(tmp_path / "m")
    hostile = tmp_path / "[bold]\x1b[31m.onnx"
    shutil.copy(case.model, hostile)
    case = Case(hostile, case.feed, case.ran, case.weights)
    done = attnx(*COMMANDS[name](case))  # the fixture fails on an escape
    assert "[bold]<0x1B>[31m" in done.out.replace("\n", "")


@pytest.mark.parametrize("command", ["scale", "coref", "qkv", "mask", "flow", "heads"])
def test_texts_are_shown_as_text(attnx: Run, command: str) -> None:
    text = "The [bold]dog[/bold] \x1b[31m\u202e saw that 고양이 was here because it ran."
    done = attnx(command, text, *(("-q", "it") if command in ("scale", "flow") else ()))
    assert "\u202e" not in done.out + done.err
    assert all(len(line) <= 80 for line in done.out.splitlines())


@pytest.mark.parametrize("name", COMMANDS)
def test_help_says_what_it_does(attnx: Run, name: str) -> None:
    text = attnx(name, "--help").out
    assert "--json" in text
    assert f"attnx {name}" in text


def test_help_lists_them_all(attnx: Run) -> None:
    text = attnx("--help").out
    assert set(COMMANDS) <= set(text.split())


def test_layers_that_are_not_asked_for_are_not_run(attnx: Run) -> None:
    got = attnx("scale", ANIMAL, "-l", "2", "--json").document
    assert got["size"]["axes"][0]["labels"] == ["L2"]
    assert len(attnx("mask", ANIMAL, "-l", "1-2", "--json").document["masks"]) == 2


def test_progress_goes_to_a_terminal_alone(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from attnx.cli.output import progress

    with progress(3, "examples") as tell:
        tell(1)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    with progress(3, "[b]texts") as tell:
        tell(2)
    said = capsys.readouterr()
    assert said.out == ""
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", said.err)
    assert re.search(r"\[b\]texts .* 2/3 +[\d.]+/s 0:0\d:\d\d|\[b\]texts .* 2/3 +[\d.]+/s -:--:--", shown), shown
    assert said.err.rstrip().endswith("\x1b[2K")  # the line is wiped
    with progress(3, "texts", quiet=True) as tell:
        tell(3)
    assert capsys.readouterr() == ("", "")
    with progress(None, "changes") as tell:  # the total is known only to what is run
        tell(2, 7)
    assert "2/7" in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().err)
