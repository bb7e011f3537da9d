"""What is given -> the course a run takes: plain, encoder-decoder, generating; and the trace at its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from attnx.errors import InputError, ModelError, UsageError
from attnx.feed import fill as feeding
from attnx.feed.generation_config import opening as start_of
from attnx.feed.generation_config import settings
from attnx.feed.inputs import fixed_length, is_past, own_mask, padded, takes_target
from attnx.feed.patches import find_frames
from attnx.records import Array, Tokens, Trace
from attnx.run.axis_tokens import name_axes, read_tokens
from attnx.run.encdec import (
    Encoded,
    check_layers,
    check_names,
    encode,
    for_inputs,
    of_file,
    special_tokens,
    target_tokens,
    with_encoder,
)
from attnx.run.generate import Plan, decode, plan, say, sized, with_new
from attnx.run.joint import find_states, joint_tokens
from attnx.run.kvcache import is_static
from attnx.run.windows import is_windowed, put_back
from attnx.session.ort import Slot
from attnx.session.protocol import Run, Runs, Wanted
from attnx.tokens import from_ids
from attnx.tokens.axes import masked, numbered
from attnx.wording import Wording


@dataclass(frozen=True, slots=True)
class Given:
    """What a model is run on."""

    tokens: Tokens | None = None
    target: str | None = None
    inputs: Mapping[str, Array] | None = None
    image: str | Path | None = None
    audio: str | Path | None = None


def follow(model: Runs, given: Given, generate: int | Plan | None, wanted: Wanted) -> Trace:
    """Run a model on what is given.

    Args:
        model: The model.
        given: What there is.
        generate: Let the decoder write that many tokens, or write by a plan.
        wanted: What is wanted of each site.

    Raises:
        UsageError: Things that do not go together.
        InputError: What is given does not fill the model's inputs.
    """
    inputs = dict(given.inputs or {})
    notes: tuple[str, ...] = ()
    name: Callable[[int], Tokens] = numbered
    if given.image is not None:
        from attnx.feed.vision import image_inputs

        pixels, notes = image_inputs(model, Path(given.image), inputs)
        inputs |= pixels
    if given.audio is not None:
        from attnx.feed.audio import audio_inputs

        sound, notes, name = audio_inputs(model, Path(given.audio), inputs)
        inputs |= sound
    trace = _follow(model, given, inputs, generate, wanted, name)
    return replace(trace, notes=tuple(dict.fromkeys((*trace.notes, *notes))))


def _follow(
    model: Runs,
    given: Given,
    inputs: Mapping[str, Array],
    generate: int | Plan | None,
    wanted: Wanted,
    name: Callable[[int], Tokens],
) -> Trace:
    if given.tokens is None and not inputs:
        raise UsageError("there is nothing to run on", "Give a text, tokens or inputs.")
    two_sided = model.encoder is not None or takes_target(model.slots())
    if generate is not None:
        course = plan(model, generate) if isinstance(generate, int) else generate
        return _generated(model, given, inputs, course, wanted, two_sided, name)
    if given.target is not None:
        if not two_sided:
            raise UsageError(f"{model.name} has no encoder and decoder, so there is no target to give", "Leave it out.")
        return _with_target(model, given.tokens, target_tokens(model, given.target), inputs, wanted, name)
    if model.encoder is not None and (given.tokens is not None or given.image is not None or given.audio is not None):
        raise UsageError(
            f"{model.name} is an encoder-decoder: what does the decoder say?",
            Wording("Give <target=>[, or <generate=>]."),
        )
    return _plain(model, given.tokens, inputs, wanted, name, whole=given.image is not None)


def _plain(
    model: Runs,
    tokens: Tokens | None,
    inputs: Mapping[str, Array],
    wanted: Wanted,
    name: Callable[[int], Tokens],
    whole: bool,
) -> Trace:
    slots = model.slots()
    if tokens is None:
        run = model.run(feeding.check(slots, inputs), wanted)
        return _trace(model, run, None, None, name, whole)
    tokens = _padded_as_given(slots, tokens, inputs)
    length = fixed_length(slots)
    if length is not None and length > 1:
        pad_id, piece = _padding(model)
        tokens = padded(tokens, length, pad_id, piece)
    needs = feeding.batch_of([tokens])
    if any(is_past(s) for s in slots):
        needs = sized(needs, model)
        if (length == 1 and len(tokens) > 1) or is_static(slots):  # one token at a time, or room that is not in use
            decoded = decode(model, tokens.ids.tolist(), Plan(0), wanted, given=inputs)
            return _trace(model, decoded.run, tokens, None)
    return _trace(model, model.run(feeding.derive(slots, needs, inputs), wanted), tokens, None, whole=whole)


def _padded_as_given(slots: Sequence[Slot], tokens: Tokens, inputs: Mapping[str, Array]) -> Tokens:
    """Tokens that a given mask has 0 for are padding, so that positions count from the first that is none."""
    name = own_mask(slots, inputs)
    fits = name is not None and inputs[name].shape == (1, len(tokens))
    return masked(tokens, inputs[name][0]) if fits and name is not None else tokens


def _with_target(
    model: Runs,
    memory: Tokens | None,
    target: Tokens,
    inputs: Mapping[str, Array],
    wanted: Wanted,
    name: Callable[[int], Tokens],
) -> Trace:
    """An encoder-decoder on a text and what its decoder is made to say."""
    check_names(model, inputs)
    check_layers(model, wanted)
    encoded = encode(model, memory, inputs, wanted, name)
    wanted = of_file(model, wanted)
    slots = model.slots()
    if fixed_length(slots) == 1:  # it reads one token at a time
        run = decode(model, target.ids.tolist(), Plan(0), wanted, encoded, inputs).run
    else:
        feed = feeding.derive(slots, encoded.needs(target.ids.tolist()), for_inputs(slots, inputs))
        run = model.run(feed, wanted)
    run = with_encoder(encoded, run)
    return _trace(model, run, target, encoded.memory if len(encoded.memory) else None, name)


def _generated(
    model: Runs,
    given: Given,
    inputs: Mapping[str, Array],
    course: Plan,
    wanted: Wanted,
    two_sided: bool,
    name: Callable[[int], Tokens],
) -> Trace:
    check_names(model, inputs)
    encoded: Encoded | None = None
    notes: tuple[str, ...] = ()
    if two_sided:
        check_layers(model, wanted)
        encoded = encode(model, given.tokens, inputs, wanted, name)
        wanted = of_file(model, wanted)
        if given.target is not None:
            prompt = target_tokens(model, given.target)
        else:
            start, guessed = start_of(model)
            prompt = special_tokens(model, start)
            notes = (guessed,) if guessed else ()
    else:
        if given.tokens is None:
            raise UsageError("there is no text to go on from", Wording("Give a text; <generate> goes on behind it."))
        if given.target is not None:
            raise UsageError(f"{model.name} has no encoder and decoder, so there is no target to give", "Leave it out.")
        prompt = _padded_as_given(model.slots(), given.tokens, inputs)
    decoded = decode(model, prompt.ids.tolist(), course, wanted, encoded, inputs)
    tokens = with_new(model, prompt, decoded)
    run = decoded.run
    if encoded is not None:
        run = with_encoder(encoded, run)
    length = fixed_length(model.slots())
    if not decoded.cached and length is not None:
        tokens = padded(tokens, length, *_padding(model))
    run = replace(run, notes=(*run.notes, *say(decoded, course, tokens), *notes))
    memory = encoded.memory if encoded is not None and len(encoded.memory) else None
    trace = _trace(model, run, tokens, memory, name)
    return replace(trace, generated=decoded.new)


def _padding(model: Runs) -> tuple[int, str]:
    try:
        return model.tokenizer.pad_id, model.tokenizer.piece(model.tokenizer.pad_id)
    except ModelError:
        return 0, "#0"


def _trace(
    model: Runs,
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
        read, second = read_tokens([s for s in slots if s.name in feed], feed, lambda ids: _pieces(model, ids))
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
    windowed = [a.site.index for a in attentions if batch and is_windowed(a, batch)]
    tokens, memory, sides = name_axes(attentions, tokens, memory, frames, name, windowed, joint)
    said = (*tokens.notes, *(memory.notes if memory is not None else ()))
    notes = tuple(dict.fromkeys((*said, *run.notes, *placed)))
    return Trace(
        model.name, run.device, tokens, memory, attentions, run.outputs, run.misses, notes, sides,
    )  # fmt: skip


def _pieces(model: Runs, ids: Array) -> Tokens:
    try:
        tokenizer = model.tokenizer
    except (ModelError, InputError):
        tokenizer = None
    return from_ids([max(int(i), 0) for i in ids], tokenizer)


__all__ = ["Given", "follow"]
