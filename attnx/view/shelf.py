"""Models on this machine, one per line; and what a pull brought."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.text import Text

from attnx.numerals import counted
from attnx.view.cells import safe
from attnx.view.columns import Columns, column, columns

Row = tuple[str, str, int, tuple[int, ...], int | None, str, str, str, str]
"""Name, source, bytes, layers, heads, kind, precision, revision, problem."""


def size(count: int) -> str:
    """Bytes as people write them: "45.7 MB", powers of ten."""
    for unit, power in (("GB", 9), ("MB", 6), ("kB", 3)):
        if count >= 10**power:
            return f"{count / 10**power:.1f} {unit}"
    return f"{count} B"


def shelf(rows: Sequence[Row], hint: str = "") -> Columns:
    """List models; what is wrong with one stands below, then what can be done with them."""
    problems = [f"{name}: {problem}" for name, *_, problem in rows if problem]
    return columns(
        "",
        [
            column("model", [row[0] for row in rows], whole=True),
            column("layers × heads", [_shape(row[3], row[4]) for row in rows], whole=True),
            column("kind", [row[5] for row in rows]),
            column("weights", [row[6] for row in rows], whole=True),
            column("size", [size(row[2]) for row in rows], whole=True),
            column("from", [row[1] for row in rows], spare=True),
            column("revision", [row[7][:8] for row in rows], spare=True),
        ],
        notes=[*problems, hint if rows else "There are none."],
    )


def _shape(layers: tuple[int, ...], heads: int | None) -> str:
    if not layers:
        return ""
    return f"{'+'.join(map(str, layers))} × {heads if heads is not None else '?'}"


def pulled(name: str, folder: str, files: Mapping[str, int]) -> Text:
    """Say what a pull brought."""
    total = size(sum(files.values()))
    return Text(f"{safe(name)}: {counted(len(files), 'file')}, {total}, in {safe(folder)}", overflow="fold")
