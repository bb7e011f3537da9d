"""What a model is run on, and the pass that this takes; runs of several passes are planned in `decoding`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from attnx.errors import UsageError
from attnx.feed import fill as feeding
from attnx.feed.inputs import fixed_length, is_past, masked_by, padded, takes_target
from attnx.feed.text import encode, padding
from attnx.records import Array, Tokens, Trace
from attnx.run.naming import Namer, name_tokens
from attnx.run.passes import Pass, Passes, Steps
from attnx.session.protocol import OpenModel, Wanted
from attnx.tokens.axes import numbered
from attnx.wording import Wording

if TYPE_CHECKING:
    from attnx.run.generate import Plan


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
    inputs = {name: feeding.array_of(name, value) for name, value in (prompt.inputs or {}).items()}
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


def _kind(
    model: OpenModel, prompt: Prompt, tokens: Tokens | None, inputs: Mapping[str, Array], wanted: Wanted, name: Namer
) -> Steps[Trace]:
    """The passes of the kind of run that the prompt calls for."""
    if tokens is None and not inputs:
        raise UsageError("there is nothing to run on", "Give a text, tokens or inputs.")
    two_sided = model.encoder is not None or takes_target(model.slots())
    if prompt.generate is not None:
        from attnx.run.decoding import generating

        return generating(model, prompt.generate, tokens, prompt.target, inputs, wanted, two_sided, name)
    if prompt.target is not None:
        if not two_sided:
            raise UsageError(f"{model.name} has no encoder and decoder, so there is no target to give", "Leave it out.")
        from attnx.run.decoding import with_target

        return with_target(model, tokens, prompt.target, inputs, wanted, name)
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
        from attnx.run.decoding import both

        return (yield from both(model, inputs, wanted, name))
    if tokens is None:
        run = yield Pass(model, feeding.check(slots, inputs), wanted)
        return name_tokens(model, run, None, None, name, whole)
    tokens = masked_by(slots, tokens, inputs)
    length = fixed_length(slots)
    if length is not None and length > 1:
        tokens = padded(tokens, length, *padding(model))
    needs = feeding.batch_of([tokens])
    if any(is_past(s) for s in slots):
        from attnx.run.kvcache import is_static, sized

        needs = sized(needs, model)
        if (length == 1 and len(tokens) > 1) or is_static(slots):  # one token at a time, or unused room in a cache
            from attnx.run.generate import Plan, decoder_steps

            decoded = yield from decoder_steps(model, tokens.ids.tolist(), Plan(0), wanted, inputs=inputs)
            return name_tokens(model, decoded.run, tokens, None)
    run = yield Pass(model, feeding.derive(slots, needs, inputs), wanted)
    return name_tokens(model, run, tokens, None, whole=whole)


__all__ = ["Prompt"]
