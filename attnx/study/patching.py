"""Where is the information? Patch activations of one text into the run of another, place by place.

Source: Vig et al. 2020; Meng et al. 2022; Heimersheim and Nanda 2024, "How to use and interpret activation patching".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from attnx.errors import UsageError
from attnx.interventions.plan import OF_HEADS, OF_LAYERS, OTHER, PATCHED, RUN, Edit, Intervention, Where
from attnx.interventions.running import Intervening
from attnx.records import Axis, Measurement, Site, Tokens
from attnx.study.patch_metric import BARELY, NOTHING, Meter
from attnx.study.patch_places import BY_KEY, component_of, count_of, places_of, reachable, sites_of, tokens_of
from attnx.wording import Wording

By = Literal["head", "position", "layer"]
BY: tuple[By, ...] = ("head", "position", "layer")


@dataclass(frozen=True, slots=True)
class Spot:
    """What is patched in one run."""

    layer: int
    head: int | None = None
    """None for the whole layer, and for quantities without heads."""
    position: int | None = None
    """None for all positions, or for several named together."""

    @property
    def label(self) -> str:
        """The displayed label: "L0 H3", "L0 @4"."""
        head = "" if self.head is None else f" H{self.head}"
        return f"L{self.layer}{head}" + ("" if self.position is None else f" @{self.position}")


@dataclass(frozen=True, slots=True)
class Patched:
    """A spot, and the model's output once it is patched."""

    spot: Spot
    value: float
    """The value of the metric."""
    share: float
    """(patched - corrupt) / (clean - corrupt): 0 is corrupt, 1 is clean; NaN if the two do not differ."""


@dataclass(frozen=True, slots=True, eq=False)
class Patching:
    """What each patch restores or, with noising, breaks."""

    quantity: str
    by: By
    component: Where
    noising: bool
    """Whether corrupt activations go into the clean run instead of clean ones into the corrupt run."""
    meter: Meter
    clean: float
    corrupt: float
    effects: tuple[Patched, ...]
    """In the order of the model."""
    places: tuple[str, ...]
    """The tokens at the positions of the quantity."""
    path: str = ""
    """For path patching: the receiver ("the query of L3 H1")."""
    notes: tuple[str, ...] = ()

    @property
    def ranked(self) -> tuple[Patched, ...]:
        """The patches, those that move the metric furthest from the unpatched run first."""
        begin = self.clean if self.noising else self.corrupt
        return tuple(sorted(self.effects, key=lambda one: -abs(one.value - begin)))

    @property
    def heading(self) -> str:
        """The name of the share."""
        return "kept" if self.noising else "restored"

    def place(self, position: int) -> str:
        """A position and its token, if it has one."""
        piece = self.places[position]
        return str(position) if piece == str(position) else f"{position} {piece}"

    def map(self) -> Measurement | None:
        """The share by layer and head, or by layer and position; None if there is no such map."""
        across = [one.spot.head if self.by == "head" else one.spot.position for one in self.effects]
        if self.by == "layer" or (len({one.spot.head for one in self.effects}) > 1 and self.by == "position"):
            return None
        layers = list(dict.fromkeys(one.spot.layer for one in self.effects))
        columns = sorted({at for at in across if at is not None})
        if len(layers) * len(columns) < 2:
            return None
        values = np.full((len(layers), len(columns)), np.nan)
        for one, at in zip(self.effects, across, strict=True):
            if at is not None:
                values[layers.index(one.spot.layer), columns.index(at)] = one.share
        if np.isnan(values).all():
            return None
        names = [f"H{at}" if self.by == "head" else self.place(at) for at in columns]
        axes = (Axis("layer", tuple(f"L{layer}" for layer in layers)), Axis(self.by, tuple(names)))
        return Measurement(self.heading, "share", axes, values, formula=FORMULA, source=SOURCE)

    def columns(self) -> dict[str, list[Any]]:
        """One row per patch, as written to files."""
        spots = [one.spot for one in self.effects]
        return {
            "quantity": [self.quantity] * len(spots),
            "layer": [spot.layer for spot in spots],
            "head": ["" if spot.head is None else str(spot.head) for spot in spots],
            "position": ["" if spot.position is None else str(spot.position) for spot in spots],
            "token": ["" if spot.position is None else self.places[spot.position] for spot in spots],
            "value": [one.value for one in self.effects],
            "share": [one.share for one in self.effects],
        }


FORMULA = "(patched - corrupt) / (clean - corrupt)"
SOURCE = "Heimersheim and Nanda 2024"


def patch(
    running: Intervening,
    meter: Meter,
    *,
    quantity: str = "context",
    by: By | None = None,
    component: Where | None = None,
    heads: Sequence[tuple[int, int]] = (),
    layers: Sequence[int] | None = None,
    at: Sequence[int] | None = None,
    tokens: Tokens,
    memory: Tokens | None = None,
    noising: bool = False,
    tell: Callable[[int], None] | None = None,
) -> Patching:
    """Patch activations of one text into the run of the other, one spot at a time.

    Args:
        running: The model with both feeds, each a batch of one: "inputs" is the clean one, "other" the corrupt one.
        meter: The metric that compares runs.
        quantity: context, value, query, key, weights (of heads), attention, mlp or residual (of layers).
        by: The unit of a patch: each head, each position (of a layer, or of each named head), or each layer.
        component: The encoder, the decoder or the cross-attention; None where there is one.
        heads: Layer and head of the heads to patch, each alone; empty for all.
        layers: Only these layers.
        at: Only these positions: each alone if `by` is "position", otherwise together.
        tokens: The tokens at the query positions.
        memory: The encoder's tokens, if there is an encoder.
        noising: Whether corrupt activations go into the clean run, instead of clean ones into the corrupt run.
        tell: Called with the number of patches run so far.

    Raises:
        UsageError: No such quantity, layer, head or position; heads given for a quantity that has none.
        UnsupportedError: Something that cannot be reached in this model; the message names it and the reason.
    """
    if quantity not in PATCHED:
        raise UsageError(f"there is no quantity {quantity!r}", f"Choose from {', '.join(PATCHED)}.")
    chosen = component_of(running, component)
    sites = sites_of(running, chosen, layers, [layer for layer, _ in heads])
    left: tuple[str, ...] = ()
    if layers is None and not heads:
        sites, left = reachable(running, sites, quantity)
    if quantity in OF_LAYERS and (heads or by == "head"):
        raise UsageError(
            f"{quantity} belongs to a layer, and a head is named", f"Choose from {', '.join(OF_HEADS)}, or a layer."
        )
    way: By = by if by is not None else "position" if quantity in OF_LAYERS else "head"
    keyed = quantity in BY_KEY
    there = tokens_of(running, chosen, quantity, tokens, memory)
    labels, offset = places_of(running, sites[0], quantity, there)
    real = [place + offset for place, is_real in enumerate(there.mask) if is_real]
    if at is not None:
        places = tuple(place + offset for place in at)
    else:
        places = tuple(real if len(there) + offset == len(labels) and not offset else range(len(labels)))
    if bad := [place for place in places if not 0 <= place < len(labels)]:
        raise UsageError(f"there is no position {bad[0]}", f"There are {len(labels)}, counted from 0.")
    together = None if at is None else places
    found: list[tuple[Spot, Intervention]] = []
    run, source = (RUN, OTHER) if noising else (OTHER, RUN)
    for spot in _spots(sites, way, keyed, heads, places):
        here = together if spot.position is None else (spot.position,)
        edit = Edit(
            "patch", (spot.layer,), None if spot.head is None else (spot.head,), None if keyed else here,
            here if keyed else None, component=chosen, quantity=quantity, source=source,
        )  # fmt: skip
        found.append((spot, Intervention(spot.label, (edit,), run)))
    values: dict[str, float] = {}
    for effect in running.run([step for _, step in found]):
        values[effect.id] = meter(effect.outputs)
        if tell is not None:
            tell(len(values))
    spots = [spot for spot, _ in found]
    made = told(running, meter, quantity, way, chosen, noising, spots, [values[s.label] for s in spots], labels)
    return replace(made, notes=(*left, *made.notes))


def told(
    running: Intervening,
    meter: Meter,
    quantity: str,
    by: By,
    component: Where,
    noising: bool,
    spots: Sequence[Spot],
    values: Sequence[float],
    places: tuple[str, ...] = (),
    path: str = "",
) -> Patching:
    """Compare the patched runs' values with those of the clean and the corrupt run."""
    clean, corrupt = meter(running.base(RUN)), meter(running.base(OTHER))
    apart = clean - corrupt
    notes = list(running.notes)
    if abs(apart) < NOTHING:
        notes.append(
            f"clean and corrupt do not differ in {meter.name}: there is nothing to restore, and no share of it"
        )
    elif abs(apart) < BARELY[meter.metric]:
        notes.append(
            f"clean and corrupt barely differ in {meter.name} ({clean + 0.0:.4g} and {corrupt + 0.0:.4g}): shares of "
            "so little are mostly chance"
        )
    shares = [(value - corrupt) / apart if abs(apart) >= NOTHING else float("nan") for value in values]
    effects = tuple(Patched(*one) for one in zip(spots, values, shares, strict=True))
    return Patching(quantity, by, component, noising, meter, clean, corrupt, effects, places, path, tuple(notes))


def _spots(
    sites: Sequence[Site], by: By, keyed: bool, heads: Sequence[tuple[int, int]], places: Sequence[int]
) -> list[Spot]:
    """What is patched, each alone, in the order of the model."""
    whole: list[Spot] = []
    for site in sites:
        layer, count = site.layer or 0, count_of(site, keyed)
        own = list(dict.fromkeys(head for at, head in heads if at == layer))
        if bad := [head for head in own if head >= count]:
            said = "key/value head" if keyed and count != (site.heads or 1) else "head"
            raise UsageError(f"there is no {said} {bad[0]} in layer {layer}", f"They are 0 to {count - 1}.")
        if heads:
            whole += [Spot(layer, head) for head in own]
        else:
            whole += [Spot(layer, head) for head in range(count)] if by == "head" else [Spot(layer)]
    if by == "layer" and heads:
        raise UsageError(
            "heads are named, and whole layers are to be patched", Wording("Leave out <heads>, or choose <by='head'>.")
        )
    if by != "position":
        return whole
    return [Spot(spot.layer, spot.head, place) for spot in whole for place in places]


__all__ = ["BY", "FORMULA", "By", "Patched", "Patching", "Spot", "patch", "told"]
