"""A crash in a native library is told as an error; the terminal's signals and the exit code pass through."""

import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

from attnx.cli.process import one_thread, work
from attnx.silence import reserve

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

HEAD = "import sys, os, signal, time, ctypes\nfrom attnx.cli.containment import contained\n"


def ended(work: str, before: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    code = f"{HEAD}{before}\ndef work(args):\n    {work}\nsys.exit(contained(work, ['sites', 'x']))"
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=os.environ | environment
    )


def test_a_real_segmentation_fault_is_an_error() -> None:
    done = ended("ctypes.string_at(0)")
    assert done.returncode == 5
    assert "a native library crashed (SIGSEGV)" in done.stderr
    assert "attnx sites" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("name", ["SIGABRT", "SIGBUS", "SIGILL", "SIGFPE"])
def test_other_crashes_are_named(name: str) -> None:
    done = ended(f"os.kill(os.getpid(), signal.{name})")
    assert done.returncode == 5
    assert name in done.stderr


def test_a_library_that_ends_the_process_is_told() -> None:
    """OpenBLAS calls exit(1) where it gets no memory."""
    done = ended("ctypes.CDLL(None).exit(1)")
    assert done.returncode == 5
    assert "attnx: a native library ended attnx (exit code 1)\n" in done.stderr
    assert "more memory" in done.stderr


@pytest.mark.parametrize("how", ["ctypes.CDLL(None).exit(1)", "os.kill(os.getpid(), signal.SIGABRT)"])
def test_a_limit_of_memory_is_named_where_a_library_ends_the_process(how: str) -> None:
    limit = 2**40
    done = ended(how, before=f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({limit}, {limit}))")
    assert done.returncode == 5
    assert "This process may have 1048576 MiB of memory (ulimit -v)" in done.stderr


def test_the_out_of_memory_killer_is_told() -> None:
    done = ended("os.kill(os.getpid(), signal.SIGKILL)")
    assert done.returncode == 5
    assert "out of memory" in done.stderr


def test_exit_codes_and_output_pass_through() -> None:
    done = ended("print('result'); return 4")
    assert (done.returncode, done.stdout, done.stderr) == (4, "result\n", "")


def test_a_traceback_is_still_shown() -> None:
    done = ended("raise ZeroDivisionError")
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr


def test_it_can_be_turned_off() -> None:
    assert ended("ctypes.string_at(0)", ATTNX_ISOLATE="0").returncode == -signal.SIGSEGV


def test_help_is_not_contained() -> None:
    code = HEAD + "sys.exit(contained(lambda a: os.kill(os.getpid(), signal.SIGSEGV) or 0, ['--help']))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGSEGV


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_was_sent_ends_both(tmp_path: Path, number: signal.Signals) -> None:
    noted = tmp_path / "child"
    code = (
        HEAD
        + f"signal.signal({int(number)}, signal.SIG_DFL)\n"  # under nohup it comes ignored
        + f"def work(args):\n    open({str(noted)!r}, 'w').write(str(os.getpid()))\n    time.sleep(60)\n"
        + "sys.exit(contained(work, ['sites', 'x']))"
    )
    process = subprocess.Popen([sys.executable, "-c", code])
    child = _pid(noted)
    process.send_signal(number)
    assert process.wait(30) == -number
    assert _gone(child)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="prctl")
def test_killing_the_parent_ends_the_child(tmp_path: Path) -> None:
    noted = tmp_path / "child"
    code = (
        HEAD
        + f"def work(args):\n    open({str(noted)!r}, 'w').write(str(os.getpid()))\n    time.sleep(60)\n"
        + "sys.exit(contained(work, ['sites', 'x']))"
    )
    process = subprocess.Popen([sys.executable, "-c", code])
    child = _pid(noted)
    process.kill()
    process.wait(30)
    assert _gone(child)


def _pid(noted: Path) -> int:
    for _ in range(600):
        if noted.exists() and noted.read_text():
            return int(noted.read_text())
        time.sleep(0.05)
    raise AssertionError("the child never started")


def _gone(pid: int) -> bool:
    for _ in range(200):
        try:
            os.kill(pid, 0)
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True  # ended, and only not yet collected
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("keyboard", [True, False])
def test_an_interrupt_reaches_the_work_once(tmp_path: Path, keyboard: bool) -> None:
    """From the keyboard it goes to the whole process group, from `kill -INT` to the parent alone."""
    noted = tmp_path / "child"
    work = (
        f"open({str(noted)!r}, 'w').write(str(os.getpid()))\n    count = 0\n"
        "    for _ in range(600):\n        try:\n            time.sleep(0.05)\n"
        "        except KeyboardInterrupt:\n            count += 1; end = time.time() + 0.5\n"
        "            while time.time() < end:\n                try:\n                    time.sleep(0.05)\n"
        "                except KeyboardInterrupt:\n                    count += 1\n"
        "            return 100 + count"
    )
    code = HEAD + f"def work(args):\n    {work}\nsys.exit(contained(work, ['sites', 'x']))"
    if keyboard:
        import pty

        pid, terminal = pty.fork()
        if pid == 0:
            os.execv(sys.executable, [sys.executable, "-c", code])
        _pid(noted)
        os.write(terminal, b"\x03")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 101
        os.close(terminal)
        return
    process = subprocess.Popen([sys.executable, "-c", code])
    _pid(noted)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 101


def test_a_child_that_the_interrupt_ended_is_an_interrupt() -> None:
    """Python ends itself by SIGINT once KeyboardInterrupt has passed through exec of a text, as dataclasses do."""
    done = ended("os.kill(os.getpid(), (signal.signal(signal.SIGINT, signal.SIG_DFL), signal.SIGINT)[1])")
    assert (done.returncode, done.stderr) == (130, "")


def test_an_interrupt_that_a_library_made_an_import_error_of() -> None:
    code = (
        "import signal, sys\nfrom attnx.cli import app as cli\n"
        "def app(*_, **__):\n    try:\n        signal.raise_signal(signal.SIGINT)\n"
        "    except KeyboardInterrupt:\n        raise ImportError('initialization failed') from None\n"
        "cli.app = app\nsys.exit(cli.begin(['x']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "attnx: interrupted\n")


def test_an_interrupt_in_a_finaliser_is_not_lost() -> None:
    code = (
        "import signal, sys, time\nfrom attnx.cli import app as cli\n"
        "class Held:\n    def __del__(self):\n        signal.raise_signal(signal.SIGINT)\n"
        "def app(*_, **__):\n    held = Held()\n    del held\n\n"
        "    for _ in range(400):\n        time.sleep(0.05)\n    print('went on')\n"
        "cli.app = app\nsys.exit(cli.begin(['x']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "attnx: interrupted\n")


@pytest.mark.parametrize(("options", "shown"), [([], False), (["default"], True)])
def test_python_s_warnings_are_shown_where_they_are_asked_for(
    options: list[str], shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin(_: list[str]) -> int:
        warnings.warn("of numpy's", RuntimeWarning, stacklevel=1)
        return 0

    monkeypatch.setattr("attnx.cli.app.begin", begin)
    monkeypatch.setattr(sys, "warnoptions", options)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        assert work([]) == 0
    reserve(False)
    assert [str(one.message) for one in seen] == ["of numpy's"] * shown


@pytest.mark.parametrize("given", [None, "3"])
def test_numpys_products_take_one_thread_unless_the_environment_says(
    given: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "OPENBLAS_NUM_THREADS"
    monkeypatch.setenv(name, given or "")
    if given is None:
        monkeypatch.delenv(name)
    one_thread()
    assert os.environ[name] == (given or "1")
