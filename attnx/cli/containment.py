"""Run the command line in a child process, so that a crash inside a native library ends with a message.

onnxruntime runs whatever operators a file contains, and some files make some of its kernels end the process. The parent
only waits: it costs a fork before anything is imported (about a millisecond), and it can report what Python no longer
can: a segmentation fault, or the system's out-of-memory killer.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from attnx.errors import INTERRUPTED, RUN

VARIABLE = "ATTNX_ISOLATE"
"""Set to 0 to run in one process (for debuggers and profilers)."""
_PASSED = {
    getattr(signal, name) for name in ("SIGINT", "SIGQUIT", "SIGTERM", "SIGHUP", "SIGCHLD") if hasattr(signal, name)
}
_CRASHES = ("SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGABRT", "SIGSYS", "SIGTRAP")


def contained(work: Callable[[list[str]], int], args: list[str]) -> int:
    """Run `work(args)` in a child process where the system can fork, else in this one.

    Returns:
        Its exit code; RUN, with a message on stderr, if it was ended by a signal that nobody sent.
    """
    if not wanted(args):
        return work(args)
    terminal = _terminal()
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED)  # no signal is lost or misdirected in between
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(told)
        _die_with(parent)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        try:
            return work(args)  # the child continues as the program
        finally:
            with suppress(BrokenPipeError):  # the parent was killed
                os.write(tell, b".")  # a library that ends the process does not come here
    os.close(tell)
    try:
        status = _wait(child)
        os.set_blocking(told, False)  # a process that the child left behind may have it open still
        try:
            whole = bool(os.read(told, 1))
        except BlockingIOError:
            whole = False
    finally:
        os.close(told)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    if not os.WIFEXITED(status):
        return _killed(os.WTERMSIG(status), terminal)
    code = os.WEXITSTATUS(status)
    return code if whole or code in (RUN, INTERRUPTED) else _ended(code, terminal)


def wanted(args: list[str]) -> bool:
    """Whether there is anything to contain, and the system allows it."""
    if off() or not hasattr(os, "fork"):
        return False
    return bool(args) and not {"--help", "-h", "--version"} & set(args)


def off() -> bool:
    """Whether the process is to be left as Python has it, from its start to its end."""
    return os.environ.get(VARIABLE, "").strip().lower() in ("0", "off", "no", "false")


def _wait(child: int) -> int:
    """Wait until the child ends, and pass on the signals that were sent to the parent alone.

    Signals from the keyboard go to the whole process group: the child has received them already.
    """
    if not hasattr(signal, "sigwaitinfo"):  # macOS
        for number in _PASSED:
            keyboard = number in (signal.SIGINT, signal.SIGQUIT) and os.isatty(0)
            signal.signal(number, signal.SIG_IGN if keyboard else lambda n, _: os.kill(child, n))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED)
        return os.waitpid(child, 0)[1]
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status
        info = signal.sigwaitinfo(_PASSED)
        if info.si_signo != signal.SIGCHLD and info.si_code <= 0:  # sent by a process, not by the terminal
            os.kill(child, info.si_signo)


def memory_limit() -> int | None:
    """How many bytes of memory this process may have (ulimit -v); None for any number."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    least = min(resource.getrlimit(name)[0] % 2**64 for name in (resource.RLIMIT_AS, resource.RLIMIT_DATA))
    return least if least < 1 << 62 else None


def _limited() -> str:
    """A sentence on the limit of this process's memory; "" where there is none."""
    limit = memory_limit()
    if limit is None:
        return ""
    return f"This process may have {limit >> 20} MiB of memory (ulimit -v), and may have been refused more: raise it. "


def _ended(code: int, terminal: Any) -> int:
    """Tell of a library that has ended the process in the middle of the work, as OpenBLAS does without memory."""
    _restore(terminal, screen=True)
    _say(
        f"a native library ended attnx (exit code {code})",
        _limited() or "What it wrote is above. The usual reason is that the system has no more memory to give.",
    )
    return RUN


def _killed(number: int, terminal: Any) -> int:
    name = signal.Signals(number).name
    _restore(terminal, screen=number != signal.SIGINT)
    if number == signal.SIGINT:
        return INTERRUPTED  # Python ends this way after an interrupt in generated code, whatever handled it since
    if number == signal.SIGKILL:
        _say(
            "attnx was killed from outside, most likely because the system ran out of memory",
            "Use a shorter text, or fewer layers where it takes --layer; `attnx cost` says what a length takes.",
        )
        return RUN
    if name in _CRASHES:
        _say(
            f"a native library crashed ({name}) while attnx worked on this model",
            _limited()
            + "The file may be damaged or hostile, or meet a bug of onnxruntime; `attnx sites` only reads it.",
        )
        return RUN
    # A signal that somebody sent on purpose: end the same way, so that the caller sees it.
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    return 128 + number


def _say(message: str, hint: str) -> None:
    sys.stderr.write(f"attnx: {message}\n  {hint.strip()}\n")


def _terminal() -> Any:
    """The terminal's settings, in case the child dies while it has it in another mode."""
    try:
        import termios

        return termios.tcgetattr(0) if os.isatty(0) else None
    except (ImportError, OSError):
        return None


def _restore(terminal: Any, screen: bool) -> None:
    if terminal is None:
        return
    import termios

    try:
        termios.tcsetattr(0, termios.TCSADRAIN, terminal)
        if screen and os.isatty(1):  # an interrupt unwinds the program, which then leaves its screen by itself
            # Out of the alternate screen, cursor shown, colours and mouse reports off.
            os.write(1, b"\x1b[?1049l\x1b[?25h\x1b[?1000l\x1b[?1003l\x1b[?2004l\x1b[0m")
    except (OSError, termios.error):
        return


def _die_with(parent: int) -> None:
    """Let the child end when its parent is killed (Linux): PR_SET_PDEATHSIG is 1."""
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    try:
        ctypes.CDLL(None).prctl(1, signal.SIGTERM, 0, 0, 0)
    except (OSError, AttributeError):
        return
    if os.getppid() != parent:
        os._exit(RUN)
