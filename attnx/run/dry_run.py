"""What a model would be fed for one text, and the trace that it would give, before anything is run."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from attnx.errors import InputError, RunError
from attnx.feed import lookups
from attnx.feed.inputs import is_ids, is_past
from attnx.records import Array, Site, Tokens, Trace
from attnx.run.runner import Given, follow
from attnx.session import memory
from attnx.session.model_summary import said
from attnx.session.protocol import Run, Wanted

if TYPE_CHECKING:
    from attnx.model import Model
    from attnx.taps.tap import Tapped

_PLAIN = ("text", "pair", "tokens", "inputs")
"""Of what `Model.trace` takes, all that a single run on a single text may have."""


@dataclass(frozen=True, slots=True)
class Fed:
    """A single run on a single text, not made yet."""

    trace: Trace
    """Without sites."""
    feed: Mapping[str, Array]
    own: bool
    """Whether arrays were given besides: a mask of one's own may hide more than the text's padding."""

    @property
    def tokens(self) -> Tokens:
        """The text."""
        return self.trace.tokens

    @property
    def single(self) -> bool:
        """Whether the batch is of one."""
        return all(len(array) == 1 for array in self.feed.values() if array.ndim == 2 and array.dtype.kind == "i")

    def sites(self, model: Model, layers: Collection[int] | None = None) -> list[Site]:
        """The sites that would run, of some layers or all."""
        return [s for s in model.find(self.feed).sites if layers is None or s.layer in layers]


def reduce(
    model: Model,
    made: Fed,
    sites: Sequence[Site],
    wanted: Collection[str] | Mapping[int, Collection[str]],
    extra: Mapping[str, Array],
) -> tuple[Trace, Tapped, dict[str, Array]] | None:
    """Make that run once, with rows gathered and matrices reduced in the graph.

    Args:
        model: The model.
        made: What it is fed.
        sites: The sites looked at.
        wanted: Statistics of `reduce.STATS`, and quantities of which the rows in `reduce.ROWS` are gathered; of all
            sites, or by their index.
        extra: Arrays for the inputs that those add.

    Returns:
        The trace, still without sites; what was tapped, and the values by name. None where the run failed, as it does
        where the keys of a site are not the text's tokens.

    Raises:
        RunError: One layer's matrices would not fit in memory.
    """
    memory.check_reduced(sites, made.feed)
    known = model.find(made.feed)
    lookups.check(model, known, made.feed)
    session, tapped = model.opening.session(known, sites, wanted, False, rows=True)
    given = {**made.feed, **extra}
    try:
        values = session.run({slot.name: given[slot.name] for slot in session.inputs})
    except RunError:
        return None
    noted = (*made.trace.notes, *said(known, tapped, model.opening.processor))
    return replace(made.trace, device=session.device, misses=known.misses, notes=noted), tapped, values


class _NeedsRunError(Exception):
    """What comes next depends on what a run gives."""


class _Feeder:
    """A model as `follow` sees it: what it would be run on is kept, and nothing is run."""

    encoder = None
    with_past = None

    def __init__(self, model: Model) -> None:
        self._model = model
        self.feeds: list[Mapping[str, Array]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def run(self, feed: Mapping[str, Array], wanted: Wanted) -> Run:
        if wanted.outputs:
            raise _NeedsRunError
        self.feeds.append(feed)
        return Run((), feed)


def fed(model: Model, told: Mapping[str, Any]) -> Fed | None:
    """What a model is fed.

    Args:
        model: The model.
        told: What `Model.trace` would be given: text or tokens, and whatever else there is.

    Returns:
        None where that is not one run of one graph on one text without a past: then `Model.trace` is to run it.

    Raises:
        UsageError: Things that do not go together.
        ModelError: A text, and no tokenizer.
    """
    if model.encoder is not None or any(told[name] is not None for name in told if name not in _PLAIN):
        return None
    tokens, inputs = told.get("tokens"), told.get("inputs") or {}
    if told.get("text") is not None:
        tokens = model.encode(told["text"], told.get("pair"))
    feeder = _Feeder(model)
    try:
        trace = follow(feeder, Given(tokens, inputs=inputs), None, Wanted(quantities=("weights",), required=False))
    except (InputError, _NeedsRunError):
        return None
    if len(feeder.feeds) != 1 or trace.memory is not None or not len(trace.tokens):
        return None
    feed = feeder.feeds[0]
    if tokens is None and not any(is_ids(slot) and slot.name in feed for slot in model.slots()):
        return None  # pictures and latents: what their positions are is known once the model has run
    past = any(is_past(slot) and slot.name in feed and feed[slot.name].size for slot in model.slots())
    if past or (tokens is not None and len(trace.tokens) != len(tokens)):
        return None
    return Fed(trace, feed, bool(inputs))
