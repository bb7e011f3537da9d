"""Carry out a plan: unedited runs, edited runs, lens and attributions, named as in files and scripts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnx.errors import InputError, UsageError
from attnx.interventions.attribute import Attributed, attribute
from attnx.interventions.feeds import Planned, plan_run
from attnx.interventions.lens import Lensed, lens
from attnx.interventions.plan import OTHER, RUN, Attribute, Intervention, Lens, Step
from attnx.interventions.running import Effect, Intervening
from attnx.records import Array
from attnx.run.check import difference
from attnx.run.prompt import Prompt
from attnx.session.protocol import OpenModel

_CALLED = {RUN: "base", OTHER: "corrupt"}
"""Names of the feeds -> names of the results of their unedited runs."""


@dataclass(frozen=True, slots=True, eq=False)
class Results:
    """The results of a plan."""

    unedited: Mapping[str, Mapping[str, Array]]
    """Name of a feed -> the model's own outputs on it: "inputs", "other"."""
    effects: Mapping[str, Effect]
    """Id -> the result of an edited run."""
    lenses: Mapping[str, Lensed]
    attributions: Mapping[str, Attributed]
    notes: tuple[str, ...]
    device: str

    def moved(self, step: Step) -> dict[str, float]:
        """How much an edited run's outputs differ from those of the same run unedited.

        Returns:
            Output -> largest absolute difference, relative to the larger of 1 and the output's own size; empty for
            a lens or an attribution.
        """
        effect = self.effects.get(step.id)
        if effect is None:
            return {}
        base = self.unedited[step.run]
        return {n: difference(np.asarray(a), base[n]) for n, a in effect.outputs.items() if a.dtype.kind == "f"}

    def arrays(self) -> dict[str, Array]:
        """Every array by name: base.OUTPUT, corrupt.OUTPUT, ID.OUTPUT; ID.hidden ... for a lens, ID.heads ..."""
        out: dict[str, Array] = {}
        for name, outputs in self.unedited.items():
            out |= {f"{_CALLED.get(name, name)}.{key}": array for key, array in outputs.items()}
        for name, effect in self.effects.items():
            out |= {f"{name}.{key}": array for key, array in effect.outputs.items()}
        for name, lensed in self.lenses.items():
            out |= lensed.arrays(name)
        for name, attributed in self.attributions.items():
            out |= attributed.arrays(name)
        return out


def perform(all_: Intervening, steps: Sequence[Step]) -> Results:
    """Carry out a plan.

    Args:
        all_: The model and its feeds.
        steps: In any order; their ids differ.

    Raises:
        UnsupportedError: Something that cannot be reached in this model; the message names it and the reason.
        UsageError: A layer, head or position that does not exist.
    """
    effects = {e.id: e for e in all_.run([step for step in steps if isinstance(step, Intervention)])}
    lenses = {step.id: lens(all_, step.run) for step in steps if isinstance(step, Lens)}
    found = {step.id: attribute(all_, step.targets, step.run) for step in steps if isinstance(step, Attribute)}
    unedited = {name: all_.base(name) for name in all_.feeds}
    notes = [*all_.notes, *(note for one in lenses.values() for note in one.notes)]
    order = {step.id: effects[step.id] for step in steps if step.id in effects}
    return Results(unedited, order, lenses, found, tuple(dict.fromkeys(notes)), all_.device)


def run_with(
    model: OpenModel,
    steps: Sequence[Step],
    source: str | Mapping[str, Any],
    other: str | Mapping[str, Any] | None = None,
    *,
    outputs: Collection[str] | None = None,
) -> Results:
    """Run a model with interventions.

    Args:
        model: The model.
        steps: The steps to carry out: `Intervention`s, `Lens`, `Attribute`.
        source: The input: a text, keyword arguments of `Model.trace` (text, target, tokens, inputs ...), or an
            array for each graph input.
        other: A second input to run on, or to patch from.
        outputs: Which of the model's own outputs to return; None for all except its caches.
    """
    feeds = {RUN: feed_of(model, source).feed}
    if other is not None:
        feeds[OTHER] = feed_of(model, other).feed
    return perform(Intervening(model, feeds, outputs), steps)


def feed_of(model: OpenModel, source: str | Mapping[str, Any]) -> Planned:
    """Plan a run on a text, on keyword arguments of `Model.trace`, or on arrays."""
    return plan_run(model, prompt_of(model, source))


def prompt_of(model: OpenModel, source: str | Mapping[str, Any]) -> Prompt:
    """Make a prompt from a text, keyword arguments of `Model.trace`, or arrays.

    Raises:
        UsageError: Something else.
        InputError: An unknown name.
    """
    if isinstance(source, str):
        return Prompt(source)
    if not isinstance(source, Mapping):
        raise UsageError(
            f"interventions are run on a text or arrays, and this is {type(source).__name__}",
            "Give a str, or a dict with an array for each graph input.",
        )
    named = {slot.name for slot in model.slots()}
    if source and set(source) <= named and not set(source) <= _ARGUMENTS:
        return Prompt(inputs=source)
    if unknown := [name for name in source if name not in _ARGUMENTS]:
        raise InputError(f"the model has no input {unknown[0]}", f"It takes {', '.join(named)}.")
    return Prompt(**source)


_ARGUMENTS = frozenset(("text", "pair", "target", "tokens", "inputs", "image", "audio"))
"""Arguments of `Model.trace` that say what to run on."""

__all__ = ["Results", "feed_of", "perform", "prompt_of", "run_with"]
