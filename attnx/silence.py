"""Keep what libraries write to stdout and stderr out of results and messages."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class _Descriptor:
    """A file descriptor that all threads of the process share, 1 or 2: the first to want silence takes it, the last
    gives it back. Each for itself would take another's silence for the real one, and leave the process with it for
    good.
    """

    number: int
    turn: threading.Lock = field(default_factory=threading.Lock)
    quiet: int = 0
    """How many want silence now."""
    reserved: bool = False
    """Whether it is for what this package writes alone. It is not in a program of somebody else's, whose other threads
    may write at any time: theirs is not to be lost for the sake of a message of a library's."""
    real: int | None = None
    """Where output goes otherwise; None while nobody wants silence, and where the descriptor is closed."""

    def take(self) -> bool:
        """Whether there is silence now, to be given back."""
        with self.turn:
            if not (self.reserved or self.quiet or threading.active_count() == 1):
                return False
            if not self.quiet and not self._redirect():
                return False
            self.quiet += 1
            return True

    def _redirect(self) -> bool:
        """Whether output goes nowhere now: not where the system opens no more files or has no such place."""
        try:
            sink = os.open(os.devnull, os.O_WRONLY)
        except OSError:
            return False
        try:
            (sys.stdout if self.number == 1 else sys.stderr).flush()
            self.real = os.dup(self.number)
            os.dup2(sink, self.number)
        except (AttributeError, OSError, ValueError):  # there is none, or it is closed
            self._restore()
        finally:
            os.close(sink)
        return True

    def give_back(self) -> None:
        with self.turn:
            self.quiet -= 1
            if not self.quiet:
                self._restore()

    def _restore(self) -> None:
        if self.real is not None:
            os.dup2(self.real, self.number)
            os.close(self.real)
            self.real = None


_OUT, _ERR = _Descriptor(1), _Descriptor(2)
_PRINTING = threading.Lock()


@contextlib.contextmanager
def quiet(*, errors: bool = False) -> Iterator[None]:
    """Keep output of native libraries on file descriptor 1 out of the result on stdout.

    Args:
        errors: Whether what they write to descriptor 2 is kept off the terminal too.
    """
    taken = [one for one in ((_OUT, _ERR) if errors else (_OUT,)) if one.take()]
    try:
        yield
    finally:
        for one in taken:
            one.give_back()


def reserve(only: bool = True) -> None:
    """Keep stdout and stderr for this package alone, whatever threads there are: the command line does."""
    _OUT.reserved = _ERR.reserved = only


@contextlib.contextmanager
def unprinted() -> Iterator[None]:
    """Keep out what a library prints from Python; one thread after another, as `sys.stdout` is one for all."""
    with _PRINTING, Path(os.devnull).open("w", encoding="utf-8") as sink, contextlib.redirect_stdout(sink):
        yield


__all__ = ["quiet", "reserve", "unprinted"]
