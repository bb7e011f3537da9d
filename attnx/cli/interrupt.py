"""Ctrl-C, though code that is not ours may lose it: a C extension that is interrupted while it is imported raises
ImportError instead, and an interrupt inside a finaliser or a callback is printed and forgotten.

Python's own handler stays in place (asyncio takes over no other). The interpreter's C handler notes each signal in a
pipe besides, and so what came is known whatever became of the exception.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

_pipe: list[int] = []


def watch() -> None:
    """From now on SIGINT raises KeyboardInterrupt, `came` knows of it, and none is lost in a finaliser.

    For the main thread of a process that does nothing else. A process that was started with SIGINT ignored (nohup, a
    shell's background job) goes on ignoring it.
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

        _thread.start_new_thread(_thread.interrupt_main, ())  # once more, where an exception is not lost

    sys.unraisablehook = lost
    signal.signal(signal.SIGINT, signal.default_int_handler)


def came() -> bool:
    """Whether an interrupt came since `watch`, or since this was asked last."""
    try:
        return bool(_pipe) and signal.SIGINT in os.read(_pipe[0], 4096)
    except OSError:  # nothing there
        return False


def done() -> None:
    """The work is over, and with it what an interrupt could stop: one that comes now must not become a traceback."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
