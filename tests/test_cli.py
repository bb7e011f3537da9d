"""The command line as a whole: what it loads, how it fails, how it ends."""

import errno
import os
import signal
import subprocess
import sys
import time
from array import array
from importlib import import_module
from inspect import signature
from pathlib import Path

import jsonschema
import pytest

from attnx import __version__
from attnx.cli import app as cli
from attnx.cli import process
from attnx.errors import DeviceError, InputError, ModelError, UnsupportedError, UsageError
from attnx.view.json import schema

PROGRAM = [sys.executable, "-m", "attnx"]
HEAVY = ("onnxruntime", "onnx", "tokenizers", "numpy", "rich", "orjson")
ONE_TEXT = {
    "asyncio", "calendar", "concurrent.futures", "csv", "email", "http", "importlib.metadata", "logging", "socket",
    "PIL", "huggingface_hub", "jinja2", "matplotlib", "onnx", "orjson", "pyarrow", "textual",
    "attnx.cli.batch_run", "attnx.explore", "attnx.graph", "attnx.interventions", "attnx.scan", "attnx.sites",
    "attnx.catalog.hub", "attnx.feed.audio", "attnx.feed.generation_config", "attnx.feed.patches", "attnx.feed.vision",
    "attnx.run.batch", "attnx.run.decoding", "attnx.run.encdec", "attnx.run.generate", "attnx.run.joint",
    "attnx.run.query_rows", "attnx.run.windows", "attnx.study.head_mean", "attnx.study.head_stats",
    "attnx.study.layer_names", "attnx.study.overview_stats", "attnx.study.patchmap", "attnx.study.save",
    "attnx.tokens.residues", "attnx.view.figure", "attnx.view.json", "attnx.view.save",
}  # fmt: skip
"""What a look at one short text does without, once its model was seen."""


def test_help_and_version_load_nothing_heavy() -> None:
    lines = [["--help"], ["--version"], [], ["inspect", "--help"], ["inspct"], ["inspect", "--x"]]
    code = (
        "import sys, contextlib, io\n"
        "from attnx.cli import app as cli\n"
        f"for line in {lines!r}:\n"
        "    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):\n"
        "        cli.run(line)\n"
        f"    print(line, [name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "".join(f"{line} []\n" for line in lines)


def test_a_look_at_one_text_loads_nothing_that_it_does_not_need(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["inspect", "The animal slept.", "-m", "tiny-gpt", "--device", "cpu"]
    assert cli.run(line) == 0  # from now on the cache knows the model, and the graph that is run
    capsys.readouterr()
    code = f"import sys; from attnx.cli import app; app.run({line!r}); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stderr.split())
    assert {"rich", "onnxruntime", "attnx.view.overview"} <= loaded
    assert loaded & ONE_TEXT == set()
    # `containment`, which every process has anyway, among them.
    assert len([name for name in loaded if name.startswith("attnx")]) <= 120


def test_version() -> None:
    done = subprocess.run([*PROGRAM, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"attnx {__version__}\n"


def test_help_lists_every_command_with_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--help"]) == 0
    out = capsys.readouterr().out
    files = {path.stem for path in Path(cli.__file__).with_name("commands").glob("[!_]*.py")}
    assert set(cli.names()) == files
    for name in files:
        assert len(cli.summary(name)) > 10
        assert f"  {name} " in out


@pytest.mark.parametrize("name", cli.names())
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([name, "--help"]) == 0
    assert f"attnx {name}" in capsys.readouterr().out


@pytest.mark.parametrize("name", cli.names())
def test_every_command_that_writes_json_has_a_schema(name: str) -> None:
    command = getattr(import_module(f"attnx.cli.commands.{name}"), name)
    if "json" not in signature(command).parameters:
        return
    found = schema(name)
    jsonschema.Draft202012Validator.check_schema(found)
    assert found["properties"]["schema"] == {"const": f"attnx/{name}"}


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["inspct"], "Did you mean `attnx inspect`?"),
        (["zzz", "A text."], "attnx --help"),
        (["inspect", "--querry", "it"], "attnx inspect --help"),
        (["sites"], "MODEL"),
        (["--nothing"], "--nothing"),
        (["-m", "tiny-gpt", "A text."], "no such option: -m\n  Options follow the command or the text"),
        (["inspect", "a", "--save", ""], "--save is empty\n  Give the name of a file."),
        (["inspect", "a", "--save="], "--save is empty"),
        (["heads", "a", "-o", ""], "-o is empty"),
        (["inspect", "--file", ""], "--file is empty"),
        (["inspect", "a", "b"], "b"),
        (["inspect", "The", "animal"], "goes in quotes"),
        (["models", "x"], "(x)\n  `attnx models --help` lists the options."),
        (["inspect", "a", "--top", "x"], "x"),
        (["inspect", "a", "--save"], "requires an argument\n  `attnx inspect --help` lists"),
        (["diff", "a", "b", "--layer"], "requires an argument\n  `attnx diff --help` lists"),
    ],
)
def test_wrong_usage_is_two_and_says_what_to_do(args: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(args) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("attnx: ")
    assert says in err
    assert "Traceback" not in err


@pytest.mark.parametrize("args", [["\x1b[31mx", "y"], ["inspect", "--\x1b[31m"], ["sites", "\x1b]0;x\x07"]])
def test_an_escape_on_the_command_line_does_not_come_back_raw(
    args: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(args) in (2, 3)
    assert "\x1b" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code"), [(UsageError, 2), (ModelError, 3), (UnsupportedError, 3), (InputError, 4), (DeviceError, 5)]
)
def test_every_error_has_its_exit_code(
    error: type[UsageError], code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error("what was found", "what to do")

    monkeypatch.setattr("attnx.model.open", fail)
    assert cli.run(["sites", "minilm"]) == code
    assert capsys.readouterr().err == "attnx: what was found\n  what to do\n"


def test_a_bug_shows_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("attnx.model.open", fail)
    with pytest.raises(ZeroDivisionError):
        cli.run(["sites", "minilm"])


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (KeyboardInterrupt, 130, "interrupted"),
        (MemoryError, 5, "memory"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), 5, "not enough memory"),
        (RuntimeError("can't start new thread"), 5, "no more threads"),
        (ImportError("x.so: failed to map segment from shared object", name="onnx.cpp"), 5, "load the package onnx"),
        (ImportError("x.so: cannot allocate memory in static TLS block"), 5, "load a library"),
    ],
)
def test_interrupt_and_want_of_memory(
    error: BaseException | type[BaseException],
    code: int,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("attnx.model.open", fail)
    assert cli.run(["sites", "minilm"]) == code
    err = capsys.readouterr().err
    assert says in err
    assert "Traceback" not in err


def test_want_of_memory_while_a_want_of_memory_is_told(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("attnx.cli.app.begin", fail)
    assert process.work(["sites", "minilm"]) == 5
    assert capfd.readouterr().err.startswith("attnx: there is not enough memory to run in\n  ")


@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_ctrl_c_ends_a_real_process() -> None:
    import fcntl
    import termios

    read, write = os.pipe()
    process = subprocess.Popen(
        [*PROGRAM, "inspect", "-"], stdin=read, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    try:
        os.write(write, b"The animal was\n")
        unread = array("i", [1])
        until = time.monotonic() + 120
        while unread[0]:  # once the command has taken this line, it waits for the rest of its text
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.01)
            fcntl.ioctl(read, termios.FIONREAD, unread)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)  # the text has not ended, and does not until the process has
    finally:
        process.kill()
        os.close(read)
        os.close(write)
    assert process.returncode == 130
    assert err.strip() == "attnx: interrupted"


@pytest.mark.skipif(os.name == "nt", reason="pipes")
@pytest.mark.parametrize("args", [["sites", "minilm"], ["sites", "minilm", "--json"]])
def test_a_reader_that_leaves_is_no_error(args: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as closed:
        done = subprocess.run([*PROGRAM, *args], stdout=closed, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_stdout_carries_the_result_alone() -> None:
    done = subprocess.run([*PROGRAM, "sites", "minilm", "--json"], capture_output=True, check=True)
    assert done.stdout.count(b"\n") == 1
    assert done.stderr == b""
