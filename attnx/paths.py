"""`~` in a path; the permissions of new files."""

from __future__ import annotations

import os
from pathlib import Path
from threading import Lock

_ASKING = Lock()


def expand(text: str) -> Path:
    """The path with `~` and `~user` expanded; unchanged if there is no such user or no home."""
    path = Path(text)
    try:
        return path.expanduser()
    except RuntimeError:
        return path


def new_mode() -> int:
    """The permissions that a new file gets here.

    The mask is one for all threads, and can be read only by setting it: two that asked at once could leave each other's
    0 behind, and with it files that anybody may write.
    """
    with _ASKING:
        mask = os.umask(0o077)
        os.umask(mask)
    return 0o666 & ~mask
