"""Check whether a scan begun in a folder is the same scan, and make sure no other process is writing there."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from attnx.errors import UsageError
from attnx.numerals import counted
from attnx.scan.parts import write
from attnx.wording import Wording

PLAN = "scan.json"
"""The file in the folder of parts that says which scan they belong to."""


LOCK = "lock"
"""The file there that a scan locks while it runs."""


def begin(folder: Path, out: Path, wanted: Mapping[str, Any], force: bool) -> None:
    """Prepare a folder for parts, or compare the existing parts with the wanted scan.

    Args:
        folder: The folder of the parts; it exists and is locked (`alone`).
        out: The file to make.
        wanted: The identity of the scan.
        force: Replace `out`, and parts of another scan. Parts of this scan are kept anyway; if nothing
            but the corpus has changed, those with unchanged texts are kept.

    Raises:
        UsageError: `out` exists, or parts of another scan do; the message says what differs.
    """
    shutil.rmtree(spent(folder), ignore_errors=True)
    plan = folder / PLAN
    if not has_parts(folder):
        if out.exists() and not force:
            raise UsageError(f"{out} exists", Wording("Give <force=True> to replace it, or another name."))
        _empty(folder)
    else:
        try:
            had = json.loads(plan.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            had = None
        now = json.loads(json.dumps(wanted))
        had = had if isinstance(had, dict) else {}
        differs = _differences(had, now)
        if differs and not force:
            raise UsageError(
                f"{folder} holds parts of another scan; what differs: {'; '.join(differs)}",
                Wording(
                    "Give the settings of that scan to go on with it, another <out>, or <force=True> to begin anew "
                    "(parts whose texts are as they were are kept)."
                ),
            )
        if differs and any(had.get(name) != now[name] for name in now if name != "corpus"):
            _empty(folder)
        elif differs:
            plan.unlink()
    if not plan.exists():
        write(plan, lambda path: path.write_text(json.dumps(wanted), encoding="utf-8"))


def folder_of(out: Path) -> Path:
    """Where the parts of a file are kept until it is complete."""
    return out.parent / f"{out.name}.parts"


def has_parts(folder: Path) -> bool:
    """Whether any part exists there."""
    return any(folder.glob("0*.parquet"))


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name != LOCK:
            path.unlink()


def spent(folder: Path) -> Path:
    """The name of a folder of parts after they are joined, until it is removed."""
    return folder.with_name(folder.name + ".done")


def _differences(had: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """What has changed, a few words each."""
    out = []
    for name, now in wanted.items():
        before = had.get(name)
        if before == now:
            continue
        if name in ("corpus", "weights", "tokenizer") and isinstance(before, list) and isinstance(now, list):
            what = "" if name == "corpus" else f"{name}: "
            out += [what + said for said in _files_differ(before, now)]
        elif name == "model" and isinstance(before, list) and isinstance(now, list):
            out.append(f"the model {now[0]}" + (" has changed" if before[0] == now[0] else f" (before: {before[0]})"))
        else:
            out.append(f"{name} {_shown(now)} (before: {_shown(before)})")
    return out


def _files_differ(before: Sequence[Any], now: Sequence[Any]) -> list[str]:
    had, have = ({one[0]: one for one in files if one} for files in (before, now))
    gone = [f"{name} was read and is not now" for name in had if name not in have]
    new = [f"{name} was not read" for name in have if name not in had]
    changed = [f"{name} has changed" for name in have if name in had and have[name] != had[name]]
    out = changed + new + gone
    return ([*out[:3], f"{counted(len(out) - 3, 'more file')}"] if len(out) > 3 else out) or ["the order of the files"]


def _shown(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else "unknown" if value is None else str(value)


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Lock the folder against a second scan that would write the same parts; the lock ends with the process.

    Raises:
        UsageError: A scan is running there.
    """
    try:
        import fcntl
    except ImportError:  # Windows: two scans at once are not noticed
        yield
        return
    file: IO[str]
    with (folder / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"another scan is writing to {folder}", Wording("Wait for it, or give another <out>.")
            ) from None
        yield
