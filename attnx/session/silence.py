"""Keep what libraries write to stdout out of the result that is written there."""

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
    """File descriptor 1, which all threads of the process share: the first to want silence takes it, the last gives it
    back. Each for itself would take another's silence for the real one, and leave the process with it for good.
    """

    turn: threading.Lock = field(default_factory=threading.Lock)
    quiet: int = 0
    """How many want silence now."""
    reserved: bool = False
    """Whether stdout is for the result alone. It is not in a program of somebody else's, whose other threads may write
    at any time: theirs is not to be lost for the sake of a message of onnxruntime's."""
    real: int | None = None
    """Where output goes otherwise; None while nobody wants silence, and where stdout is closed."""

    def take(self) -> bool:
        """Whether there is silence now, to be given back."""
        with self.turn:
            if not (self.reserved or self.quiet or threading.active_count() == 1):
                return False
            self.quiet += 1
            if self.quiet > 1:
                return True
            try:
                sys.stdout.flush()
                self.real = os.dup(1)
            except (AttributeError, OSError, ValueError):  # there is none, or it is closed
                return True
            sink = os.open(os.devnull, os.O_WRONLY)
            os.dup2(sink, 1)
            os.close(sink)
            return True

    def give_back(self) -> None:
        with self.turn:
            self.quiet -= 1
            if self.quiet or self.real is None:
                return
            os.dup2(self.real, 1)
            os.close(self.real)
            self.real = None


_DESCRIPTOR = _Descriptor()
_PRINTING = threading.Lock()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep output of native libraries on file descriptor 1 out of the result on stdout."""
    taken = _DESCRIPTOR.take()
    try:
        yield
    finally:
        if taken:
            _DESCRIPTOR.give_back()


def reserve(only: bool = True) -> None:
    """Keep stdout for the result alone, whatever threads there are: the command line does."""
    _DESCRIPTOR.reserved = only


@contextlib.contextmanager
def unprinted() -> Iterator[None]:
    """Keep out what a library prints from Python; one thread after another, as `sys.stdout` is one for all."""
    with _PRINTING, Path(os.devnull).open("w", encoding="utf-8") as sink, contextlib.redirect_stdout(sink):
        yield


__all__ = ["quiet", "reserve", "unprinted"]
