"""Faults around attnx: a full disk, no home, a cache that is gone, broken or shared, odd terminals, clocks that jump."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.hostile import PROGRAM, Runner, process


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Runner:
    return Runner(capsys, monkeypatch, tmp_path)


def test_a_file_is_replaced_with_force_alone(run: Runner, tmp_path: Path) -> None:
    (tmp_path / "x.npz").write_bytes(b"mine")
    got, _, err = run("trace", "minilm", "it", "--save", "x.npz")
    assert (got, (tmp_path / "x.npz").read_bytes()) == (2, b"mine")
    assert "--force" in err
    assert run("trace", "minilm", "it", "--save", "x.npz", "--force")[0] == 0
    assert len(np.load(tmp_path / "x.npz").files) > 40


@pytest.mark.skipif(os.name == "nt", reason="resource limits")
@pytest.mark.parametrize("name", ["x.npz", "x.safetensors"])
def test_a_full_disk_leaves_nothing_behind(name: str, tmp_path: Path) -> None:
    code_ = (
        "import resource, sys\nresource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "from attnx.cli import run\nsys.exit(run(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code_, "trace", "minilm", "it was", "--save", name],
        capture_output=True, text=True, check=False, cwd=tmp_path, env=dict(os.environ) | {"ATTNX_CACHE": "off"},
    )  # fmt: skip
    assert done.returncode == 5, done.stderr
    assert "cannot be written" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name == "nt", reason="paths")
@pytest.mark.parametrize(
    "environment",
    [
        {"ATTNX_CACHE": "/dev/null/cache"},
        {"ATTNX_CACHE": "/proc/cache"},
        {"HOME": "/nonexistent", "XDG_CACHE_HOME": "", "ATTNX_CACHE": "/nonexistent/x/y"},
        {"TERM": "dumb"},
        {"COLUMNS": "20"},
        {"COLUMNS": "0"},
        {"COLUMNS": "wide"},
        {"LANG": "C", "LC_ALL": "C"},
        {"PYTHONIOENCODING": "ascii"},
        {"PYTHONIOENCODING": "latin-1"},
        {"NO_COLOR": "1", "TERM": ""},
    ],
    ids=str,
)
def test_odd_surroundings(environment: dict[str, str], tmp_path: Path) -> None:
    done = process("inspect", "The animal was tired. 日本", env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "animal" in done.stdout
    assert "Traceback" not in done.stderr
    assert "\x1b" not in done.stdout


@pytest.mark.skipif(os.name == "nt", reason="signals")
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


@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_a_kill_in_the_middle_harms_no_later_run(tmp_path: Path) -> None:
    environment = dict(os.environ) | {"ATTNX_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    command = [*PROGRAM, "trace", "minilm", "It was tired.", "--save", "x.npz"]
    for wait in (0.2, 0.5, 0.8, 1.1):
        one = subprocess.Popen(
            command, env=environment, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(wait)
        one.send_signal(signal.SIGKILL)
        one.wait(60)
        time.sleep(0.1)
        if (tmp_path / "x.npz").exists():
            assert len(np.load(tmp_path / "x.npz").files) > 40  # whole, or not there
            (tmp_path / "x.npz").unlink()
    cache = tmp_path / "cache"
    for i, entry in enumerate(sorted(cache.glob("*.attnx")) if cache.is_dir() else []):
        entry.write_bytes(entry.read_bytes()[: -1 - i])  # what a kill without an atomic rename would leave
    (cache / "left.part").parent.mkdir(exist_ok=True)
    (cache / "left.part").write_bytes(b"half")
    os.utime(cache / "left.part", (4e9, 4e9))  # and a clock that jumped
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(np.load(tmp_path / "x.npz").files) > 40


@pytest.mark.skipif(os.name == "nt", reason="pipes")
@pytest.mark.parametrize("args", [["inspect", "It was tired.", "--layer", "0"], ["heads", "It was tired.", "--json"]])
def test_a_reader_that_leaves_makes_no_noise(args: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as closed:
        done = subprocess.run([*PROGRAM, *args], stdout=closed, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
