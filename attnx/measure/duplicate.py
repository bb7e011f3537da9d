"""Duplicate tokens: how much a head looks at earlier copies of the token it stands on."""

from __future__ import annotations

import numpy as np

from attnx.measure.rows import Rows, by_head
from attnx.records import Array, Measurement, Trace


def duplicate(trace: Trace) -> Measurement:
    """Duplicate-token score: mean over queries with an earlier copy of sum a_ij over earlier j with the same id.

    Args:
        trace: With weights [B,H,Q,K] and token ids; special tokens and padding are neither queries nor copies.

    Returns:
        [S,H], share, 0 to 1; NaN for cross-attention and where no token repeats.

    Raises:
        UnsupportedError: A site has no weights.

    Source: Wang et al. 2022, "Interpretability in the Wild", section 3 (duplicate token heads); the detector of
    TransformerLens.
    """

    def compute(rows: Rows) -> Array:
        nothing = np.full(rows.weights.shape[0], np.nan)
        count = len(rows.queries)
        if rows.position is None or rows.weights.shape[1:] != (count, count):
            return nothing
        ids = np.asarray(rows.queries.ids).reshape(-1)
        plain = np.asarray(rows.queries.mask, bool) & ~np.asarray(rows.queries.special, bool)
        copies = (ids[:, None] == ids[None, :]) & np.tri(count, k=-1, dtype=bool) & plain[:, None] & plain[None, :]
        on = np.where(copies, rows.weights, 0.0).sum(axis=-1, dtype=np.float64)
        return rows.mean(np.where(copies.any(axis=1), on, np.nan))

    return by_head(
        trace,
        compute,
        name="duplicate",
        unit="share",
        bounds=(0.0, 1.0),
        formula="mean over repeated tokens of the weight on their earlier copies",
        source="Wang et al. 2022, section 3",
    )
