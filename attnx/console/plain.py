"""Text for a terminal: what could move the cursor or recolour the screen is made visible."""

from __future__ import annotations

import unicodedata


def visible(text: str) -> str:
    r"""`text` with control, format and surrogate characters written out ("\x1b"); line breaks stay."""
    return "".join(
        c if c == "\n" or unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp") else _escaped(c)
        for c in text
    )


def _escaped(c: str) -> str:
    code = ord(c)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"
