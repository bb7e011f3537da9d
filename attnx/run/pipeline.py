"""The flow of attnx on one page: encode, feed, find, tap, run, read, check.

text -> tokens -> feed ----------> run -> arrays -> attentions -> trace
^
model.onnx -> graph -> sites -> taps
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from attnx.errors import InputError, UsageError
from attnx.feed import fill, lookups
from attnx.records import Array, Site
from attnx.run import check as checks
from attnx.run import read as reading
from attnx.run.passes import Pass, Source
from attnx.run.read import Reading, of_heads
from attnx.session import memory
from attnx.session.model_summary import ModelSummary, notes_of_run
from attnx.session.ort import Session
from attnx.session.protocol import OpenModel, Run, Wanted
from attnx.taps.holding import must_hold
from attnx.taps.some_heads import heads_input
from attnx.taps.tap import Tapped
from attnx.wording import Wording

Result = TypeVar("Result")


def execute(model: OpenModel, source: Source[Result], wanted: Wanted) -> Result:
    """Run a model, and read and check what its sites attend to.

    Args:
        model: The model.
        source: What it is run on: a prompt (one text, or arrays), a batch of texts, or a feed.
        wanted: What is wanted of each site.

    Returns:
        A trace of a prompt, a `Batch` of several texts, a `Run` of a feed.

    Raises:
        UsageError: Arguments that cannot be combined.
        InputError: Nothing fills one of the model's inputs, or the model has no attention.
        RunError: The run failed.
    """
    tokens = source.encode(model)  # text -> tokens
    passes = source.feed(model, tokens, wanted)  # tokens, pictures, sound, arrays -> the inputs of each pass
    for one in passes:
        found = find(one)  # model.onnx -> graph -> sites
        session = tap(one, found)  # sites -> a session whose outputs hold their tensors
        tensors = run(one, found, session)  # inputs -> tensors
        arrays = read(one, found, tensors)  # tensors -> the query, key, ... weights, context of each site
        passes.answer(check(one, found, tensors, arrays))  # checked against one another; only what is wanted is kept
        del tensors, arrays  # so that an encoder's tensors are not held while its decoder runs
    return passes.result


@dataclass(frozen=True, slots=True)
class Chosen:
    """What was found in a model, and which of its sites are wanted."""

    summary: ModelSummary
    sites: tuple[Site, ...]
    heads: Mapping[int, Sequence[int]]
    """Site index -> the heads that are wanted; all heads of sites that are not listed."""


@dataclass(frozen=True, slots=True)
class TappedSession:
    """A session, and which of its outputs hold the quantities of each site."""

    session: Session | None
    """None where nothing is wanted of the model: a graph without outputs cannot be loaded."""
    tapped: Tapped


@dataclass(frozen=True, slots=True)
class Tensors:
    """The result of a session's run."""

    feed: Mapping[str, Array]
    """The feed, in the types of the graph's inputs."""
    values: Mapping[str, Array]
    """Every output by name."""
    tapped: Tapped
    device: str


def find(one: Pass) -> Chosen:
    """Find the model's attention, and choose the sites of the layers that are wanted.

    Raises:
        InputError: There is no attention.
        UsageError: There is no such layer.
    """
    summary, wanted = one.model.find(one.feed), one.wanted
    sites = tuple(s for s in summary.sites if wanted.takes(s))
    if not sites and (wanted.required or (summary.sites and wanted.quantities)):
        raise no_sites(one.model.path, summary, wanted.layers)
    of_layers = wanted.heads or {}
    heads = {s.index: h for s in sites if (h := of_layers.get(-1 if s.layer is None else s.layer))}
    return Chosen(summary, sites, heads)


def tap(one: Pass, found: Chosen) -> TappedSession:
    """Open a session whose outputs hold what is wanted of the sites, and the model's own outputs if they are wanted."""
    outputs = one.wanted.outputs or one.wanted.verify_outputs
    taps = found.sites and one.wanted.quantities
    if not taps and not outputs and one.wanted.section.end is None:
        return TappedSession(None, Tapped(b"", one.model.path.parent, {}, ()))
    if not outputs and one.wanted.quantities:
        must_hold(found.sites, one.wanted.quantities)
    sessions, wanted, section = one.model.sessions, one.wanted.quantities, one.wanted.section
    opened = sessions.session(
        found.summary, found.sites, wanted, outputs, many=one.many, picked=found.heads.keys(),
        ends=(section.begin, section.end),
    )  # fmt: skip
    return TappedSession(*opened)


def run(one: Pass, found: Chosen, opened: TappedSession) -> Tensors:
    """Run the session on the feed, once it is known to fit the inputs, the model's tables, and memory.

    Raises:
        InputError: The feed does not fit.
        RunError: The run failed, or the arrays would not fit in memory.
    """
    if opened.session is None:
        return Tensors(fill.check(found.summary.inputs, one.feed), {}, opened.tapped, "cpu")
    lookups.check(one.model, found.summary, one.feed)
    section = one.wanted.section
    own = {} if section.begin is None or section.given is None else {section.begin: section.given}
    own |= {heads_input(site): np.asarray(heads, np.int64) for site, heads in found.heads.items()}
    read = {slot.name for slot in opened.session.inputs}
    feed = fill.check([slot for slot in opened.session.inputs if slot.name not in own], one.feed)
    memory.check([of_heads(site, found.heads.get(site.index)) for site in found.sites], feed, one.wanted.quantities)
    whole = {**feed, **{name: array for name, array in own.items() if name in read}}
    return Tensors(feed, opened.session.run(whole), opened.tapped, opened.session.device)


def read(one: Pass, found: Chosen, tensors: Tensors) -> Iterator[Reading]:
    """Read the quantities of each site off the outputs, and compute those that were not tapped.

    Raises:
        InputError: No site had a query or a key.
    """
    idle = reading.idle(found.sites, tensors.tapped, tensors.values)
    if found.sites and len(idle) == len(found.sites):
        raise InputError(
            f"nothing attends in this run: {found.sites[0].label} has no query, or no key to look at",
            "Give at least one token; a loop must run at least one step.",
        )
    sites = [site for site in found.sites if site.index not in idle]
    return reading.read(sites, tensors.tapped, tensors.values, one.wanted.quantities, heads=found.heads)


def check(one: Pass, found: Chosen, tensors: Tensors, arrays: Iterator[Reading]) -> Run:
    """Check the arrays of each site against one another, and the model's outputs against those without taps.

    Raises:
        RunError: The taps changed the model's outputs.
    """
    wanted, summary = one.wanted, found.summary
    sample = (0, -1) if one.many else None  # a batch is sorted: the first is its shortest text, the last its longest
    attentions = checks.attentions(arrays, wanted.quantities, wanted.verify, sample)
    outputs = {name: tensors.values[name] for name in tensors.tapped.outputs}
    notes = notes_of_run(summary, tensors.tapped, one.model.sessions.processor)
    idle = reading.idle(found.sites, tensors.tapped, tensors.values)
    notes += tuple(f"left out, {s.label}: no query in this run, or no key" for s in found.sites if s.index in idle)
    if wanted.verify_outputs:
        notes += checks.compare_outputs(one.model.sessions.plain(summary), tensors.feed, outputs)
    given = outputs if wanted.outputs else {}
    if wanted.section.end is not None:
        given[wanted.section.end] = tensors.values[wanted.section.end]
    return Run(attentions, tensors.feed, given, summary.misses, notes, tensors.device)


def no_sites(path: Path, summary: ModelSummary, layers: Collection[int] | None) -> InputError | UsageError:
    """Why there is nothing to look at: no such layer, or no attention at all."""
    if layers is not None and summary.sites:
        have = sorted({s.layer for s in summary.sites if s.layer is not None})
        return UsageError(
            f"there is no layer {', '.join(map(str, layers))}", f"The model has layers {have[0]} to {have[-1]}."
        )
    if summary.note is not None:
        return InputError(
            f"no attention was found in {path.name}. It is {summary.note}",
            "There is nothing to show; a recurrent model with attention over it (Bahdanau, Luong) can be shown.",
        )
    reasons = "; ".join(f"{m.node} ({m.op}): {m.reason}" for m in summary.misses[:3])
    return InputError(
        f"no attention was found in {path.name}" + (f"; near misses: {reasons}" if reasons else ""),
        Wording("<model.find()> lists what was looked at and why it was refused."),
    )
