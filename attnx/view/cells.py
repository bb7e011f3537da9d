"""Text that can go into a terminal's cells: nothing that moves the cursor, a known width, cut or padded to fit.

Pieces of text come from models and users, and are shown as they are as far as a terminal allows:

- a control character, an escape, a bidirectional override, an unpaired surrogate: visible text such as `<0x1B>` or
  `<U+202E>`; a newline is `↵`, a tab `⇥`, and white space alone `␣`
- what builds an emoji out of others (joiners, variation selectors, skin tones) is left out: terminals disagree about
  the width of what it builds, and a column that is straight in one would not be in another
- letters and marks that have a composed form are shown composed (NFC), so that Korean in pieces stays two cells wide
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache

from rich.cells import cell_len as cell_len

ELLIPSIS = "…"
_PLAIN = {"\n": "↵", "\t": "⇥"}
_ASCII = str.maketrans(
    {
        ELLIPSIS: "~",
        "–": "-",
        "→": "->",
        "·": "-",
        "×": "x",
        "␣": "_",
        "↵": "\\n",
        "⇥": "\\t",
        "∅": "''",
        "≥": ">=",
        "≤": "<=",
        "↓": "v",
        "▸": ">",
        "²": "^2",
        "Σ": "sum ",
        "√": "sqrt ",
        "ᵀ": "^T",
        "±": "+-",
    }
)
_PRODUCT = re.compile(r"(?<=\S)·(?=\S)")
_JOINER, _NON_JOINER = "\u200d", "\u200c"


def _joins_letters(text: str, at: int) -> bool:
    """Tell whether the joiner at `at` is spelling (Persian, Hindi), not the glue of an emoji sequence."""
    around = text[max(0, at - 1) : at] + text[at + 1 : at + 2]
    return len(around) == 2 and all(unicodedata.category(c)[0] in "LM" for c in around)


def _joins_emoji(text: str, at: int) -> bool:
    """Tell whether the joiner at `at` glues two symbols (a variation selector may stand between)."""
    before = text[:at].rstrip("\ufe0f\ufe0e")[-1:]
    return all(c and unicodedata.category(c) in ("So", "Sk") for c in (before, text[at + 1 : at + 2]))


@lru_cache(maxsize=16384)
def safe(piece: str) -> str:
    """Make a piece of text safe to print and give it a width that terminals agree on.

    Args:
        piece: Any text: a token, a model's name, a node's name.

    Returns:
        The same text with what is invisible or dangerous spelled out; never empty (`∅` for nothing).
    """
    if piece == "":
        return "∅"
    if piece.isascii() and piece.isprintable() and not piece.isspace():
        return piece
    if piece.isspace() and piece.strip(" \u3000\xa0") == "":
        return "␣" * len(piece)
    out: list[str] = []
    piece = unicodedata.normalize("NFC", piece)
    for at, char in enumerate(piece):
        kind = unicodedata.category(char)
        if char in _PLAIN:
            out.append(_PLAIN[char])
        elif char == " ":
            out.append(char)
        elif "\ufe00" <= char <= "\ufe0f" or (kind == "Sk" and char > "\uffff" and at > 0):
            continue
        elif char in (_JOINER, _NON_JOINER):
            if _joins_letters(piece, at):
                out.append(char)
            elif not _joins_emoji(piece, at):
                out.append(f"<U+{ord(char):04X}>")
        elif kind == "Cc":
            out.append(f"<0x{ord(char):02X}>")
        elif kind in ("Cf", "Cs", "Co", "Cn", "Zl", "Zp"):
            out.append(f"<U+{ord(char):04X}>")
        elif kind == "Zs":
            out.append(" " if cell_len(char) == 1 else "␣")
        elif cell_len(char) == 0 and (kind[0] != "M" or at == 0 or not out or out[-1] in (" ", "↵", "⇥")):
            # A combining mark without a base would attach to the border of the table.
            out.append("◌" + char if kind[0] == "M" else f"<U+{ord(char):04X}>")
        else:
            out.append(char)
    return "".join(out) or f"<U+{ord(piece[0]):04X}>"


def in_ascii(text: str) -> str:
    """Spell what ASCII cannot write by its code point, for terminals that can show nothing else."""
    return _PRODUCT.sub(".", text).translate(_ASCII).encode("ascii", "backslashreplace").decode("ascii")


def clusters(text: str) -> Iterator[str]:
    """Split safe text into what a reader sees as one character: a base with the marks that sit on it."""
    current = ""
    for char in text:
        if current and cell_len(char) > 0 and not current.endswith(_JOINER):
            yield current
            current = ""
        current += char
    if current:
        yield current


def cut(text: str, width: int, *, ascii_only: bool = False) -> str:
    """Cut safe text to at most `width` cells, with an ellipsis (a tilde in ASCII) where something is left out."""
    if cell_len(text) <= width:
        return text
    if width <= 0:
        return ""
    kept, used = "", 0
    for cluster in clusters(text):
        size = cell_len(cluster)
        if used + size > width - 1:
            break
        kept, used = kept + cluster, used + size
    return kept + ("~" if ascii_only else ELLIPSIS)


def fit(text: str, width: int, *, right: bool = False, ascii_only: bool = False) -> str:
    """Cut and pad safe text to exactly `width` cells.

    Args:
        text: Safe text (see `safe`).
        width: Cells.
        right: Pad on the left.
        ascii_only: Mark a cut with ASCII.

    Returns:
        Text whose width is `width`, wide characters and combining marks counted as a terminal shows them.
    """
    short = cut(text, width, ascii_only=ascii_only)
    space = " " * (width - cell_len(short))
    return space + short if right else short + space


def trimmed(piece: str) -> str:
    """A token without the spaces around it, which tokenizers keep: `safe`; spaces alone stay."""
    text = safe(piece)
    return text.strip() or text


def in_unit(unit: str) -> str:
    """A unit as it is written behind a number: a share of 1 has none."""
    return "" if unit == "share" else unit


def label(piece: str, width: int, *, right: bool = False, ascii_only: bool = False) -> str:
    """Make a token ready for a column of `width` cells: `trimmed`, cut and padded."""
    text = trimmed(piece)
    return fit(in_ascii(text) if ascii_only else text, width, right=right, ascii_only=ascii_only)


def stack(piece: str, height: int, width: int, *, ascii_only: bool = False) -> list[str]:
    """Write a token downwards, as a column's heading.

    Args:
        piece: The token.
        height: Lines; a longer token is cut with an ellipsis.
        width: Cells of the column, at least 2 so that a wide character fits.
        ascii_only: Spell what ASCII cannot write.

    Returns:
        `height` strings of `width` cells, the text at the bottom, next to what it heads.
    """
    text = trimmed(piece)
    marks = list(clusters(in_ascii(text) if ascii_only else text))
    if len(marks) > height:
        marks = [*marks[: height - 1], "~" if ascii_only else ELLIPSIS]
    lines = [fit(mark, width, ascii_only=ascii_only) for mark in marks]
    return [" " * width] * (height - len(lines)) + lines


def number(value: float, decimals: int = 2) -> str:
    """Write a number in a few characters, for a cell.

    Args:
        value: Any float.
        decimals: Digits after the point while the number is small enough to be read.

    Returns:
        "0.67", "-12.3", "1234", "1.2e6"; "-" for NaN, "inf"; never "-0.00".
    """
    if math.isnan(value):
        return "-"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    size = abs(value)
    if size >= 1e5:
        return f"{value:.1e}".replace("e+0", "e").replace("e+", "e")
    if size >= 1000:
        return f"{value:.0f}"
    text = f"{value:.{max(0, decimals - (size >= 10) - (size >= 100))}f}"
    return text.lstrip("-") if float(text) == 0 else text


def small(value: float) -> str:
    """A difference in a few characters, however small: "1.2e-05", "0.013", "0", "-" for none."""
    return "-" if value != value else "0" if value == 0 else f"{value:.1e}" if abs(value) < 1e-3 else f"{value:.3f}"
