"""The head worth opening: one rule for every command that opens a head without being told which.

It is the head that puts the most weight on one word: the first of `inspect`'s "most on one token". In it, the pair
of words with the largest weight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from attnx.errors import UnsupportedError
from attnx.measure.looks import Column, Look, column_of, columns_of, gathered_of, strongest, strongest_pair
from attnx.measure.rows import Received, rows_at
from attnx.records import Attention, Site, Trace
from attnx.run.dry_run import DryRun
from attnx.session.protocol import OpenModel
from attnx.study.attention_kind import choose_sort, sort_of
from attnx.study.head_stats import reduced
from attnx.study.request import Request
from attnx.taps.reductions import fits
from attnx.tokens.pieces import in_prose
from attnx.tokens.spans import Mention


def opening(trace: Trace) -> Look:
    """The head that is opened by default, and in it the pair with the largest weight.

    Args:
        trace: With weights [B,H,Q,K]. With several kinds of attention, the head is of the kind that is shown first.

    Returns:
        With `value` the pair's weight. If no head puts weight on a word, the largest weight of the last site.

    Raises:
        UnsupportedError: No site has weights that can be trusted, or every cell is hidden.
    """
    site, head = opened(
        trace, [None if a.weights is None else columns_of(_only(trace, a))[0] for a in trace.attentions]
    )
    return replace(strongest_of(trace, site, head), site=site)


def opened(trace: Trace, columns: Sequence[Column | None]) -> tuple[int, int | None]:
    """The head that is opened by default: position in `trace.attentions`, and head.

    Args:
        trace: Its sites.
        columns: What the keys of each site receive; None where it has no weights.

    Returns:
        The last site, and no head, if no head puts weight on a word.

    Raises:
        UnsupportedError: No site has weights that can be trusted.
    """
    sites = shown_first([a.site for a in trace.attentions])
    there = {
        at: column
        for at, (a, column) in enumerate(zip(trace.attentions, columns, strict=True))
        if a.site in sites and a.trusted and column is not None
    }
    if not there:
        raise UnsupportedError("no site of this model can be trusted, so no head is opened")
    places = list(there)
    first = next(iter(gathered_of(list(there.values()), special=False)), None)
    return (places[-1], None) if first is None else (places[first.site], first.head)


def strongest_of(trace: Trace, site: int, head: int | None) -> Look:
    """The pair with the largest weight of a head; of a site, if there is no head.

    Args:
        trace: With weights [B,H,Q,K] of that site.
        site: Position in `trace.attentions`.
        head: From 0.

    Raises:
        UnsupportedError: Every cell is hidden.
    """
    alone = _only(trace, trace.attentions[site])
    found = None if head is None else strongest_pair(alone, 0, head)
    return found or strongest(alone, head=None if head is None else (0, head))


def _only(trace: Trace, attention: Attention) -> Trace:
    return replace(trace, attentions=(attention,))


def opening_reduced(model: OpenModel, planned: DryRun, sites: Sequence[Site]) -> tuple[int, int] | None:
    """The same head for a long text: position in `sites`, head. What the keys receive is summed in the graph.

    Returns:
        None if the graph or the text does not allow that, or no head puts weight on a word.
    """
    if not sites or not all(site.kind == "self" and fits(site, "received") for site in sites):
        return None
    kept = shown_first(sites)
    found = reduced(model, planned, sites, {site.index: ("received",) for site in sites})
    if found is None:
        return None
    trace, stats, _ = found
    places = [at for at, a in enumerate(trace.attentions) if a.site in kept and a.trusted]
    columns = [column_of(planned.tokens, stats[trace.attentions[at].site.index]["received"]) for at in places]
    first = next(iter(gathered_of(columns, special=False)), None)
    return None if first is None else (places[first.site], first.head)


def opened_for(trace: Trace, received: Mapping[int, Received], word: Mention) -> tuple[str, str]:
    """The head worth opening, and where it looks from a word: "L5 H11", "it@10 → animal 0.67".

    Args:
        trace: With the weights of the word's rows at least.
        received: By a site's index, what its keys receive from all rows, if the trace has only some.
        word: Where to look from.

    Returns:
        Two empty texts if no head is opened, or the word is not one of its queries.
    """
    kept = shown_first([a.site for a in trace.attentions])
    places = [at for at, a in enumerate(trace.attentions) if a.site in kept and a.trusted]
    if received:
        columns = [column_of(trace.tokens, received[trace.attentions[at].site.index].sums) for at in places]
    else:
        columns = list(columns_of(replace(trace, attentions=tuple(trace.attentions[at] for at in places))))
    first = next(iter(gathered_of(columns, special=False)), None)
    if first is None:
        return "", ""
    attention = trace.attentions[places[first.site]]
    weights = attention.need("weights")[0, first.head]
    rows = rows_at(trace, word.pieces)
    keys = trace.keys_of(attention)
    if max(rows) >= len(weights) or len(keys) != weights.shape[1]:
        return "", ""
    line = np.where(keys.special, -1.0, weights[rows].mean(axis=0))
    line[list(word.pieces)] = -1.0
    key = int(line.argmax())
    label = f"{trace.labels[places[first.site]]} H{first.head}"
    return label, f"{word.text}@{word.pieces[0]} → {in_prose(keys.pieces[key].strip())} {line[key]:.2f}"


def shown_first(sites: Sequence[Site]) -> list[Site]:
    """The sites of the kind of attention that is shown by default."""
    sort, _ = choose_sort(sites, Request())
    return [site for site in sites if sort_of(site) == sort]


__all__ = ["opened", "opened_for", "opening", "opening_reduced", "shown_first", "strongest_of"]
