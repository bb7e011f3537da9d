"""What each head does to the model's output when ablated alone, next to the measures of where it looks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from attnx.errors import UnsupportedError
from attnx.interventions.feeds import plan_run
from attnx.interventions.plan import Where
from attnx.interventions.running import Intervening
from attnx.records import Measurement, Site, Trace
from attnx.run.prompt import Prompt
from attnx.session.protocol import OpenModel
from attnx.study.ablation import ablate, component_of
from attnx.study.patch_places import left_out, reachable

NAME = "effect"


def effects(
    model: OpenModel, prompt: Prompt, trace: Trace, like: Measurement, tell: Callable[[int, int], None] | None = None
) -> tuple[Measurement, tuple[str, ...]]:
    """How far the model's answer moves when each head alone is ablated (its output set to 0).

    Args:
        model: The model.
        prompt: The prompt to run it on.
        trace: A trace with its sites in the order of the rows of `like`.
        like: A measure [S,H] to show it beside.
        tell: Called with the number of heads ablated so far, and of all.

    Returns:
        [S,H], with the axes of `like`; NaN for heads that do not exist, whose attention is not over tokens, or that
        cannot be ablated. Notes, why not among them.

    Raises:
        UnsupportedError: No head could be ablated, or the model takes several runs.
    """
    planned = plan_run(model, prompt)
    running = Intervening(model, {"inputs": planned.feed})
    there = running.points.components()
    sites = [attention.site for attention in trace.attentions]
    wanted: list[Where] = [name for name in there if any(component_of(site) == name for site in sites)]
    if not wanted:
        raise UnsupportedError("the model has no attention over tokens that could be ablated", "")
    values = np.full(like.values.shape, np.nan)
    heading = formula = ""
    heads, left = _heads_of(running, {name: [s for s in sites if component_of(s) == name] for name in wanted})
    total, done = sum(map(len, heads.values())), 0
    for component, some in heads.items():

        def told(count: int, _: int, before: int = done, most: int = len(some)) -> None:
            if tell is not None:
                tell(before + min(count, most), total)

        found = ablate(model, running, planned.tokens, component=component, heads=some, tell=told)
        done += len(some)
        heading, formula = found.readout.heading, found.readout.formula
        by_place = {(e.place.layer, e.place.head): e.change.moved for e in found.effects}
        for at, site in enumerate(sites):
            if component_of(site) == component and at < len(values):
                for head in range(site.heads or 1):
                    values[at, head] = by_place.get((site.layer, head), np.nan)
    made = Measurement(
        NAME, "", like.axes, values, source="head ablation: Michel et al. 2019",
        formula=f"{heading} when the head is set to 0: {formula}",
    )  # fmt: skip
    return made, (*left, *running.notes)


def _heads_of(
    running: Intervening, sites: Mapping[Where, Sequence[Site]]
) -> tuple[dict[Where, list[tuple[int, int]]], tuple[str, ...]]:
    """Layer and head of all heads that can be ablated, by component; and notes on the others.

    Raises:
        UnsupportedError: There are none in any component; the message gives the reason for the first.
    """
    there = running.points.components()
    heads: dict[Where, list[tuple[int, int]]] = {}
    refused: list[UnsupportedError] = []
    notes: tuple[str, ...] = ()
    for component, some in sites.items():
        layers = {site.layer for site in some}
        try:
            reached, left = reachable(running, [s for s in there[component] if s.layer in layers], "context")
        except UnsupportedError as error:
            refused.append(error)
            continue
        notes += left
        heads[component] = [(s.layer, h) for s in reached for h in range(s.heads or 1) if s.layer is not None]
    if not heads and refused:
        raise refused[0]
    return heads, (*notes, *left_out(refused))


__all__ = ["NAME", "effects"]
