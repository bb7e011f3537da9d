"""Words and stretches of text as groups of tokens: which pieces make a word, which pieces lie in a stretch."""

from __future__ import annotations

from dataclasses import dataclass

from attnx.errors import InputError
from attnx.records import Tokens
from attnx.tokens.find import covering


@dataclass(frozen=True, slots=True)
class Mention:
    """A stretch of the text and the tokens that cover it."""

    text: str
    """As it stands in the text."""
    start: int
    """First character; -1 where the tokens carry no text."""
    end: int
    """One past the last character; -1 where the tokens carry no text."""
    pieces: tuple[int, ...]
    """Positions of its tokens, ascending, at least one."""


def words(tokens: Tokens) -> tuple[tuple[int, ...], ...]:
    """Positions of the pieces of each word, in order; every token without a word is a group of its own.

    Neighbours with the same word index are one word. Padding is left as single tokens.
    """
    groups: list[list[int]] = []
    before: int | None = None
    for at, word in enumerate(tokens.words):
        if word is not None and word == before:
            groups[-1].append(at)
        else:
            groups.append([at])
        before = word
    return tuple(tuple(group) for group in groups)


def word_text(tokens: Tokens, group: tuple[int, ...]) -> str:
    """The text of a group of pieces: cut from the text where there is one, else the pieces joined."""
    begins = [tokens.offsets[at] for at in group]
    start, end = min(a for a, _ in begins), max(b for _, b in begins)
    if tokens.text and end > start:
        return tokens.text[start:end].strip()
    return "".join(tokens.pieces[at] for at in group).strip() or tokens.pieces[group[0]]


def mention(tokens: Tokens, start: int, end: int) -> Mention:
    """The tokens that cover characters [start, end) of the text.

    Raises:
        InputError: No token covers them (the text was cut short, or the stretch is empty).
    """
    pieces = covering(tokens, start, end)
    if not pieces:
        raise InputError(
            f"no token covers {tokens.text[start:end]!r} (characters {start} to {end})",
            "The text may have been cut to the length the model takes; use a shorter text.",
        )
    return Mention(tokens.text[start:end], start, end, pieces)


def axis_labels(tokens: Tokens, size: int) -> tuple[str, ...]:
    """Labels for an axis of attention: the pieces; "past i" before them where the axis is longer; else numbers."""
    if size >= len(tokens):
        return (*(f"past {at}" for at in range(size - len(tokens))), *tokens.pieces)
    return tuple(str(at) for at in range(size))
