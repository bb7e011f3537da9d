"""Two models compared: the verdict in words, the heads that moved most, and every layer, as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from attnx.formula import average
from attnx.view.cells import small
from attnx.view.columns import Columns, column, columns

if TYPE_CHECKING:
    from attnx.measure.difference import Difference

LAYERS = 4
"""Layers that are listed where few are: those whose heads moved most."""


def verdict(found: Difference, name: str, *, texts: bool = False) -> str:
    """The result of a comparison, in one sentence.

    Args:
        found: The comparison.
        name: What the second model is called; "" where it is the first, compared with itself.
        texts: Whether one model is compared on two texts.
    """
    most = most_moved(found)
    moved = most is not None
    if found.first is None:
        least = (
            ""
            if not moved
            else f"; the largest difference of a weight is {small(float(np.nanmax(found.largest.values)))}"
        )
        return f"the same within {found.tolerance:g}: no stage of any layer differs by more{least}"
    at, stage = found.first
    parts = f"they part at the {stage} of {found.stages.axes[0].labels[at]}"
    if most is None:
        return f"no head moved; {parts}"
    site, head = most
    layers, heads = (axis.labels for axis in found.divergence.axes)
    rows = found.moved.values[site, head]
    largest = small(float(found.largest.values[site, head]))
    where = f"{layers[site]} {heads[head]}"
    who = f"{'the other text' if texts else name} moves the attention of {where} most"
    return (
        f"{who if name else f'the attention differs most in {where}'}: by up to {largest} of a row, "
        f"and {100 * rows:.0f}% of its rows have another strongest key; {parts}"
    )


def most_moved(found: Difference) -> tuple[int, int] | None:
    """Site and head with the largest divergence; None where no weight differs."""
    values = np.nan_to_num(found.divergence.values, nan=-1.0)
    if not values.size or not (np.nan_to_num(found.largest.values) > 0).any():
        return None
    site, head = divmod(int(values.argmax()), values.shape[1])
    return site, head


def heads(found: Difference, count: int, *, explain: bool = False) -> Columns:
    """The heads that moved most."""
    layers, names = (axis.labels for axis in found.divergence.axes)
    values = found.divergence.values
    order = np.argsort(-np.nan_to_num(values, nan=-1.0), axis=None, kind="stable")
    places = [divmod(int(at), values.shape[1]) for at in order]
    kept = [(s, h) for s, h in places if values[s, h] > 0 or found.largest.values[s, h] > 0][:count]

    def of(measure: Any) -> list[float]:
        return [float(measure.values[s, h]) for s, h in kept]

    told = (
        f"largest: {found.largest.formula}; mean: {found.mean.formula}; rank: {found.rank.formula} "
        f"({found.largest.source})"
    )
    return columns(
        "heads that moved most" if "mean" not in names else "means over heads that moved most",
        [
            column("head", [f"{layers[s]} {names[h]}" for s, h in kept], whole=True),
            column("largest", [small(value) for value in of(found.largest)], whole=True),
            column("mean", [small(value) for value in of(found.mean)], whole=True),
            column("JS", [small(value) for value in of(found.divergence)], whole=True),
            column("rank", of(found.rank), decimals=2),
            column("rows moved", of(found.moved), bar=(0.0, 1.0)),
        ],
        explained=[told] if explain else [],
    )


def layers(found: Difference, *, few: bool = False, explain: bool = False) -> Columns:
    """The layers: how far apart their stages are, and how far their heads moved.

    Args:
        found: The comparison.
        few: Only those that moved most, so that they stand on one screen with the rest.
        explain: With the formulas.
    """
    labels = found.stages.axes[0].labels
    means = average(found.divergence.values, axis=1)
    kept = list(range(len(labels)))
    if few and len(labels) > LAYERS:
        kept = sorted(np.argsort(-np.nan_to_num(means, nan=-1.0), kind="stable")[:LAYERS].tolist())
    parts = [column("layer", [labels[at] for at in kept], whole=True)]
    for at, stage in enumerate(found.stages.axes[1].labels):
        if np.isnan(found.stages.values[:, at]).all():
            continue  # one of the two models does not have it at all
        told = [small(value) for value in found.stages.values[kept, at]]
        parts.append(column(stage, told, whole=True, spare=at in (1, 2)))
    largest = np.where(np.isnan(found.divergence.values), -1.0, found.divergence.values).max(axis=1)
    parts += [
        column("parts at", [found.parts[at] or "-" for at in kept], whole=True),
        column("JS mean", [small(value) for value in means[kept]], whole=True),
        column("largest", [small(value) for value in np.where(largest < 0, np.nan, largest)[kept]], whole=True),
        column("rows moved", average(found.moved.values, axis=1)[kept], decimals=3),
    ]
    left = len(labels) - len(kept)
    told = [
        f"stages: {found.stages.formula}; JS: {found.divergence.formula} in nats ({found.divergence.source})",
        f"rows moved: {found.moved.formula} whose strongest key changes",
    ]
    title = f"the {len(kept)} layers that moved most, of {len(labels)}; a pipe gets all" if left else "by layer"
    return columns(title, parts, explained=told if explain else [])


__all__ = ["heads", "layers", "most_moved", "verdict"]
