"""The head worth opening: one rule for every command that opens a head without being told which.

It is the head that puts most of its weight on one word: the first of `inspect`'s "most on one token". In it, the pair
of words with the largest weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from attnx.errors import UnsupportedError
from attnx.measure.looks import Look, column_of, columns_of, gathered_of, strongest, strongest_pair
from attnx.records import Site, Trace
from attnx.run.dry_run import DryRun
from attnx.session.protocol import OpenModel
from attnx.study.attention_kind import choose_sort, sort_of
from attnx.study.head_stats import reduced
from attnx.study.request import Request
from attnx.taps.reductions import fits


def opening(trace: Trace) -> Look:
    """The head that is opened where none is named, and in it the pair with the largest weight.

    Args:
        trace: With weights [B,H,Q,K]. Of several sorts of attention it is one of the sort that is shown first.

    Returns:
        With `value` the pair's weight. Where no head puts weight on a word, the largest weight of the last site.

    Raises:
        UnsupportedError: No site has weights that can be trusted, or none that is not hidden.
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
    """The same head of a long text: position in `sites`, head. What the keys receive is added up in the graph.

    Returns:
        None where the graph or the text does not allow that, or where no head puts weight on a word.
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


def shown_first(sites: Sequence[Site]) -> list[Site]:
    """The sites of the sort of attention that is shown where none is named."""
    sort, _ = choose_sort(sites, Request())
    return [site for site in sites if sort_of(site) == sort]


__all__ = ["opening", "opening_reduced", "shown_first"]
