"""Runs of several passes: an encoder and a decoder, or a decoder that writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from attnx.errors import UsageError
from attnx.feed import fill as feeding
from attnx.feed.generation_config import decoder_start
from attnx.feed.inputs import fixed_length, is_ids, masked_by, padded
from attnx.feed.text import padding
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
from attnx.run.generate import Plan, decoder_steps, say, with_new
from attnx.run.generate import plan as plan_of
from attnx.run.naming import Namer, name_tokens, pieces_of
from attnx.run.passes import Pass, Steps
from attnx.session.protocol import OpenModel, Wanted
from attnx.wording import Wording


def both(model: OpenModel, inputs: Mapping[str, Array], wanted: Wanted, name: Namer) -> Steps[Trace]:
    """Encoder and decoder in two files on arrays: the encoder's outputs fill the decoder's inputs that are missing."""
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


def with_target(
    model: OpenModel,
    memory: Tokens | None,
    text: str,
    inputs: Mapping[str, Array],
    wanted: Wanted,
    name: Namer,
) -> Steps[Trace]:
    """A pass over the encoder, and one over the decoder on its target text."""
    target = target_tokens(model, text)
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


def generating(
    model: OpenModel,
    count: int | Plan,
    tokens: Tokens | None,
    target: str | None,
    inputs: Mapping[str, Array],
    wanted: Wanted,
    two_sided: bool,
    name: Namer,
) -> Steps[Trace]:
    """A pass over the encoder where there is one, and one for each token that the decoder writes."""
    plan = count if isinstance(count, Plan) else plan_of(model, count)
    check_names(model, inputs)
    encoded: Encoded | None = None
    notes: tuple[str, ...] = ()
    if two_sided:
        check_layers(model, wanted)
        encoded = yield from encoder_steps(model, tokens, inputs, wanted, name)
        wanted = of_file(model, wanted)
        if target is not None:
            begun = target_tokens(model, target)
        else:
            start, guessed = decoder_start(model)
            begun = special_tokens(model, start)
            notes = (guessed,) if guessed else ()
    else:
        if tokens is None:
            raise UsageError("there is no text to go on from", Wording("Give a text; <generate> goes on behind it."))
        if target is not None:
            raise UsageError(f"{model.name} has no encoder and decoder, so there is no target to give", "Leave it out.")
        begun = masked_by(model.slots(), tokens, inputs)
    decoded = yield from decoder_steps(model, begun.ids.tolist(), plan, wanted, encoded, inputs)
    tokens = with_new(model, begun, decoded)
    run = decoded.run
    if encoded is not None:
        run = with_encoder(encoded, run)
    length = fixed_length(model.slots())
    if not decoded.cached and length is not None:
        tokens = padded(tokens, length, *padding(model))
    run = replace(run, notes=(*run.notes, *say(decoded, plan, tokens), *notes))
    memory = encoded.memory if encoded is not None and len(encoded.memory) else None
    trace = name_tokens(model, run, tokens, memory, name)
    return replace(trace, generated=decoded.new)
