"""Notes on queries from which a mask hides every key: their weights mean nothing."""

from __future__ import annotations

import numpy as np

from attnx.records import Trace

_HIDDEN = -1e4
"""The masked score of a hidden key is at most this: -inf, or the most negative number of its type."""


def unseen(trace: Trace) -> tuple[str, ...]:
    """Notes on sites in which queries of the text see no key.

    Args:
        trace: With masked scores; sites without them are skipped. Padding is expected to see nothing.
    """
    blind: dict[str, tuple[int, int]] = {}
    for label, attention in zip(trace.labels, trace.attentions, strict=True):
        if attention.masked is None or attention.masked.shape[-1] < 2:
            continue
        best = attention.masked[0].max(axis=-1).max(axis=0)
        real = np.asarray(trace.queries_of(attention).mask, bool)
        real = real[-len(best) :] if len(real) >= len(best) else np.ones(len(best), bool)
        count = int((~(best > _HIDDEN) & ~np.isnan(best) & real).sum())
        if count:
            blind[label] = count, len(best)
    if not blind:
        return ()
    label, (count, total) = next(iter(blind.items()))
    more = f" and {len(blind) - 1} more" if len(blind) > 1 else ""
    which = "every query" if count == total else f"{count} of {total} queries"
    return (
        f"every key is hidden from {which} in {label}{more}: the weights of such rows say nothing; does a mask have "
        "ones where it should have zeros?",
    )
