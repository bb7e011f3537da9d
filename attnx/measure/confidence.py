"""Confidence: how sure a head is of its strongest key."""

from __future__ import annotations

import numpy as np

from attnx.measure.rows import Rows, share_by_head
from attnx.records import Array, Measurement, Trace


def confidence(trace: Trace) -> Measurement:
    """Confidence of every head: mean over queries of max_j a_ij, without special tokens on either axis.

    Voita et al. leave out the end-of-sentence symbol, on which heads park weight; here every special token is left
    out ([CLS] and [SEP] play that role in BERT). The other weights are not rescaled.

    Args:
        trace: With weights [B,H,Q,K].

    Returns:
        [S,H], share, 0 to 1; NaN if there are only special tokens.

    Raises:
        UnsupportedError: A site has no weights.

    Source: Voita et al. 2019, "Analyzing Multi-Head Self-Attention", section 4.
    """

    def compute(rows: Rows) -> Array:
        keep = ~rows.key_flags(rows.keys.special)
        if not keep.any():
            return rows.none()
        best = np.max(rows.weights[:, :, keep], axis=-1).astype(np.float64)
        if best.shape[1] == len(rows.queries):
            best = np.where(np.asarray(rows.queries.special, bool), np.nan, best)
        return rows.mean(best)

    return share_by_head(
        trace,
        compute,
        name="confidence",
        formula="mean over queries of max a, special tokens left out",
        source="Voita et al. 2019, section 4",
    )


def largest(trace: Trace) -> Measurement:
    """Largest weight of every head over all tokens: mean over queries of max_j a_ij.

    Args:
        trace: With weights [B,H,Q,K].

    Returns:
        [S,H], share, 0 to 1.

    Raises:
        UnsupportedError: A site has no weights.

    Source: attnx.
    """
    return share_by_head(
        trace,
        lambda rows: rows.mean(np.max(rows.weights, axis=-1, initial=0.0).astype(np.float64)),
        name="largest weight",
        formula="mean over queries of max a",
        source="attnx",
    )
