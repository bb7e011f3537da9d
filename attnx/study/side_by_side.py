"""Join the measures of consecutive layers, or of consecutive heads, as if all were measured at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from attnx.measure.rows import head_labels, stack
from attnx.records import Axis, Measurement


def beside(parts: Sequence[Measurement]) -> Measurement:
    """Join measurements of some heads each of the same layers along their second axis, the head."""
    values = np.concatenate([part.values for part in parts], axis=1)
    layer, head, *rest = parts[0].axes
    notes = tuple(dict.fromkeys(note for part in parts for note in part.notes))
    axes = (layer, Axis(head.name, head_labels(values.shape[1])), *rest)
    return replace(parts[0], axes=axes, values=values, notes=notes)


def side_by_side(parts: Sequence[Measurement], heads: bool = False) -> Measurement:
    """Join measurements along their first axis, the layer.

    Args:
        parts: At least one measurement.
        heads: Whether the second axis is the head: NaN where a layer has fewer heads than another.
    """
    first = parts[0]
    layer = replace(first.axes[0], labels=tuple(label for part in parts for label in part.axes[0].labels))
    if not heads:
        return replace(first, axes=(layer, *first.axes[1:]), values=np.concatenate([part.values for part in parts]))
    values = stack([row for part in parts for row in part.values])
    widest = max((part.axes[1] for part in parts), key=lambda axis: len(axis.labels))
    named = widest if len(widest.labels) == values.shape[1] else Axis("head", head_labels(values.shape[1]))
    return replace(first, axes=(layer, named, *first.axes[2:]), values=values)
