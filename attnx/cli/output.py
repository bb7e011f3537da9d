"""stdout: a result, as JSON or through Rich, and nothing else. stderr: what the user should know besides."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

WIDEST = 100_000
"""Columns in a pipe or a file where COLUMNS does not say otherwise: nothing is cut there for want of width."""


def emit_json(document: Mapping[str, Any], *, pretty: bool | None = None) -> None:
    """Write one JSON document to stdout. NaN and infinities become null.

    Args:
        document: Records, arrays and plain values; `attnx.view.json.document` makes one with schema and version.
        pretty: Over several lines. Where None, for a terminal; JSON Lines want False.
    """
    from attnx.cli.wording import worded_within
    from attnx.view.json import dumps, tidy

    tidied = worded_within(tidy(document))
    _write(dumps(tidied, indent=sys.stdout.isatty() if pretty is None else pretty))


def show(*renderables: Any) -> None:
    """Print Rich renderables to stdout: colour and width follow the terminal, NO_COLOR and COLUMNS.

    A pipe gets neither colour nor columns cut to a terminal's width nor spaces at the end of lines.
    """
    from rich.console import Console

    from attnx.cli.wording import worded_fields

    renderables = tuple(map(worded_fields, renderables))
    asked = os.environ.get("COLUMNS", "")
    if asked.isdigit() and int(asked) < 1:
        del os.environ["COLUMNS"]  # a width of nothing shows nothing: what some shells set where there is no terminal
        asked = ""
    if sys.stdout.isatty():
        console = Console(highlight=False, markup=False, emoji=False)
        console.on_broken_pipe = _gone  # type: ignore[method-assign]
        for renderable in renderables:
            console.print(renderable)
        return
    width = None if asked.isdigit() else WIDEST
    console = Console(highlight=False, markup=False, emoji=False, width=width)
    with console.capture() as captured:
        for renderable in renderables:
            console.print(renderable)
    text = "".join(f"{line.rstrip()}\n" for line in captured.get().splitlines())
    _write(text.encode(console.encoding, "backslashreplace"))


def write(text: str) -> None:
    """Write text to stdout as it is, a line break at its end: a program, a list of names."""
    _write(f"{text}\n".encode(sys.stdout.encoding or "utf-8", "backslashreplace"))


def note(*texts: str) -> None:
    """Say something on stderr that is neither the result nor an error; control characters made visible."""
    from attnx.cli.plain import say

    for text in texts:
        say(text)


def notes(texts: Iterable[str]) -> None:
    """Say each of several things once."""
    note(*dict.fromkeys(texts))


def is_terminal() -> bool:
    """Whether results go to a terminal, where they show by themselves how far things are."""
    return sys.stdout.isatty()


@contextlib.contextmanager
def progress(total: int | None, what: str, *, quiet: bool = False) -> Iterator[Callable[[int], None]]:
    """Show on stderr how far something is, how fast and how much longer, where that is a terminal.

    Args:
        total: How many there are; None where that is not known.
        what: Of what.
        quiet: Show nothing.

    Yields:
        To be called with the number that is done. The bar is gone when all is done.
    """
    if quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    rate = TextColumn("{task.fields[rate]}", markup=False)
    columns = (TextColumn(what, markup=False), BarColumn(), MofNCompleteColumn(), rate, TimeRemainingColumn())
    start = time.monotonic()
    with Progress(*columns, console=console, transient=True, redirect_stdout=False) as bar:
        task = bar.add_task(what, total=total, rate="")

        def tell(done: int) -> None:
            seconds = time.monotonic() - start
            bar.update(task, completed=done, rate=f"{done / seconds:.1f}/s" if seconds > 0 else "")

        yield tell


def _write(content: bytes) -> None:
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        _gone()


def _gone() -> None:
    """The reader of a pipe (head, less) has left: what it did not read is nobody's loss."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(0)
