"""What `attnx inspect` asks of a run: whole matrices, or one token's row alone where no more is shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from attnx.run.dry_run import fed
from attnx.run.query_rows import gather
from attnx.study.attention_kind import choose_sort
from attnx.study.head_mean import over_heads
from attnx.study.inspection import Inspection, inspect
from attnx.study.selection import positions_of

if TYPE_CHECKING:
    from attnx.cli.inputs import Given
    from attnx.cli.start import Start
    from attnx.model import Model
    from attnx.records import Trace
    from attnx.study.request import Request


def look(run: Start, asked: Request, *, matrices: bool, rows: bool) -> Iterator[tuple[Given, Inspection]]:
    """What is shown of each thing that a command was given, in order.

    Args:
        run: What was given.
        asked: What is asked.
        matrices: Give the matrices of all heads even where the view is drawn without them.
        rows: Fetch one token's row alone where no more is shown.
    """
    from attnx.cli.batch_run import traces
    from attnx.cli.inputs import several, told_where

    model = run.opened
    if several(run.given):
        sort, others = choose_sort((*model.encoder_sites, *model.find().sites), asked)
        for one, trace in traces(run, asked.quantities, asked.traced_layers):
            with told_where(one):
                shown = inspect(trace, asked, sort, others, matrices=matrices)
            yield one, shown
        return
    sort, others = choose_sort((*model.encoder_sites, *model.find(run.feed["inputs"]).sites), asked)
    (one,) = run.given
    if not others and not rows and asked.combines_heads and (made := fed(model, run.feed)) is not None:
        found = over_heads(model, made, made.sites(model, asked.traced_layers), asked.reduced)
    else:
        found = None
    if found is not None:
        trace, counts = found
        yield one, inspect(trace, asked, sort, others, matrices=matrices, combined=counts)
        return
    if not others and asked.view == "overview" and not asked.words and not asked.mute:
        from attnx.study.overview_stats import glance

        if (seen := glance(model, run.feed, asked)) is not None:
            yield one, Inspection(asked, seen.trace, sort, (), (), None, (), (), seen)
            return
    row = _row(model, run.feed, asked) if rows and not others else None
    trace = row or model.trace(**run.feed, layers=asked.traced_layers, quantities=asked.quantities)
    yield one, inspect(trace, asked, sort, others, matrices=matrices)


def _row(model: Model, told: Mapping[str, Any], asked: Request) -> Trace | None:
    made = fed(model, told)
    if made is None:
        return None
    at = positions_of(made.tokens, asked)
    return gather(model, made, made.sites(model, asked.traced_layers), at, asked.quantities)
