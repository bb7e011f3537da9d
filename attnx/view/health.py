"""What was found on a machine: a line each, with the remedy below what is bad."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from attnx.view.cells import safe

MARK = {"good": "ok", "note": "--", "bad": "!!"}
STYLE = {"good": "green", "note": "dim", "bad": "bold red"}
Row = tuple[str, str, str, str, str]
"""Part, name, state, what is said, remedy."""


def health(rows: Sequence[Row]) -> Text:
    """Write findings by part; the last line counts what is bad."""
    width = max((len(row[1]) for row in rows), default=0)
    out = Text(overflow="fold")
    part = ""
    for row in rows:
        if row[0] != part:
            out.append(f"{'' if not part else chr(10)}{safe(row[0])}\n", "bold")
            part = row[0]
        out.append(f"  {MARK[row[2]]} ", STYLE[row[2]])
        out.append(f"{safe(row[1]):<{width}}  {safe(row[3])}\n")
        if row[4] and row[2] != "good":
            out.append(f"     {'':<{width}}  {safe(row[4])}\n", "dim" if row[2] == "note" else "")
    bad = sum(row[2] == "bad" for row in rows)
    out.append(f"\n{bad} to mend" if bad else "\nnothing to mend", "bold red" if bad else "bold green")
    return out
