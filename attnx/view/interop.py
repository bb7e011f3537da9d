"""A trace for other visualisers: the arguments of bertviz's and CircuitsVis's entry points.

Neither library is needed here. Both import torch; bertviz also wants its tensors, which a function of the caller's
makes of the arrays (`torch.as_tensor`), so that attnx need not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from attnx.errors import UnsupportedError, UsageError, lacks_memory
from attnx.formula import visible
from attnx.records import STAGES, Array, Attention, Tokens, Trace
from attnx.tokens.spans import axis_labels


def to_bertviz(trace: Trace, tensor: Callable[[Array], Any] | None = None) -> dict[str, Any]:
    """The arguments of `bertviz.head_view` and `bertviz.model_view`.

        from bertviz import head_view
        head_view(**trace.to_bertviz(torch.as_tensor))

    Args:
        trace: With weights.
        tensor: Makes of an array what bertviz takes; without it the arrays stay numpy's.

    Returns:
        For a model of one text `attention` (one [1,H,Q,K] a layer) and `tokens`; for an encoder-decoder what it has of
        `encoder_attention`, `decoder_attention`, `cross_attention`, `encoder_tokens`, `decoder_tokens`.

    Raises:
        UnsupportedError: There are no weights; layers differ in their number of heads, which bertviz cannot show; or
            the keys are not the tokens (a cache, patches).

    Source: bertviz 1.4.1, head_view.py and util.py.
    """
    made = tensor if tensor is not None else np.asarray
    sorts = {"encoder": _of(trace, "encoder"), "decoder": _of(trace, "decoder"), "cross": _of(trace, "cross")}
    if not any(sorts.values()):
        raise UnsupportedError("the trace has no weights of self- or cross-attention", 'Trace with "weights".')
    both = trace.memory is not None and sorts["cross"]
    if not both:
        own = [*sorts["encoder"], *sorts["decoder"]]
        side = trace.queries_of(own[0]) if own else trace.tokens
        return {"attention": [made(one) for one in _square(trace, own, side, side)], "tokens": _pieces(side)}
    assert trace.memory is not None
    asking = next((trace.queries_of(a) for a in sorts["cross"] if a.site.moved), trace.tokens)
    out: dict[str, Any] = {"encoder_tokens": _pieces(trace.memory), "decoder_tokens": _pieces(asking)}
    sides = {
        "encoder": (trace.memory, trace.memory),
        "decoder": (asking, asking),
        "cross": (asking, trace.memory),
    }
    for sort, attentions in sorts.items():
        if attentions:
            out[f"{sort}_attention"] = [made(one) for one in _square(trace, attentions, *sides[sort])]
    return out


def to_circuitsvis(trace: Trace, layer: int = 0) -> dict[str, Any]:
    """The arguments of `circuitsvis.attention.attention_heads` for one layer.

        from circuitsvis.attention import attention_heads
        attention_heads(**trace.to_circuitsvis(layer=5))

    Args:
        trace: With weights.
        layer: Position of the layer among the self-attentions of the trace, from 0; negative from the end.

    Returns:
        `attention` [H,Q,K], `tokens`, `attention_head_names` and `mask_upper_tri` (true for a causal site).

    Raises:
        UsageError: There is no such layer.
        UnsupportedError: There are no weights, or the keys are not the tokens.

    Source: CircuitsVis 1.43.3, attention.py.
    """
    own = [*_of(trace, "encoder"), *_of(trace, "decoder")]
    if not own:
        raise UnsupportedError("the trace has no weights of self-attention", 'Trace with "weights".')
    if isinstance(layer, bool) or not isinstance(layer, int) or not -len(own) <= layer < len(own):
        raise UsageError(f"there is no layer {layer}", f"The trace has {len(own)}: 0 to {len(own) - 1}.")
    attention = own[layer]
    side = trace.queries_of(attention)
    (weights,) = _square(trace, [attention], side, side if attention.site.moved else trace.keys_of(attention))
    return {
        "attention": weights[0],
        "tokens": _pieces(side),
        "attention_head_names": [f"{attention.site.label} H{head}" for head in range(weights.shape[1])],
        "mask_upper_tri": bool(attention.site.causal),
    }


def to_frame(trace: Trace, quantity: str = "weights") -> Any:
    """A pandas DataFrame with a row for each number: of the first sequence, hidden cells left out.

    Args:
        trace: With the quantity.
        quantity: One of scores, scaled, capped, masked, weights.

    Returns:
        Columns site, layer, head, query_position, query, key_position, key, and the quantity.

    Raises:
        UsageError: Another quantity; pandas is not installed.
        UnsupportedError: A site was not traced with it.
    """
    if quantity not in STAGES:
        raise UsageError(f"{quantity!r} has no row for each query and key", f"Choose from {', '.join(STAGES)}.")
    try:
        import pandas
    except ImportError as error:
        if lacks_memory(error):
            raise
        raise UsageError("to_frame needs pandas, which is not installed", "pip install pandas") from None
    parts: list[Any] = []
    for label, attention in zip(trace.labels, trace.attentions, strict=True):
        values = attention.need(quantity)[0]
        cells = visible(attention.masked, attention.capped, attention.weights)[0]
        heads, rows, keys = np.nonzero(np.broadcast_to(cells, values.shape))
        at = np.asarray(trace.rows if trace.rows is not None else range(values.shape[1]))
        names = np.asarray(axis_labels(trace.queries_of(attention), values.shape[1]), object)
        others = np.asarray(axis_labels(trace.keys_of(attention), values.shape[2]), object)
        columns: dict[str, Any] = {
            "site": label, "layer": attention.site.layer, "head": heads, "query_position": at[rows],
            "query": names[rows], "key_position": keys, "key": others[keys], quantity: values[heads, rows, keys],
        }  # fmt: skip
        parts.append(pandas.DataFrame(columns))
    names_of = ["site", "layer", "head", "query_position", "query", "key_position", "key", quantity]
    return pandas.concat(parts, ignore_index=True) if parts else pandas.DataFrame(columns=names_of)


def _of(trace: Trace, sort: str) -> list[Attention]:
    return [
        a
        for a in trace.attentions
        if a.weights is not None
        and (a.site.kind == "cross" if sort == "cross" else a.site.kind == "self" and a.site.component == sort)
    ]


def _pieces(tokens: Tokens) -> list[str]:
    return [piece.strip() or piece for piece in tokens.pieces]


def _square(trace: Trace, attentions: Sequence[Attention], queries: Tokens, keys: Tokens) -> list[Array]:
    """The first sequence's weights, [1,H,Q,K] each, checked against the tokens beside them."""
    out = []
    for attention in attentions:
        weights = attention.need("weights")[:1]
        if weights.shape[2:] != (len(queries), len(keys)):
            raise UnsupportedError(
                f"{attention.site.label} has {weights.shape[2]} x {weights.shape[3]} weights where the tokens are "
                f"{len(queries)} x {len(keys)}",
                "This view needs one token for each query and key: trace without a cache.",
            )
        named = trace.queries_of(attention).pieces, trace.keys_of(attention).pieces
        if attention.site.moved and named != (queries.pieces, keys.pieces):
            raise UnsupportedError(
                f"{attention.site.label} has its tokens in another order than the layers beside it, or its keys in "
                "another order than its queries",
                "This view names queries and keys once for all layers.",
            )
        out.append(weights)
    if len({one.shape[1] for one in out}) > 1:
        raise UnsupportedError("layers have different numbers of heads, which bertviz cannot show", "Choose layers.")
    return out
