"""A cache on disk that may vanish at any time: small entries, each in a file of its own, written whole or not at all.

What is kept: which attention computations a model file holds, tapped graphs, and small products of weights. A tapped
graph refers to the weights in the model's own files; no weight is copied here, except whole models that a scan carried
to a machine of a cluster. An entry that is damaged or cannot be read is ignored.

`ATTNX_CACHE` names the folder; "off" turns the cache off. By default it is the platform's cache folder.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnx.paths import expand
from attnx.version import __version__

VARIABLE = "ATTNX_CACHE"
BOUND = 256 << 20
"""Bytes that the cache may hold; the least recently used entries are removed first."""
HASHED = 4 << 20
"""A model file of at most this many bytes is known by its content too, not only by its size and time of change."""
CARRIED = "carried"
"""Folder in it for models that were carried to this machine, each in a folder of its own (see `attnx.scan.carried`)."""
_MAGIC = b"attnx cache 1\n"
_ENDING = ".attnx"
_NOT_CODE = ("__pycache__", "data", "bundled")
"""Folders of the package without code."""
_STALE = 3600.0
"""Seconds after which an unfinished file is abandoned, and after which an entry's time of last use is renewed."""
_written: dict[Path, int] = {}
"""Bytes that this process wrote into a folder since it last made room there."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What was kept under a key."""

    head: Mapping[str, Any]
    """JSON values."""
    body: bytes


def folder() -> Path | None:
    """Where the cache is; None where it is turned off."""
    named = os.environ.get(VARIABLE)
    if named is not None:
        if named.strip().lower() in ("", "off", "0", "no", "none"):
            return None
        where = expand(named)
        return None if where.parts[:1] and where.parts[0].startswith("~") else where  # the home of an unknown user
    import platformdirs

    return Path(platformdirs.user_cache_dir("attnx", appauthor=False))


def key(*parts: Any) -> str:
    """A key for whatever follows from `parts` (JSON values), this version of attnx and its code."""
    return json.dumps([__version__, _code(), *parts], sort_keys=True, default=str)


def identity(path: Path) -> list[Any] | None:
    """What identifies the state of a file: its real path, size, time of change, and its content where it is small.

    Returns:
        JSON values; None where there is no such file.
    """
    try:
        real = os.path.realpath(path)
        found = Path(real).stat()
        content = zlib.crc32(Path(real).read_bytes()) if found.st_size <= HASHED else 0
    except (OSError, ValueError):
        return None
    return [real, found.st_size, found.st_mtime_ns, content]


def read(name: str) -> Entry | None:
    """The entry under that key; None where there is none, or it is damaged."""
    where = folder()
    if where is None:
        return None
    path = where / _file(name)
    try:
        raw = path.read_bytes()
    except OSError:
        return None
    entry = _unpack(raw, name)
    if entry is not None:
        _touch(path)
    return entry


def write(name: str, head: Mapping[str, Any], body: bytes = b"") -> bool:
    """Keep an entry. Other processes see all of it or nothing.

    Returns:
        Whether it was kept; a cache that is off, full or read-only keeps nothing, and that is no error.
    """
    import tempfile

    where = folder()
    raw = _pack(name, head, body)
    if where is None or len(raw) > BOUND // 4:
        return False
    part = ""
    try:
        where.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(suffix=".part", dir=where)
        with os.fdopen(handle, "wb") as file:
            file.write(raw)
        Path(part).replace(where / _file(name))
    except OSError:
        if part:
            with contextlib.suppress(OSError):
                Path(part).unlink()
        return False
    _written[where] = _written.get(where, BOUND) + len(raw)
    if _written[where] > BOUND // 64:  # the first entry of a process, then now and then: it looks at every file
        _written[where] = 0
        _bound(where)
    return True


def clear() -> tuple[int, int]:
    """Remove every entry.

    Returns:
        How many there were, and how many bytes.
    """
    where = folder()
    count = size = 0
    for item, found in _entries(where) if where is not None else ():
        with contextlib.suppress(OSError):
            Path(item.path).unlink()
            count, size = count + 1, size + found.st_size
    for path, takes in _carried(where):
        shutil.rmtree(path, ignore_errors=True)
        count, size = count + 1, size + takes
    return count, size


def held() -> tuple[int, int]:
    """How many entries there are, and how many bytes."""
    where = folder()
    sizes = [found.st_size for _, found in _entries(where)] if where is not None else []
    sizes += [takes for _, takes in _carried(where)]
    return len(sizes), sum(sizes)


def _carried(where: Path | None) -> list[tuple[Path, int]]:
    """Models that were carried here, and the bytes of each."""
    folder = where / CARRIED if where is not None else None
    if folder is None or not folder.is_dir():
        return []
    return [(one, sum(p.stat().st_size for p in one.rglob("*") if p.is_file())) for one in sorted(folder.iterdir())]


def _file(name: str) -> str:
    raw = name.encode()
    return f"{zlib.crc32(raw):08x}{zlib.crc32(raw[::-1]):08x}{_ENDING}"


def _pack(name: str, head: Mapping[str, Any], body: bytes) -> bytes:
    text = json.dumps([name, head]).encode()
    inner = len(text).to_bytes(8, "little") + text + body
    return _MAGIC + zlib.crc32(inner).to_bytes(4, "little") + inner


def _unpack(raw: bytes, name: str) -> Entry | None:
    """The parts of a file, if it is whole and belongs to that key (two keys may share a file name)."""
    start = len(_MAGIC) + 4
    if not raw.startswith(_MAGIC) or len(raw) < start + 8:
        return None
    inner = memoryview(raw)[start:]
    if zlib.crc32(inner).to_bytes(4, "little") != raw[len(_MAGIC) : start]:
        return None
    size = int.from_bytes(inner[:8], "little")
    try:
        of, head = json.loads(bytes(inner[8 : 8 + size]))
    except ValueError:
        return None
    return Entry(head, bytes(inner[8 + size :])) if of == name else None


def _touch(path: Path) -> None:
    """Record that an entry was used: now and then, not at every read."""
    with contextlib.suppress(OSError):
        if time.time() - path.stat().st_mtime > _STALE:
            os.utime(path)


def _entries(where: Path) -> list[tuple[os.DirEntry[str], os.stat_result]]:
    found = []
    with contextlib.suppress(OSError):
        for item in os.scandir(where):
            if item.name.endswith((_ENDING, ".part")):
                with contextlib.suppress(OSError):
                    found.append((item, item.stat()))
    return found


def _bound(where: Path) -> None:
    """Make room: remove abandoned unfinished files, then the least recently used entries."""
    entries = _entries(where)
    total = sum(found.st_size for _, found in entries)
    old = time.time() - _STALE
    for item, found in sorted(entries, key=lambda pair: pair[1].st_mtime):
        unfinished = item.name.endswith(".part")
        if (unfinished and found.st_mtime < old) or (total > BOUND and not unfinished):
            with contextlib.suppress(OSError):
                Path(item.path).unlink()
                total -= found.st_size


@functools.cache
def _code() -> str:
    """The state of the installed package, so that any change to its code makes old entries unreachable."""
    seen: list[tuple[str, int, int]] = []
    folders = [Path(__file__).parents[1]]
    while folders:
        folder = folders.pop()
        for item in os.scandir(folder):
            if item.is_dir(follow_symlinks=False):
                if item.name not in _NOT_CODE:
                    folders.append(folder / item.name)
            elif item.name.endswith(".py"):
                found = item.stat()
                seen.append((item.path, found.st_size, found.st_mtime_ns))
    return f"{zlib.crc32(repr(sorted(seen)).encode()):08x}"
