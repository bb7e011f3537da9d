"""Ctrl-C at any point: exit code 130, no traceback, and a file that was to be written is whole or not there."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from tests.hub_server import Repo, serving

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals")

LONG = "the animal was tired " * 100
MAIN = """
import os, signal, sys
signal.signal(signal.SIGINT, lambda *_: os._exit(130))  # what main does first; here before it says that it is there
os.write(int(os.environ["READY"]), b"x")
from attnx.__main__ import main
main()
"""
"""Python itself takes some hundredths of a second to start, and answers an interrupt in its own way until then."""
SCREEN = b"\x1b[?1049h"
"""What turns a terminal to its other screen, where the explorer draws."""
COMMANDS = {
    "inspect": ["inspect", LONG],
    "trace": ["trace", "minilm", LONG, "--save", "x.npz"],
    "report": ["report", "The animal was tired.", "-o", "x.html"],
    "heads": ["heads", LONG],
    "word": ["word", "a bank", "the bank", "--word", "bank"],
    "scan": ["scan", "corpus.txt", "-o", "x.parquet"],
    "doctor": ["doctor"],
}
WAITS = (0.0, 0.15, 0.3, 0.6, 0.9)


def interrupted(args: list[str], wait: float, folder: Path, **more: str) -> tuple[int, str]:
    """How a command ends that is interrupted so long after it has begun, and what it says on stderr."""
    read, write = os.pipe()
    one = subprocess.Popen(
        [sys.executable, "-c", MAIN, *args], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        pass_fds=[write], env=os.environ | {"OMP_NUM_THREADS": "1", "READY": str(write)} | more,
    )  # fmt: skip
    os.close(write)
    assert os.read(read, 1) == b"x"
    os.close(read)
    time.sleep(wait)
    one.send_signal(signal.SIGINT)
    _, err = one.communicate(timeout=120)
    return one.returncode, err


def check(code: int, err: str) -> None:
    assert "Traceback" not in err
    assert code in (0, 130), err
    if code == 130:
        assert err.splitlines()[-1:] in ([], ["attnx: interrupted"]), err


@pytest.mark.parametrize("wait", WAITS)
@pytest.mark.parametrize("command", COMMANDS)
def test_an_interrupt_leaves_no_half_of_a_file(command: str, wait: float, tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text("The animal was tired.\n" * 2000, encoding="utf-8")
    code, err = interrupted(COMMANDS[command], wait, tmp_path)
    check(code, err)
    made = {p.name for p in tmp_path.iterdir()} - {"corpus.txt"}
    if command == "scan":
        # What a scan has done so far stays beside the file, and the next one goes on from there.
        assert not {name for name in made if name.endswith(".parquet")} or code == 0
        return
    assert made <= {"x.npz", "x.html"}
    if "x.npz" in made:
        assert len(np.load(tmp_path / "x.npz").files) > 40
    if "x.html" in made:
        assert (tmp_path / "x.html").read_text(encoding="utf-8").rstrip().endswith("</html>")


@contextmanager
def slow_hub(folder: Path) -> Iterator[dict[str, str]]:
    """A server whose weights take for ever: the environment that leads to it."""
    import threading

    held = threading.Event()

    class Slowly(dict):  # type: ignore[type-arg]
        def get(self, name: str, default: object = None) -> object:
            if name == "onnx/model.onnx":
                held.wait(30)
            return super().get(name, default)

    files = {"onnx/model.onnx": bytes(1000), "config.json": json.dumps({"model_type": "bert"}).encode()}
    repo = Repo(files, cut=Slowly())
    try:
        with serving({"tiny/slow": repo}) as endpoint:
            home = {"HF_HOME": str(folder / "hub"), "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_CACHE": ""}
            yield {**home, "HF_ENDPOINT": endpoint, "HF_HUB_CACHE": str(folder / "hub")}
            held.set()
    finally:
        held.set()


@pytest.mark.parametrize("wait", [0.0, 0.5, 1.5])
def test_an_interrupted_download_is_no_model(wait: float, tmp_path: Path) -> None:
    with slow_hub(tmp_path) as environment:
        code, err = interrupted(["pull", "tiny/slow"], wait, tmp_path, **environment)
    assert code == 130, err
    assert "Traceback" not in err
    assert not list(tmp_path.rglob("*.onnx"))


@pytest.mark.parametrize("wait", [None, 0.0, 0.5, 1.5])
def test_an_interrupted_explorer_gives_the_terminal_back(wait: float | None, tmp_path: Path) -> None:
    """Interrupted as soon as its screen is there (None), or so many seconds after it has begun."""
    import pty
    import termios

    main, side = pty.openpty()
    before = termios.tcgetattr(side)
    read, write = os.pipe()
    one = subprocess.Popen(
        [sys.executable, "-c", MAIN, "explore"], stdin=side, stdout=side, stderr=side, cwd=tmp_path,
        pass_fds=[write], env=os.environ | {"TERM": "xterm-256color", "READY": str(write)}, start_new_session=True,
    )  # fmt: skip
    os.close(write)
    assert os.read(read, 1) == b"x"
    os.close(read)
    os.set_blocking(main, False)
    shown = b""
    begun = time.monotonic()
    sent = False
    while one.poll() is None:
        time.sleep(0.05)
        try:
            shown += os.read(main, 1 << 16)
        except BlockingIOError:
            pass
        if not sent and (SCREEN in shown if wait is None else time.monotonic() - begun > wait):
            one.send_signal(signal.SIGINT)
            sent = True
        assert time.monotonic() - begun < 120
    with contextlib.suppress(BlockingIOError):  # a terminal hands over some 4 kB at a time
        while more := os.read(main, 1 << 16):
            shown += more
    after = termios.tcgetattr(side)
    os.close(side)
    os.close(main)
    assert one.returncode == 130, shown[-2000:]
    assert after[:4] == before[:4]
    assert b"Traceback" not in shown
    assert shown.count(SCREEN) == shown.count(b"\x1b[?1049l")
    assert wait is not None or SCREEN in shown
