"""The logit lens: what a model would predict after each layer.

Source: nostalgebraist 2020, "interpreting GPT: the logit lens".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from attnx.errors import RunError, UnsupportedError
from attnx.interventions.plan import RUN
from attnx.interventions.points import Point
from attnx.interventions.stream import Stack
from attnx.interventions.tail import last_of, logits_of, part, stacks_of, uncapped
from attnx.records import Array
from attnx.run.check import TOLERANCE, difference

if TYPE_CHECKING:
    from attnx.interventions.unedited import Unedited


@dataclass(frozen=True, slots=True, eq=False)
class Lensed:
    """The result of the logit lens for a run."""

    hidden: Array
    """float32 [L+1,B,Q,E]: the residual stream before the first layer and after each layer."""
    logits: Array | None = None
    """float32 [L+1,B,Q,V] (or like the model's own output: [L+1,B,classes]); None if the model has none."""
    uncapped: Array | None = None
    """The same before a softcap; None without one."""
    encoder_hidden: Array | None = None
    """float32 [L+1,B,K,E], for a model that has both sides."""
    output: str = ""
    """The model's output that the last of `logits` reproduces."""
    notes: tuple[str, ...] = ()

    def arrays(self, name: str) -> dict[str, Array]:
        """The arrays by the names used in files and scripts."""
        every = {
            "hidden": self.hidden, "logits": self.logits, "uncapped": self.uncapped,
            "encoder_hidden": self.encoder_hidden,
        }  # fmt: skip
        return {f"{name}.{key}": array for key, array in every.items() if array is not None}


def lens(all_: Unedited, run: str = RUN) -> Lensed:
    """Run what follows a model's last layer on the residual stream after each layer.

    Raises:
        UnsupportedError: The residual stream was not found.
        RunError: The last of the logits differs from the model's output.
    """
    stacks = stacks_of(all_)
    main = stacks.get("decoder") or stacks["encoder"]
    hidden = _hidden(all_, run, main)
    encoder = _hidden(all_, run, stacks["encoder"]) if len(stacks) > 1 and "encoder" in stacks else None
    name, why = logits_of(all_, main)
    if name is None:
        return Lensed(hidden, encoder_hidden=encoder, notes=(f"no logits: {why}",))
    given = list(_said(all_, run, main, name, hidden))
    logits = np.stack([one["logits"] for one in given])
    whole = np.stack([one["uncapped"] for one in given]) if "uncapped" in given[0] else None
    return Lensed(hidden, logits, whole, encoder, name)


def said_by_layer(all_: Unedited, run: str = RUN) -> tuple[str, Iterator[Array]]:
    """The logits of `lens` one layer at a time: with a large vocabulary, those of all layers may not fit in memory.

    Returns:
        The model's output that is meant, and float32 [B,Q,V] before the first layer and after each.

    Raises:
        UnsupportedError: The residual stream was not found, or the model has no logits.
        RunError: The last of the logits differs from the model's output.
    """
    stacks = stacks_of(all_)
    main = stacks.get("decoder") or stacks["encoder"]
    name, why = logits_of(all_, main)
    if name is None:
        raise UnsupportedError(f"no layer says anything: {why}", "Export the model with its head (an unembedding).")
    return name, (one["logits"] for one in _said(all_, run, main, name, _hidden(all_, run, main)))


def _said(all_: Unedited, run: str, stack: Stack, name: str, hidden: Array) -> Iterator[dict[str, Array]]:
    """Run what follows the last layer on each residual stream; the last is checked against the model's own output."""
    before = uncapped(all_, name)
    ends = {"logits": name, **({"uncapped": before} if before != name else {})}
    tail = part(all_, run, Point("residual stream", "residual", last_of(stack), "bqd"), ends)
    for number, state in enumerate(hidden, 1):
        one = tail(state)
        if number == len(hidden):
            gap = difference(one["logits"], np.asarray(all_.output(run, name), np.float32))
            if not gap <= TOLERANCE["float32" if all_.exact else "low"]:
                raise RunError(
                    f"what follows the last layer gives an output {name!r} that differs by {gap:.2g}: no lens is shown",
                    "Please report this model.",
                )
        yield one


def _hidden(all_: Unedited, run: str, stack: Stack) -> Array:
    places = [stack.layers[0].given, *(layer.out for layer in stack.layers if layer.out is not None)]
    points = [Point(f"stream {i}", "residual", place, "bqd") for i, place in enumerate(places)]
    return np.stack([np.asarray(array, np.float32) for array in all_.take(run, points)])


__all__ = ["Lensed", "lens", "said_by_layer"]
