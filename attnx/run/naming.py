"""A run -> its trace: which tokens, patches or positions the axes of every site stand for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

from attnx.errors import InputError, ModelError
from attnx.feed.generation_config import settings
from attnx.feed.inputs import is_ids, is_past, takes_target
from attnx.feed.patches import find_frames
from attnx.records import Array, Attention, Tokens, Trace
from attnx.run.axis_tokens import lengths, name_axes, read_tokens
from attnx.run.joint import find_states, joint_tokens
from attnx.run.unseen import unseen
from attnx.run.windows import is_windowed, put_back
from attnx.session.protocol import OpenModel, Run
from attnx.tokens import from_ids
from attnx.tokens.axes import numbered


def name_tokens(
    model: OpenModel,
    run: Run,
    tokens: Tokens | None,
    memory: Tokens | None,
    name: Callable[[int], Tokens] = numbered,
    whole: bool = False,
) -> Trace:
    """A run with its axes named, and windows put back to their place where `whole` says so."""
    slots = model.slots()
    feed = run.feed
    if tokens is None or (memory is None and takes_target(slots)):
        read, second = read_tokens([s for s in slots if s.name in feed], feed, lambda ids: pieces_of(model, ids))
        tokens = tokens if tokens is not None else read
        memory = memory if memory is not None else second
    pictured = any(array.ndim == 4 for array in feed.values())  # else its settings are not read again at every run
    frames = find_frames(slots, feed, settings(model)) if pictured else ()
    states = find_states(slots, feed)
    if memory is None and tokens is None and any(a.site.kind == "cross" for a in run.attentions) and states.size:
        memory = numbered(states.size)  # another model's tokens, of which nothing is known but their number
    joint = joint_tokens(states, feed, frames, lambda: model.graph(feed).opened)
    batch = max((feed[f.name].shape[0] for f in frames), default=0)
    attentions, placed = put_back(run.attentions, frames, batch) if whole else (run.attentions, ())
    texts = max((prod(feed[s.name].shape[:-1]) for s in slots if s.name in feed and is_ids(s)), default=0)
    whole_texts = {len(side) for side in (tokens, memory) if side is not None}

    def stands_apart(a: Attention) -> bool:
        """Whether a site's positions are channels, those of a part of a picture, or of a block of a text."""
        both = lengths(a)
        in_blocks = texts and is_windowed(a, texts) and both is not None and both[0] not in whole_texts
        return bool(a.site.over_channels or (batch and is_windowed(a, batch)) or in_blocks)

    apart = [a.site.index for a in attentions if stands_apart(a)]
    past = any(is_past(slot) for slot in slots)
    tokens, memory, sides = name_axes(attentions, tokens, memory, frames, name, apart, joint, past)
    own = (*tokens.notes, *(memory.notes if memory is not None else ()))
    notes = tuple(dict.fromkeys((*own, *run.notes, *placed)))
    trace = Trace(
        model.name, run.device, tokens, memory, attentions, run.outputs, run.misses, notes, sides,
    )  # fmt: skip
    return replace(trace, notes=(*notes, *unseen(trace)))


def pieces_of(model: OpenModel, ids: Array) -> Tokens:
    """Tokens of ids, with their pieces where the model has a tokenizer."""
    try:
        tokenizer = model.tokenizer
    except (ModelError, InputError):
        tokenizer = None
    return from_ids([max(int(i), 0) for i in ids], tokenizer)
