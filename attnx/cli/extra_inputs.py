"""Inputs beyond one sentence, from the command line: values of inputs, chats, plans for a decoder that writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnx.cli.option_groups import Source, Writing
from attnx.errors import UsageError
from attnx.records import Array

if TYPE_CHECKING:
    from attnx.model import Model
    from attnx.records import Tokens
    from attnx.run.generate import Plan


def arrays(source: Source, model: Model) -> dict[str, Array]:
    """The arrays of --inputs, overridden by those of --set.

    Raises:
        UsageError: A name, value or size that does not fit the model.
        InputError: A file that cannot be read.
    """
    out: dict[str, Array] = {}
    if source.inputs is not None:
        from attnx.feed.arrays import load_feed

        out |= load_feed(source.inputs)
    if source.values or source.dims:
        from attnx.cli.set_option import parse_dims, read_settings

        files = [m for m in (model, model.encoder) if m is not None]
        slots = list({s.name: s for m in files for s in m.slots()}.values())
        out |= read_settings(source.values, slots, parse_dims(source.dims), out)
    return out


def chat(model: Model, source: Source) -> Tokens:
    """The text in the tokenizer's chat template.

    Raises:
        UsageError: There is no text, or a pair.
    """
    if source.text is None or source.pair is not None:
        raise UsageError("--chat takes one text: what the user says", "Leave out --ids and --pair.")
    from attnx.feed.chat import encode_chat

    return encode_chat(model, source.text)


def plan(model: Model, writing: Writing) -> Plan | None:
    """How a decoder writes; None where it does not.

    Raises:
        UsageError: A number that makes no sense, or options that have no effect without others.
    """
    drawn = {"--top-k": writing.top_k, "--seed": writing.seed}
    if writing.generate is not None:
        from attnx.cli.unused_options import refuse
        from attnx.run.generate import plan as plan_of

        found = plan_of(
            model, writing.generate, temperature=writing.temperature, top_k=writing.top_k, seed=writing.seed or 0
        )
        if not writing.temperature:
            refuse("without --temperature", drawn)
        return found
    if writing.temperature or any(value is not None for value in drawn.values()):
        raise UsageError("--temperature, --top-k and --seed are for writing", "Say how many tokens: --generate 20.")
    return None
