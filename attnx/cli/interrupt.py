"""Ctrl-C, even where other code would lose it: a C extension that is interrupted during its import raises ImportError
instead, and an interrupt inside a finaliser or a callback is printed and forgotten.

Python's own handler stays in place (asyncio takes over no other). The interpreter's C handler also notes each signal in
a pipe, so that it is known to have come whatever happened to the exception.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

_pipe: list[int] = []


def watch() -> None:
    """From now on SIGINT raises KeyboardInterrupt, `came` reports it, and none is lost in a finaliser.

    Call it in the main thread. A process that was started with SIGINT ignored (nohup, a shell's background job) keeps
    ignoring it.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        return
    read, write = os.pipe()
    for end in (read, write):
        os.set_blocking(end, False)
    _pipe[:] = [read, write]
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    before = sys.unraisablehook

    def lost(what: Any) -> None:
        if not issubclass(what.exc_type, KeyboardInterrupt):
            before(what)
            return
        import _thread

        _thread.start_new_thread(_thread.interrupt_main, ())  # again, where the exception is not lost

    sys.unraisablehook = lost
    signal.signal(signal.SIGINT, signal.default_int_handler)


def came() -> bool:
    """Whether an interrupt came since `watch`, or since the last call."""
    try:
        return bool(_pipe) and signal.SIGINT in os.read(_pipe[0], 4096)
    except OSError:  # the pipe is empty
        return False


def done() -> None:
    """The work is over, so an interrupt has nothing left to stop: one that comes now must not become a traceback."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
