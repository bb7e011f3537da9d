"""Offsets: how much a head looks at the previous, the next, its own and the first token."""

from __future__ import annotations

import numpy as np

from attnx.measure.rows import Rows, share_by_head
from attnx.records import Array, Measurement, Trace

NAMES = {-1: "previous", 0: "self", 1: "next"}


def offset(trace: Trace, delta: int) -> Measurement:
    """Weight at a fixed offset: mean over queries i of a_{i,i+delta}.

    Queries for which i + delta is outside the text are left out; a key that exists but is hidden counts as 0.

    Args:
        trace: With weights [B,H,Q,K]; query i is at key position i + K - Q.
        delta: -1 previous, 0 self, 1 next, or any other.

    Returns:
        [S,H], share, 0 to 1; NaN for cross-attention and if no query has such a key.

    Raises:
        UnsupportedError: A site has no weights.

    Source: Clark et al. 2019, section 3.1 (previous and next); the detector "mul" of TransformerLens for one offset.
    """

    def compute(rows: Rows) -> Array:
        if rows.position is None:
            return rows.none()
        return rows.mean(rows.at(rows.position + delta))

    return share_by_head(
        trace,
        compute,
        name=NAMES.get(delta, f"offset {delta:+d}"),
        formula=f"mean over queries of a(i, i{delta:+d})" if delta else "mean over queries of a(i, i)",
        source="Clark et al. 2019, section 3.1",
    )


def offset_argmax(trace: Trace, delta: int) -> Measurement:
    """How often the strongest key is at a fixed offset: mean over queries of 1[argmax_j a_ij = i + delta].

    Voita et al. call a head positional if this is at least 0.9 for some offset.

    Args:
        trace: With weights [B,H,Q,K].
        delta: -1 previous, 0 self, 1 next, or any other.

    Returns:
        [S,H], share of rows, 0 to 1; NaN for cross-attention.

    Raises:
        UnsupportedError: A site has no weights.

    Source: Voita et al. 2019, section 5.1.
    """

    def compute(rows: Rows) -> Array:
        if rows.position is None or not rows.weights.shape[2]:
            return rows.none()
        target = rows.position + delta
        hit = (np.argmax(rows.weights, axis=-1) == target).astype(np.float64)
        return rows.mean(np.where(rows.inside(target), hit, np.nan))

    return share_by_head(
        trace,
        compute,
        name=f"{NAMES.get(delta, f'offset {delta:+d}')} argmax",
        formula="share of queries whose strongest key stands there",
        source="Voita et al. 2019, section 5.1",
    )


def first(trace: Trace) -> Measurement:
    """Weight on the first key: mean over queries of a_{i,0} (in cross-attention, the memory's first token).

    Args:
        trace: With weights [B,H,Q,K].

    Returns:
        [S,H], share, 0 to 1.

    Raises:
        UnsupportedError: A site has no weights.

    Source: Xiao et al. 2023, "Efficient Streaming Language Models with Attention Sinks", section 3.1.
    """

    def compute(rows: Rows) -> Array:
        # Left padding does not count: the first key is the first real token.
        real = rows.key_flags(rows.keys.mask)
        start = int(np.argmax(real)) if real.any() else 0
        return rows.mean(rows.at(np.full(rows.weights.shape[1], start)))

    return share_by_head(
        trace, compute, name="first", formula="mean over queries of a(i, first)", source="Xiao et al. 2023, section 3.1"
    )
