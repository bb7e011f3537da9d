"""--save of a command whose result is rows: a tidy table, one line a row, or the whole document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ENDINGS = (".csv", ".json")


def check(path: Path | None, force: bool) -> None:
    """Tell before a long run whether its result can be written there.

    Raises:
        UsageError: Another ending, the file exists and is not to be replaced, or its folder does not exist.
    """
    from attnx.errors import UsageError

    if path is None:
        if force:
            raise UsageError("--force would do nothing without --save", "Leave it out.")
        return
    if path.suffix.lower() not in ENDINGS:
        raise UsageError(
            f"the result is saved as .csv or .json, not {path.suffix or 'a name without an ending'}",
            "For example: --save effects.csv.",
        )
    if path.exists() and not force:
        raise UsageError(f"{path} exists", "Give --force to replace it, or another name.")
    if not path.resolve().parent.is_dir():
        raise UsageError(f"the folder {path.parent} does not exist", f"Create it: mkdir -p {path.parent}")


def save(path: Path, rows: Sequence[Mapping[str, Any]], document: Mapping[str, Any], *, force: bool) -> None:
    """Write rows as CSV (an empty field for None and what is no number), or the document as JSON; say so."""
    from attnx.cli import output
    from attnx.view.json import dumps
    from attnx.view.save import write

    content = dumps(document, indent=True) if path.suffix.lower() == ".json" else _csv(rows)
    write(path, content, force=force)
    output.note(f"wrote {path}")


def _csv(rows: Sequence[Mapping[str, Any]]) -> bytes:
    import csv
    import io

    names = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO(newline="")
    lines = csv.writer(out, lineterminator="\n")
    lines.writerow(names)
    for row in rows:
        cells = (row.get(name) for name in names)
        lines.writerow(["" if cell is None or cell != cell else str(cell) for cell in cells])
    return out.getvalue().encode("utf-8", "backslashreplace")
