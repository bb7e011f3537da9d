"""One query-key pair step by step: from the two vectors to the share of the context."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attnx.errors import InputError, UnsupportedError, UsageError
from attnx.formula import repeat_heads
from attnx.measure.rows import read
from attnx.records import Array, Attention, Axis, Measurement, Trace
from attnx.wording import Wording

SOURCE = "Vaswani et al. 2017, equation 1"
STEPS = (
    "|q|", "|k|", "cosine", "q·k", "scaled", "masked", "weight", "|v|", "|weight v|", "share of context", "|context|",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Pair:
    """How one query's weight on one key arises, and what it contributes through the key's value."""

    query: str
    """The query token."""
    key: str
    """The key token."""
    steps: Measurement
    """[11]: sizes of q and k, their cosine, the score, scaled, masked, the weight, sizes of v and weight x v, the share
    of weight x value in the context vector, and that vector's size. NaN if an array is missing."""
    products: Measurement
    """[D]: q x k, dimension by dimension; they sum to the score."""
    vectors: Measurement
    """[3,D]: q, k, and v if it has as many dimensions (otherwise NaN)."""
    largest: tuple[int, ...]
    """Dimensions by the size of their product, largest first."""
    heads: Measurement
    """[H]: every head's share of the layer's output at this query, see `head_shares`."""
    notes: tuple[str, ...]


def pair(
    trace: Trace,
    site: int,
    head: int,
    query: int,
    key: int,
    output: Array | None = None,
    gram: Array | None = None,
) -> Pair:
    """Decompose one query-key pair.

    The share of the context is (weight v) . context / |context|^2: what weight x value adds along the context vector.
    The shares of all keys sum to 1; a share is negative if the value points the other way.

    Args:
        trace: With query, key, weights and value; also scaled, masked and context if they are to be shown.
        site: Position in `trace.attentions`.
        head: Query head.
        query: Query position.
        key: Key position.
        output: W_O as [H,Dv,E]; see `head_shares`.
        gram: Its product with itself, which is enough; see `head_shares`.

    Returns:
        See `Pair`.

    Raises:
        UsageError: There is no such site, head, query or key.
        UnsupportedError: Value or weights are missing; or query and key, or one of them and the scores.

    Source: Vaswani et al. 2017, equation 1; the share: attnx.
    """
    attention = _site(trace, site)
    rows = read(trace, attention)
    heads, queries, keys = rows.weights.shape
    for what, at, count in (("head", head, heads), ("query", query, queries), ("key", key, keys)):
        if not 0 <= at < count:
            raise UsageError(f"there is no {what} {at} at {trace.labels[site]}", f"They run from 0 to {count - 1}.")
    q, k = _vectors(attention, head, query, key)
    values = repeat_heads(attention.need("value")[:1], heads)[0, head].astype(np.float64)
    v, weight = values[key], float(rows.weights[head, query, key])
    if q.shape != k.shape:
        raise UnsupportedError(
            f"q has {len(q)} dimensions and k has {len(k)}: they are not multiplied here",
            Wording("<model.sites> shows the tensors."),
        )
    products = q * k
    context = rows.weights[head, query].astype(np.float64) @ values
    size = float(context @ context)
    sizes = float(np.linalg.norm(q) * np.linalg.norm(k))
    whole = attention.query is not None and attention.key is not None
    score = float(products.sum()) if whole else _cell(attention.scores, head, query, key)
    steps = (
        np.linalg.norm(q),
        np.linalg.norm(k),
        score / sizes if whole and sizes > 0 else np.nan,
        score,
        _cell(attention.scaled, head, query, key),
        _cell(attention.masked, head, query, key),
        weight,
        np.linalg.norm(v),
        np.linalg.norm(weight * v),
        weight * float(v @ context) / size if size > 0 else np.nan,
        np.sqrt(size),
    )
    dimensions = tuple(str(at) for at in range(len(q)))
    shown = v if v.shape == q.shape else np.full_like(q, np.nan)
    return Pair(
        query=rows.query_labels[query],
        key=rows.key_labels[key],
        steps=Measurement(
            name="query-key pair",
            unit="",
            axes=(Axis("step", STEPS),),
            values=np.array(steps, np.float64),
            source=SOURCE,
            formula="weight = softmax(q·k × scale + mask); share = (weight v)·context / |context|²",
        ),
        products=Measurement(
            name="products by dimension",
            unit="",
            axes=(Axis("dimension", dimensions),),
            values=products,
            source=SOURCE,
            formula="q × k, dimension by dimension; the sum is the score",
        ),
        vectors=Measurement(
            name="vectors",
            unit="",
            axes=(Axis("vector", ("query", "key", "value")), Axis("dimension", dimensions)),
            values=np.stack([q, k, shown]),
            source=SOURCE,
        ),
        largest=tuple(int(at) for at in np.argsort(-np.abs(products), kind="stable")),
        heads=head_shares(trace, site, query, output, gram),
        notes=_notes(attention, rows.visible[head, query, key], heads),
    )


def head_shares(
    trace: Trace, site: int, query: int, output: Array | None = None, gram: Array | None = None
) -> Measurement:
    """Every head's share of the layer's output at one position.

    With W_O, heads are projected and added: share = (context_h W_O,h) . sum / |sum|^2 (no bias); shares sum to 1 and
    may be negative. Without it the heads are only concatenated: share = |context_h|^2 / sum |context|^2.

    Args:
        trace: With context, or weights and value.
        site: Position in `trace.attentions`.
        query: Query position.
        output: W_O as [H,Dv,E], the slice of the output projection that reads each head.
        gram: W_O W_O^T of all heads, [H Dv,H Dv], instead of W_O.

    Returns:
        [H], share.

    Raises:
        UsageError: There is no such site or query.
        UnsupportedError: Neither context nor both weights and value were traced.
        InputError: W_O does not fit.

    Source: attnx; heads concatenated and projected as in Vaswani et al. 2017, section 3.2.2.
    """
    attention = _site(trace, site)
    weights = attention.need("weights")[0]
    heads, queries, _ = weights.shape
    if not 0 <= query < queries:
        raise UsageError(f"there is no query {query} at {trace.labels[site]}", f"They run from 0 to {queries - 1}.")
    if attention.context is not None:
        context = attention.context[0, :, query].astype(np.float64)
    else:
        value = repeat_heads(attention.need("value")[:1], heads)[0].astype(np.float64)
        context = np.einsum("hk,hkd->hd", weights[:, query].astype(np.float64), value)
    behind, notes = "(context_h W_O,h)·sum / |sum|²", tuple[str, ...]()
    if gram is not None:
        if gram.shape != (context.size, context.size):
            raise InputError(f"W_O W_O^T is {gram.shape}, but {context.size} numbers of all heads read W_O")
        parts, formula = (context * (gram @ context.reshape(-1)).reshape(context.shape)).sum(axis=-1), behind
    elif output is None:
        parts, formula = (context**2).sum(axis=-1), "|context_h|² / sum |context|², before W_O"
        notes = ("without W_O: shares of the concatenated heads, before the output projection",)
    else:
        if output.shape[:2] != context.shape:
            raise InputError(f"W_O is {output.shape}, but {context.shape[0]} heads of {context.shape[1]} read it")
        projected = np.einsum("hd,hde->he", context, output.astype(np.float64))
        parts, formula = projected @ projected.sum(axis=0), behind
    total = parts.sum()
    return Measurement(
        name="head share of output",
        unit="share",
        axes=(Axis("head", tuple(f"H{at}" for at in range(len(parts)))),),
        values=parts / total if total > 0 else np.full(len(parts), np.nan),
        source="attnx, after Vaswani et al. 2017, section 3.2.2",
        formula=formula,
        notes=notes,
    )


def _vectors(attention: Attention, head: int, query: int, key: int) -> tuple[Array, Array]:
    """Query and key [D]; NaN for one that is not a single tensor at a site whose scores are in the graph anyway."""
    apart = [name for name in ("query", "key") if name in attention.site.absent]
    apart = apart if attention.scores is not None and len(apart) == 1 else []
    asked = None if "query" in apart else attention.need("query")
    held = None if "key" in apart else attention.need("key")
    q = None if asked is None else asked[0, head, query].astype(np.float64)
    k = None if held is None else repeat_heads(held[:1], attention.need("weights").shape[1])[0, head, key]
    size = len(q if q is not None else k if k is not None else ())
    return (
        np.full(size, np.nan) if q is None else q,
        np.full(size, np.nan) if k is None else k.astype(np.float64),
    )


def _site(trace: Trace, site: int) -> Attention:
    if not 0 <= site < len(trace.attentions):
        raise UsageError(f"there is no site {site}", f"Sites run from 0 to {len(trace.attentions) - 1}.")
    return trace.attentions[site]


def _cell(array: Array | None, head: int, query: int, key: int) -> float:
    return float("nan") if array is None else float(array[0, head, query, key])


def _notes(attention: Attention, seen: bool, heads: int) -> tuple[str, ...]:
    apart = [name for name in ("query", "key") if getattr(attention, name) is None]
    notes = [f"{name}: no one tensor at this site, so the score is not taken apart" for name in apart]
    notes += [] if seen else ["the key is hidden from the query by the mask: its weight is 0 whatever the score"]
    own = attention.site.kv_heads or (attention.value.shape[1] if attention.value is not None else heads)
    if own != heads:
        notes.append(f"{heads} query heads share {own} key/value heads: {heads // own} read each")
    return tuple(notes)
