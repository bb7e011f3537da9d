"""What follows a model's last layer (final norm, unembedding, softcap), run on any residual stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from attnx.errors import UnsupportedError
from attnx.graph.axes.paths import depends, reaches
from attnx.interventions.editing import edit
from attnx.interventions.points import Point
from attnx.interventions.stream import Stack
from attnx.layout import spread
from attnx.records import Array, Component, Place

if TYPE_CHECKING:
    from attnx.interventions.unedited import Unedited
    from attnx.session.ort import Session

_NO_STREAM = "Ablations and knockouts need none."
_LOGITS = ("logit", "score", "prediction")


@dataclass(slots=True)
class Run:
    """A part of a model that starts at one tensor."""

    session: Session
    begin: str
    place: Place
    shape: tuple[int, ...]
    """Shape of the tensor in a run of the feed."""
    batch: int
    feed: Mapping[str, Array]
    outputs: Mapping[str, str]
    """Wanted name -> output with its value."""

    def __call__(self, hidden: Array) -> dict[str, Array]:
        """The outputs for a tensor [B,Q,E], float32."""
        raw = spread(np.asarray(hidden, np.float32), self.place.layout, "bqd", self.shape, self.batch)
        slot = next(s for s in self.session.inputs if s.name == self.begin)
        given = {**self.feed, self.begin: np.ascontiguousarray(raw.astype(slot.dtype or np.float32))}
        values = self.session.run({s.name: given[s.name] for s in self.session.inputs})
        return {name: np.asarray(values[output], np.float32) for name, output in self.outputs.items()}


def part(all_: Unedited, name: str, begin: Point, ends: Mapping[str, str]) -> Run:
    """The part of a model between a tensor of the stream and others.

    Args:
        all_: The model and its feeds.
        name: The feed.
        begin: The tensor where it begins.
        ends: Wanted name -> tensor.
    """
    all_.survey(name, [begin])
    graph = all_.points.wide.found.graph
    own = [value for value in ends.values() if value in graph.outputs]
    points = {n: Point(n, "end", Place(value, ""), "") for n, value in ends.items() if value not in own}
    edited = edit(all_.points.wide, [], outputs=own, take=list(points.values()), begin=begin.place.value)
    outputs = {n: value if value in own else edited.taken[points[n].key] for n, value in ends.items()}
    tensor = all_.tensor(name, begin)
    return Run(all_.open(edited), begin.place.value, begin.place, tensor.shape, tensor.batch, all_.feed(name), outputs)


def stacks_of(all_: Unedited) -> dict[Component, Stack]:
    """The stack of each side of a model.

    Raises:
        UnsupportedError: The residual stream was not found, or a side has several stacks.
    """
    streams = all_.points.streams
    sites = {site.index: site for site in all_.points.wide.found.sites}
    found: dict[Component, list[Stack]] = {}
    for stack in streams.stacks:
        side = sites[stack.sites[0][0]].component
        found.setdefault(side, []).append(stack)
    if not found:
        why = next(iter(streams.lost.values()), "there is no attention over tokens")
        raise UnsupportedError(f"the residual stream was not found: {why}", _NO_STREAM)
    lost = [s for s in sites.values() if s.component == "decoder" and s.index in streams.lost]
    if lost and "decoder" not in found:
        raise UnsupportedError(
            f"the residual stream of the decoder was not found: {streams.lost[lost[0].index]}", _NO_STREAM
        )
    for side, stacks in found.items():
        if len(stacks) > 1:
            raise UnsupportedError(
                f"the {side} has {len(stacks)} stacks of layers, which hand no stream on to one another",
                "The lens is for models with one; a model of two towers has one in each of its parts.",
            )
        inside = streams.lost_in(stacks[0].layers[0].given.value)
        if inside is not None:
            raise UnsupportedError(
                f"the residual stream of the {side} was found only behind an attention: {inside}", _NO_STREAM
            )
    return {side: stacks[0] for side, stacks in found.items()}


def last_of(stack: Stack) -> Place:
    """The stream after a stack's last layer.

    Raises:
        UnsupportedError: It is not a tensor of the graph.
    """
    out = stack.layers[-1].out
    if out is None:
        raise UnsupportedError("the residual stream behind the last layer was not found")
    return out


def logits_of(all_: Unedited, stack: Stack) -> tuple[str | None, str]:
    """The model's output that its last layer predicts; None and the reason if there is none."""
    graph, last = all_.points.wide.graph, last_of(stack)
    kinds = {o.name: o.type.tensor_type.elem_type for o in all_.points.wide.found.graph.proto.graph.output}
    found = [
        name
        for name in all_.points.wide.found.graph.outputs
        if name != last.value and kinds.get(name, 1) in (0, 1, 10, 11, 16) and reaches(graph, name, {last.value})
    ]
    width = _width(all_, last.value)
    said = [name for name in found if any(word in name.lower() for word in _LOGITS)]
    wide = [name for name in found if _width(all_, name) != width]
    name = next(iter([*said, *wide]), None)
    if name is None:
        return None, "no output of the model is made by an unembedding of its last layer"
    contexts = {p.value for s in all_.points.wide.found.sites if (p := s.places.get("context")) is not None}
    if reaches(graph, name, contexts, {last.value}):
        return None, f"the output {name!r} is not made of the last layer's residual stream alone"
    return name, ""


def _width(all_: Unedited, value: str) -> int | None:
    shape = all_.points.wide.graph.shape(value)
    return shape[-1] if shape else None


def uncapped(all_: Unedited, logits: str) -> str:
    """The logits before a softcap c tanh(x / c); the logits themselves if there is none."""
    graph = all_.points.wide.graph
    value = logits
    for wanted in (("Mul",), ("Tanh",), ("Div", "Mul")):
        node = graph.producer(value)
        while node is not None and node.op_type in ("Cast", "Identity"):
            node = graph.producer(node.input[0])
        if node is None or node.op_type not in wanted:
            return logits
        live = [n for n in node.input if n and depends(graph, n)]
        if len(live) != 1:
            return logits
        value = live[0]
    return value
