"""The hidden states that each attention block reads, and the model's own output: one vector a token and layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from attnx.errors import UnsupportedError
from attnx.feed import lookups
from attnx.records import Array, Place, Site, Tokens
from attnx.run.runner import Given, follow
from attnx.session.protocol import NOTHING, Run, Wanted
from attnx.wording import Wording

if TYPE_CHECKING:
    from attnx.graph.shapes.index import Graph
    from attnx.model import Model
    from attnx.sites.recognise import Found

OUTPUT = "output"
"""Name of the model's own output among the layers."""


@dataclass(frozen=True, slots=True)
class States:
    """What was read."""

    tokens: Tokens
    """The text: the encoder's side where there is one."""
    vectors: Mapping[str, Array]
    """Layer -> float32 [Q,E]: what its attention block reads (behind a norm, where the norm comes first); then the
    model's own output, where it has one as wide."""
    notes: tuple[str, ...]


class _Recorder:
    """A model as `follow` sees it, which keeps what it is fed."""

    def __init__(self, model: Model, execute: bool) -> None:
        self.model, self.execute = model, execute
        self.feed: Mapping[str, Array] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    @property
    def encoder(self) -> _Recorder | None:
        if "_inner" not in self.__dict__:
            inner = self.model.encoder
            self.__dict__["_inner"] = None if inner is None else _Recorder(inner, True)
        made: _Recorder | None = self.__dict__["_inner"]
        return made

    def run(self, feed: Mapping[str, Array], wanted: Wanted) -> Run:
        self.feed = feed
        return self.model.run(feed, wanted) if self.execute else Run((), feed)


def states(
    model: Model,
    text: str | None = None,
    *,
    pair: str | None = None,
    target: str | None = None,
    tokens: Tokens | None = None,
    inputs: Mapping[str, Array] | None = None,
) -> States:
    """Run a model and read the hidden states that its attention blocks read.

    Args:
        model: The model.
        text: What to run on; or
        tokens: tokens made before; or
        inputs: an array for each graph input.
        pair: A second segment.
        target: What the decoder of an encoder-decoder says.

    Returns:
        See `States`.

    Raises:
        UnsupportedError: No block's input was found for sure.
        InputError: What is given cannot be fed.
    """
    from attnx.session.ort import on_cuda, open_session
    from attnx.taps.tap import tap

    recorder = _Recorder(model, execute=False)
    given = Given(model.encode(text, pair) if text is not None else tokens, target, inputs or {})
    trace = follow(recorder, given, None, NOTHING)
    of_encoder = recorder.encoder if recorder.encoder is not None and recorder.encoder.feed else None
    side = of_encoder or recorder
    lookups.check(side.model, side.model.find(side.feed), side.feed)
    found = side.model.graph(side.feed)
    wanted, notes = _wanted(found)
    sources = {site.index: replace(site, places={"query": Place(name, "b q d")}) for site, name in wanted}
    with_inputs = replace(found, sites=tuple(sources.get(site.index, site) for site in found.sites))
    wide = not on_cuda(side.model.device)
    tapped = tap(with_inputs, dict.fromkeys(sources, ("query",)), wide=wide)
    session = open_session(tapped.model, tapped.folder, side.model.device)
    values = session.run(side.feed)
    text_tokens = trace.memory or trace.tokens
    vectors: dict[str, Array] = {}
    for site, _ in wanted:
        made = _by_token(values[tapped.taps[site.index]["query"]], len(text_tokens))
        if made is not None:
            vectors[site.label] = made
    if not vectors:
        raise UnsupportedError(
            "no attention block of this model reads one vector a token that can be told for sure",
            Wording("<attnx.study.output_weights.surroundings()> shows which of its projections were found."),
        )
    width = next(iter(vectors.values())).shape[1]
    # Of an encoder and decoder in one graph the outputs are the decoder's, and the text is the encoder's.
    decoder = of_encoder is None and any(site.kind == "cross" for site in found.sites)
    for name in () if decoder else tapped.outputs:
        last = _by_token(values[name], len(text_tokens))
        if last is not None and last.shape[1] == width:
            vectors[OUTPUT] = last
            break
    return States(text_tokens, vectors, tuple(dict.fromkeys((*trace.notes, *notes))))


def _wanted(found: Found) -> tuple[list[tuple[Site, str]], list[str]]:
    """The self-attentions over the text and what each reads; and what was not found."""
    from attnx.graph.axes.projections import projections

    own = [site for site in found.sites if site.kind == "self"]
    # Without cross-attention two components are two towers, of which one reads the text: their lengths tell them apart.
    crosses = any(site.kind == "cross" for site in found.sites)
    encoder = [site for site in own if site.component == "encoder"] if crosses else []
    out, missing = [], []
    for site in encoder or own:
        made = projections(found.opened, site).query
        if made is None:
            missing.append(site.label)
        else:
            out.append((site, _by_sequence(found.opened, made.source)))
    said = f"what {', '.join(missing)} reads was not found for sure in the graph, so it is left out"
    return out, [said] if missing else []


def _by_sequence(graph: Graph, value: str) -> str:
    """The same states before a Reshape put the sequences of a batch one behind the other (a Gemm reads them so)."""
    node, shape = graph.producer(value), graph.shape(value)
    while node is not None and shape is not None and len(shape) == 2 and node.op_type in ("Reshape", "Flatten"):
        value = str(node.input[0])
        node, shape = graph.producer(value), graph.shape(value)
    return value


def _by_token(array: Array, count: int) -> Array | None:
    """One vector a token of the first sequence, [Q,E]; None where the array is none of that."""
    if array.dtype.kind != "f":
        return None
    found: Array = np.asarray(array, np.float32)
    if found.ndim == 3 and found.shape[1] == count:
        return np.asarray(found[0])
    if found.ndim == 3 and found.shape[:2] == (count, 1):
        return np.asarray(found[:, 0])
    return found if found.ndim == 2 and found.shape[0] == count else None
