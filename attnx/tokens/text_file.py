"""The content of a user's text file, or why it cannot be read."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator
from pathlib import Path

from attnx.errors import InputError

_PACKED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"PK\x03\x04": "zip", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_LOOKED_AT = 400
"""Bytes at a file's beginning that tell what it is."""
_FEW = 8
"""Of fewer bytes, nothing is said: a NUL or two may well be in them."""


def wide(content: bytes) -> str:
    """The UTF-16 that a file without its mark is in, by its name for iconv; "" for another encoding.

    Plain text in it has NUL for every other byte, and is valid UTF-8 as it stands.
    """
    begin = content[:_LOOKED_AT]
    low, high = begin[::2].count(0), begin[1::2].count(0)
    if len(begin) < _FEW or 3 * (low + high) < len(begin):
        return ""
    return "utf-16le" if high > low else "utf-16be"


def remedy(content: bytes) -> str:
    """How to make UTF-8 text of a file that is none, as far as its beginning tells what it is."""
    for begin, packed in _PACKED.items():
        if content.startswith(begin):
            return f"It is packed by {packed}: unpack it first."
    marked = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return f"Convert it first, for example: iconv -f {'utf-16' if marked else wide(content) or 'latin1'} -t utf-8 FILE."


def byte_lines(file: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of a file opened for bytes, with their ends: a line feed, with or without a carriage return, or that
    alone, as in text that Python reads.
    """
    for line in file:
        yield from line.splitlines(keepends=True)


def read_text(path: Path, hint: str) -> str:
    """A text file's content; it may begin with a byte-order mark.

    Args:
        path: The file.
        hint: What the file should be.

    Raises:
        InputError: It cannot be opened, or is not UTF-8.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}", hint) from None
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise InputError(
            f"{path} is not UTF-8 text: byte 0x{byte:02x} at byte {error.start}", f"{hint} {remedy(error.object)}"
        ) from None
    if wide(begin := text[:_LOOKED_AT].encode()):
        raise InputError(f"{path} is not UTF-8 text: every other byte is NUL", f"{hint} {remedy(begin)}")
    return text


__all__ = ["read_text", "remedy", "wide"]
