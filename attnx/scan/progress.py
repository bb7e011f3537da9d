"""A scan's progress on stderr: a bar with rate and time left on a terminal, otherwise an occasional plain line."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from attnx.numerals import counted
from attnx.scan.scanning import Progress

EVERY = 10.0
"""Seconds between plain lines."""


def clock(seconds: float) -> str:
    """Format a duration: 3:07 or 12:03:07."""
    whole = int(seconds)
    minutes = f"{whole % 3600 // 60:02d}" if whole >= 3600 else str(whole // 60)
    return f"{whole // 3600}:{minutes}:{whole % 60:02d}" if whole >= 3600 else f"{minutes}:{whole % 60:02d}"


def line(progress: Progress) -> str:
    """The progress in words: "1024 texts, 512 kept from before, 40 % read, 178.3 texts/s, 0:07 left"."""
    parts = [f"{counted(progress.texts, 'text')}"]
    if progress.kept:
        parts.append(f"{progress.kept} kept from before")
    if progress.total:
        parts.append(f"{100 * min(progress.read / progress.total, 1.0):.0f} % read")
    if progress.texts > progress.kept:
        parts.append(f"{progress.rate:.1f} texts/s")
    if progress.left is not None:
        parts.append(f"{clock(progress.left)} left")
    return ", ".join(parts)


@contextlib.contextmanager
def shown(verbose: bool) -> Iterator[Callable[[Progress], None]]:
    """The function that reports each part.

    Args:
        verbose: If stderr is not a terminal, write a line every ten seconds.
    """
    if sys.stderr.isatty():
        with _bar() as tell:
            yield tell
        return
    yield _lines() if verbose else lambda progress: None


def _lines() -> Callable[[Progress], None]:
    last = time.monotonic() - EVERY

    def tell(progress: Progress) -> None:
        nonlocal last
        if time.monotonic() - last >= EVERY:
            last = time.monotonic()
            sys.stderr.write(f"attnx: {line(progress)}\n")
            sys.stderr.flush()

    return tell


@contextlib.contextmanager
def _bar() -> Iterator[Callable[[Progress], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    columns: tuple[Any, ...] = (
        TextColumn("scan", markup=False),
        BarColumn(),
        TextColumn("{task.fields[said]}", markup=False),
    )
    with Bar(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False) as bar:
        task = bar.add_task("scan", total=None, parts="")

        def tell(progress: Progress) -> None:
            bar.update(
                task, total=max(progress.total, 1), completed=min(progress.read, progress.total), parts=line(progress)
            )

        yield tell
