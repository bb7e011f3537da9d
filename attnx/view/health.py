"""Findings about a machine: one line each, with the remedy below each problem."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from attnx.view.cells import safe

MARK = {"good": "ok", "note": "--", "bad": "!!"}
STYLE = {"good": "green", "note": "dim", "bad": "bold red"}
Row = tuple[str, str, str, str, str]
"""Part, name, state, message, remedy."""


def health(rows: Sequence[Row]) -> Health:
    """Write findings by part; the last line counts the problems."""
    return Health(tuple(rows))


@dataclass(frozen=True, slots=True)
class Health:
    """See `health`. Text that does not fit on a line continues below its beginning."""

    rows: tuple[Row, ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Write a line for each finding, parts apart."""
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
        bad = sum(row[2] == "bad" for row in self.rows)
        yield Text("")
        yield Text(f"{bad} to mend" if bad else "nothing to mend", "bold red" if bad else "bold green")
