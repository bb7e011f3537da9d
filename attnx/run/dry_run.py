"""A run of one text, planned but not executed: its feed, its trace without sites; and runs that reduce in the graph."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from attnx.errors import InputError, RunError
from attnx.feed import lookups
from attnx.feed.inputs import is_ids, is_past
from attnx.records import Array, Site, Tokens, Trace
from attnx.run.prompt import Prompt
from attnx.session import memory
from attnx.session.model_summary import notes_of_run
from attnx.session.protocol import OpenModel, Run, Wanted
from attnx.taps.tap import Tapped


@dataclass(frozen=True, slots=True)
class DryRun:
    """One run of one graph on one text, before it is executed."""

    trace: Trace
    """Without sites."""
    feed: Mapping[str, Array]
    own: bool
    """Whether there are arrays besides the text: a mask among them may hide more than the text's padding."""

    @property
    def tokens(self) -> Tokens:
        """The text."""
        return self.trace.tokens

    @property
    def single(self) -> bool:
        """Whether the batch is of one."""
        return all(len(array) == 1 for array in self.feed.values() if array.ndim == 2 and array.dtype.kind == "i")

    def sites(self, model: OpenModel, layers: Collection[int] | None = None) -> list[Site]:
        """The sites that would run, of some layers or all."""
        return [s for s in model.find(self.feed).sites if layers is None or s.layer in layers]


def reduce(
    model: OpenModel,
    planned: DryRun,
    sites: Sequence[Site],
    wanted: Collection[str] | Mapping[int, Collection[str]],
    extra: Mapping[str, Array],
) -> tuple[Trace, Tapped, dict[str, Array]] | None:
    """Execute the run, with rows gathered and matrices reduced in the graph.

    Args:
        model: The model.
        planned: The run.
        sites: The sites to look at.
        wanted: Statistics of `reduce.STATS`, and quantities of which the rows in `reduce.ROWS` are gathered; of all
            sites, or by their index.
        extra: Arrays for the inputs that these statistics add to the graph.

    Returns:
        The trace, still without sites; what was tapped; the values by name. None where the run failed, as happens
        where the keys of a site are not the text's tokens.

    Raises:
        RunError: One layer's matrices would not fit in memory.
    """
    memory.check_reduced(sites, planned.feed)
    known = model.find(planned.feed)
    lookups.check(model, known, planned.feed)
    session, tapped = model.sessions.session(known, sites, wanted, False, rows=True)
    feed = {**planned.feed, **extra}
    try:
        values = session.run({slot.name: feed[slot.name] for slot in session.inputs})
    except (RunError, InputError):
        return None
    notes = (*planned.trace.notes, *notes_of_run(known, tapped, model.sessions.processor))
    return replace(planned.trace, device=session.device, misses=known.misses, notes=notes), tapped, values


def dry_run(model: OpenModel, prompt: Prompt) -> DryRun | None:
    """Plan the run of a prompt, without running the model.

    Returns:
        None where the prompt takes more than one run of one graph on one text without a past: use `pipeline.execute`.

    Raises:
        UsageError: Arguments that cannot be combined.
        ModelError: A text, but the model has no tokenizer.
    """
    if model.encoder is not None or not prompt.is_plain:
        return None
    inputs = prompt.inputs or {}
    tokens = prompt.encode(model)
    passes = prompt.feed(model, tokens, Wanted(quantities=("weights",), required=False))
    feeds: list[Mapping[str, Array]] = []
    try:
        for one in passes:
            if one.wanted.outputs:
                return None  # the next pass depends on what this run gives
            feeds.append(one.feed)
            passes.answer(Run((), one.feed))
    except InputError:
        return None
    trace = passes.result
    if len(feeds) != 1 or trace.memory is not None or not len(trace.tokens):
        return None
    feed = feeds[0]
    if not tokens and not any(is_ids(slot) and slot.name in feed for slot in model.slots()):
        return None  # pictures and latents: what their positions are is known only after the model has run
    past = any(is_past(slot) and slot.name in feed and feed[slot.name].size for slot in model.slots())
    if past or (tokens and len(trace.tokens) != len(tokens[0])):
        return None
    if any(site.moved for site in model.find(feed).sites):
        return None  # which token a row belongs to is said by a whole run
    return DryRun(trace, feed, bool(inputs))
