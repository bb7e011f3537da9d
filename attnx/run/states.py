"""The hidden states that each attention block reads, and the model's own output: one vector per token and layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from attnx.errors import UnsupportedError
from attnx.feed import lookups
from attnx.records import Array, Place, Site, Tokens, Trace
from attnx.run.axis_tokens import in_place
from attnx.run.passes import Feed
from attnx.run.pipeline import execute
from attnx.run.prompt import Prompt
from attnx.session.protocol import NOTHING, OpenModel, Run
from attnx.wording import Wording

if TYPE_CHECKING:
    from attnx.graph.shapes.index import Graph
    from attnx.session.model_summary import ModelSummary
    from attnx.session.ort import Session
    from attnx.sites.recognise import Found
    from attnx.taps.tap import Tapped

OUTPUT = "output"
"""Name of the model's own output among the layers."""


@dataclass(frozen=True, slots=True)
class States:
    """What was read."""

    tokens: Tokens
    """The text: the encoder's side where there is one."""
    vectors: Mapping[str, Array]
    """Layer -> float32 [Q,E]: what its attention block reads (after the norm, where the norm comes first); then the
    model's own output, where it has one as wide."""
    notes: tuple[str, ...]


def states(model: OpenModel, prompt: Prompt) -> States:
    """Run a model and read the hidden states that its attention blocks read.

    Args:
        model: The model.
        prompt: What it is run on.

    Returns:
        See `States`.

    Raises:
        UnsupportedError: No block's input could be identified with certainty.
        InputError: Nothing fills one of the model's inputs.
    """
    return states_of(model, (prompt,))[0]


def states_of(model: OpenModel, prompts: Sequence[Prompt]) -> list[States]:
    """As `states` for each of a few prompts: the model is opened once for all of them."""
    opened: dict[object, _Opened] = {}
    return [_read(model, prompt, opened) for prompt in prompts]


@dataclass(frozen=True, slots=True)
class _Opened:
    """A file opened to give what its attention blocks read."""

    session: Session
    tapped: Tapped
    known: ModelSummary
    sites: tuple[Site, ...]
    """Those of which it is known what they read."""
    notes: tuple[str, ...]


def _open(file: OpenModel, feed: Mapping[str, Array]) -> _Opened:
    from attnx.session.model_summary import load_tapped, save_tapped
    from attnx.session.ort import on_cuda, open_session

    known, wide = file.find(feed), not on_cuda(file.device)
    there = _over_text(known.sites)
    asked = dict.fromkeys((site.index for site in there), ("query",))
    tapped = load_tapped(known, asked, ["states", wide])
    if tapped is None:
        from attnx.taps.tap import tap

        found = file.graph(feed)
        sources = {site.index: replace(site, places={"query": Place(name, "b q d")}) for site, name in _wanted(found)}
        with_inputs = replace(found, sites=tuple(sources.get(site.index, site) for site in found.sites))
        tapped = tap(with_inputs, dict.fromkeys(sources, ("query",)), wide=wide)
        save_tapped(known, asked, ["states", wide], tapped)
    thorough = not tapped.plain  # it is run a few times: as fast to open as can be
    session = open_session(tapped.model, tapped.folder, file.device, thorough=thorough, exact=tapped.rounded)
    missing = ", ".join(site.label for site in there if site.index not in tapped.taps)
    note = f"what {missing} reads was not found with certainty in the graph, so it is left out"
    sites = tuple(site for site in there if site.index in tapped.taps)
    return _Opened(session, tapped, known, sites, (note,) if missing else ())


def _read(model: OpenModel, prompt: Prompt, opened: dict[object, _Opened]) -> States:
    file, feed, trace = _last_feed(model, prompt)
    of_encoder = file is model.encoder
    known = file.find(feed)
    in_place(_over_text(known.sites))
    lookups.check(file, known, feed)
    key = (of_encoder, known.branch)
    if key not in opened:
        opened[key] = _open(file, feed)
    one = opened[key]
    values = one.session.run(feed)
    text_tokens = trace.memory or trace.tokens
    vectors: dict[str, Array] = {}
    for site in one.sites:
        read = _by_token(values[one.tapped.taps[site.index]["query"]], len(text_tokens))
        if read is not None:
            vectors[site.label] = read
    if not vectors:
        raise UnsupportedError(
            "no attention block of this model reads one vector a token that can be told for sure",
            Wording("<attnx.study.output_weights.projections_of()> shows which of its projections were found."),
        )
    width = next(iter(vectors.values())).shape[1]
    # With encoder and decoder in one graph, the outputs are the decoder's and the text is the encoder's.
    decoder = not of_encoder and any(site.kind == "cross" for site in one.known.sites)
    for name in () if decoder else one.tapped.outputs:
        last = _by_token(values[name], len(text_tokens))
        if last is not None and last.shape[1] == width:
            vectors[OUTPUT] = last
            break
    return States(text_tokens, vectors, tuple(dict.fromkeys((*trace.notes, *one.notes))))


def _last_feed(model: OpenModel, prompt: Prompt) -> tuple[OpenModel, Mapping[str, Array], Trace]:
    """The file that reads the text, its last feed, and the trace without sites; at most the encoder is run."""
    feeds: dict[bool, Mapping[str, Array]] = {}
    passes = prompt.feed(model, prompt.encode(model), NOTHING)
    for one in passes:
        encodes = one.model is model.encoder
        feeds[encodes] = one.feed
        passes.answer(execute(one.model, Feed(one.feed), one.wanted) if encodes else Run((), one.feed))
    if feeds.get(True) and model.encoder is not None:
        return model.encoder, feeds[True], passes.result
    return model, feeds[False], passes.result


def _over_text(sites: Sequence[Site]) -> list[Site]:
    """The self-attentions over the text."""
    own = [site for site in sites if site.kind == "self"]
    # Without cross-attention, two components are two towers, one of which reads the text: their lengths tell which.
    crosses = any(site.kind == "cross" for site in sites)
    return [site for site in own if crosses and site.component == "encoder"] or own


def _wanted(found: Found) -> list[tuple[Site, str]]:
    """What each self-attention over the text reads; those of which that is not certain are left out."""
    from attnx.graph.axes.projections import projections

    reads = [(site, projections(found.opened, site).query) for site in _over_text(found.sites)]
    return [(site, _by_sequence(found.opened, read.source)) for site, read in reads if read is not None]


def _by_sequence(graph: Graph, value: str) -> str:
    """The same states from before a Reshape that concatenates the sequences of a batch (as a Gemm needs them)."""
    node, shape = graph.producer(value), graph.shape(value)
    while node is not None and shape is not None and len(shape) == 2 and node.op_type in ("Reshape", "Flatten"):
        value = str(node.input[0])
        node, shape = graph.producer(value), graph.shape(value)
    return value


def _by_token(array: Array, count: int) -> Array | None:
    """One vector for each token of the first sequence, [Q,E]; None where the array has another form."""
    if array.dtype.kind != "f":
        return None
    found: Array = np.asarray(array, np.float32)
    if found.ndim == 3 and found.shape[1] == count:
        return np.asarray(found[0])
    if found.ndim == 3 and found.shape[:2] == (count, 1):
        return np.asarray(found[:, 0])
    return found if found.ndim == 2 and found.shape[0] == count else None
