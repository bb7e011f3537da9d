"""Texts of the program as Markdown: what stands between backticks is code, all else is text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from inspect import cleandoc

MADE = "<!-- Written by scripts/reference.py from the program itself: change it there. -->\n"
"""How a page that is made says so."""
_SECTIONS = ("Args", "Attributes", "Returns", "Yields", "Raises", "Source")


def escaped(text: str) -> str:
    """A text with nothing in it that Markdown or HTML would read as its own, but for `code`."""
    parts = text.split("`")
    if len(parts) % 2 == 0:  # a backtick without its fellow
        return _plain(text.replace("`", "'"))
    return "".join(f"`{part}`" if at % 2 else _plain(part) for at, part in enumerate(parts))


def _plain(text: str) -> str:
    text = re.sub(r"([\\*_\[\]#])", r"\\\1", text)
    return text.replace("<", "&lt;").replace(">", "&gt;").replace("|", "&#124;")


def code(text: str) -> str:
    """A text as code, in a table too, where a bar would end the cell."""
    if "|" not in text:
        return f"`{text}`"
    return f"<code>{text.replace('<', '&lt;').replace('|', '&#124;')}</code>"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Rows of cells that are Markdown already; "" where there are none."""
    lines = [f"| {' | '.join(' '.join(cell.split()) for cell in row)} |" for row in rows]
    return "\n".join((f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *lines)) + "\n" if lines else ""


def docstring(text: str) -> str:
    """A docstring in Google style."""
    out: list[str] = []
    section = ""
    for block in re.split(r"\n\s*\n", cleandoc(text)):
        head, _, rest = block.partition("\n")
        name, _, same = head.partition(":")
        if name in _SECTIONS and (not same or name == "Source"):
            section = name
            block = cleandoc(rest) if not same else f"{same.strip()} {rest.strip()}".strip()
            out.append(_section(section, block))
        elif block.startswith("    "):
            out.append(block)
        else:
            out.append(escaped(" ".join(block.split())))
    return "\n\n".join(out) + "\n"


def _section(name: str, text: str) -> str:
    if name in ("Args", "Attributes", "Raises"):
        entries = re.split(r"\n(?=\S)", text)
        lines = []
        for entry in entries:
            what, _, said = entry.partition(":")
            lines.append(
                f"- {'raises ' if name == 'Raises' else ''}`{what.strip()}`: {escaped(' '.join(said.split()))}"
            )
        return "\n".join(lines)
    return f"*{name}:* {escaped(' '.join(text.split()))}"
