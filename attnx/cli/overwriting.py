"""A file that a command reads is never the one that it writes: not with --force, nor under another name of it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from attnx.errors import UsageError

WRITTEN = frozenset({"save", "out"})
"""Names of the parameters of commands that name a file to be written."""
_WORDS = frozenset({"TEXT", "CORRUPT", "WORD", "WORD,WORD", "TOKEN"})
"""What is no path, though a file may be called so."""


def check(params: Mapping[str, Any], sorts: Mapping[str, str | None]) -> None:
    """Hold what a command line writes against everything else that it names.

    Args:
        params: The values of its parameters, by name.
        sorts: What each takes: MODEL, FEED, TEXT, ...

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
    """What a value may name as a path: itself, the .npy file of NAME=@FILE, the files of a model's folder."""
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
    except (OSError, ValueError):  # a name that is too long for one, or has a NUL in it
        return False


def _same(one: str | os.PathLike[str], other: str) -> bool:
    try:
        return bool(other) and Path(one).samefile(other)
    except (OSError, ValueError):
        return False
