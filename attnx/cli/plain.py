"""Text for a terminal: characters that could move the cursor are made visible, and lines break between words."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import unicodedata

from attnx.cli.terminal import asked_columns

FIRST, UNDER = "attnx: ", "       "
"""What stands before the first line of a note, and before the others."""


def visible(text: str) -> str:
    r"""`text` with control, format and surrogate characters written out ("\x1b"); line breaks stay."""
    return "".join(
        c if c == "\n" or unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp") else _escaped(c)
        for c in text
    )


def say(text: str, *, first: str = FIRST, under: str = UNDER) -> None:
    """Write to stderr, if it takes anything; on a terminal lines break between words, and what follows is indented.

    Args:
        text: Any text. Arguments that it names become options; characters that could move the cursor are made visible.
        first: Put before the first line.
        under: Put before the following lines.
    """
    from attnx.cli.wording import worded

    shown, width = visible(worded(text)), _width()
    try:
        sys.stderr.write(f"{first}{shown}\n" if width is None else f"{wrapped(shown, width, first, under)}\n")
        sys.stderr.flush()
    except OSError:  # it is full or gone: the result and the exit code are left to say what happened
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def lines_of(text: str) -> int:
    """Lines that `say` takes for a text; where stderr is no terminal, as 80 columns would show them."""
    from attnx.cli.wording import worded

    return len(wrapped(visible(worded(text)), _width() or asked_columns() or 80, FIRST, UNDER).split("\n"))


def wrapped(text: str, width: int, first: str = "", under: str = "") -> str:
    """Break a text into lines of limited width; words, commands in backticks and options with values are never broken.

    Args:
        text: Its own line breaks are kept.
        width: Cells in a line.
        first: Put before the first line.
        under: Put before every other line.
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
    """Width in cells of the terminal on stderr; None where stderr is not a terminal."""
    try:
        if not sys.stderr.isatty():
            return None
        return asked_columns() or os.get_terminal_size(sys.stderr.fileno()).columns or None
    except (OSError, ValueError):
        return None


def _escaped(c: str) -> str:
    code = ord(c)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"
