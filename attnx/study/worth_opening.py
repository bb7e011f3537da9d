"""The head worth opening: one rule for every command that opens a head without being told which.

It is the head that puts the most weight on one word: the first of `inspect`'s "most on one token". In it, the pair
of words with the largest weight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from attnx.errors import UnsupportedError
from attnx.measure.looks import Look, column_of, columns_of, gathered_of, strongest, strongest_pair
from attnx.measure.rows import Received, rows_at
from attnx.records import Site, Trace
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
    sites = shown_first([a.site for a in trace.attentions])
    places = [at for at, a in enumerate(trace.attentions) if a.site in sites and a.trusted and a.weights is not None]
    if not places:
        raise UnsupportedError("no site of this model can be trusted, so no head is opened")
    kept = replace(trace, attentions=tuple(trace.attentions[at] for at in places))
    first = next(iter(gathered_of(columns_of(kept), special=False)), None)
    found = None if first is None else strongest_pair(kept, first.site, first.head)
    if found is None:
        found = strongest(kept, head=None if first is None else (first.site, first.head))
    return replace(found, site=places[found.site])


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


def opened_for(trace: Trace, received: Mapping[int, Received], word: Mention) -> str:
    """Where the head worth opening looks from a word, in one line: "it@10 → animal 0.67".

    Args:
        trace: With the weights of the word's rows at least.
        received: By a site's index, what its keys receive from all rows, if the trace has only some.
        word: Where to look from.

    Returns:
        "" if no head is opened, or the word is not one of its queries.
    """
    kept = shown_first([a.site for a in trace.attentions])
    places = [at for at, a in enumerate(trace.attentions) if a.site in kept and a.trusted]
    if received:
        columns = [column_of(trace.tokens, received[trace.attentions[at].site.index].sums) for at in places]
    else:
        columns = list(columns_of(replace(trace, attentions=tuple(trace.attentions[at] for at in places))))
    first = next(iter(gathered_of(columns, special=False)), None)
    if first is None:
        return ""
    attention = trace.attentions[places[first.site]]
    weights = attention.need("weights")[0, first.head]
    rows = rows_at(trace, word.pieces)
    keys = trace.keys_of(attention)
    if max(rows) >= len(weights) or len(keys) != weights.shape[1]:
        return ""
    line = np.where(keys.special, -1.0, weights[rows].mean(axis=0))
    line[list(word.pieces)] = -1.0
    key = int(line.argmax())
    label = f"{trace.labels[places[first.site]]} H{first.head}"
    seen = f"{word.text}@{word.pieces[0]} → {in_prose(keys.pieces[key].strip())} {line[key]:.2f}"
    return f"the head that is most on one token, {label}: {seen}"


def shown_first(sites: Sequence[Site]) -> list[Site]:
    """The sites of the kind of attention that is shown by default."""
    sort, _ = choose_sort(sites, Request())
    return [site for site in sites if sort_of(site) == sort]


__all__ = ["opened_for", "opening", "opening_reduced", "shown_first"]
