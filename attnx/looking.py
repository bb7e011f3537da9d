"""What `attnx inspect` asks of a run: whole matrices, or one token's row alone where no more is shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attnx.fed import fed, reduce
from attnx.gathered import gather
from attnx.inspection import Inspection, choose_sort, inspect, position_of
from attnx.records import Attention
from attnx.reduce import ROWS, fits
from attnx.reduced import checked_rows, read_stats, rows_sum_to_one, sample

if TYPE_CHECKING:
    from attnx.intake import Given
    from attnx.pipeline import Model
    from attnx.records import Trace
    from attnx.request import Request
    from attnx.start import Start


def look(run: Start, asked: Request, *, matrices: bool, rows: bool) -> Iterator[tuple[Given, Inspection]]:
    """What is shown of each thing that a command was given, in order.

    Args:
        run: What was given.
        asked: What is asked.
        matrices: Give the matrices of all heads even where the view is drawn without them.
        rows: Fetch one token's row alone where no more is shown.
    """
    from attnx.intake import several
    from attnx.many import traces

    model = run.opened
    if several(run.given):
        sort, others = choose_sort((*model.encoder_sites, *model.find().sites), asked)
        for one, trace in traces(run, asked.quantities, asked.traced_layers):
            yield one, inspect(trace, asked, sort, others, matrices=matrices)
        return
    sort, others = choose_sort((*model.encoder_sites, *model.find(run.feed["inputs"]).sites), asked)
    (one,) = run.given
    if not others and not rows and asked.combines_heads and (made := combined(model, run.feed, asked)) is not None:
        trace, counts = made
        yield one, inspect(trace, asked, sort, others, matrices=matrices, combined=counts)
        return
    if not others and asked.view == "overview" and not asked.words and not asked.mute:
        from attnx.glance import glance

        if (seen := glance(model, run.feed, asked)) is not None:
            yield one, Inspection(asked, seen.trace, sort, (), (), None, (), (), seen)
            return
    found = _row(model, run.feed, asked) if rows and not others else None
    trace = found or model.trace(**run.feed, layers=asked.traced_layers, quantities=asked.quantities)
    yield one, inspect(trace, asked, sort, others, matrices=matrices)


def _row(model: Model, told: Mapping[str, Any], asked: Request) -> Trace | None:
    made = fed(model, told)
    if made is None:
        return None
    at = position_of(made.tokens, asked)
    return gather(model, made, made.sites(model, asked.traced_layers), [at], asked.quantities)


def combined(model: Model, told: Mapping[str, Any], asked: Request) -> tuple[Trace, dict[int, int]] | None:
    """The mean or the largest over the heads of each site, made in the graph, and over how many heads, by site's index.

    None where the graph or the text does not allow it, or a check does not hold.
    """
    made = fed(model, told)
    sites = [] if made is None else made.sites(model, asked.traced_layers)
    total, stat, masked, *_ = asked.reduced
    if (
        made is None
        or not sites
        or not made.single
        or not all(fits(s, one) for s in sites for one in (total, stat, masked))
    ):
        return None
    some = sample(len(made.tokens))
    done = reduce(model, made, sites, asked.reduced, {ROWS: some})
    if done is None:
        return None
    trace, tapped, values = done
    attentions, counts = [], {}
    for attention in checked_rows(sites, tapped, values, some):
        found = read_stats(attention.site, tapped, values)
        counts[attention.site.index] = len(found[total])
        if not attention.trusted or not rows_sum_to_one(attention, found[total]).holds:
            return None
        attentions.append(Attention(attention.site, masked=found[masked][None, None], weights=found[stat][None, None]))
    return replace(trace, attentions=tuple(attentions)), counts
