"""One prompt -> what is shown of its attention: whole matrices, or only one token's row if that is enough."""

from __future__ import annotations

from collections.abc import Mapping

from attnx.records import Array, Site, Trace
from attnx.run.dry_run import DryRun, dry_run
from attnx.run.pipeline import execute
from attnx.run.prompt import Prompt
from attnx.session import memory
from attnx.session.protocol import OpenModel, Wanted
from attnx.study.attention_kind import choose_sort
from attnx.study.inspection import Inspection, inspect
from attnx.study.request import Request
from attnx.study.selection import positions_of


def inspect_prompt(model: OpenModel, prompt: Prompt, request: Request, *, matrices: bool, rows: bool) -> Inspection:
    """Run a model on one prompt and assemble what is shown.

    Args:
        model: The model.
        prompt: The prompt to run it on.
        request: Which layers, heads, token, stage and view.
        matrices: Return the matrices of all heads even if the view is drawn without them.
        rows: Fetch only one token's row if no more is shown.
    """
    sort, others = choose_sort(all_sites(model, prompt.inputs), request)
    if not others and not rows and request.combines_heads and (planned := dry_run(model, prompt)) is not None:
        from attnx.study.head_mean import over_heads

        found = over_heads(model, planned, planned.sites(model, request.traced_layers), request.reduced)
        if found is not None:
            trace, counts = found
            return inspect(trace, request, sort, others, matrices=matrices, combined=counts)
    if not others and request.view == "overview" and not request.words and not request.mute:
        planned = dry_run(model, prompt)
        if planned is not None and _is_long(model, planned, request):
            from attnx.study.overview_stats import glance

            if (seen := glance(model, planned, request)) is not None:
                return Inspection(request, seen.trace, sort, (), (), None, (), (), seen)
    row = _row(model, prompt, request) if rows and not others else None
    whole = row or execute(model, prompt, Wanted(request.traced_layers, request.quantities))
    return inspect(whole, request, sort, others, matrices=matrices)


def all_sites(model: OpenModel, inputs: Mapping[str, Array] | None = None) -> tuple[Site, ...]:
    """The sites of the encoder, if it is a separate file, and those of the model."""
    encoder = model.encoder.sites if model.encoder is not None else ()
    return (*encoder, *model.find(inputs).sites)


def _is_long(model: OpenModel, planned: DryRun, request: Request) -> bool:
    """Whether the matrices of a run take so much memory that reducing them in the graph is better."""
    sites = planned.sites(model, request.traced_layers)
    return memory.needed(sites, planned.feed, request.quantities) > memory.LARGE


def _row(model: OpenModel, prompt: Prompt, request: Request) -> Trace | None:
    planned = dry_run(model, prompt)
    if planned is None:
        return None
    from attnx.run.query_rows import gather

    at = positions_of(planned.tokens, request)
    return gather(model, planned, planned.sites(model, request.traced_layers), at, request.quantities)
