"""What `attnx inspect` asks of a run: whole matrices, or one token's row alone where no more is shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from attnx.fed import fed
from attnx.gathered import gather
from attnx.inspection import choose_sort, inspect, position_of

if TYPE_CHECKING:
    from attnx.inspection import Inspection
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
    found = _row(model, run.feed, asked) if rows and not others else None
    trace = found or model.trace(**run.feed, layers=asked.traced_layers, quantities=asked.quantities)
    (one,) = run.given
    yield one, inspect(trace, asked, sort, others, matrices=matrices)


def wants_row(model: Model, asked: Request) -> bool:
    """Whether one token's row is all that is shown; a table of a single head shows the rows round it."""
    if not asked.row_is_enough:
        return False
    heads = [s.heads or 1 for s in model.find().sites if asked.layers is None or s.layer in asked.layers]
    return asked.view != "table" or sum(heads) > 1


def _row(model: Model, told: Mapping[str, Any], asked: Request) -> Trace | None:
    made = fed(model, told)
    if made is None:
        return None
    at = position_of(made.tokens, asked)
    return gather(model, made, made.sites(model, asked.traced_layers), [at], asked.quantities)
