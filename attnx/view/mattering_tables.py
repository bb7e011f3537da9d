"""Whether it matters where heads point, as tables: the answer first, then each head beside its controls."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from attnx.numerals import counted
from attnx.view.cells import number
from attnx.view.columns import Columns, column, columns

if TYPE_CHECKING:
    from attnx.measure.mattering import Mattered, Mattering


def answer(one: Mattering) -> str:
    """What comes of it, in words."""
    edge = f"{one.word.text} → {one.to.text}"
    if not one.ranked or not one.moved.values[one.ranked[0]] > 0:
        return f"{edge}: cutting it in any one head moves nothing."
    at = one.ranked[0]
    layers, names = (axis.labels for axis in one.moved.axes)
    rest = np.delete(one.moved.values.ravel(), at[0] * len(names) + at[1])
    rest = rest[~np.isnan(rest)]
    here, next_best = one.moved.values[at], one.ranked[1:2]
    found = (
        f"{edge}: cutting it in {layers[at[0]]} {names[at[1]]} (weight {number(one.weights.values[at])}) moves most, "
        f"{number(here, 4)} ({one.moved.name})"
    )
    if next_best:
        s, h = next_best[0]
        found += f"; next is {layers[s]} {names[h]}, {number(one.moved.values[s, h], 4)}"
        found += f"; the mean of the other {counted(len(rest), 'head')} is {number(float(rest.mean()), 4)}"
    other = one.other_moved.values[at]
    if other == other:
        weight = number(one.other_weights.values[at])
        found += f". Cutting other words in that head instead (weight {weight} together) moves {number(other, 4)}"
    return f"{found}."


def heads(one: Mattering, count: int, more: Callable[[int], str], *, explain: bool = False) -> Columns:
    """The heads in which the cut moves most; `more`: how to see those that are left out, given their number."""
    layers, names = (axis.labels for axis in one.moved.axes)
    kept = one.ranked[:count]

    def of(values: np.ndarray) -> list[float]:
        return [float(values[at]) for at in kept]

    parts = [
        column("head", [f"{layers[s]} {names[h]}" for s, h in kept], whole=True),
        column("weight", of(one.weights.values), decimals=3),
        column("moves", of(one.moved.values), decimals=4, bar=(0.0, max(of(one.moved.values), default=0.0) or 1.0)),
        column("other words", of(one.other_weights.values), decimals=3),
        column("moves", of(one.other_moved.values), decimals=4),
    ]
    if one.second is not None:
        parts.append(column(one.second.name, of(one.second.values), decimals=4))
    left = len(one.ranked) - len(kept)
    points = (
        "heads that point more move it more" if one.correlation > 0 else "heads that point more do not move it more"
    )
    notes = [
        f"{points}: rank correlation of weight and effect over {counted(len(one.ranked), 'head')} "
        f"{number(one.correlation, 2)}",
        f"{one.second.name} unedited: {number(one.unedited, 4)}" if one.second and one.unedited is not None else "",
        more(left),
    ]
    told = [
        f"moves: {one.moved.name}: {one.moved.formula}",
        "other words: about as much weight cut to other words of the same head instead, special tokens left out",
        one.moved.source,
    ]
    title = f"from {one.word.text}@{one.word.pieces[0]}: the edge to {one.to.text} cut, a head at a time"
    return columns(title, parts, notes=notes, explained=told if explain else [])


def over(model: str, name: str, found: Mattered) -> Columns:
    """Whether heads that point also matter, with intervals."""
    labels, values = found.comparison.axes[0].labels, found.comparison.values
    layers, names = (axis.labels for axis in found.heads.axes)
    best = divmod(int(np.nanargmax(found.heads.values)), len(names))
    notes = [
        f"effect: {found.comparison.formula} ({found.comparison.source})",
        f"weight cut on average: {number(found.cut[0])} in the head that points most, {number(found.cut[1])} to other "
        "words of that head",
        f"over all examples, cutting moves most in {layers[best[0]]} {names[best[1]]}: "
        f"{number(found.heads.values[best], 4)} on average, weight {number(found.weights.values[best])}",
        *found.notes,
    ]
    return columns(
        f"{model} on {name}: {counted(found.examples, 'example')} in {counted(found.groups, 'group')}",
        [
            column("pronoun → what it stands for, cut", labels, whole=True),
            column("mean", values[:, 0], decimals=4),
            column("95% interval", [f"{number(a, 4)} to {number(b, 4)}" for _, a, b in values], whole=True),
        ],
        notes=notes,
    )


def answer_over(found: Mattered) -> str:
    """What comes of it over a dataset, in words."""
    from attnx.measure.mattering import LESS, OTHERS, POINTING, RANDOM

    rows = dict(zip(found.comparison.axes[0].labels, found.comparison.values, strict=True))
    more = [name for name, row in ((OTHERS, rows[LESS[0]]), (RANDOM, rows[LESS[1]])) if row[1] > 0]
    said = f"The head that points most at what the pronoun stands for moves it by {number(rows[POINTING][0], 4)}"
    if len(more) == 2:
        return f"{said}: more than other words of that head, and more than the same edge in other heads."
    if more:
        return f"{said}: more than {more[0]}; against the other control, chance is not ruled out."
    return f"{said}: no more than the controls, as far as these examples show."
