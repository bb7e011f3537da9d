"""The self-attentions over one text as matrices, layer by layer: the input of rollout and flow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from attnx.errors import UnsupportedError
from attnx.formula import average, normalise
from attnx.measure.rows import Rows, read
from attnx.records import Array, Attention, Tokens, Trace
from attnx.wording import Wording

EXPERIMENTAL = (
    "experimental: each row is divided by what uniform attention over the same visible keys gives, then normalised"
)
"""Note on the normalisation for causal models, for which there is no agreed formula."""


def layers(
    trace: Trace, tokens: Tokens | None, known: Mapping[int, Rows] = MappingProxyType({})
) -> tuple[tuple[str, ...], Array, Tokens]:
    """Labels, head means [S,n,n], and the text.

    Args:
        trace: With the weights.
        tokens: The text.
        known: The rows of sites, by their index, where they were read before.
    """
    groups, text = _groups(trace, tokens)
    means = [layer_mean(trace, group, known) for _, group in groups]
    return tuple(label for label, _ in groups), np.stack(means), text


def uniform(trace: Trace, tokens: Tokens | None) -> Array:
    """Uniform attention over the visible keys, [S,n,n]: the result of `layers` if all heads looked everywhere."""
    groups, _ = _groups(trace, tokens)
    visible = [np.concatenate([read(trace, a).visible for a in group]) for _, group in groups]
    return np.stack([normalise(average(cells, axis=0)) for cells in visible])


def _groups(trace: Trace, tokens: Tokens | None) -> tuple[list[tuple[str, list[Attention]]], Tokens]:
    """The sites of each layer over the text, and the layer's label; and the text."""
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
    for label, attention in found:
        need_square(label, attention, len(text))
    labels = {id(a): label for label, a in found}
    groups = by_layer([a for _, a in found])
    names = [labels[id(group[0])] if len(group) == 1 else group[0].site.label for group in groups]
    return list(zip(names, groups, strict=True)), text


def need_square(label: str, attention: Attention, length: int) -> None:
    """Refuse a self-attention that is not exactly from a text to itself.

    Raises:
        UnsupportedError: It has other queries or keys.
    """
    if attention.site.over_channels:
        raise UnsupportedError(f"{label} attends from channels to channels, so no token flows through it")
    if not attention.site.aligned:
        raise UnsupportedError(
            f"{label} attends to its text in another order, so that query and key of a position are not one token",
            Wording("Look at single layers: <layers=[0]>."),
        )
    queries, keys = attention.need("weights").shape[2:]
    if (queries, keys) == (length, length):
        return
    before = attention.site.keys_before
    hint = "Run the whole text at once, without past keys; learned keys beside the text's are not followed."
    if before and (queries, keys) == (length, length + before):
        hint = f"Its text sees {before} global keys too; what these carry on is not followed: look at single layers."
    raise UnsupportedError(
        f"{label} attends from {queries} to {keys} positions; rollout needs {length} to {length}",
        hint,
    )


def left_out(trace: Trace, text: Tokens) -> tuple[str, ...]:
    """A note on self-attentions in between that are over something other than the text and are not followed."""
    pairs = [(label, a) for label, a in zip(trace.labels, trace.attentions, strict=True) if a.site.kind == "self"]
    over = {a.site.component for _, a in pairs if trace.queries_of(a) is text}
    others = [label for label, a in pairs if a.site.component in over and trace.queries_of(a) is not text]
    if not others:
        return ()
    said = f"{', '.join(others[:3])}{f' and {len(others) - 3} more' if len(others) > 3 else ''}"
    return (f"not followed: {said}, which {'is' if len(others) == 1 else 'are'} over other queries than these",)


def by_layer(attentions: Sequence[Attention]) -> list[list[Attention]]:
    """Group sites that are side by side in one layer; all others are alone."""
    groups: list[list[Attention]] = []
    for a in attentions:
        before = groups[-1][0].site if groups else None
        place = (a.site.component, a.site.kind, a.site.layer)
        if before is not None and a.site.layer is not None and place == (before.component, before.kind, before.layer):
            groups[-1].append(a)
        else:
            groups.append([a])
    return groups


def layer_mean(trace: Trace, group: Sequence[Attention], known: Mapping[int, Rows] = MappingProxyType({})) -> Array:
    """Mean over the heads of all sites of a layer, [Q,K]; see `head_mean`."""
    rows = [known.get(a.site.index) or read(trace, a) for a in group]
    if len(rows) == 1:
        return head_mean(rows[0])
    weights = np.concatenate([normalise(r.weights) for r in rows])
    real = np.concatenate([np.broadcast_to(r.real[..., None], r.weights.shape) for r in rows])
    return average(weights, axis=0, where=real)


def head_mean(rows: Rows) -> Array:
    """Mean over heads, [Q,K], with rows summing to 1; NaN where no head has weight."""
    real = None if rows.real.all() else np.broadcast_to(rows.real[..., None], rows.weights.shape)
    return average(normalise(rows.weights), axis=0, where=real)


def mixed(matrix: Array, residual: float) -> Array:
    """(1 - residual) A + residual I; a row without weight becomes the identity's (its token is passed on)."""
    eye = np.eye(len(matrix))
    empty = np.isnan(matrix).any(axis=1, keepdims=True)
    return np.where(empty, eye, (1 - residual) * np.where(empty, 0.0, matrix) + residual * eye)
