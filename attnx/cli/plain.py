"""Text for a terminal: what could move the cursor is made visible, and lines end between words."""

from __future__ import annotations

import os
import re
import sys
import unicodedata


def visible(text: str) -> str:
    r"""`text` with control, format and surrogate characters written out ("\x1b"); line breaks stay."""
    return "".join(
        c if c == "\n" or unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp") else _escaped(c)
        for c in text
    )


def say(text: str, *, first: str = "attnx: ", under: str = "       ") -> None:
    """Write to stderr; on a terminal, lines end between words, and what follows stands under the text.

    Args:
        text: Any text, options put for the arguments that it names; what could move the cursor is made visible.
        first: Stands before it.
        under: Stands before the lines that follow.
    """
    from attnx.cli.wording import worded

    shown, width = visible(worded(text)), _width()
    sys.stderr.write(f"{first}{shown}\n" if width is None else f"{wrapped(shown, width, first, under)}\n")


def wrapped(text: str, width: int, first: str = "", under: str = "") -> str:
    """Text in lines of at most so many cells; words, commands between backticks, options with values are never cut.

    Args:
        text: Its own line breaks stay.
        width: Cells a line.
        first: Stands before the first line.
        under: Stands before every other.
    """
    from attnx.view.cells import cell_len

    lines = []
    before = first
    for part in text.split("\n"):
        line, empty = before, True
        for space, word in re.findall(r"(\s*)(`[^`]*`\S*|--[\w-]+ [^\s-]\S*|\S+)", part):
            if not empty and cell_len(line) + cell_len(space) + cell_len(word) > width:
                lines.append(line)
                line, empty = under, True
            line += word if empty and line == under else space + word
            empty = False
        lines.append(line)
        before = under
    return "\n".join(lines)


def _width() -> int | None:
    """Cells of a line of the terminal that stderr is; None where it is none."""
    try:
        if not sys.stderr.isatty():
            return None
        asked = os.environ.get("COLUMNS", "")
        return (
            int(asked) if asked.isdigit() and int(asked) else os.get_terminal_size(sys.stderr.fileno()).columns or None
        )
    except (OSError, ValueError):
        return None


def _escaped(c: str) -> str:
    code = ord(c)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"
