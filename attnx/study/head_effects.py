"""What each head does to the model's output when ablated alone, next to the measures of where it looks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attnx.errors import UnsupportedError
from attnx.interventions.feeds import plan_run
from attnx.interventions.plan import Where
from attnx.interventions.running import Intervening
from attnx.records import Measurement, Trace
from attnx.run.prompt import Prompt
from attnx.session.protocol import OpenModel
from attnx.study.ablation import ablate, component_of
from attnx.study.patch_places import reachable

NAME = "effect"


def effects(
    model: OpenModel, prompt: Prompt, trace: Trace, like: Measurement, tell: Callable[[int], None] | None = None
) -> tuple[Measurement, tuple[str, ...]]:
    """How far the model's answer moves when each head alone is ablated (its output set to 0).

    Args:
        model: The model.
        prompt: The prompt to run it on.
        trace: A trace with its sites in the order of the rows of `like`.
        like: A measure [S,H] to show it beside.
        tell: Called with the number of heads ablated so far.

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
    done = 0
    left: tuple[str, ...] = ()
    for component in wanted:
        layers = sorted({s.layer for s in sites if component_of(s) == component and s.layer is not None})
        reached, without = reachable(running, [s for s in there[component] if s.layer in layers], "context")
        left += without
        heads = [(s.layer, h) for s in reached for h in range(s.heads or 1)]
        before = done

        def told(count: int, before: int = before) -> None:
            if tell is not None:
                tell(before + count)

        found = ablate(
            model, running, planned.tokens, component=component,
            heads=[(layer, head) for layer, head in heads if layer is not None], tell=told,
        )  # fmt: skip
        done += len(heads)
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


__all__ = ["NAME", "effects"]
