"""stdout: a result, as JSON or through Rich, and nothing else. stderr: whatever else the user should know."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

from attnx.cli.terminal import WIDEST, asked_columns, settle


def emit_json(document: Mapping[str, Any], *, pretty: bool | None = None) -> None:
    """Write one JSON document to stdout. NaN and infinities become null.

    Args:
        document: Records, arrays and plain values; `attnx.view.json.document` makes one with schema and version.
        pretty: Over several lines. None: on a terminal only; for JSON Lines it must be False.
    """
    from attnx.cli.wording import worded_within
    from attnx.view.json import dumps, tidy

    tidied = worded_within(tidy(document))
    _write(dumps(tidied, indent=sys.stdout.isatty() if pretty is None else pretty))


def show(*renderables: Any) -> None:
    """Print Rich renderables to stdout: colour and width follow the terminal, NO_COLOR and COLUMNS.

    A pipe gets no colour, no columns cut to a terminal's width, and no trailing spaces.
    """
    from rich.console import Console

    from attnx.cli.wording import worded_fields

    renderables = tuple(map(worded_fields, renderables))
    settle()
    if sys.stdout.isatty():
        console = Console(highlight=False, markup=False, emoji=False)
        console.on_broken_pipe = _gone  # type: ignore[method-assign]
        for renderable in renderables:
            console.print(renderable)
        return
    width = None if asked_columns() is not None else WIDEST
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
    """Write a note to stderr that is neither the result nor an error, with control characters made visible."""
    from attnx.cli.plain import say

    for text in texts:
        say(text)


def notes(texts: Iterable[str]) -> None:
    """Write each of several notes once."""
    note(*dict.fromkeys(texts))


def wrote(path: str | os.PathLike[str]) -> str:
    """That a file was written, its name on one line: with line breaks and control characters made visible."""
    from attnx.view.cells import safe

    return f"wrote {safe(os.fspath(path))}"


def lines_of(texts: Iterable[str]) -> int:
    """Lines that notes take on the screen, each once."""
    from attnx.cli.plain import lines_of as lines

    return sum(map(lines, dict.fromkeys(texts)))


def is_terminal() -> bool:
    """Whether results go to a terminal, where they show the progress by themselves."""
    return sys.stdout.isatty()


class Tell(Protocol):
    """Says how many are done; and of how many, where that is known only now."""

    def __call__(self, done: int, total: int | None = None, /) -> None:
        """Draw it."""


@contextlib.contextmanager
def progress(total: int | None, what: str, *, quiet: bool = False) -> Iterator[Tell]:
    """Show progress, speed and remaining time on stderr, if that is a terminal.

    Args:
        total: How many there are; None where unknown, or known only to what is run.
        what: What is counted.
        quiet: Show nothing.

    Yields:
        A function to call with the number done so far, and the total if it was not known. The bar disappears at the
        end.
    """
    if quiet or not sys.stderr.isatty():
        yield lambda done, total=None, /: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    rate = TextColumn("{task.fields[rate]}", markup=False)
    columns = (TextColumn(what, markup=False), BarColumn(), MofNCompleteColumn(), rate, TimeRemainingColumn())
    start = time.monotonic()
    with Progress(*columns, console=console, transient=True, redirect_stdout=False) as bar:
        task = bar.add_task(what, total=total, rate="")

        def tell(done: int, total: int | None = None, /) -> None:
            seconds = time.monotonic() - start
            bar.update(task, total=total, completed=done, rate=f"{done / seconds:.1f}/s" if seconds > 0 else "")

        yield tell


def _write(content: bytes) -> None:
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        _gone()


def _gone() -> None:
    """Handle a pipe whose reader (head, less) has closed it: it does not need the rest."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(0)
