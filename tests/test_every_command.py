"""Every command times everything that is bad: the commands and their options are read off the program itself.

A command or an option that is added is tested without a line here; one that takes a sort of value which is not known
here fails `test_every_sort_of_value_is_known`, and then wants a row in SOUND and BAD.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any, NamedTuple

import huggingface_hub.constants  # noqa: F401  it reads the environment once, and that must not be a test's
import numpy as np
import pytest
import typer

from attnx.cli import app as cli
from tests.hostile import EVIL, FEEDS, MODELS, READS_ONLY, Runner

MODEL = Path(__file__).parents[1] / "models" / "tiny-gpt"
TEXT = "the cat sat on the mat because it was tired"
FEED = {
    "input_ids": np.arange(2, 7)[None], "attention_mask": np.ones((1, 5), np.int64), "position_ids": np.arange(5)[None],
    **{f"past_key_values.{i}.{n}": np.zeros((1, 6, 0, 32), np.float32) for i in range(4) for n in ("key", "value")},
}  # fmt: skip
"""What that model takes."""


class Slot(NamedTuple):
    """An argument or option of a command."""

    command: str
    name: str
    """"" for an argument."""
    sort: str
    """What it takes; "" for a flag."""
    needed: bool


def slots(command: str) -> list[Slot]:
    root: Any = typer.main.get_command(cli.app)
    out = []
    for p in root.get_command(None, command).params:
        flag = p.param_type_name == "option" and p.is_flag
        argument = p.param_type_name == "argument"
        sort = "" if flag else "OUT" if p.name in ("save", "out") else str(p.metavar or p.name)
        out.append(Slot(command, "" if argument else p.opts[0], sort, bool(p.required)))
    return [s for s in out if s.name != "--help"]


ALL = {name: slots(name) for name in cli.names()}
WITH_MODEL = [name for name, own in ALL.items() if any(s.sort == "MODEL" for s in own)]
WITH_TEXT = [name for name, own in ALL.items() if any(s.sort in ("TEXT", "CORPUS") and not s.name for s in own)]
SOUND = {
    "MODEL": "m", "TEXT": TEXT, "CORPUS": "corpus.txt", "OUT": "out.parquet", "ORG/NAME": "tiny/none", "WORD": "cat",
    "FEED": "sound.npz", "PLAN": "plan.json", "CORRUPT": TEXT.replace("cat", "dog"), "CHECKPOINT": "tiny/none",
}  # fmt: skip
"""Values of what a command cannot do without."""
OWN = {"contacts": {"TEXT": "jqxzvkwfqq"}}
"""Values that a command wants in place of these."""
NEEDED = {"word": ["--word"]}
"""Options that a command asks for in its own words."""
EARLY = {"pull": "tiny/none"}
NUMBERS = ["", "x", "-1", "0", "1e999", "nan", "9" * 40, EVIL, "٣"]
JUNK = ["", " ", "x", "-1", "99999999999", EVIL, "🦙", ",", "x" * 5000]
FILES = ["", "nowhere", ".", "empty", "binary", "latin", "/dev/null", EVIL, "x" * 300, "no/where"]
BAD: dict[str, list[str]] = {
    "MODEL": [*FILES, "org/name", "../../etc/passwd", "m/tokenizer.json", "https://example.org/x.onnx", "C:\\x.onnx"],
    "TEXT": ["", "   ", "\n\r\n", "🦙" * 9, "\x00\x01\x02", EVIL, "\u200b\u200d\ufeff", "e\u0301" * 40, "\ud800"],
    "CORPUS": [*FILES, "*.nothing", "m/*.onnx", "m"],
    "OUT": ["", ".", "no/where.npz", "m/model.onnx", "out.exe", "/dev/full", "x" * 300 + ".csv", "out"],
    "FILE": FILES, "FEED": [*FILES, "m/model.onnx"], "PLAN": [*FILES, "m/model.onnx", "m/config.json"],
    "PATH": [*FILES, "m/model.onnx", "m/config.json"],
    "IDS": [*JUNK, "1,,2", "[1, 2", "1e3", "-5,4", "1 2 3x"], "ORG/NAME": [*JUNK, "../../x", "a/b/c", "a/b@", "/"],
    "NAME=VALUE": [*JUNK, "input_ids=", "=1", "input_ids=@nowhere.npy", "input_ids=@m/model.onnx", "input_ids=randn:x"],
    "NAME=SIZE": [*JUNK, "batch=", "batch=-1", "nobody=3"], "DEVICE": [*JUNK, "cuda:x", "cpu:9", "cpu,memory=lots"],
    "L": [*JUNK, "2-", "5-1", "0,,1", "9"], "FROM:TO": [*JUNK, "cat:", "a:b:c"],
    "L.H": [*JUNK, "0.99", "1.", ".1", "0.0.0", "9.0"],
    "WORD,WORD": [*JUNK, "cat,", "cat,dog"], "X,Y,...": [*JUNK, "1,nan", "1,inf"], "D,D,...": [*JUNK, "0", "8,x"],
    "N,N,...": [*JUNK, "0", "8,x", "1e9"],
    **dict.fromkeys(("K", "N", "T", "D"), NUMBERS),
    **dict.fromkeys(
        ("TOKEN", "WORD", "STAGE", "VIEW", "SCALE", "OVER", "SORT", "SIDE", "KIND", "MEASURE", "NAMES", "NAME", "REV",
         "induction", "ENGINE", "A", "HOW", "WHEN", "BY", "SPANS", "WHAT", "TASK", "CHECKPOINT"), JUNK,
    ),
}  # fmt: skip

BAD["OTHER"] = BAD["MODEL"]  # of a command that does without it
BAD["CORRUPT"] = BAD["TEXT"]


def line(command: str, *extra: str, **values: str) -> list[str]:
    """A command line that works, but for the values that are given by sort."""
    args = [command]
    takes = SOUND | {"MODEL": "m"} | OWN.get(command, {}) | values
    for slot in ALL[command]:
        wanted = slot.needed or slot.sort in values or slot.sort == "MODEL" or slot.name in NEEDED.get(command, [])
        if slot.name and wanted and slot.sort:
            args += [slot.name, takes[slot.sort]]
    args += extra
    args.append("--")
    args += [takes[s.sort] for s in ALL[command] if not s.name]
    return args


class Terminal(Runner):
    """Runs the explorer as if there were a terminal, up to where it would draw: what stands before is tested here."""

    def __call__(self, *args: object) -> tuple[int, str, str]:
        if args[0] != "explore":
            return super().__call__(*args)
        from attnx.explore.app import Explorer

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Explorer, "run", lambda self, *_, **__: None)
            patch.setattr("sys.stdin.isatty", lambda: True, raising=False)
            patch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
            return super().__call__(*args)


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model's file, which all tests link to: its graph is read and walked once."""
    return Path(shutil.copy(MODEL / "model.onnx", tmp_path_factory.mktemp("weights")))


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, weights: Path) -> Runner:
    (tmp_path / "corpus.txt").write_text(f"{TEXT}\n", encoding="utf-8")
    (tmp_path / "empty").touch()
    (tmp_path / "binary").write_bytes(np.random.default_rng(1).bytes(300))
    (tmp_path / "latin").write_bytes(b"caf\xe9\n")
    shutil.copytree(MODEL, tmp_path / "m", ignore=shutil.ignore_patterns("model.onnx"))
    (tmp_path / "m" / "model.onnx").symlink_to(weights)
    np.savez(tmp_path / "sound.npz", **FEED)
    (tmp_path / "plan.json").write_text(
        '[{"id": "a", "kind": "ablate", "layers": [1], "with": "zero"}]', encoding="utf-8"
    )
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return Terminal(capsys, monkeypatch, tmp_path)


def told(err: str) -> None:
    """An error says what was found on its first line, and what to do on the next."""
    lines = [text for text in err.splitlines() if text.strip()]
    at = max(i for i, text in enumerate(lines) if text.startswith("attnx: "))
    assert len(lines) > at + 1, f"nothing is said about what to do: {err}"
    assert lines[at + 1].startswith("  ")


def test_every_sort_of_value_is_known() -> None:
    own = {s.sort for each in ALL.values() for s in each if s.sort}
    assert own <= set(BAD), f"new sorts of values: {own - set(BAD)}"
    assert {s.sort for each in ALL.values() for s in each if not s.name or s.needed} <= set(SOUND)


@pytest.mark.parametrize("command", [c for c in ALL if c not in ("doctor", "pull", "export")])
def test_sound_lines_work(command: str, run: Runner) -> None:
    """Without this, the rest would show nothing."""
    got, out, err = run(*line(command))
    assert got == 0, err
    assert out or command in ("report", "explore")


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("command", WITH_MODEL)
def test_models(command: str, kind: str, run: Runner, tmp_path: Path) -> None:
    content, code, said = MODELS[kind]
    (tmp_path / "m" / "model.onnx").unlink()
    (tmp_path / "m" / "model.onnx").write_bytes(content)
    before = set(tmp_path.iterdir())
    got, out, err = run(*line(command))
    if kind in READS_ONLY:
        assert got in (0, 2, 3, 4), err
        return
    assert got == code, err
    assert re.search(said, err), err
    told(err)
    assert out == ""
    assert set(tmp_path.iterdir()) == before


@pytest.mark.parametrize("text", BAD["TEXT"], ids=ascii)
@pytest.mark.parametrize("command", WITH_TEXT)
def test_texts(command: str, text: str, run: Runner, tmp_path: Path) -> None:
    if command == "scan":
        (tmp_path / "corpus.txt").write_text(text, encoding="utf-8", errors="surrogatepass")
        args = line(command)
    else:
        args = line(command, TEXT=text)
    got, _, err = run(*args)
    assert got in (0, 2, 3, 4), err
    if got:
        told(err)
    for file in tmp_path.glob("*.html"):
        assert "\x1b" not in file.read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", [kind for kind in FEEDS if kind != "nothing"])  # a text is something
@pytest.mark.parametrize("command", [c for c in ALL if any(s.sort == "FEED" for s in ALL[c])])
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_feeds(command: str, kind: str, run: Runner, tmp_path: Path) -> None:
    FEEDS[kind][0](tmp_path / "feed.npz")
    got, _, err = run(*line(command, FEED="feed.npz"))
    assert got in (2, 4), err
    told(err)


OPTIONS = [slot for own in ALL.values() for slot in own if slot.name and slot.sort]


def sampled() -> dict[Slot, list[str]]:
    """A bad value for each option, more where options are few: each value of a sort is some option's."""
    out: dict[Slot, list[str]] = {}
    for sort in {slot.sort for slot in OPTIONS}:
        own, values = [slot for slot in OPTIONS if slot.sort == sort], BAD[sort]
        each = -(-len(values) // len(own))
        for at, slot in enumerate(own):
            out[slot] = [values[(at * each + i) % len(values)] for i in range(min(each, len(values)))]
    return out


SOME = sampled()


def test_the_sample_meets_every_option_and_every_value() -> None:
    assert set(SOME) == set(OPTIONS)
    for sort in {slot.sort for slot in OPTIONS}:
        assert {value for slot, own in SOME.items() if slot.sort == sort for value in own} == set(BAD[sort])


@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["some", "all"])
@pytest.mark.parametrize("slot", OPTIONS, ids=lambda s: f"{s.command} {s.name}")
def test_options(slot: Slot, whole: bool, run: Runner, tmp_path: Path) -> None:
    model = (tmp_path / "m" / "model.onnx").read_bytes()
    for value in [value for value in BAD[slot.sort] if value not in SOME[slot]] if whole else SOME[slot]:
        args = line(slot.command)
        args = [a for i, a in enumerate(args) if a != slot.name and (i == 0 or args[i - 1] != slot.name)]
        args[1:1] = [slot.name, value]
        got, out, err = run(*args)
        assert got in (0, 2, 3, 4, 5), (value, err)
        if got:
            told(err)
            assert out == "" or slot.command in ("doctor",), value
        for file in tmp_path.iterdir():
            if file.name.startswith("out") or file.name == "report.html":
                shutil.rmtree(file) if file.is_dir() else file.unlink()
        assert (tmp_path / "m" / "model.onnx").read_bytes() == model, value
        assert (tmp_path / "empty").exists()


@pytest.mark.parametrize("command", ALL)
def test_what_no_command_takes(command: str, run: Runner) -> None:
    many = ["a", "b", "c", "d", "e", EVIL] if command != "scan" else []  # it takes any number, and wants --out
    for extra in (["--no-such-option"], ["--json=maybe"], many):
        got, out, err = run(command, *(extra or ["x"]))
        assert got == 2, (extra, err)
        assert out == ""
        told(err)


@pytest.mark.parametrize("command", [c for c in ALL if any(s.name == "--json" for s in ALL[c]) and c != "pull"])
def test_json_is_one_document_whatever_happens(command: str, run: Runner) -> None:
    got, out, _ = run(*line(command, "--json"))
    assert got in (0, 5 if command == "doctor" else 0)
    assert json.loads(out)["schema"].startswith("attnx/")
    assert os.linesep not in out.rstrip("\n")
