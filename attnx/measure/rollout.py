"""Rollout: follow attention through the layers down to the input tokens, by matrix multiplication."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from attnx.errors import UnsupportedError, UsageError
from attnx.formula import normalise
from attnx.measure.layered import EXPERIMENTAL, by_layer, layer_mean, layers, left_out, mixed, need_square, uniform
from attnx.measure.rows import Rows, head_labels
from attnx.records import Array, Axis, Measurement, Tokens, Trace
from attnx.tokens.spans import axis_labels
from attnx.wording import Wording

SOURCE = "Abnar and Zuidema 2020, Quantifying Attention Flow in Transformers"


def rollout(
    trace: Trace,
    tokens: Tokens | None = None,
    *,
    residual: float = 0.5,
    relative: bool = False,
    known: Mapping[int, Rows] = MappingProxyType({}),
) -> Measurement:
    """Attention rollout: R_l = A_l R_{l-1}, R_0 = I, A_l = (1 - residual) x mean over heads + residual x I.

    Rows are normalised first (a sink's share is spread over the row; a row without weight passes its token on).

    Args:
        trace: With weights [B,H,Q,K], Q = K, at every self-attention over the text.
        tokens: The text; by default the encoder's side if there is one, otherwise the query side.
        residual: Weight of the residual connection.
        relative: Divide by what uniform attention over the visible keys would give, then normalise rows. In a causal
            model, every later token sees the early ones, and rollout piles up on them whatever the heads do. There
            is no agreed formula; this one is attnx's own and experimental.
        known: The rows of sites, by their index, where they were read before.

    Returns:
        [S,Q,K], share of token K in position Q after each layer; rows sum to 1.

    Raises:
        UnsupportedError: No self-attention over the text, a site has no weights, or its matrix is not square.

    Source: Abnar and Zuidema 2020, section 3, equation 1; `relative`: attnx.
    """
    labels, matrices, text = layers(trace, tokens, known)
    values = _product(matrices, residual)
    if relative:
        even = _product(uniform(trace, text), residual)
        values = normalise(np.where(even > 0, values / np.where(even > 0, even, 1.0), 0.0))
    notes = (*left_out(trace, text), *((EXPERIMENTAL,) if relative else ()))
    return _measured(labels, text, values, "rollout", notes, residual)


def head_rollout(trace: Trace, query: int, tokens: Tokens | None = None) -> Measurement:
    """Single-head rollout: R(l, h) = A(l, h) R(l - 1), without a residual for the head itself.

    R(l - 1) is the rollout of the layers below, all heads, residual 0.5.

    Args:
        trace: As for `rollout`.
        query: Position of the token to follow.
        tokens: As for `rollout`.

    Returns:
        [S,H,K], share of each input token in what the head reads at that position.

    Raises:
        UsageError: There is no such position.
        UnsupportedError: As for `rollout`.

    Source: Abnar and Zuidema 2020, appendix A.1.
    """
    labels, matrices, text = layers(trace, tokens)
    if not 0 <= query < len(text):
        raise UsageError(f"there is no token {query}", f"Tokens run from 0 to {len(text) - 1}.")
    below = np.concatenate([np.eye(len(text))[None], _product(matrices, 0.5)[:-1]])
    sites = by_layer([a for a in trace.attentions if a.site.kind == "self" and trace.queries_of(a) is text])
    rows = [np.concatenate([a.need("weights")[0, :, query] for a in group]) for group in sites]
    widest = max(len(row) for row in rows)
    values = np.full((len(sites), widest, len(text)), np.nan)
    for at, row in enumerate(rows):
        values[at, : len(row)] = normalise(row) @ below[at]
    return Measurement(
        name="single-head rollout",
        unit="share",
        axes=(Axis("layer", labels), Axis("head", head_labels(widest)), Axis("key", text.pieces)),
        values=values,
        bounds=(0.0, 1.0),
        source=SOURCE + ", appendix A.1",
        formula="A(l, h) times the rollout of the layers below",
    )


def memory_rollout(trace: Trace) -> Measurement:
    """Rollout of an encoder-decoder: how much of every encoder token each decoder position contains.

    A decoder layer mixes decoder positions (self-attention, residual 0.5), then takes half of each position from the
    encoder (cross-attention times the encoder's rollout) and keeps half (the residual). The remainder comes from the
    decoder's own input, so rows sum to less than 1.

    Args:
        trace: With weights at the encoder's self-attentions, and the decoder's self- and cross-attentions.

    Returns:
        [S,Q,K], S cross-attentions, share of each memory token.

    Raises:
        UnsupportedError: There is no cross-attention, or weights are missing.

    Source: attnx, after Abnar and Zuidema 2020; the two streams as in Chefer et al. 2021 (without gradients).
    """
    pairs = zip(trace.labels, trace.attentions, strict=True)
    cross = [(label, a) for label, a in pairs if a.site.kind == "cross" and a.site.component == "decoder"]
    if not cross or trace.memory is None:
        raise UnsupportedError(
            "this model has no cross-attention, so no encoder to follow attention to",
            Wording("<model.find()> lists what the model has."),
        )
    below_it = [a for a in trace.attentions if a.site.component == "encoder" and a.site.kind == "self"]
    encoder = [a for a in below_it if trace.queries_of(a) is trace.memory]
    if any(a.site.moved for a in below_it) or any(a.site.key_order is not None for _, a in cross):
        raise UnsupportedError(
            "the encoder's text is moved in the graph, and is not followed to the decoder",
            Wording("Look at single layers: <layers=[0]>."),
        )
    size = cross[0][1].need("weights").shape[3]
    below = np.eye(size)
    labels = {id(a): label for label, a in zip(trace.labels, trace.attentions, strict=True)}
    for a in encoder:
        need_square(labels[id(a)], a, size)
    for group in by_layer(encoder):
        below = mixed(layer_mean(trace, group), 0.5) @ below
    count = cross[0][1].need("weights").shape[2]
    others = {a.need("weights").shape[2] for a in trace.attentions if a.site.component == "decoder"} - {count}
    if others:
        raise UnsupportedError(
            f"the decoder's layers are over {', '.join(map(str, sorted({count, *others})))} positions, as a picture at "
            "several resolutions: nothing says which position became which between two of them",
            Wording(
                "Look at single layers: [<layers=[0]>|<attnx.study.inspection.inspect(site='cross', layers=[0])>]."
            ),
        )
    state, out = np.zeros((count, size)), []
    for group in by_layer([a for a in trace.attentions if a.site.component != "encoder"]):
        weights = layer_mean(trace, group)
        if group[0].site.kind == "cross":
            state = 0.5 * state + 0.5 * np.nan_to_num(weights) @ below
            out += [state] * len(group)
        elif weights.shape == (count, count):
            state = mixed(weights, 0.5) @ state
    return Measurement(
        name="memory rollout",
        unit="share",
        axes=(
            Axis("layer", tuple(label for label, _ in cross)),
            Axis("query", axis_labels(trace.queries_of(cross[0][1]), count)),
            Axis("key", axis_labels(trace.memory, size)),
        ),
        values=np.stack(out),
        bounds=(0.0, 1.0),
        source="attnx, after " + SOURCE,
        formula="self: 0.5 A + 0.5 I; cross: half from the encoder's rollout, half kept",
        notes=("rows sum to less than 1: the rest is of the decoder's own input",),
    )


def _product(matrices: Array, residual: float) -> Array:
    """R_1 .. R_S, [S,n,n]."""
    out = []
    below = np.eye(matrices.shape[1])
    for matrix in matrices:
        below = mixed(matrix, residual) @ below
        out.append(below)
    return np.stack(out)


def _measured(
    labels: tuple[str, ...], text: Tokens, values: Array, name: str, notes: tuple[str, ...], residual: float
) -> Measurement:
    return Measurement(
        name=name,
        unit="share",
        axes=(Axis("layer", labels), Axis("query", text.pieces), Axis("key", text.pieces)),
        values=values,
        bounds=(0.0, 1.0),
        source=SOURCE,
        formula=f"R_l = ({1 - residual:g} A_l + {residual:g} I) R_(l-1), A_l the mean of the heads, "
        "whose rows are made to sum to 1",
        notes=notes,
    )
