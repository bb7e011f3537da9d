"""The names of the entries of a model's output: tokens by its tokenizer, labels by its configuration."""

from __future__ import annotations

from collections.abc import Mapping

from attnx.errors import InputError, ModelError, UsageError
from attnx.feed.generation_config import settings
from attnx.numerals import counted
from attnx.session.protocol import OpenModel
from attnx.tokens import visible
from attnx.wording import Wording


def vocabulary_of(model: OpenModel, size: int) -> Vocabulary:
    """The names of a model's tokens; their ids if it has no tokenizer."""
    try:
        return Vocabulary(model.tokenizer, size)
    except (ModelError, InputError):
        return Vocabulary(None, size)


class Vocabulary(Mapping[int, str]):
    """The names of tokens, looked up only when shown."""

    def __init__(self, tokenizer: object, size: int) -> None:
        self._tokenizer, self._size = tokenizer, size

    def __getitem__(self, entry: int) -> str:
        if self._tokenizer is None:
            return f"#{entry}"
        piece = str(self._tokenizer.piece(entry))  # type: ignore[attr-defined]
        return piece.strip() or piece

    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(range(self._size))

    def __len__(self) -> int:
        return self._size

    def entry(self, text: str, argument: str) -> int:
        """The entry of a word that is one token, with a leading space if that is how the vocabulary has it.

        Raises:
            UsageError: The word is several tokens, or none.
        """
        if not isinstance(text, str):
            raise UsageError(
                Wording(f"<{argument}> is a word, and this is {{kind}}", kind=type(text).__name__), "Give a str."
            )
        if not text:
            raise UsageError(Wording(f"<{argument}> names no token"), "Give a word that is one token.")
        if text.isascii() and text.isdigit() and len(text) < 10 and self._tokenizer is None:
            if int(text) < self._size:
                return int(text)
            raise UsageError(f"there is no token {text}", f"The vocabulary has {self._size}.")
        if self._tokenizer is None:
            raise UsageError("the model has no tokenizer, so a token is named by its number", "Give the number.")
        for form in (f" {text}", text):
            tokens = self._tokenizer.encode(form)  # type: ignore[attr-defined]
            own = [int(i) for i, special in zip(tokens.ids, tokens.special, strict=True) if not special]
            if len(own) == 1 and own[0] >= self._size:
                raise UsageError(
                    f"{visible(text)!r} is token {own[0]}, and the model answers with {self._size}",
                    "Give another word.",
                )
            if len(own) == 1:
                return own[0]
        pieces = ", ".join(piece for piece, special in zip(tokens.pieces, tokens.special, strict=True) if not special)
        raise UsageError(
            f"{visible(text)!r} is {counted(len(own), 'token')}: {pieces}",
            Wording(f"A token is meant: give the first of them, or another word (<{argument}=>)."),
        )


def labels_of(model: OpenModel, count: int) -> Mapping[int, str]:
    """The names of a classifier's labels, from the configuration."""
    found = settings(model).get("id2label")
    given = found if isinstance(found, dict) else {}
    return {at: str(given.get(str(at), f"label {at}")) for at in range(count)}


def label_of(names: Mapping[int, str], text: str, argument: str) -> int:
    """The entry of a label, by its name or number.

    Raises:
        UsageError: There is no such label.
    """
    for entry, name in names.items():
        if text.casefold() in (name.casefold(), str(entry)):
            return entry
    raise UsageError(f"there is no label {visible(text)!r}", f"The model has {', '.join(names.values())}.")


__all__ = ["Vocabulary", "label_of", "labels_of", "vocabulary_of"]
