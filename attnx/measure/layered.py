"""The self-attentions over one text as matrices, layer by layer: what rollout and flow go through."""

from __future__ import annotations

import numpy as np

from attnx.errors import UnsupportedError
from attnx.formula import average, normalise
from attnx.measure.rows import read
from attnx.records import Array, Attention, Tokens, Trace
from attnx.wording import Wording

EXPERIMENTAL = (
    "experimental: each row is divided by what uniform attention over the same visible keys gives, then normalised"
)
"""Said of the normalisation for causal models, on which there is no agreement."""


def layers(trace: Trace, tokens: Tokens | None) -> tuple[tuple[str, ...], Array, Array, Tokens]:
    """Labels, head means [S,n,n], uniform attention over the visible keys [S,n,n], and the text."""
    text = tokens or trace.memory or trace.tokens
    found = [
        (label, a)
        for label, a in zip(trace.labels, trace.attentions, strict=True)
        if a.site.kind == "self" and trace.queries_of(a) is text
    ]
    if not found:
        raise UnsupportedError(
            "no self-attention of this model is over that text, so nothing flows through it",
            Wording("<model.find()> lists what the model has."),
        )
    means, uniform = [], []
    for label, attention in found:
        shape = attention.need("weights").shape[2:]
        if shape != (len(text), len(text)):
            raise UnsupportedError(
                f"{label} attends from {shape[0]} to {shape[1]} positions; rollout needs {len(text)} to {len(text)}",
                "Run the whole text at once, without past keys.",
            )
        means.append(head_mean(trace, attention))
        uniform.append(normalise(read(trace, attention).visible.mean(axis=0)))
    return tuple(label for label, _ in found), np.stack(means), np.stack(uniform), text


def head_mean(trace: Trace, attention: Attention) -> Array:
    """Mean over heads, [Q,K], rows summing to 1; NaN where no head has weight."""
    rows = read(trace, attention)
    return average(normalise(rows.weights), axis=0, where=rows.real[..., None] & np.ones_like(rows.weights, bool))


def mixed(matrix: Array, residual: float) -> Array:
    """(1 - residual) A + residual I; a row without weight becomes the identity's (its token passes on)."""
    eye = np.eye(len(matrix))
    empty = np.isnan(matrix).any(axis=1, keepdims=True)
    return np.where(empty, eye, (1 - residual) * np.where(empty, 0.0, matrix) + residual * eye)
