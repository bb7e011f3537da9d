"""How the process ends: nothing that an end has to do is left out but the freeing of objects."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import atexit, os, sys, threading
from attnx.cli.ending import Ending
from attnx.cli.containment import contained

class Freed:
    def __del__(self):
        os.write(1, b"freed\\n")

def late():
    threading.main_thread().join()
    print("thread")

def work(args):
    global kept
    kept = Freed()
    atexit.register(print, "handler")
    threading.Thread(target=late).start()
    print("work")
    return 3

ending = Ending()
code = contained(work, ["sites"])
"""


def end(code: str, isolate: str, stdout: str | None = None) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a program."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    environment["ATTNX_ISOLATE"] = isolate
    with Path(stdout or os.devnull).open("w") as file:
        out = subprocess.PIPE if stdout is None else file
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, text=True, check=False, env=environment)
    return done.returncode, done.stdout or "", done.stderr


def test_threads_handlers_and_streams_are_seen_to_and_nothing_is_freed() -> None:
    assert end(f"{CODE}ending.code = code; sys.exit(code)", "1") == (3, "work\nthread\nhandler\n", "")


def test_where_isolation_is_off_the_interpreter_ends_as_always() -> None:
    code, out, _ = end(f"{CODE}ending.code = code; sys.exit(code)", "0")
    assert (code, sorted(out.split())) == (3, ["freed", "handler", "thread", "work"])


def test_what_no_one_foresaw_ends_as_always() -> None:
    code, out, err = end(f"{CODE}raise RuntimeError('a bug')", "1")
    assert code == 1
    assert "freed" in out
    assert "RuntimeError: a bug" in err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is full")
def test_what_cannot_be_written_at_the_end_is_said_as_always() -> None:
    begin = "import sys; from attnx.cli.ending import Ending; ending = Ending(); sys.stdout.write('late'); "
    code, _, err = end(f"{begin}ending.code = 0; sys.exit(0)", "1", "/dev/full")
    assert code == 120
    assert "No space left on device" in err
