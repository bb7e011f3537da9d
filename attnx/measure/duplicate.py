"""Duplicate tokens: how much a head looks at earlier copies of the query token."""

from __future__ import annotations

import numpy as np

from attnx.measure.rows import Rows, share_by_head
from attnx.records import Array, Measurement, Trace


def duplicate(trace: Trace) -> Measurement:
    """Duplicate-token score: mean over queries with an earlier copy of sum a_ij over earlier j with the same id.

    Args:
        trace: With weights [B,H,Q,K] and token ids; special tokens and padding are neither queries nor copies.

    Returns:
        [S,H], share, 0 to 1; NaN for cross-attention and if no token repeats.

    Raises:
        UnsupportedError: A site has no weights.

    Source: Wang et al. 2022, "Interpretability in the Wild", section 3 (duplicate token heads); the detector of
    TransformerLens.
    """

    def compute(rows: Rows) -> Array:
        copies = rows.copies()
        if copies is None:
            return rows.none()
        on = np.where(copies, rows.weights, 0.0).sum(axis=-1, dtype=np.float64)
        return rows.mean(np.where(copies.any(axis=1), on, np.nan))

    return share_by_head(
        trace,
        compute,
        name="duplicate",
        formula="mean over repeated tokens of the weight on their earlier copies",
        source="Wang et al. 2022, section 3",
    )
