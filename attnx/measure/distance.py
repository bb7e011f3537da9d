"""Distance: how far a head looks."""

from __future__ import annotations

import numpy as np

from attnx.measure.rows import Rows, by_head, share_by_head
from attnx.records import Array, Measurement, Trace

ACROSS = "a cross-attention has no distances: its two axes are different texts"


def mean_distance(trace: Trace) -> Measurement:
    """Mean distance of every head: D = sum a_ij |i - j| / sum a_ij over all queries i and keys j.

    Args:
        trace: With weights [B,H,Q,K]; query i is at key position i + K - Q.

    Returns:
        [S,H], tokens; NaN for cross-attention.

    Raises:
        UnsupportedError: A site has no weights.

    Source: Vig and Belinkov 2019, "Analyzing the Structure of Attention in a Transformer Language Model".
    """

    def compute(rows: Rows) -> Array:
        away = _distances(rows)
        if away is None:
            return rows.none()
        weights = np.where(rows.real[..., None], rows.weights, 0.0).astype(np.float64)
        total = weights.sum(axis=(1, 2))
        return np.asarray((weights * away).sum(axis=(1, 2)) / np.where(total > 0, total, np.nan))

    return by_head(
        trace,
        compute,
        name="mean distance",
        unit="tokens",
        bounds=(0.0, None),
        formula="sum a |i - j| / sum a",
        source="Vig and Belinkov 2019, mean attention distance",
        notes=_notes(trace),
    )


def locality(trace: Trace, within: int = 2) -> Measurement:
    """Share of weight that stays near the query: mean over queries of sum_j a_ij with |i - j| <= within.

    Args:
        trace: With weights [B,H,Q,K].
        within: The largest distance that counts, in tokens; the query itself counts too.

    Returns:
        [S,H], share, 0 to 1; NaN for cross-attention.

    Raises:
        UnsupportedError: A site has no weights.

    Source: attnx.
    """

    def compute(rows: Rows) -> Array:
        away = _distances(rows)
        if away is None:
            return rows.none()
        return rows.mean(np.where(away <= within, rows.weights, 0.0).sum(axis=-1, dtype=np.float64))

    return share_by_head(
        trace,
        compute,
        name="locality",
        formula=f"mean over queries of the weight within {within} tokens",
        source="attnx",
        notes=_notes(trace),
    )


def _distances(rows: Rows) -> Array | None:
    """|i - j| as [Q,K]; None across two texts."""
    if rows.position is None:
        return None
    return np.abs(rows.position[:, None] - np.arange(rows.weights.shape[2])[None, :])


def _notes(trace: Trace) -> tuple[str, ...]:
    return (ACROSS,) if any(a.site.kind != "self" for a in trace.attentions) else ()
