"""Whisper's timestamps among the words: which token may come next when a decoder writes them.

Source: Radford et al. 2022 (Whisper), section 4.5, and openai-whisper's decoding rules (ApplyTimestampRules), which
transformers' WhisperTimeStampLogitsProcessor follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attnx.records import Array


@dataclass(frozen=True, slots=True)
class Marks:
    """How a vocabulary writes times: the ids from `begin` on are 0.00 s, 0.02 s, ..."""

    begin: int
    """The id of 0.00 s; the id before it means that no timestamps are written."""
    end: int
    """The id that ends a text; words have smaller ones."""
    start: int = 0
    """Position of the first token that is written."""
    latest: int | None = None
    """The largest timestamp that may come first, counted from 0.00 s; any where None."""

    def allowed(self, logits: Array, ids: Sequence[int]) -> Array:
        """Logits of the next token, minus infinity where it is not allowed.

        Timestamps come in pairs except before the end, never go back, and the first token is one; a timestamp must come
        where all of them together are likelier than the likeliest word.

        Args:
            logits: float64 [vocabulary].
            ids: All tokens so far, the prompt's among them.
        """
        out = logits.copy()
        written = list(ids[self.start :])
        marks = [number for number in written if number >= self.begin]
        last = bool(written) and written[-1] >= self.begin
        before = len(written) < 2 or written[-2] >= self.begin
        out[self.begin - 1] = -np.inf
        if last and before:
            out[self.begin :] = -np.inf
        elif last:
            out[: self.end] = -np.inf
        if marks:
            out[self.begin : marks[-1] + (0 if last and not before else 1)] = -np.inf
        if not written:
            out[: self.begin] = -np.inf
            if self.latest is not None:
                out[self.begin + self.latest + 1 :] = -np.inf
        if np.logaddexp.reduce(out[self.begin :]) > out[: self.begin].max():
            out[: self.begin] = -np.inf
        return out


__all__ = ["Marks"]
