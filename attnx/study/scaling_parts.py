"""Join the scaling tables of groups of layers: the same result as `measure/scaling.py` on all layers at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from attnx.measure.scaling import ScalingTable, layer_means, mean_sweep
from attnx.records import Measurement
from attnx.study.side_by_side import beside, side_by_side

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


def joined_heads(tables: Sequence[ScalingTable]) -> ScalingTable:
    """Join the tables of some heads each of one layer, from the first head to the last.

    Args:
        tables: At least one table.
    """
    if len(tables) == 1:
        return tables[0]
    found = {name: beside([getattr(table, name) for table in tables]) for name in _BY_HEAD}
    counts = [len(table.divergence.axes[1].labels) for table in tables]
    most = max(range(len(tables)), key=lambda i: tables[i].moved)
    where = tables[most].strongest
    kl = found["divergence"]
    return replace(
        tables[0],
        **found,
        layers=layer_means([found[name] for name in _BY_HEAD[:-1]], kl),
        notes=tuple(dict.fromkeys(note for table in tables for note in table.notes)),
        strongest=None if where is None else (where[0], sum(counts[:most]) + where[1], where[2]),
        moved=tables[most].moved,
    )


def joined_sweeps(parts: Sequence[Sequence[Measurement]]) -> Measurement:
    """Join sweeps of every head over the same divisors.

    Args:
        parts: For consecutive layers, those of some heads each; at least one.
    """
    layers = [beside(heads) for heads in parts]
    notes = tuple(dict.fromkeys(note for part in layers for note in part.notes))
    return replace(mean_sweep(side_by_side(layers, heads=True)), notes=notes)
