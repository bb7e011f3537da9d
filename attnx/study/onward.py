"""Runs of some layers that go on from the residual stream that an earlier run left, rather than from the inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from attnx.interventions.cuts import cuts
from attnx.records import Array, Site, Trace
from attnx.run.pipeline import execute
from attnx.run.prompt import Prompt
from attnx.session.protocol import OpenModel, Section, Wanted

HELD = 1 << 27
"""Bytes of residual streams held for later runs; the newest is held whatever it takes."""


class Onward:
    """Runs the layers of a model on one prompt, some at a time.

    Where the model cannot be cut in front of a layer (see `attnx.interventions.cuts`), a run begins farther ahead, at
    the model's inputs if need be: its numbers are the same either way.

    Args:
        model: The model.
        prompt: The prompt to run it on; a single run of the graph.
        sites: The sites that are run.
        feed: What the graph is fed for it.
    """

    def __init__(self, model: OpenModel, prompt: Prompt, sites: Sequence[Site], feed: Mapping[str, Array]) -> None:
        self._model, self._prompt = model, prompt
        self._begins = _begins(model, sites, feed)
        self._first = min((site.layer for site in model.find(feed).sites if site.layer is not None), default=0)
        self._streams: dict[int, Array] = {}

    def run(self, wanted: Wanted, then: int | None = None) -> Trace:
        """Run some layers.

        Args:
            wanted: What is wanted of them, and which they are.
            then: The layer with which the next run begins: the stream in front of it is kept.
        """
        first = min(wanted.layers or (0,))
        at = max((layer for layer in self._streams if layer <= first), default=None)
        begin = None if at is None else self._begins[at]
        further = then is not None and then not in self._streams and then > (-1 if at is None else at)
        end = self._begins.get(then) if then is not None and further else None
        given = None if at is None else self._streams[at]
        trace = execute(self._model, self._prompt, replace(wanted, section=Section(begin, given, end)))
        if then is None or end is None:
            return trace
        self._keep(then, trace.outputs[end])
        return replace(trace, outputs={name: array for name, array in trace.outputs.items() if name != end})

    def begins(self, layer: int) -> bool:
        """Whether a run of this layer can begin in front of it, or at the model's inputs with nothing to leave out."""
        return layer in self._begins or layer <= self._first

    def advance(self, layer: int, then: int | None) -> None:
        """Run a layer for the stream behind it alone.

        Args:
            layer: The layer.
            then: The one behind it; nothing is run where there is none.
        """
        if then is not None and then in self._begins and then not in self._streams:
            self.run(Wanted((layer,), ()), then)

    def reach(self, layer: int) -> None:
        """Run what is in front of a layer, unless its stream is held: several runs are to begin there."""
        if layer > self._first and layer in self._begins and layer not in self._streams:
            self.run(Wanted((layer,), ()), layer)

    def _keep(self, layer: int, stream: Array) -> None:
        """Hold a stream: a copy, as what a session gave keeps all of its working memory."""
        self._streams[layer] = np.copy(stream)
        while len(self._streams) > 1 and sum(array.nbytes for array in self._streams.values()) > HELD:
            for older in list(self._streams)[-2::-2]:
                del self._streams[older]


def _begins(model: OpenModel, sites: Sequence[Site], feed: Mapping[str, Array]) -> dict[int, str]:
    """The tensor at which each layer begins, of those at which the graph can be cut."""
    found = cuts(model, feed)
    if any(site.layer is None or site.index not in found for site in sites):
        return {}
    of_layer: dict[int, set[tuple[int, int]]] = {}
    streams: dict[int, str | None] = {}
    for site in sites:
        cut = found[site.index]
        assert site.layer is not None
        of_layer.setdefault(site.layer, set()).add((cut.stack, cut.number))
        streams.setdefault(site.layer, cut.stream)
    order = [of_layer[layer] for layer in sorted(of_layer)]
    if len({stack for places in order for stack, _ in places}) != 1:
        return {}
    if any(max(before) >= min(behind) for before, behind in pairwise(order)):
        return {}  # a layer's sites are not those of one layer of the stack
    return {layer: stream for layer, stream in streams.items() if stream is not None}


__all__ = ["Onward"]
