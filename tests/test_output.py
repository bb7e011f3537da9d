"""stdout and stderr: what a terminal, a pipe and a script get."""

import json

import numpy as np
import pytest
from rich.padding import Padding
from rich.text import Text

from attnx.console import output


def test_a_pipe_is_not_cut_and_not_padded(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    output.show(Text("x" * 500, "bold red"), Padding(Text("y"), (0, 0, 0, 2)))
    assert capsys.readouterr().out == "x" * 500 + "\n  y\n"


def test_columns_are_followed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    output.show(Text("word " * 10))
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 20


def test_markup_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    output.show("[bold]x[/bold] [/b] :smile:")
    assert capsys.readouterr().out == "[bold]x[/bold] [/b] :smile:\n"


def test_json_has_no_nan_and_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    values = np.array([[1.5, np.nan], [-np.inf, 2]], np.float32)[:, ::-1]
    output.emit_json({"values": values, "x": float("nan")})
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert json.loads(out) == {"values": [[None, 1.5], [2.0, None]], "x": None}


def test_notes_go_to_stderr_once_and_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    output.notes(["a\x1b[31m", "b", "b"])
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "attnx: a\\x1b[31m\nattnx: b\n"
