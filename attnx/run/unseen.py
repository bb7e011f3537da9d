"""Notes on queries from which a mask hides every key: their weights mean nothing."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from attnx.formula import sees_nothing
from attnx.notes import of_sites
from attnx.records import Array, Trace


def unseen(trace: Trace) -> tuple[str, ...]:
    """Notes on sites in which queries of the text see no key.

    Args:
        trace: With masked scores; sites without them are skipped. Padding is expected to see nothing, unless there is
            nothing else.
    """
    blind: dict[str, Array] = {}
    for label, attention in zip(trace.labels, trace.attentions, strict=True):
        if attention.masked is None or attention.masked.shape[-1] < 2:
            continue
        capped, weights = (None if array is None else array[0] for array in (attention.capped, attention.weights))
        rows = np.asarray(sees_nothing(attention.masked[0], capped, weights).all(axis=0))
        real = np.asarray(trace.queries_of(attention).mask, bool)
        real = real[-len(rows) :] if len(real) >= len(rows) and real.any() else np.ones(len(rows), bool)
        blind[label] = rows & real
    return blind_rows(blind)


def blind_rows(blind: Mapping[str, Array]) -> tuple[str, ...]:
    """Notes on rows that see no key.

    Args:
        blind: By the label of a site, bool [Q]: the queries that see none.
    """
    found = []
    for label, rows in blind.items():
        which = "every query" if rows.all() else f"{int(rows.sum())} of {len(rows)} queries"
        said = "the weights of such rows say nothing; does a mask have ones where it should have zeros?"
        if rows.any():
            found.append((label, f"every key is hidden from {which} in {{sites}}: {said}"))
    return of_sites(found)
