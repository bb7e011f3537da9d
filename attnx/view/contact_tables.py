"""Contacts of a protein: the strongest pairs, the map of all, and how many of the strongest are real."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from attnx.numerals import counted
from attnx.records import Array, Measurement
from attnx.view.columns import Columns, column, columns
from attnx.view.matrix import Matrix, of_measurement


def strongest(
    rows: Sequence[tuple[str, str, int, float]], real: Sequence[bool] | None, title: str, said: Sequence[str]
) -> Columns:
    """The strongest pairs, the strongest first.

    Args:
        rows: Two residues, how far they lie apart, and their score.
        real: Whether each is a real contact; None where that is not known.
        title: Stands above.
        said: Lines under the table.
    """
    most = max((score for *_, score in rows), default=0.0)
    parts = [
        column("residues", [f"{one} {two}" for one, two, *_ in rows], whole=True),
        column("apart", [str(apart) for *_, apart, _ in rows], whole=True),
    ]
    if real is not None:
        parts.append(column("real", ["yes" if one else "no" for one in real], whole=True))
    parts.append(column("score", [score for *_, score in rows], bar=(0.0, most) if most > 0 else None))
    return columns(title, parts, notes=said)


def contact_map(found: Measurement, apart: int) -> Matrix:
    """The map, without the pairs that lie too near each other to count; residues are numbered from 1.

    Args:
        found: [N,N]; its axes name residues by letter and number.
        apart: Positions that two residues must lie apart to count.
    """
    made, count = of_measurement(found), len(found.values)
    near = np.abs(np.subtract.outer(np.arange(count), np.arange(count))) < apart
    letters = tuple(name.rstrip("0123456789") for name in made.queries.labels)
    down, across = (
        replace(side, labels=letters, at=tuple(range(1, count + 1)), total=count + 1)
        for side in (made.queries, made.keys)
    )
    notes = (
        (f"drawn from 0 up; residues less than {apart} apart have no value", *made.notes) if apart > 1 else made.notes
    )
    return replace(made, values=np.where(near, np.nan, made.values), queries=down, keys=across, notes=notes)


def precision(heads: Measurement, mean: tuple[str, Array], chance: float, contacts: int, count: int) -> Columns:
    """How many of the strongest pairs are real: of the map that is shown, by chance, and of the best heads.

    Args:
        heads: [L,H,3].
        mean: The name of the map that is shown, and its precisions [3].
        chance: The precision of a random map.
        contacts: Real contacts that count.
        count: How many heads are listed.
    """
    layers, names = (axis.labels for axis in heads.axes[:2])
    ranks = np.nan_to_num(heads.values, nan=-1.0)
    order = np.lexsort(tuple(-ranks[..., at].ravel() for at in reversed(range(ranks.shape[-1]))))
    places = [divmod(int(at), len(names)) for at in order]
    best = [at for at in places if not np.isnan(heads.values[at]).all()][:count]
    rows = [mean[1], np.full(ranks.shape[-1], chance), *(heads.values[at] for at in best)]
    parts = [column("", [mean[0], "chance", *(f"{layers[s]} {names[h]}" for s, h in best)], whole=True)]
    for at, name in enumerate(heads.axes[-1].labels):
        parts.append(column(name, [row[at] for row in rows], bar=(0.0, 1.0) if not at else None))
    return columns(
        f"precision against {counted(contacts, 'real contact')}",
        parts,
        notes=[
            f"{heads.formula} ({heads.source})",
            "the best heads are chosen after the fact, on this one protein: judge them on others",
        ],
    )


__all__ = ["contact_map", "precision", "strongest"]
