"""A scan on a local Ray cluster of two workers is the scan of one process, to the byte; killed, it goes on."""

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import attnx
from attnx.errors import RunError, UsageError
from attnx.scan import distributed
from attnx.scan.carried import Carried
from attnx.scan.distributed import Elsewhere, OneThread, Room, _room
from attnx.scan.identity import software
from attnx.scan.scanning import scan

WORDS = "the animal did not cross a wide street because it was too tired to walk, and so we sat".split()
TEXTS = [" ".join(WORDS[at % 5 : 5 + at % 5 + at % 9] + WORDS[: at % 3]) for at in range(60)]
needs_ray = pytest.mark.skipif(
    find_spec("ray") is None or sys.platform == "win32", reason="ray[data] is not installed (attnx[scan])"
)


def command(folder: Path, out: str, *more: str) -> list[str]:
    (folder / "c.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    named = ("--engine", "ray", "--workers", "2", "--part", "4", "--device", "cpu")
    return [sys.executable, "-m", "attnx", "scan", "c.txt", "-o", out, *named, *more]


def local(folder: Path, out: str, monkeypatch: pytest.MonkeyPatch) -> tuple[bytes, int]:
    """The file of the local engine, and how many texts it found done."""
    monkeypatch.chdir(folder)
    model = attnx.open("minilm", device="cpu")
    done = scan(model, [Path("c.txt")], Path(out), part=4)
    return (folder / out).read_bytes(), done.kept


@needs_ray
def test_two_workers_give_the_bytes_of_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = subprocess.run(command(tmp_path, "r.parquet", "--json"), cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)  # and nothing else is there
    assert (document["texts"], document["kept"], document["device"]) == (len(TEXTS), 0, "cpu")
    assert all(line.startswith("attnx: ") for line in done.stderr.splitlines()), done.stderr
    assert (tmp_path / "r.parquet").read_bytes() == local(tmp_path, "l.parquet", monkeypatch)[0]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c.txt", "l.parquet", "r.parquet"]


@needs_ray
@pytest.mark.slow
@pytest.mark.parametrize("how", ["SIGKILL", "SIGINT"])
def test_what_a_broken_off_cluster_made_is_kept(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = subprocess.Popen(
        command(tmp_path, "r.parquet"), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    parts = tmp_path / "r.parquet.parts"
    for _ in range(12000):
        if len(list(parts.glob("0*.parquet"))) > 1 or process.poll() is not None:
            break
        time.sleep(0.01)
    os.kill(process.pid, getattr(signal, how))
    out, err = process.communicate(timeout=120)
    there = len(list(parts.glob("0*.parquet")))
    assert there > 1, err
    assert out == ""
    assert "Traceback" not in err
    if how == "SIGINT":
        assert process.returncode == 130
        assert "the same command goes on from there" in err
    file, kept = local(tmp_path, "r.parquet", monkeypatch)
    assert kept >= 4 * (there - 1)
    assert file == local(tmp_path, "l.parquet", monkeypatch)[0]


def test_what_other_threads_print_is_dropped() -> None:
    kept = io.StringIO()
    stream = OneThread(kept)
    thread = threading.Thread(target=print, args=("(raylet) Task failed.",), kwargs={"file": stream})
    thread.start()
    thread.join()
    print("ours", file=stream, flush=True)
    assert kept.getvalue() == "ours\n"
    assert stream.isatty() is False


@needs_ray
@pytest.mark.slow
def test_what_is_wrong_is_said_as_ever(tmp_path: Path) -> None:
    run = command(tmp_path, "r.parquet")
    with (tmp_path / "c.txt").open("ab") as file:
        file.write(b"\nfine\n\xff\n")
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 4, done.stderr
    assert f"c.txt, line {len(TEXTS) + 2} is not UTF-8 text" in done.stderr
    assert "Traceback" not in done.stderr


@needs_ray
@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "nowhere"])
def test_a_cluster_that_is_not_there(address: str, tmp_path: Path) -> None:
    run = [*command(tmp_path, "r.parquet"), "--address", address]
    missing = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert missing.returncode == 5, missing.stderr
    assert "no Ray cluster could be joined or started" in missing.stderr
    assert "Traceback" not in missing.stderr
    assert missing.stdout == ""
    assert [p.name for p in tmp_path.iterdir()] == ["c.txt"]


def test_what_there_is_room_for() -> None:
    assert _room({"CPU": 16}, "auto", None) == Room(4, 4, False)
    assert _room({"CPU": 2}, "auto", None) == Room(1, 2, False)
    assert _room({"CPU": 16}, "auto", 6) == Room(6, 2, False)
    assert _room({"CPU": 16, "GPU": 3}, "auto", None) == Room(3, 1, True)
    assert _room({"CPU": 16, "GPU": 3}, "cuda:0,tf32", 2) == Room(2, 1, True)
    assert _room({"CPU": 16, "GPU": 3}, "cpu", None) == Room(4, 4, False)
    with pytest.raises(UsageError, match="the Ray cluster has no GPU"):
        _room({"CPU": 16}, "cuda", None)
    with pytest.raises(UsageError, match="`workers=17`: the Ray cluster has 16 processors"):
        _room({"CPU": 16}, "auto", 17)
    with pytest.raises(UsageError, match="`workers=4`: the Ray cluster has 3 GPUs and 16 processors"):
        _room({"CPU": 16, "GPU": 3}, "auto", 4)


def test_an_actor_opens_the_same_model() -> None:
    model = attnx.open("minilm", device="cpu")
    again = Elsewhere(Carried(model.elsewhere()), "cpu", software(), 1).open()
    assert (again.name, again.path, again.sessions.threads) == ("minilm", model.path.resolve(), 1)


@pytest.mark.parametrize("name", ["attnx", "onnxruntime", "tokenizers"])
def test_an_actor_of_other_software_measures_nothing(name: str) -> None:
    model = attnx.open("minilm", device="cpu")
    with pytest.raises(RunError, match=rf"has {name} .*, and the command 0\.0$"):
        Elsewhere(Carried(model.elsewhere()), "cpu", {**software(), name: "0.0"}, 1).open()


def test_one_scan_of_a_process_runs_on_ray_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = SimpleNamespace(enable_progress_bars=True, target_max_block_size=2)
    context = SimpleNamespace(get_current=lambda: settings)
    ray = SimpleNamespace(is_initialized=lambda: True, data=SimpleNamespace(DataContext=context))
    monkeypatch.setattr(distributed, "_ray", lambda: ray)
    monkeypatch.setattr(distributed, "_made", lambda *_: iter("abc"))
    given: Any = (None, None, None, None)
    out, run = sys.stdout, distributed.engine()
    first = run(*given)
    assert next(first) == "a"
    with pytest.raises(UsageError, match="another scan of this process runs on Ray"):
        next(run(*given))
    first.close()
    assert list(run(*given)) == ["a", "b", "c"]
    assert sys.stdout is out
    assert settings.enable_progress_bars
