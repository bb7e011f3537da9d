"""Faults around attnx: a full disk, no home, a cache that is gone or broken, streams that are closed, odd terminals."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from attnx.session import cache
from tests.hostile import EVIL, PROGRAM, RAW, Runner, process
from tests.idioms import Form, build, code

posix = pytest.mark.skipif(os.name == "nt", reason="POSIX")
TEXT = "The animal didn't cross the street because it was too tired."
SMALL = ("-m", "tiny-gpt")
"""For what does not depend on the model: it opens in a tenth of the time."""


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Runner:
    return Runner(capsys, monkeypatch, tmp_path)


# What is written

WRITES = {
    "trace npz": ["trace", "tiny-gpt", "it was", "--save", "x.npz"],
    "trace safetensors": ["trace", "tiny-gpt", "it was", "--save", "x.safetensors"],
    **{
        f"inspect {ending}": ["inspect", TEXT, *SMALL, "-H", "3.1", "--save", f"x.{ending}"]
        for ending in ("txt", "svg", "html", "csv", "npz", "parquet", "png", "pdf")
    },
    "report": ["report", "It was tired.", *SMALL, "-o", "x.html"],
}
LIMITED = """
import resource, sys
from importlib import import_module
from attnx.cli.app import run
most, modules, *args = sys.argv[1:]
for name in modules.split():
    import_module(name)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(most),) * 2)
sys.exit(run(args))
"""


def limited(most: int, *args: str, cache_in: str = "off", folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a command line that may write no file of more than so many bytes.

    Python itself writes none: it would leave the half of a module's bytecode behind, for every later process to read.
    """
    own = {"png": "matplotlib.pyplot", "pdf": "matplotlib.pyplot", "parquet": "pyarrow.parquet"}
    modules = ["attnx.model", "onnxruntime", *(own[e] for e in own if any(arg.endswith(f".{e}") for arg in args))]
    return subprocess.run(
        [sys.executable, "-c", LIMITED, str(most), " ".join(modules), *args],
        capture_output=True, text=True, check=False, cwd=folder,
        env=dict(os.environ) | {"ATTNX_CACHE": cache_in, "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip


@posix
@pytest.mark.parametrize("kind", WRITES)
def test_a_full_disk_leaves_nothing_behind(kind: str, tmp_path: Path) -> None:
    done = limited(256, *WRITES[kind], folder=tmp_path)
    assert done.returncode == 5, done.stderr
    assert "cannot be written" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@posix
@pytest.mark.parametrize("kind", WRITES)
def test_a_disk_that_is_full_keeps_what_was_there(kind: str, tmp_path: Path) -> None:
    """--force replaces a file by a whole one, or not at all."""
    there = tmp_path / WRITES[kind][-1]
    there.write_bytes(b"mine")
    done = limited(256, *WRITES[kind], "--force", folder=tmp_path)
    assert done.returncode == 5, done.stderr
    assert [p.name for p in tmp_path.iterdir()] == [there.name]
    assert there.read_bytes() == b"mine"


@posix
def test_a_disk_too_full_for_the_cache_is_no_error(tmp_path: Path) -> None:
    kept = tmp_path / "cache"
    done = limited(64, "inspect", TEXT, *SMALL, "--json", cache_in=str(kept), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["schema"]
    assert list(kept.iterdir()) == []


@pytest.mark.parametrize("kind", WRITES)
def test_a_file_is_replaced_with_force_alone(kind: str, run: Runner, tmp_path: Path) -> None:
    there = tmp_path / WRITES[kind][-1]
    there.write_bytes(b"mine")
    got, _, err = run(*WRITES[kind])
    assert (got, there.read_bytes()) == (2, b"mine")
    assert "--force" in err
    assert run(*WRITES[kind], "--force")[0] == 0
    assert there.stat().st_size > 100
    assert [p.name for p in tmp_path.iterdir()] == [there.name]


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("kind", ["trace npz", "inspect svg", "inspect csv", "report"])
def test_a_folder_that_takes_no_file(
    kind: str, number: int, run: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(tempfile, "mkstemp", refuse)  # the cache cannot be written either
    got, _, err = run(*WRITES[kind])
    assert got == 5
    assert os.strerror(number) in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [
    "a b.npz", "it's.npz", 'say "x".npz', "line\nbreak.npz", "🦙.npz", "x" * 251 + ".npz", "🦙" * 62 + ".npz",
    "-x.npz", "$HOME.npz", EVIL + ".npz", "..npz.npz", "é.npz",
])  # fmt: skip
@posix
def test_names_of_files(name: str, run: Runner, tmp_path: Path) -> None:
    got, _, err = run("trace", "tiny-gpt", "it was", f"--save=./{name}")
    assert got == 0, err
    assert len(np.load(tmp_path / name).files) > 30
    got, _, err = run("trace", "tiny-gpt", "--inputs", f"./{name}")
    assert got == 4  # found and read: its arrays are no feed
    assert "input" in err


@pytest.mark.parametrize("kind", WRITES)
def test_a_folder_that_is_not_there(kind: str, run: Runner, tmp_path: Path) -> None:
    *args, name = WRITES[kind]
    got, _, err = run(*args, f"no/where/{name}")
    assert got == 2
    assert "mkdir -p" in err
    assert list(tmp_path.iterdir()) == []


# What is read is not written over


@pytest.mark.parametrize("link", [None, "symbolic", "hard"])
def test_what_is_read_is_not_written_over(link: str | None, run: Runner, tmp_path: Path) -> None:
    ids = np.array([[101, 2009, 2001, 102]])
    feed = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    np.savez(tmp_path / "feed.npz", **feed)
    np.save(tmp_path / "ids.npy", ids)
    (tmp_path / "t.txt").write_text(TEXT, encoding="utf-8")
    out = tmp_path / "feed.npz"
    if link is not None:
        out = tmp_path / "other.npz"
        out.symlink_to("feed.npz") if link == "symbolic" else out.hardlink_to(tmp_path / "feed.npz")
    before = (tmp_path / "feed.npz").read_bytes()
    got, _, err = run("trace", "minilm", "--inputs", "feed.npz", "--save", out.name, "--force")
    assert got == 2
    assert "overwritten" in err
    assert (tmp_path / "feed.npz").read_bytes() == before
    got, _, err = run("inspect", "--file", "t.txt", "--save", "t.txt", "--force")
    assert got == 2, err
    assert (tmp_path / "t.txt").read_text(encoding="utf-8") == TEXT
    got, _, err = run("trace", "minilm", "--inputs", "feed.npz", "--set", "input_ids=@ids.npy", "--save", "y.npz")
    assert got == 0, err


def test_a_model_is_not_written_over(run: Runner, tmp_path: Path) -> None:
    model = Path(__file__).parents[1] / "models" / "tiny-gpt" / "model.onnx"
    (tmp_path / "m").mkdir()
    for name in ("model.npz", "m/model.npz"):  # an .onnx file under another name
        (tmp_path / name).write_bytes(model.read_bytes())
    for given in ("model.npz", "m/model.npz"):
        got, _, err = run("trace", given, "--ids", "1,2", "--save", given, "--force")
        assert got == 2, err
        assert (tmp_path / given).read_bytes() == model.read_bytes()


def test_a_text_that_is_called_like_a_file_is_asked_about(run: Runner, tmp_path: Path) -> None:
    assert run("inspect", "x.txt", "--save", "x.txt")[0] == 0  # nothing is called so yet
    before = (tmp_path / "x.txt").read_bytes()
    code, _, err = run("inspect", "x.txt", "--save", "x.txt", "--force")
    assert (code, "--file" in err) == (2, True)
    assert (tmp_path / "x.txt").read_bytes() == before


# Surroundings

LINES = [
    ["inspect", "The animal was tired. 日本"], ["inspect", TEXT, "--view", "grid", "-m", "tiny-gpt"],
    ["inspect", TEXT, *SMALL, "-H", "3.1", "--view", "lines"], ["inspect", TEXT, *SMALL, "--json"], ["coref", TEXT],
    ["qkv", TEXT, *SMALL], ["mask", TEXT, *SMALL],
    ["scale", TEXT, "-m", "tiny-gpt"], ["heads", TEXT, "-m", "tiny-gpt"], ["flow", TEXT, *SMALL, "-q", "it"],
    ["word", "a bank", "the bank", "--word", "bank"], ["sites", "tiny-gpt"], ["models"], ["--help"],
    ["inspect", "--help"],
]  # fmt: skip
EVERY = """
import json, sys
from attnx.cli.app import run
for line in json.loads(sys.argv[1]):
    code = run(line)
    sys.stdout.flush()
    print(f"exit {code} {line}", file=sys.stderr, flush=True)
"""
"""One process for all command lines: it is the surroundings that matter here."""


@pytest.mark.parametrize(
    "environment",
    [
        {"TERM": "dumb"},
        {"TERM": "", "NO_COLOR": "1"},
        {"COLUMNS": "20"},
        {"COLUMNS": "1"},
        {"COLUMNS": "0"},
        {"COLUMNS": "-5"},
        {"COLUMNS": "wide"},
        {"COLUMNS": "999999"},
        {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"PYTHONIOENCODING": "ascii"},
        {"PYTHONIOENCODING": "latin-1"},
        {"FORCE_COLOR": "1"},
    ],
    ids=str,
)
def test_terminals_of_all_kinds(environment: dict[str, str], tmp_path: Path) -> None:
    encoding = environment.get("PYTHONIOENCODING", "utf-8")
    done = subprocess.run(
        [sys.executable, "-c", EVERY, json.dumps(LINES)], capture_output=True, check=False, cwd=tmp_path,
        env=dict(os.environ) | environment, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    err = done.stderr.decode("utf-8", "replace")
    assert done.returncode == 0, err
    assert "Traceback" not in err
    assert [line for line in err.splitlines() if line.startswith("exit ") and not line.startswith("exit 0")] == []
    assert err.count("exit 0") == len(LINES)
    out = done.stdout.decode("ascii" if environment.get("LC_ALL") == "C" else encoding)
    assert not RAW.search(out.replace("\ufeff", "").replace("\r\n", "\n")) or "FORCE_COLOR" in environment
    assert "animal" in out or environment.get("COLUMNS") in ("1", "20")


@posix
@pytest.mark.parametrize(
    "environment",
    [
        {"ATTNX_CACHE": "/dev/null/cache"},
        {"ATTNX_CACHE": "/proc/cache"},
        {"ATTNX_CACHE": "~nobody-of-that-name/cache"},
        {"ATTNX_CACHE": "x" * 300},
        {"HOME": "/nonexistent", "XDG_CACHE_HOME": "", "ATTNX_CACHE": None},
        {"HOME": None, "XDG_CACHE_HOME": None, "ATTNX_CACHE": None},
        {"HOME": "/proc", "XDG_CACHE_HOME": None, "ATTNX_CACHE": None},
        {"HOME": "", "XDG_CACHE_HOME": "", "ATTNX_CACHE": None, "TMPDIR": "/nonexistent"},
        {"PATH": "", "USER": None, "LOGNAME": None},
    ],
    ids=str,
)
def test_homes_and_caches_that_are_not_there(environment: dict[str, str | None], tmp_path: Path) -> None:
    there = {k: v for k, v in (dict(os.environ) | environment).items() if v is not None}
    lines = [
        ["inspect", TEXT],
        ["heads", TEXT, *SMALL],
        ["sites", "minilm"],
        ["models"],
        ["mask", TEXT, *SMALL],
        ["inspect", "x", "-m", "a/b"],
    ]
    done = subprocess.run(
        [sys.executable, "-c", EVERY, json.dumps(lines)], capture_output=True, text=True, check=False, cwd=tmp_path,
        env=there | ({"HF_HOME": str(tmp_path / "hub")} if there.get("HOME") else {}), stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    assert [line.split()[1] for line in done.stderr.splitlines() if line.startswith("exit ")] == ["0"] * 5 + ["3"]
    assert list(tmp_path.iterdir()) == []


@posix
def test_a_run_leaves_nothing_at_home(tmp_path: Path) -> None:
    """onnxruntime's telemetry keeps its database there, from 1.31 on."""
    keep = {k: v for k, v in os.environ.items() if k not in ("ORT_DISABLE_TELEMETRY", "XDG_CACHE_HOME")}
    done = subprocess.run(
        [*PROGRAM, "inspect", "it was", *SMALL], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
        env=keep | {"HOME": str(tmp_path), "ATTNX_CACHE": "off"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert list(tmp_path.rglob("*")) == []


@posix
@pytest.mark.parametrize(
    "args", [["inspect", TEXT, *SMALL], ["inspect", TEXT, "--json"], ["sites", "minilm"], ["--help"]]
)
def test_a_stdout_that_is_full(args: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*PROGRAM, *args], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 5
    assert done.stderr.startswith("attnx: the output cannot be written: No space left on device\n  ")
    assert len(done.stderr.splitlines()) == 2


@posix
def test_a_stderr_that_is_full_costs_the_notes_and_not_the_result() -> None:
    line = [*PROGRAM, "heads", "\u65e5\u672c", "-m", "tiny-gpt"]  # too short for one of its measures, which is noted
    want = subprocess.run(line, capture_output=True, text=True, check=True)
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(line, stdout=subprocess.PIPE, stderr=full, text=True, check=True)
    assert want.stderr.startswith("attnx: ")
    assert done.stdout == want.stdout


@posix
@pytest.mark.parametrize(
    ("shut", "args", "code"),
    [
        (">&-", "inspect 'it was' -m tiny-gpt", 5), (">&-", "inspect 'it was' --json", 5), (">&-", "--help", 5),
        (">&-", "trace tiny-gpt 'it was' --save x.npz", 5), ("<&-", "inspect -", 4),
        ("<&-", "inspect 'it was' -m tiny-gpt", 0), ("2>&-", "inspect 'it was' -m tiny-gpt", 0),
        ("2>&-", "inspect 'it was' -m nope", 3), ("<&- >&- 2>&-", "models", 5),
        ("<&- >&-", "inspect 'it was' -m tiny-gpt --save x.npz", 0),
        (">&-", "report 'it was' -m tiny-gpt -o x.html", 0),
    ],
)  # fmt: skip
def test_streams_that_are_closed(shut: str, args: str, code: int, tmp_path: Path) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", f"{' '.join(PROGRAM)} {args} {shut}"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert "Traceback" not in done.stderr
    assert done.returncode == code, done.stderr
    for file in tmp_path.iterdir():  # whole, and nobody's chatter in it
        if file.suffix == ".npz":
            assert np.load(file).files
        else:
            assert file.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


@posix
@pytest.mark.parametrize(
    "args", [["inspect", TEXT, *SMALL, "--layer", "0"], ["heads", TEXT, "--json"], ["sites", "minilm"], ["--help"]]
)
def test_a_reader_that_leaves_makes_no_noise(args: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as closed:
        done = subprocess.run([*PROGRAM, *args], stdout=closed, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


# Line ends


def test_line_ends_of_windows_change_nothing(run: Runner, tmp_path: Path) -> None:
    """In every kind of text that is read, with a byte-order mark besides."""
    said = "It was tired.\nIt slept.\n"
    rows = '{"text": "It was tired."}\n{"text": "It slept."}\n'
    tables = {"t.txt": said, "t.jsonl": rows, "t.csv": "id,text\n1,It was tired.\n2,It slept.\n"}
    for name, content in tables.items():
        (tmp_path / "unix").mkdir(exist_ok=True)
        (tmp_path / "dos").mkdir(exist_ok=True)
        (tmp_path / "unix" / name).write_bytes(content.encode())
        (tmp_path / "dos" / name).write_bytes(b"\xef\xbb\xbf" + content.replace("\n", "\r\n").encode())
    assert run("inspect", "--file", "unix/t.txt", "--jsonl") == run("inspect", "--file", "dos/t.txt", "--jsonl")
    from attnx.scan import corpus

    for name in tables:
        texts = [[t.text for t in corpus.read([tmp_path / which / name])] for which in ("unix", "dos")]
        assert texts[0] == texts[1] == ["It was tired.", "It slept."]


# The cache


@pytest.fixture
def cold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def damage(content: bytes, how: str) -> bytes:
    if how == "half":
        return content[: len(content) // 2]
    if how == "nothing":
        return b""
    if how == "one bit":
        at = len(content) * 2 // 3
        return content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :]
    if how == "zeros":
        return bytes(len(content))
    if how == "more":
        return content + b"x"
    return b"attnx cache 1\n" + content


@pytest.mark.parametrize("how", ["half", "nothing", "one bit", "zeros", "more", "twice its head", "a folder"])
def test_entries_that_are_damaged_are_as_good_as_none(how: str, run: Runner, cold: Path) -> None:
    want = run("inspect", TEXT, *SMALL, "--json")
    entries = sorted(cold.glob("*.attnx"))
    assert entries
    for entry in entries:
        content = entry.read_bytes()
        if how == "a folder":
            entry.unlink()
            entry.mkdir()
        else:
            entry.write_bytes(damage(content, how))
    assert run("inspect", TEXT, *SMALL, "--json") == want
    assert run("inspect", TEXT, *SMALL, "--json") == want


@pytest.mark.parametrize("moment", [0.0, 4e9, 1.0, 2**33 + 0.5])
def test_a_clock_that_jumps(moment: float, run: Runner, cold: Path, tmp_path: Path) -> None:
    """Entries and left-overs from the future and from 1970."""
    want = run("inspect", TEXT, *SMALL, "--json")
    (cold / "left.part").write_bytes(b"half")
    for entry in cold.iterdir():
        os.utime(entry, (moment, moment))
    assert run("inspect", TEXT, *SMALL, "--json") == want
    assert run("heads", TEXT, *SMALL, "--json")[0] == 0
    assert run("trace", "tiny-gpt", TEXT, "--save", "x.npz")[0] == 0


def test_a_model_that_changed_is_read_again_whatever_its_time_says(run: Runner, cold: Path, tmp_path: Path) -> None:
    """A file replaced within the clock's resolution, or by one with an older time."""
    np.savez(tmp_path / "feed.npz", x=code(1, 4))
    seen = set()
    for seed in (0, 1, 2):
        model = build(Form())
        weight = numpy_helper.to_array(model.graph.initializer[0]) * np.float32(1 + seed)
        model.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight, model.graph.initializer[0].name))
        onnx.save(model, tmp_path / "m.onnx")
        os.utime(tmp_path / "m.onnx", (1e9 - seed, 1e9 - seed) if seed == 2 else (1e9, 1e9))
        assert run("trace", "m.onnx", "--inputs", "feed.npz", "--save", f"{seed}.npz")[0] == 0
        seen.add(np.load(tmp_path / f"{seed}.npz")["attention.0.weights"].tobytes())
    assert len(seen) == 3


@posix
def test_two_at_once_on_a_cold_cache(tmp_path: Path) -> None:
    environment = dict(os.environ) | {"ATTNX_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    both = [
        subprocess.Popen(
            [*PROGRAM, "inspect", "It was tired.", "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
        )
        for _ in range(2)
    ]
    outs = [p.communicate(timeout=120) for p in both]
    assert [p.returncode for p in both] == [0, 0]
    assert outs[0] == outs[1]
    assert not list((tmp_path / "cache").glob("*.part"))


KILLED = """
import os, signal, sys
from pathlib import Path
from attnx.cli import app as cli
from attnx.session import cache
at, place = int(sys.argv[1]), sys.argv[2]
real = getattr(os, "fdopen") if place == "writing" else Path.replace
def die(*args, **more):
    global at
    at -= 1
    if at >= 0:
        return real(*args, **more)
    if place == "writing":
        file = real(*args, **more)
        file.write(b"attnx cache 1\\n half of it")
        file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
if place == "writing":
    os.fdopen = die
else:
    Path.replace = die
sys.exit(cli.run(sys.argv[3:]))
"""


@posix
@pytest.mark.parametrize("place", ["writing", "renaming"])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_kill_in_the_middle_harms_no_later_run(place: str, at: int, tmp_path: Path) -> None:
    """Killed while an entry of the cache, or the file itself, is half written or not yet in its place."""
    environment = dict(os.environ) | {"ATTNX_CACHE": str(tmp_path / "cache")}
    args = ["trace", "tiny-gpt", "It was tired.", "--save", "x.npz"]
    one = subprocess.run(
        [sys.executable, "-c", KILLED, str(at), place, *args], env=environment, cwd=tmp_path, capture_output=True,
        check=False,
    )  # fmt: skip
    assert one.returncode in (0, -9)
    if (tmp_path / "x.npz").exists():
        assert len(np.load(tmp_path / "x.npz").files) > 30  # whole, or not there
        (tmp_path / "x.npz").unlink()
    done = process(*args, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(np.load(tmp_path / "x.npz").files) > 30
    again = process("trace", "tiny-gpt", "It was tired.", "--save", "y.npz", env=environment, cwd=tmp_path)
    assert again.returncode == 0
    one_, other = np.load(tmp_path / "x.npz"), np.load(tmp_path / "y.npz")
    for name in one_.files:
        np.testing.assert_allclose(one_[name], other[name], atol=1e-6)


def test_what_kills_left_is_swept_away(cold: Path) -> None:
    cold.mkdir()
    left = cold / "old.part"
    left.write_bytes(b"half")
    os.utime(left, (time.time() - 7200,) * 2)
    cache.write(cache.key("a"), {})
    assert not left.exists()
