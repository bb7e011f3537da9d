"""Special: how much weight goes to special tokens and to punctuation."""

from __future__ import annotations

import unicodedata
from functools import lru_cache

import numpy as np

from attnx.measure.rows import Rows, share_by_head
from attnx.records import Array, Measurement, Tokens, Trace


def special(trace: Trace) -> Measurement:
    """Weight on special tokens ([CLS], [SEP], <s>): mean over queries of sum_{j special} a_ij.

    Args:
        trace: With weights [B,H,Q,K].

    Returns:
        [S,H], share, 0 to 1.

    Raises:
        UnsupportedError: A site has no weights.

    Source: Clark et al. 2019, section 3.2.
    """
    return share_by_head(
        trace,
        lambda rows: _on(rows, rows.key_flags(rows.keys.special)),
        name="special",
        formula="mean over queries of the weight on special tokens",
        source="Clark et al. 2019, section 3.2",
    )


def punctuation(trace: Trace) -> Measurement:
    """Weight on punctuation: mean over queries of sum a_ij over keys that consist of Unicode punctuation.

    Args:
        trace: With weights [B,H,Q,K].

    Returns:
        [S,H], share, 0 to 1.

    Raises:
        UnsupportedError: A site has no weights.

    Source: Clark et al. 2019, section 3.2 (periods and commas).
    """
    return share_by_head(
        trace,
        lambda rows: _on(rows, rows.key_flags(is_punctuation(rows.keys))),
        name="punctuation",
        formula="mean over queries of the weight on punctuation",
        source="Clark et al. 2019, section 3.2",
    )


def is_punctuation(tokens: Tokens) -> tuple[bool, ...]:
    """Whether each token is punctuation: not special, not empty, every character of Unicode category P."""
    out = []
    for at, (start, end) in enumerate(tokens.offsets):
        text = (tokens.text[start:end] if tokens.text and end > start else tokens.pieces[at]).strip()
        out.append(_only_punctuation(text) and not tokens.special[at])
    return tuple(out)


@lru_cache(1 << 14)
def _only_punctuation(text: str) -> bool:
    return bool(text) and all(unicodedata.category(letter).startswith("P") for letter in text)


def _on(rows: Rows, wanted: Array) -> Array:
    return rows.mean(np.where(wanted, rows.weights, 0.0).sum(axis=-1, dtype=np.float64))
