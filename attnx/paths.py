"""`~` and links in a path; the permissions of new files."""

from __future__ import annotations

import errno
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


def resolved(path: Path) -> Path:
    """The place where a file is to be written: absolute, with links followed.

    Raises:
        OSError: It is a link that leads back to itself, or lies behind one. (`Path.resolve` raises a RuntimeError there
            up to Python 3.12; later it gives the link, as if it were a file.)
    """
    try:
        place = path.resolve()
        circular = any(one.is_symlink() for one in (place, *place.parents))
    except RuntimeError:
        circular = True
    if circular:
        raise OSError(errno.ELOOP, "it is a link that leads back to itself, or lies behind one", str(path))
    return place
