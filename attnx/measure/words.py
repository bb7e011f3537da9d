"""Words: merge pieces into words, and mute special tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from attnx.errors import InputError
from attnx.records import QUANTITIES, Array, Attention, Tokens, Trace
from attnx.tokens.spans import word_text, words

Groups = Sequence[Sequence[int]]


def merge(weights: Array, queries: Groups | None, keys: Groups | None) -> Array:
    """Merge pieces into words: sum the weight to a split word, average the weight from it, so row sums are kept.

    Rows without weight (fully hidden) are left out of a mean that includes rows with weight.

    Args:
        weights: [...,Q,K].
        queries: Positions of the pieces of each word on the query axis; None leaves the axis unchanged.
        keys: The same for the key axis.

    Returns:
        float32 [...,number of query words,number of key words].

    Source: Clark et al. 2019, section 4.1.
    """
    out = np.asarray(weights, np.float64)
    if keys is not None:
        parts = [out[..., list(group)].sum(axis=-1) for group in keys]
        out = np.stack(parts, axis=-1) if parts else out[..., :0]
    if queries is not None:
        rows = [_mean_row(out[..., list(group), :]) for group in queries]
        out = np.stack(rows, axis=-2) if rows else out[..., :0, :]
    return out.astype(np.float32)


def mute(weights: Array, special: Sequence[bool]) -> tuple[Array, Array]:
    """Remove the weight on special tokens and rescale each row to sum to 1.

    Args:
        weights: [...,Q,K].
        special: K flags.

    Returns:
        float32 weights of the same shape, with special columns 0 (a row with nothing left is all 0), and the share that
        was removed from each row, float64 [...,Q].

    Source: attnx; exBERT (Hoover et al. 2020) hides [CLS] and [SEP] likewise.
    """
    wide = np.asarray(weights, np.float64)
    flags = np.asarray(special, bool)
    taken = np.where(flags, wide, 0.0).sum(axis=-1)
    rest = np.where(flags, 0.0, wide)
    total = rest.sum(axis=-1, keepdims=True)
    with np.errstate(invalid="ignore"):
        scaled = np.where(total == 0, 0.0, rest / np.where(total == 0, 1.0, total))
    return scaled.astype(np.float32), taken


def merge_tokens(tokens: Tokens) -> Tokens:
    """Tokens with one entry per word; the id is that of the first piece.

    Args:
        tokens: With the word of each piece.

    Returns:
        As many entries as `spans.words` has groups.
    """
    groups = words(tokens)
    ids = np.asarray(tokens.ids).reshape(-1)
    first = [group[0] for group in groups]
    return replace(
        tokens,
        ids=ids[first] if len(ids) == len(tokens) else tokens.ids,
        pieces=tuple(word_text(tokens, group) if len(group) > 1 else tokens.pieces[group[0]] for group in groups),
        offsets=tuple((tokens.offsets[group[0]][0], tokens.offsets[group[-1]][1]) for group in groups),
        words=tuple(tokens.words[at] for at in first),
        special=tuple(tokens.special[at] for at in first),
        mask=tuple(tokens.mask[at] for at in first),
        type_ids=tuple(tokens.type_ids[at] for at in first) if tokens.type_ids else (),
    )


def merge_trace(trace: Trace) -> Trace:
    """The whole trace by words: weights merged, every other array dropped (a sum of pieces' scores means little).

    Args:
        trace: With weights [B,H,Q,K]; the merge follows the first sequence, so only that one is kept.

    Returns:
        A trace whose tokens are words; weights [1,H,Qw,Kw], marked computed.

    Raises:
        UnsupportedError: A site has no weights.
        InputError: A site's axis is shorter than its tokens.

    Source: Clark et al. 2019, section 4.1.
    """
    out = []
    for attention in trace.attentions:
        weights = attention.need("weights")[:1]
        queries = _groups(trace.queries_of(attention), weights.shape[2], attention)
        keys = _groups(trace.keys_of(attention), weights.shape[3], attention)
        out.append(_only_weights(attention, merge(weights, queries, keys)))
    merged: dict[int, Tokens] = {}

    def by_words(tokens: Tokens) -> Tokens:
        """The same tokens by words; one object stays one object, since its identity shows which sites share a text."""
        return merged.setdefault(id(tokens), merge_tokens(tokens))

    first = len(trace.tokens) - trace.generated
    return replace(
        trace,
        tokens=by_words(trace.tokens),
        memory=None if trace.memory is None else by_words(trace.memory),
        attentions=tuple(out),
        sides={index: (by_words(queries), by_words(keys)) for index, (queries, keys) in trace.sides.items()},
        generated=sum(group[0] >= first for group in words(trace.tokens)) if trace.generated else 0,
    )


def mute_trace(trace: Trace) -> Trace:
    """The trace with special tokens muted: their columns 0, rows rescaled to sum to 1, every other array dropped.

    Args:
        trace: With weights [B,H,Q,K].

    Returns:
        A trace of the first sequence; weights [1,H,Q,K], marked computed.

    Raises:
        UnsupportedError: A site has no weights.

    Source: attnx.
    """
    out = []
    for attention in trace.attentions:
        weights = attention.need("weights")[:1]
        flags = trace.keys_of(attention).special
        past = weights.shape[3] - len(flags)
        kept = (*((False,) * past), *flags) if past >= 0 else (False,) * weights.shape[3]
        out.append(_only_weights(attention, mute(weights, kept)[0]))
    return replace(trace, attentions=tuple(out))


def _mean_row(rows: Array) -> Array:
    """Mean over axis -2 of the rows with any weight; zeros if there are none; NaN stays NaN."""
    full = (rows != 0).any(axis=-1)
    count = full.sum(axis=-1)
    return np.asarray(rows.sum(axis=-2) / np.maximum(count, 1)[..., None])


def _groups(tokens: Tokens, size: int, attention: Attention) -> list[list[int]]:
    """Groups of positions along an axis: past keys one by one, then the words of the tokens."""
    past = size - len(tokens)
    if past < 0:
        if size == 1:
            return [[0]]
        raise InputError(
            f"{attention.site.label} has {size} positions for {len(tokens)} tokens: its words are unknown",
            "Show it by pieces.",
        )
    return [[at] for at in range(past)] + [[past + at for at in group] for group in words(tokens)]


def _only_weights(attention: Attention, weights: Array) -> Attention:
    gone = {name: None for name in QUANTITIES if name != "weights"}
    return replace(attention, **gone, weights=weights, origin={"weights": "computed"}, checks=())  # type: ignore[arg-type]
