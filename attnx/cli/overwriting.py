"""A command never writes to a file that it reads: not with --force, and not under another name of that file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from attnx.errors import UsageError

WRITTEN = frozenset({"save", "out"})
"""Names of the parameters that name a file to be written."""
_WORDS = frozenset({"TEXT", "CORRUPT", "WORD", "WORD,WORD", "TOKEN"})
"""Values that are not paths, even if a file has that name."""


def check(params: Mapping[str, Any], sorts: Mapping[str, str | None]) -> None:
    """Compare the file that a command line writes with every other file that it names.

    Args:
        params: The values of its parameters, by name.
        sorts: The sort of value that each takes: MODEL, FEED, TEXT, ...

    Raises:
        UsageError: A file would be both read and written.
    """
    for name in WRITTEN & params.keys():
        out = params[name]
        if out is None or not _exists(out):
            continue
        read = (v for other, v in params.items() if other not in WRITTEN and sorts.get(other) not in _WORDS)
        if (found := next((path for value in read for path in _paths(value) if _same(out, path)), None)) is not None:
            raise UsageError(
                f"{out} would be overwritten, and this command reads it{'' if found == str(out) else f' as {found}'}",
                "Choose another name for the output.",
            )


def _paths(value: Any) -> Iterable[str]:
    """The paths that a value may name: itself, the .npy file of NAME=@FILE, the files of a model's folder."""
    if isinstance(value, (list, tuple)):
        for one in value:
            yield from _paths(one)
    elif isinstance(value, (str, os.PathLike)):
        text = os.fspath(value)
        yield from (text, text.partition("=@")[2])
        if _exists(text) and Path(text).is_dir():
            yield from (str(p) for p in Path(text).glob("*.*"))


def _exists(path: str | os.PathLike[str]) -> bool:
    try:
        return Path(path).exists()
    except (OSError, ValueError):  # too long for a file's name, or with a NUL in it
        return False


def _same(one: str | os.PathLike[str], other: str) -> bool:
    try:
        return bool(other) and Path(one).samefile(other)
    except (OSError, ValueError):
        return False
