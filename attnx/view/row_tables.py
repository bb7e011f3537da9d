"""One query's row in several heads as a table: a line for each head, its largest keys."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attnx.view.cells import cut, number, safe
from attnx.view.columns import Columns, column, columns
from attnx.view.matrix import Matrix

LARGEST, CELL = 3, 14
"""Keys of each of several heads, and the widest that one is written."""


def rows(matrices: Sequence[Matrix], query: int, count: int | None = None) -> Columns:
    """Show where one query looks in several heads, a line for each: its largest keys.

    Args:
        matrices: Over the same tokens.
        query: Position of the query.
        count: How many heads; all where None.
    """
    first, kept = matrices[0], matrices[:count]
    at = first.row_of(query)
    cells: list[list[str]] = []
    for m in kept:
        values = m.shown[at]
        ranked = sorted(np.flatnonzero(np.isfinite(values)), key=lambda k: -values[k])[:LARGEST]
        found = [f"{cut(safe(m.keys.labels[k]).strip(), CELL)} {number(float(values[k]))}" for k in ranked]
        cells.append([*found, *[""] * (LARGEST - len(found))])
    names = ("largest", "second", "third")
    return columns(
        f"{first.name} · {first.queries.name} {query} {safe(first.queries.labels[at]).strip()} → {first.keys.name}",
        [
            column("head", [m.title for m in kept], whole=True),
            *(column(name, [line[n] for line in cells], whole=True) for n, name in enumerate(names)),
        ],
    )
