"""Make Tokens from ids and padding, without a text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal, Protocol

import numpy as np

from attnx.errors import InputError
from attnx.numerals import whole
from attnx.records import Tokens
from attnx.tokens.pieces import shorten, visible
from attnx.tokens.words import index_words
from attnx.wording import Wording


class Vocabulary(Protocol):
    """What is needed of a tokenizer to name ids."""

    @property
    def size(self) -> int:
        """How many ids there are."""

    def piece(self, number: int) -> str:
        """The text of an id."""

    def is_special(self, number: int) -> bool:
        """Whether an id is a special token."""


def parse_ids(text: str) -> list[int]:
    """The ids in "101, 2023,102": whole numbers from 0, separated by commas or spaces.

    Raises:
        InputError: There are none, or one is not such a number; the message says which.
    """
    ids = []
    items = re.split(r"\s*,\s*|\s+", text.strip()) if text.strip() else []
    for position, item in enumerate(items, 1):
        number = whole(item)
        if number is None:
            raise InputError(
                f"{visible(shorten(item))} is not a token id (number {position} of the list)"
                if item
                else f"number {position} of the token ids is left out",
                Wording("Give whole numbers from 0: <ids=[101, 2023, 102]>."),
            )
        ids.append(number)
    if not ids:
        raise InputError("no token ids were given", Wording("Give whole numbers from 0: <ids=[101, 2023, 102]>."))
    return ids


def from_ids(ids: str | Iterable[int], tokenizer: Vocabulary | None = None) -> Tokens:
    """Tokens of the given ids; nothing is added, cut or padded.

    Args:
        ids: "101,2023,102" or numbers.
        tokenizer: Gives the pieces, words and special flags; without it a piece is "#" and its id, and is a word of
            its own.

    Returns:
        Tokens with no text and offsets (0, 0), one segment.

    Raises:
        InputError: No ids, or anything but whole numbers from 0.
    """
    numbers = parse_ids(ids if isinstance(ids, str) else ",".join(str(number) for number in ids))
    notes: list[str] = []
    if tokenizer is None:
        pieces = [f"#{number}" for number in numbers]
        special = [False] * len(numbers)
        words: tuple[int | None, ...] = tuple(range(len(numbers)))
    else:
        pieces = [tokenizer.piece(number) for number in numbers]
        special = [tokenizer.is_special(number) for number in numbers]
        text, offsets = _join(pieces)
        words = index_words(text, offsets, special, pieces)
        if beyond := [number for number in numbers if number >= tokenizer.size]:
            notes.append(f"the tokenizer has no id {beyond[0]}: its {tokenizer.size} ids end at {tokenizer.size - 1}")
    return Tokens(
        ids=np.array(numbers, np.int64),
        pieces=tuple(pieces),
        offsets=((0, 0),) * len(numbers),
        words=words,
        special=tuple(special),
        mask=(True,) * len(numbers),
        type_ids=(0,) * len(numbers),
        notes=tuple(notes),
    )


def pad(
    batch: Sequence[Tokens], pad_id: int = 0, piece: str = "[PAD]", side: Literal["right", "left"] = "right"
) -> tuple[Tokens, ...]:
    """Pad tokens to the length of the longest. Padding is special, masked, in no word, of segment 0.

    Args:
        batch: Any number of Tokens.
        pad_id: The id of padding.
        piece: How padding is shown.
        side: Where it goes.
    """
    longest = max((len(tokens) for tokens in batch), default=0)
    padded = []
    for tokens in batch:
        missing = longest - len(tokens)

        def fill(values: tuple[Any, ...], value: object, missing: int = missing) -> tuple[Any, ...]:
            padding = (value,) * missing
            return values + padding if side == "right" else padding + values

        padded.append(
            replace(
                tokens,
                ids=np.array(fill(tuple(tokens.ids.tolist()), pad_id), np.int64),
                pieces=fill(tokens.pieces, piece),
                offsets=fill(tokens.offsets, (0, 0)),
                words=fill(tokens.words, None),
                special=fill(tokens.special, True),
                mask=fill(tokens.mask, False),
                type_ids=fill(tokens.type_ids or (0,) * len(tokens), 0),
            )
        )
    return tuple(padded)


def _join(pieces: Sequence[str]) -> tuple[str, list[tuple[int, int]]]:
    """A text that the pieces may come from, in which words can be found: "##ed" continues, other WordPieces do not."""
    continues = any(piece.startswith("##") for piece in pieces)
    spaced = any(piece.startswith(" ") for piece in pieces)
    text, offsets = "", []
    for piece in pieces:
        bare = piece.removeprefix("##") if continues else piece.lstrip(" ")
        if text and (piece.startswith(" ") or (not spaced and not (continues and piece.startswith("##")))):
            text += " "
        offsets.append((len(text), len(text) + len(bare)))
        text += bare
    return text, offsets
