"""stdout and stderr: what a terminal, a pipe and a script get."""

import errno
import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from rich.cells import cell_len
from rich.padding import Padding
from rich.text import Text

from attnx.cli import app as cli
from attnx.cli import output
from attnx.cli.plain import wrapped
from attnx.errors import InputError


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


class Screen(io.StringIO):
    """A stderr that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("columns", [24, 40, 80, 160])
def test_notes_and_errors_are_wrapped_to_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("COLUMNS", str(columns))
    said = "in each text, 1 token repeats: no induction score; 고양이가 매트 위에 앉았다; `attnx doctor` says more"
    output.note(said)
    cli.report(InputError(said, said))
    lines = screen.getvalue().splitlines()
    assert all(cell_len(line) <= columns for line in lines)
    assert " ".join(" ".join(lines).split()) == f"attnx: {said} attnx: {said} {said}"
    starts = [at for at, line in enumerate(lines) if line.startswith("attnx: ")]
    assert len(starts) == 2
    assert all(line.startswith("       ") for line in lines[1 : starts[1]])  # under the text
    assert sum("`attnx doctor`" in line for line in lines) == 3  # to copy: never over two lines
    assert max(map(cell_len, lines)) > min(columns, 100) - 20


def test_what_is_longer_than_a_line_is_not_cut() -> None:
    assert wrapped("see /a/long/path now", 8, "attnx: ", "  ") == "attnx: see\n  /a/long/path\n  now"
    assert wrapped("one\ntwo `three four` `", 11, "> ", "  ") == "> one\n  two\n  `three four`\n  `"
    assert wrapped("a list: --layer 0=1,1=3.", 18) == "a list:\n--layer 0=1,1=3."
    assert wrapped("", 8, "attnx: ") == "attnx: "


def test_a_pipe_gets_whole_lines(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    output.note("a line that is longer than twenty columns")
    assert capsys.readouterr().err == "attnx: a line that is longer than twenty columns\n"


def test_an_error_that_cannot_be_written_keeps_its_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with 2>/dev/full: the system says so only when stderr is written."""
    with (tmp_path / "err").open("w") as own:

        class Full(io.StringIO):
            def write(self, text: str) -> int:
                raise OSError(errno.ENOSPC, "No space left on device")

            def fileno(self) -> int:
                return own.fileno()

        monkeypatch.setattr(sys, "stderr", Full())
        code = cli.run(["sites", str(tmp_path / "nowhere.onnx")])
    assert code == 3
