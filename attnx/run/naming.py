"""A run -> its trace: which tokens, patches or positions the axes of every site stand for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

from attnx.errors import InputError, ModelError
from attnx.feed.inputs import is_ids, is_past, takes_target
from attnx.notes import of_sites
from attnx.records import QUANTITIES, Array, Attention, Tokens, Trace
from attnx.run.axis_tokens import as_moved, in_blocks, name_axes, read_tokens
from attnx.run.unseen import unseen
from attnx.session.protocol import OpenModel, Run
from attnx.tokens import from_ids
from attnx.tokens.axes import holds, numbered

if TYPE_CHECKING:
    from attnx.feed.patches import Frame
    from attnx.session.ort import Slot


Namer = Callable[[int], Tokens]
"""Names a number of positions that are not tokens."""


def name_tokens(
    model: OpenModel,
    run: Run,
    tokens: Tokens | None,
    memory: Tokens | None,
    name: Namer = numbered,
    whole: bool = False,
) -> Trace:
    """A run with its axes named; with `whole`, windows are put back in their place in the picture."""
    slots = model.slots()
    feed = run.feed
    if tokens is None or (memory is None and takes_target(slots)):
        read, second = read_tokens([s for s in slots if s.name in feed], feed, lambda ids: pieces_of(model, ids))
        tokens = tokens if tokens is not None else read
        memory = memory if memory is not None else second
    seen = _Seen(run.attentions)
    data = any(feed[s.name].ndim > 2 and not is_past(s) for s in slots if s.name in feed)  # no token, mask, or cache
    if data:
        seen = _seen(model, run, slots, whole)
    if memory is None and tokens is None and any(a.site.kind == "cross" for a in run.attentions) and seen.states:
        memory = numbered(seen.states)  # another model's tokens, of which only the number is known
    attentions, past = seen.attentions, any(is_past(slot) for slot in slots)
    rows = max((prod(feed[s.name].shape[:-1]) for s in slots if s.name in feed and is_ids(s)), default=0)
    blocks = in_blocks(attentions, rows, [len(side) for side in (tokens, memory) if side is not None])
    apart = [*seen.windowed, *blocks, *(a.site.index for a in attentions if a.site.over_channels)]
    tokens, memory, sides = name_axes(attentions, tokens, memory, seen.frames, name, apart, seen.joint, past)
    sides, moves = as_moved(attentions, tokens, memory, sides)
    own = (*tokens.notes, *(memory.notes if memory is not None else ()))
    one_by_one = [a for a in attentions if not (seen.notes and a.site.index in seen.windowed)]
    notes = tuple(dict.fromkeys((*own, *run.notes, *moves, *seen.notes, *side_by_side(one_by_one))))
    trace = Trace(
        model.name, run.device, tokens, memory, attentions, run.outputs, run.misses, notes, sides,
    )  # fmt: skip
    return replace(
        trace, notes=(*notes, *_other_keys(trace), *(() if data else _other_queries(trace, apart)), *unseen(trace))
    )


def _other_keys(trace: Trace) -> tuple[str, ...]:
    """A note on self-attentions of a text whose keys are not the text's tokens, one by one: these are numbered."""
    texts = [side for side in (trace.tokens, trace.memory) if side is not None]
    found = []
    for label, attention in zip(trace.labels, trace.attentions, strict=True):
        queries, keys = trace.queries_of(attention), trace.keys_of(attention)
        if attention.site.moved:
            continue  # see `as_moved`
        if attention.site.kind == "self" and any(queries is text for text in texts) and not holds(keys, queries):
            there = f"{len(queries)} queries and {len(keys)} keys, which are not the text's tokens one by one"
            counts = "nothing is counted from a token's own place (previous, self, distance)"
            found.append((label, f"{{sites}}: {there}: keys are numbered, and {counts}"))
    return of_sites(found)


def _other_queries(trace: Trace, apart: Collection[int]) -> tuple[str, ...]:
    """A note on self-attentions of a text over more or fewer positions than it has tokens: these are numbered.

    Args:
        trace: Named.
        apart: Sites of which something else is said: windows, blocks, channels.
    """
    texts = [side for side in (trace.tokens, trace.memory) if side is not None]
    if not any(text.pieces != numbered(len(text)).pieces for text in texts):
        return ()
    text = f"where the text has {len(texts[-1])} tokens: which holds which is not known, and they are numbered"
    return of_sites(
        (label, f"{{sites}}: {len(queries)} positions, {text}")
        for label, a in zip(trace.labels, trace.attentions, strict=True)
        if a.site.kind == "self" and a.site.index not in apart
        if (queries := trace.queries_of(a)).pieces == numbered(len(queries)).pieces
        and len(queries) not in [len(text) for text in texts]
    )


def side_by_side(attentions: Sequence[Attention]) -> tuple[str, ...]:
    """A note where sites attend within several sequences at once, of which one is shown."""
    arrays = (next((x for q in QUANTITIES if (x := getattr(a, q)) is not None), None) for a in attentions)
    most = max((array.shape[0] for array in arrays if array is not None), default=1)
    if most < 2:
        return ()
    return (f"{most} sequences run side by side (series, windows, rows of a batch): the first is shown and measured",)


@dataclass(frozen=True)
class _Seen:
    """What is known of pictures, and of states of another model, that a graph was fed."""

    attentions: tuple[Attention, ...]
    """Those of the run; of windows put back to their place in the picture."""
    frames: Sequence[Frame] = ()
    windowed: Sequence[int] = ()
    """Sites of which each row of the batch is a part of a picture."""
    states: int = 0
    """How many tokens of another model there are."""
    joint: Callable[[int], Tokens | None] = lambda _: None
    """Names a text and a picture in one sequence."""
    notes: tuple[str, ...] = ()


def _seen(model: OpenModel, run: Run, slots: Sequence[Slot], whole: bool) -> _Seen:
    from attnx.feed.generation_config import settings
    from attnx.feed.patches import find_frames
    from attnx.run.joint import find_states, joint_tokens
    from attnx.run.windows import is_windowed, put_back

    feed = run.feed
    pictured = any(array.ndim == 4 for array in feed.values())  # else its settings would be read again at every run
    frames = find_frames(slots, feed, settings(model)) if pictured else ()
    states = find_states(slots, feed)
    joint = joint_tokens(states, feed, frames, lambda: model.graph(feed).opened)
    batch = max((feed[f.name].shape[0] for f in frames), default=0)
    attentions, notes = put_back(run.attentions, frames, batch) if whole else (run.attentions, ())
    windowed = [a.site.index for a in attentions if batch and is_windowed(a, batch)]
    return _Seen(attentions, frames, windowed, states.size, joint, notes)


def pieces_of(model: OpenModel, ids: Array) -> Tokens:
    """Tokens of ids, with their pieces where the model has a tokenizer."""
    try:
        tokenizer = model.tokenizer
    except (ModelError, InputError):
        tokenizer = None
    return from_ids([max(int(i), 0) for i in ids], tokenizer)
