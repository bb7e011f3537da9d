"""From a normed residual stream to logits, applied to single vectors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attnx.interventions.tail import Run
from attnx.records import Array
from attnx.run.check import TOLERANCE, difference

Targets = Sequence[tuple[int, int, int]]
"""Row of the batch, position, token."""


class Unembedding:
    """The map from a normed residual stream to logits, applied to single vectors; it must be linear plus a constant.

    Args:
        run: The part of the model that computes it.
        state: float [B,Q,E], its input in the run.
        targets: The logits that are read.
    """

    def __init__(self, run: Run, state: Array, targets: Targets) -> None:
        self._run, self._shape, self._targets = run, state.shape, targets
        given = run(state)["logits"]
        self._whole = _by_position(given).shape[:2] == state.shape[:2]
        if self._whole:
            turned = _by_position(run(np.ascontiguousarray(state[:, ::-1]))["logits"])[:, ::-1]
            self._whole = difference(turned, _by_position(given)) <= TOLERANCE["float32"]
        self.logit = self._read(given)
        """[N]."""
        self._zero = self._read(run(np.zeros(state.shape))["logits"])

    def constant(self, bias: Array) -> Array:
        """The output for the final norm's bias alone, [N]."""
        return self._read(self._run(np.broadcast_to(bias, self._shape))["logits"])

    def added(self, vectors: Sequence[Array]) -> Array:
        """The contributions of vectors [P,E] of each target to its logit, [N,P]."""
        if not self._whole:
            return np.stack([self._one(i, own) for i, own in enumerate(vectors)])
        count = len(vectors[0])
        flat = np.concatenate(vectors)
        tokens = np.repeat([token for _, _, token in self._targets], count)
        rows, queries, width = self._shape
        out = np.empty(len(flat))
        for at in range(0, len(flat), rows * queries):
            some = flat[at : at + rows * queries]
            state = np.zeros((rows * queries, width))
            state[: len(some)] = some
            logits = self._run(state.reshape(self._shape))["logits"].reshape(rows * queries, -1)
            out[at : at + len(some)] = logits[np.arange(len(some)), tokens[at : at + len(some)]]
        return out.reshape(len(vectors), count) - self._zero[:, None]

    def _one(self, i: int, vectors: Array) -> Array:
        """Vectors of one target, each at its own position and in its own run: positions may be read differently."""
        row, position, _ = self._targets[i]
        found = np.empty(len(vectors))
        for at, vector in enumerate(vectors):
            state = np.zeros(self._shape)
            state[row, position] = vector
            found[at] = self._read(self._run(state)["logits"])[i] - self._zero[i]
        return found

    def _read(self, logits: Array) -> Array:
        """The targets' logits, [N]."""
        flat = _by_position(logits)
        every = flat.shape[1] == self._shape[1]
        return np.array([flat[b, q if every else 0, t] for b, q, t in self._targets], np.float64)


def _by_position(logits: Array) -> Array:
    """Logits as [B,Q,V]; Q is 1 where they have no positions."""
    return logits.reshape(len(logits) if logits.ndim > 1 else 1, -1, logits.shape[-1])


__all__ = ["Targets", "Unembedding"]
