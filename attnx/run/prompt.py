"""What a model is run on, and the passes that it takes: plain, encoder and decoder, or a decoder that writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from attnx.errors import InputError, ModelError, UsageError
from attnx.feed import fill as feeding
from attnx.feed.generation_config import decoder_start
from attnx.feed.inputs import fixed_length, is_ids, is_past, own_mask, padded, seen_by, takes_target
from attnx.feed.text import encode
from attnx.records import Array, Tokens, Trace
from attnx.run.axis_tokens import read_tokens
from attnx.run.encdec import (
    Encoded,
    check_layers,
    check_names,
    encoder_steps,
    for_inputs,
    of_file,
    special_tokens,
    target_tokens,
    with_encoder,
)
from attnx.run.generate import Plan, decoder_steps, say, sized, with_new
from attnx.run.generate import plan as plan_of
from attnx.run.kvcache import is_static
from attnx.run.naming import name_tokens, pieces_of
from attnx.run.passes import Pass, Passes, Steps
from attnx.session.ort import Slot
from attnx.session.protocol import OpenModel, Wanted
from attnx.tokens.axes import masked, numbered
from attnx.wording import Wording

Namer = Callable[[int], Tokens]
"""Makes names for a number of positions that are not tokens."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a model is run on."""

    text: str | None = None
    pair: str | None = None
    """A second segment beside the text."""
    tokens: Tokens | None = None
    """Tokens instead of a text."""
    inputs: Mapping[str, Array] | None = None
    """Arrays for the graph's inputs; beside a text, for the inputs that a text cannot fill."""
    target: str | None = None
    """The text that the decoder of an encoder-decoder reads."""
    image: str | Path | None = None
    audio: str | Path | None = None
    generate: int | Plan | None = None
    """How many tokens the decoder writes, or a full plan."""

    @property
    def is_plain(self) -> bool:
        """Whether there is a text, tokens or arrays, and nothing else."""
        return self.target is None and self.image is None and self.audio is None and self.generate is None

    def encode(self, model: OpenModel) -> Sequence[Tokens]:
        """Text -> tokens.

        Raises:
            ModelError: A text, but the model has no tokenizer.
        """
        if self.text is not None:
            return (encode(model, self.text, self.pair),)
        return () if self.tokens is None else (self.tokens,)

    def feed(self, model: OpenModel, tokens: Sequence[Tokens], wanted: Wanted) -> Passes[Trace]:
        """tokens, picture, sound, arrays -> the passes of a plain, an encoder-decoder or a generating run.

        Raises:
            UsageError: Arguments that cannot be combined.
            InputError: Nothing fills one of the model's inputs.
        """
        return Passes(_steps(model, self, next(iter(tokens), None), wanted))


def _steps(model: OpenModel, prompt: Prompt, tokens: Tokens | None, wanted: Wanted) -> Steps[Trace]:
    """Add the arrays made from a picture and a sound, and choose the kind of run."""
    inputs = {name: _array(name, value) for name, value in (prompt.inputs or {}).items()}
    notes: tuple[str, ...] = ()
    name: Namer = numbered
    if prompt.image is not None:
        from attnx.feed.vision import image_inputs

        pixels, notes = image_inputs(model, Path(prompt.image), inputs)
        inputs |= pixels
    if prompt.audio is not None:
        from attnx.feed.audio import audio_inputs

        sound, notes, name = audio_inputs(model, Path(prompt.audio), inputs)
        inputs |= sound
    trace = yield from _kind(model, prompt, tokens, inputs, wanted, name)
    return replace(trace, notes=tuple(dict.fromkeys((*trace.notes, *notes))))


def _array(name: str, value: object) -> Array:
    """An input as an array; other values are converted by numpy.

    Raises:
        InputError: It is ragged.
    """
    try:
        return np.asarray(value)
    except ValueError:
        raise InputError(f"input {name} is not an array: its rows have different lengths", "Give one shape.") from None


def _kind(
    model: OpenModel, prompt: Prompt, tokens: Tokens | None, inputs: Mapping[str, Array], wanted: Wanted, name: Namer
) -> Steps[Trace]:
    """The passes of the kind of run that the prompt calls for."""
    if tokens is None and not inputs:
        raise UsageError("there is nothing to run on", "Give a text, tokens or inputs.")
    two_sided = model.encoder is not None or takes_target(model.slots())
    if prompt.generate is not None:
        return _generating(model, prompt, tokens, inputs, wanted, two_sided, name)
    if prompt.target is not None:
        if not two_sided:
            raise UsageError(f"{model.name} has no encoder and decoder, so there is no target to give", "Leave it out.")
        return _with_target(model, tokens, target_tokens(model, prompt.target), inputs, wanted, name)
    if model.encoder is not None and (tokens is not None or prompt.image is not None or prompt.audio is not None):
        raise UsageError(
            f"{model.name} is an encoder-decoder: what does the decoder say?",
            Wording("Give <target=>[, or <generate=>]."),
        )
    return _plain(model, tokens, inputs, wanted, name, whole=prompt.image is not None)


def _plain(
    model: OpenModel,
    tokens: Tokens | None,
    inputs: Mapping[str, Array],
    wanted: Wanted,
    name: Namer,
    whole: bool,
) -> Steps[Trace]:
    """One pass over one graph; several where the graph takes one token at a time."""
    slots = model.slots()
    if tokens is None and model.encoder is not None and any(s.name not in inputs for s in slots):
        return (yield from _both(model, inputs, wanted, name))
    if tokens is None:
        run = yield Pass(model, feeding.check(slots, inputs), wanted)
        return name_tokens(model, run, None, None, name, whole)
    tokens = _with_mask(slots, tokens, inputs)
    length = fixed_length(slots)
    if length is not None and length > 1:
        pad_id, piece = _padding(model)
        tokens = padded(tokens, length, pad_id, piece)
    needs = feeding.batch_of([tokens])
    if any(is_past(s) for s in slots):
        needs = sized(needs, model)
        if (length == 1 and len(tokens) > 1) or is_static(slots):  # one token at a time, or unused room in a cache
            decoded = yield from decoder_steps(model, tokens.ids.tolist(), Plan(0), wanted, inputs=inputs)
            return name_tokens(model, decoded.run, tokens, None)
    run = yield Pass(model, feeding.derive(slots, needs, inputs), wanted)
    return name_tokens(model, run, tokens, None, whole=whole)


def _with_mask(slots: Sequence[Slot], tokens: Tokens, inputs: Mapping[str, Array]) -> Tokens:
    """Mark as padding the tokens for which a mask among the inputs is 0: positions count from the first real token."""
    slot = own_mask(slots, inputs)
    if slot is None or inputs[slot.name].shape != (1, len(tokens)):
        return tokens
    return masked(tokens, seen_by(slot, inputs[slot.name])[0])


def _both(model: OpenModel, inputs: Mapping[str, Array], wanted: Wanted, name: Namer) -> Steps[Trace]:
    """Encoder and decoder in two files, run on arrays: the encoder's outputs fill the decoder's missing inputs."""
    assert model.encoder is not None
    check_names(model, inputs)
    check_layers(model, wanted)
    slots, sources = model.slots(), model.encoder.slots()
    of_encoder = for_inputs(sources, inputs)
    read = [s for s in sources if s.name in of_encoder]
    memory, _ = read_tokens(read, of_encoder, lambda ids: pieces_of(model, ids))
    encoded = yield from encoder_steps(model, None, inputs, wanted, name if memory is None else lambda _: memory)
    own = {**encoded.joined, **for_inputs(slots, inputs)}
    ids = next((own[s.name] for s in slots if is_ids(s) and s.name in own), np.zeros((1, 1), np.int64))
    needs = replace(encoded.needs(ids[0].tolist()), ids=ids)
    run = yield Pass(model, feeding.derive(slots, needs, own), of_file(model, wanted))
    return name_tokens(model, with_encoder(encoded, run), None, encoded.memory)


def _with_target(
    model: OpenModel,
    memory: Tokens | None,
    target: Tokens,
    inputs: Mapping[str, Array],
    wanted: Wanted,
    name: Namer,
) -> Steps[Trace]:
    """A pass over the encoder, and one over the decoder on its target text."""
    check_names(model, inputs)
    check_layers(model, wanted)
    encoded = yield from encoder_steps(model, memory, inputs, wanted, name)
    wanted = of_file(model, wanted)
    slots = model.slots()
    if fixed_length(slots) == 1:  # it reads one token at a time
        run = (yield from decoder_steps(model, target.ids.tolist(), Plan(0), wanted, encoded, inputs)).run
    else:
        own = {**encoded.joined, **for_inputs(slots, inputs)}
        feed = feeding.derive(slots, encoded.needs(target.ids.tolist()), own)
        run = yield Pass(model, feed, wanted)
    run = with_encoder(encoded, run)
    return name_tokens(model, run, target, encoded.memory if len(encoded.memory) else None, name)


def _generating(
    model: OpenModel,
    prompt: Prompt,
    tokens: Tokens | None,
    inputs: Mapping[str, Array],
    wanted: Wanted,
    two_sided: bool,
    name: Namer,
) -> Steps[Trace]:
    """A pass over the encoder where there is one, and one for each token that the decoder writes."""
    assert prompt.generate is not None
    plan = prompt.generate if isinstance(prompt.generate, Plan) else plan_of(model, prompt.generate)
    check_names(model, inputs)
    encoded: Encoded | None = None
    notes: tuple[str, ...] = ()
    if two_sided:
        check_layers(model, wanted)
        encoded = yield from encoder_steps(model, tokens, inputs, wanted, name)
        wanted = of_file(model, wanted)
        if prompt.target is not None:
            begun = target_tokens(model, prompt.target)
        else:
            start, guessed = decoder_start(model)
            begun = special_tokens(model, start)
            notes = (guessed,) if guessed else ()
    else:
        if tokens is None:
            raise UsageError("there is no text to go on from", Wording("Give a text; <generate> goes on behind it."))
        if prompt.target is not None:
            raise UsageError(f"{model.name} has no encoder and decoder, so there is no target to give", "Leave it out.")
        begun = _with_mask(model.slots(), tokens, inputs)
    decoded = yield from decoder_steps(model, begun.ids.tolist(), plan, wanted, encoded, inputs)
    tokens = with_new(model, begun, decoded)
    run = decoded.run
    if encoded is not None:
        run = with_encoder(encoded, run)
    length = fixed_length(model.slots())
    if not decoded.cached and length is not None:
        tokens = padded(tokens, length, *_padding(model))
    run = replace(run, notes=(*run.notes, *say(decoded, plan, tokens), *notes))
    memory = encoded.memory if encoded is not None and len(encoded.memory) else None
    trace = name_tokens(model, run, tokens, memory, name)
    return replace(trace, generated=decoded.new)


def _padding(model: OpenModel) -> tuple[int, str]:
    try:
        return model.tokenizer.pad_id, model.tokenizer.piece(model.tokenizer.pad_id)
    except ModelError:
        return 0, "#0"


__all__ = ["Prompt"]
