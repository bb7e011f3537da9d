"""The content of a user's text file, or why it cannot be read."""

from __future__ import annotations

from pathlib import Path

from attnx.errors import InputError


def read_text(path: Path, hint: str) -> str:
    """A text file's content; it may begin with a byte-order mark.

    Args:
        path: The file.
        hint: What the file should be.

    Raises:
        InputError: It cannot be opened, or is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}", hint) from None
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise InputError(f"{path} is not UTF-8 text: byte 0x{byte:02x} at byte {error.start}", hint) from None


__all__ = ["read_text"]
