"""Path patching: what one head sends to later heads, or to the answer, directly and through no head in between.

Source: Wang et al. 2022, "Interpretability in the Wild" (IOI), section 3.1 and appendix B.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np

from attnx.errors import UsageError
from attnx.interventions.cells import unfactored
from attnx.interventions.plan import OTHER, RUN, Edit, Intervention, Where
from attnx.interventions.points import Point
from attnx.interventions.running import Intervening
from attnx.records import Array, Site
from attnx.study.patch_metric import Meter
from attnx.study.patch_places import BY_KEY, component_of, count_of, sites_of
from attnx.study.patching import Patching, Spot, told
from attnx.wording import Wording

Into = Literal["query", "key", "value"]
INTO: tuple[Into, ...] = ("query", "key", "value")


def patch_paths(
    running: Intervening,
    meter: Meter,
    *,
    from_: Sequence[tuple[int, int]] = (),
    to: Sequence[tuple[int, int]] = (),
    into: Into = "query",
    component: Where | None = None,
    freeze_mlps: bool = False,
    noising: bool = False,
    tell: Callable[[int], None] | None = None,
) -> Patching:
    """Patch what a head sends to later heads, and none of its other effects.

    There are two runs per sender. In the first, every head keeps its unedited output except the sender, which has its
    output on the other text; the receivers' query, key or value is taken from this run. In the second, only these are
    patched in. Without receivers, the first run's answer is read: the sender's direct effect on the answer.

    Args:
        running: The model with both feeds, each a batch of one: "inputs" is the clean one, "other" the corrupt one.
        meter: The metric that compares runs.
        from_: Layer and head of each sender; empty for every head before the last receiver.
        to: Layer and head of the receivers (key/value heads if `into` is key or value); the answer if there are
            none.
        into: Which input of the receivers is patched.
        component: Which attention; None if there is only one.
        freeze_mlps: Whether MLPs between them are frozen too, so that the residual stream is the only path. Wang et
            al. recompute them.
        noising: Whether corrupt activations go into the clean run, instead of clean ones into the corrupt run.
        tell: Called with the number of runs made so far.

    Raises:
        UsageError: A head that does not exist, or that is not before any receiver.
        UnsupportedError: Something that cannot be reached in this model; the message names it and the reason.
    """
    if into not in INTO:
        raise UsageError(f"there is no part {into!r} of a head to patch", f"Choose from {', '.join(INTO)}.")
    senders, receivers = from_, to
    chosen = component_of(running, component)
    every = sites_of(running, chosen, None)
    by_layer = {site.layer or 0: site for site in every}
    _there(by_layer, senders, keyed=False)
    _there(by_layer, receivers, keyed=into in BY_KEY)
    last = max((layer for layer, _ in receivers), default=len(every))
    if late := [one for one in senders if one[0] >= last]:
        raise UsageError(
            f"the sender L{late[0][0]} H{late[0][1]} is not before L{last}, and sends it nothing",
            Wording("Choose a later <to=>, or an earlier <from_=>."),
        )
    own = list(dict.fromkeys(senders)) or [
        (layer, head) for layer, site in by_layer.items() if layer < last for head in range(site.heads or 1)
    ]
    spots = [Spot(layer, head) for layer, head in own]
    run, source = (RUN, OTHER) if noising else (OTHER, RUN)
    held = _frozen(running, run, freeze_mlps)
    sent = [
        Intervention(f"{spot.label} sends", (*held, _context(spot, chosen, source)), run) for spot in spots
    ]  # fmt: skip
    points = {layer: running.points.of(by_layer[layer], into)[0] for layer, _ in receivers}
    values: list[float] = []
    messages: list[dict[int, Array]] = []
    for effect in running.run(sent, take=list(points.values())):
        if not receivers:
            values.append(meter(effect.outputs))
        messages.append({layer: _taken(point, effect.taken) for layer, point in points.items()})
        if tell is not None:
            tell(len(messages))
    if receivers:
        second = [
            Intervention(
                f"{spot.label} received",
                tuple(
                    Edit("patch", (layer,), (head,), component=chosen, quantity=into, values=message[layer])
                    for layer, head in dict.fromkeys(receivers)
                    if layer > spot.layer
                ),
                run,
            )
            for spot, message in zip(spots, messages, strict=True)
        ]
        for effect in running.run(second):
            values.append(meter(effect.outputs))
            if tell is not None:
                tell(len(messages) + len(values))
    names = ", ".join(f"L{layer} H{head}" for layer, head in dict.fromkeys(receivers))
    path = f"the {into} of {names}" if receivers else "the answer"
    return told(running, meter, "context", "head", chosen, noising, spots, values, path=path)


def _frozen(running: Intervening, run: str, mlps: bool) -> list[Edit]:
    """Edits that freeze every head at its output in the unedited run; `mlps`: every MLP too."""
    held = [
        Edit("patch", component=name, quantity="context", source=run) for name in running.points.components()
    ]  # fmt: skip
    if mlps:
        sides = [name for name in running.points.components() if name != "cross"]
        held += [Edit("patch", component=name, quantity="mlp", source=run) for name in sides]
    return held


def _context(spot: Spot, component: Where, source: str) -> Edit:
    assert spot.head is not None
    return Edit("patch", (spot.layer,), (spot.head,), component=component, quantity="context", source=source)


def _taken(point: Point, taken: Mapping[str, Sequence[Array]]) -> Array:
    """A receiver's query, key or value in attnx's layout."""
    (raw,) = taken[point.title]
    values = np.asarray(raw, np.float32)
    if point.place.window is not None:
        values = values[..., slice(*point.place.window)]
    return unfactored(point.place, values, point.order)


def _there(sites: Mapping[int, Site], heads: Sequence[tuple[int, int]], *, keyed: bool) -> None:
    for layer, head in heads:
        if layer not in sites:
            raise UsageError(f"there is no layer {layer}", f"The layers are {min(sites)} to {max(sites)}.")
        if head >= (count := count_of(sites[layer], keyed)):
            said = "key/value head" if keyed and count != (sites[layer].heads or 1) else "head"
            raise UsageError(f"there is no {said} {head} in layer {layer}", f"They are 0 to {count - 1}.")


__all__ = ["INTO", "Into", "patch_paths"]
