"""Where a model can be cut between layers: the residual stream at which each layer begins, if it is a tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from attnx.interventions.exact import exact
from attnx.interventions.stream import Streams
from attnx.interventions.wide import Wide, widen
from attnx.records import Array
from attnx.session.model_summary import kept_values
from attnx.session.protocol import OpenModel

_FLOAT = 1
"""ONNX's number of float32."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The beginning of a site's layer."""

    stack: int
    """Which of the model's stacks of layers it belongs to."""
    number: int
    """The layer's place in it, from 0."""
    stream: str | None
    """The tensor that holds the residual stream there; None where no graph can begin at it."""


def cuts(model: OpenModel, feed: Mapping[str, Array] | None) -> dict[int, Cut]:
    """Where the layer of each site begins, by the site's index; without the sites that are in no stack of layers.

    Nothing is cut that rounds to integers or to half precision: a stream that was cut out may differ in its last bit,
    and a last bit may there become a whole step.

    Args:
        model: The model.
        feed: Decides which branch of an If runs.
    """
    known = model.find(feed)
    found = kept_values(known, ["cuts"], lambda: _found(widen(model.sessions.graph(known.branch))))
    return {index: Cut(stack, number, stream) for index, stack, number, stream in found}


def _found(wide: Wide) -> list[tuple[int, int, int, str | None]]:
    """Site, stack, layer and stream of every site that is in a stack."""
    if not exact(wide.graph):
        return []
    return [
        (site, number, at, _stream(wide, layer.given.value))
        for number, stack in enumerate(Streams(wide.graph, wide.found.sites).stacks)
        for at, (layer, sites) in enumerate(zip(stack.layers, stack.sites, strict=True))
        for site in sites
    ]


def _stream(wide: Wide, value: str) -> str | None:
    """The tensor, if a node of the file makes it, in float32: one inside a fused node is never there."""
    fact = wide.graph.facts.get(value)
    there = wide.found.graph.producer(value) is not None and value not in wide.inside
    return value if there and fact is not None and fact.dtype == _FLOAT and fact.shape is not None else None


__all__ = ["Cut", "cuts"]
