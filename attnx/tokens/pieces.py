"""A vocabulary's entries made fit to show: real text for byte-level and sentencepiece markers, nothing invisible."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

_JOINERS = "\u200c\u200d"
_SELECTORS = range(0xFE00, 0xFE10)


def visible(text: str) -> str:
    r"""Text that cannot act on a terminal: control and invisible characters become symbols or escapes.

    Line break, tab and the other C0 controls become their control pictures ("␊", "␉", "␛"); other controls, surrogates,
    direction marks and the like become escapes ("\x9b", "\u202e"). Joiners and variation selectors stay where they
    join something; a combining mark with nothing before it gets a dotted circle. Everything else stays as it is.
    """
    if text.isascii() and text.isprintable():
        return text
    shown = []
    for i, character in enumerate(text):
        code, category = ord(character), unicodedata.category(character)
        if code < 0x20:
            shown.append(chr(0x2400 + code))
        elif code == 0x7F:
            shown.append("␡")
        elif character in _JOINERS and 0 < i < len(text) - 1:
            shown.append(character)
        elif code in _SELECTORS:
            shown.append(character if i else _escape(character))
        elif category in {"Cc", "Cf", "Cs", "Zl", "Zp"}:
            shown.append(_escape(character))
        elif category in {"Mn", "Me"} and not i:
            shown.append("◌" + character)
        else:
            shown.append(character)
    return "".join(shown)


def quoted(text: str) -> str:
    """Text in quotes, with nothing in it that acts on a terminal, and nothing escaped twice."""
    return f"'{visible(text)}'"


def in_prose(text: str) -> str:
    """A token in a sentence: quoted where it is punctuation or space, which would be read as part of the sentence."""
    pointing = all(unicodedata.category(c) in ("Sc", "Sk", "Sm") or unicodedata.category(c)[0] in "PZ" for c in text)
    return quoted(text) if pointing else visible(text)


def shorten(text: str, longest: int = 20) -> str:
    """The text, or its beginning and "…" where it has more than `longest` characters."""
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _byte_alphabet() -> dict[str, int]:
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


BYTES = _byte_alphabet()
"""The byte that each character of a byte-level vocabulary stands for.

Bytes that Latin-1 can print stand for themselves; the others, in order, are written as U+0100, U+0101, ...

Source: Radford et al. 2019, GPT-2, `bytes_to_unicode` of its encoder.
"""


@dataclass(frozen=True, slots=True)
class Spelling:
    """How a vocabulary writes text."""

    byte_level: bool = False
    """Every character stands for a byte, a space is "Ġ" (GPT-2 and its heirs)."""
    space: str = ""
    """What stands for a space ("▁"); "" where nothing does."""
    byte_fallback: bool = False
    """Bytes without an entry of their own are written "<0x0A>"."""
    word_end: str = ""
    """What marks the end of a word ("</w>"), which is not shown; "" without one."""

    def text(self, entry: str) -> str:
        """What a vocabulary entry adds to a text; bytes that are only part of a character are written out."""
        text = entry
        if self.word_end:
            text = text.removesuffix(self.word_end)
        if self.byte_level:
            if all(character in BYTES for character in text):
                text = bytes(BYTES[character] for character in text).decode("utf-8", "backslashreplace")
        elif self.space:
            text = text.replace(self.space, " ")
        if self.byte_fallback and (match := re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", text)):
            text = bytes([int(match[1], 16)]).decode("utf-8", "backslashreplace")
        return text

    def show(self, entry: str) -> str:
        """A vocabulary entry as it is shown; see the package's docstring.

        Args:
            entry: The entry as the vocabulary writes it. Special tokens are not entries: show them with `visible`.
        """
        text = self.text(entry)
        if not text:
            return "∅"
        if not text.strip(" "):
            return "␠" * len(text)
        if text.isspace():
            return "".join("␠" if c == " " else visible(c) if ord(c) < 0x20 else _escape(c) for c in text)
        # The leading space must not hide a combining mark's missing base from `visible`.
        bare = text.lstrip(" ")
        return " " * (len(text) - len(bare)) + visible(bare)
