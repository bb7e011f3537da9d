"""`~` in a path."""

from __future__ import annotations

from pathlib import Path


def expand(text: str) -> Path:
    """The path with `~` and `~user` expanded; unchanged if there is no such user or no home."""
    path = Path(text)
    try:
        return path.expanduser()
    except RuntimeError:
        return path
