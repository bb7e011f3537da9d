"""Text -> tokens, with the model's own tokenizer."""

from __future__ import annotations

from pathlib import Path

from attnx.errors import ModelError, UsageError
from attnx.feed.inputs import is_ids
from attnx.records import Tokens
from attnx.session.protocol import OpenModel
from attnx.tokens import Tokenizer, load_tokenizer
from attnx.wording import Wording


def open_tokenizer(model: OpenModel, place: Path | None) -> Tokenizer:
    """The tokenizer of a model.

    Args:
        model: The model.
        place: Its tokenizer's file or folder; the model's own folder where None.

    Raises:
        ModelError: There is none, or the model takes no text.
    """
    try:
        return load_tokenizer(place or model.path.parent)
    except ModelError:
        slots = [*model.slots(), *(model.encoder.slots() if model.encoder is not None else ())]
        if place is None and not any(map(is_ids, slots)):
            raise ModelError(
                f"{model.name} takes no text: its inputs are {'; '.join(s.describe() for s in slots)}",
                Wording(
                    "[Give [a picture or a sound (<image>, <audio>), or else ]arrays: [<values=>, or ]<inputs=> "
                    "(see <model.slots()>).|Choose a model that takes a text: here is nothing else to give it.]"
                ),
            ) from None
        raise


def encode(model: OpenModel, text: str, pair: str | None = None) -> Tokens:
    """Text -> tokens, cut at the model's limit, with a note.

    Raises:
        UsageError: The argument is not a text.
        ModelError: The model has no tokenizer.
    """
    for one, needed in ((text, True), (pair, False)):
        if not isinstance(one, str) and (needed or one is not None):
            raise UsageError(
                f"a text is a str, and this is {type(one).__name__}",
                "Several texts: trace_many([...]); arrays for the graph's inputs: trace(inputs={...}).",
            )
    return model.tokenizer.encode(text, pair)


def tokens_for(model: OpenModel, text: str | None, tokens: Tokens | None) -> Tokens:
    """The tokens of a text, or those given instead.

    Raises:
        UsageError: There is neither.
    """
    found = tokens if text is None else encode(model, text)
    if found is None:
        raise UsageError("there is nothing to run on", "Give a text or tokens.")
    return found


def padding(model: OpenModel) -> tuple[int, str]:
    """The id and the piece that fill a text up; 0 where the model has no tokenizer."""
    try:
        return model.tokenizer.pad_id, model.tokenizer.piece(model.tokenizer.pad_id)
    except ModelError:
        return 0, "#0"
