"""Findings about a machine: one line each, with the remedy below each problem."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from attnx.view.cells import cut, safe

MARK = {"good": "ok", "note": "--", "bad": "!!"}
STYLE = {"good": "green", "note": "dim", "bad": "bold red"}
FEW = 16
"""Letters of what is said of a finding up to which a line of many findings says it."""
Row = tuple[str, str, str, str, str]
"""Part, name, state, message, remedy."""


def health(rows: Sequence[Row], *, every: bool = True) -> Health:
    """Write findings by part; the last line counts the problems.

    Args:
        rows: The findings.
        every: A line for each; else what is good, or of no matter, stands on one line for each part.
    """
    return Health(tuple(rows), every)


@dataclass(frozen=True, slots=True)
class Health:
    """See `health`. Text that does not fit on a line continues below its beginning."""

    rows: tuple[Row, ...]
    every: bool

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Write a line for each finding, parts apart; or the verdict, then a line for each part."""
        if not self.every:
            yield from self._short(options.max_width)
            return
        width = max((len(row[1]) for row in self.rows), default=0)
        part = ""
        for row in self.rows:
            if row[0] != part:
                if part:
                    yield Text("")
                part = row[0]
                yield Text(safe(part), "bold")
            head = Text.assemble("  ", (MARK[row[2]], STYLE[row[2]]), f" {safe(row[1]):<{width}}  ")
            room = max(options.max_width - head.cell_len, 20)
            lines = Text(safe(row[3]), overflow="fold").wrap(console, room)
            if row[4] and row[2] != "good":
                lines.extend(Text(safe(row[4]), "dim" if row[2] == "note" else "", overflow="fold").wrap(console, room))
            for at, line in enumerate(lines):
                line.rstrip()
                out = Text.assemble(head if at == 0 else " " * head.cell_len, line, overflow="fold")
                out.rstrip()
                yield out
        yield Text("")
        yield self._verdict

    @property
    def _verdict(self) -> Text:
        bad = sum(row[2] == "bad" for row in self.rows)
        return Text(f"{bad} to mend" if bad else "nothing to mend", "bold red" if bad else "bold green")

    def _short(self, wide: int) -> RenderResult:
        """The verdict; of each part what is good, what is not there, and all that is bad with its remedy."""
        yield self._verdict
        parts = dict.fromkeys(row[0] for row in self.rows)
        width = max((len(part) for part in parts), default=0)
        for part in parts:
            title = f"{safe(part):<{width}}"
            rows = [row for row in self.rows if row[0] == part]
            for state in ("good", "note"):
                some = [f"{row[1]} {row[3]}" if len(row[3]) <= FEW else row[1] for row in rows if row[2] == state]
                if some:
                    head = _head(title, state)
                    yield head.append(cut(safe(", ".join(some)), max(20, wide - head.cell_len)))
                    title = " " * width
            for _, name, state, said, remedy in rows:
                if state == "bad":
                    yield _head(title, state).append(safe(f"{name}: {said}"))
                    yield Text(" " * (width + 5) + safe(remedy))
                    title = " " * width


def _head(title: str, state: str) -> Text:
    """What a line begins with: its part, and what its findings are."""
    return Text.assemble((title, "bold"), "  ", (MARK[state], STYLE[state]), " ")
