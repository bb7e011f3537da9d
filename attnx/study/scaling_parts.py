"""Join the scaling tables of groups of layers: the same result as `measure/scaling.py` on all layers at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from attnx.formula import average
from attnx.measure.scaling import ScalingTable
from attnx.records import Measurement
from attnx.study.side_by_side import side_by_side

_BY_HEAD = ("spread", "entropy", "largest", "saturated", "gradient", "divergence")


def joined(tables: Sequence[ScalingTable], sites: Sequence[int]) -> ScalingTable:
    """Join the tables of consecutive layers.

    Args:
        tables: At least one table.
        sites: How many sites each covers.
    """
    if len(tables) == 1:
        return tables[0]
    most = max(range(len(tables)), key=lambda i: tables[i].moved)
    where = tables[most].strongest
    by_head = {name: side_by_side([getattr(table, name) for table in tables], heads=True) for name in _BY_HEAD}
    return replace(
        tables[0],
        **by_head,
        size=side_by_side([table.size for table in tables]),
        layers=side_by_side([table.layers for table in tables]),
        notes=tuple(dict.fromkeys(note for table in tables for note in table.notes)),
        strongest=None if where is None else (sum(sites[:most]) + where[0], *where[1:]),
        moved=tables[most].moved,
    )


def joined_sweeps(parts: Sequence[Measurement]) -> Measurement:
    """Join sweeps over the same divisors of consecutive layers.

    Args:
        parts: At least one; the last row of each, the mean of its layers, is recomputed.
    """
    if len(parts) == 1:
        return parts[0]
    rows = np.concatenate([part.values[:, :-1] for part in parts], axis=1)
    labels = tuple(label for part in parts for label in part.axes[1].labels[:-1])
    return replace(
        parts[0],
        axes=(parts[0].axes[0], replace(parts[0].axes[1], labels=(*labels, "all")), parts[0].axes[2]),
        values=np.concatenate([rows, average(rows, axis=1)[:, None]], axis=1),
        notes=tuple(dict.fromkeys(note for part in parts for note in part.notes)),
    )
