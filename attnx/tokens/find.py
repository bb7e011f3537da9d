"""A token or word by its text or its position."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from difflib import get_close_matches

from attnx.errors import UsageError
from attnx.records import Tokens
from attnx.tokens.pieces import shorten, visible
from attnx.tokens.words import group_words, label, split_words

_SHOWN = 12
_LONGEST = 40
"""Choices that a message lists, and characters of one that it shows."""
_COMPARED = 5000
"""Words that a misspelt one is compared with: the rest of a long text would take seconds."""


def find(tokens: Tokens, what: str | int) -> tuple[int, ...]:
    """The positions of one token, or of the pieces of one word.

    A text is looked up without regard to case: first among whole words ("didn't", "New York") and among pieces that
    nothing but spaces or punctuation surrounds, then among all pieces ("##ed" or "ed"). Padding is never found.

    Args:
        tokens: The tokens.
        what: "it"; "it@11", the one that is at position 11; "11" or 11, the single token at that position (special
            tokens count); "@11", the same where the text has a word 11 of its own.

    Returns:
        Positions in order, counted from 0.

    Raises:
        UsageError: Nothing or more than one thing fits; the message lists the choices.
    """
    if isinstance(what, int):
        return (_position(tokens, what),)
    wanted = what.strip()
    if not wanted:
        raise UsageError("no token was given", _hint_all(tokens))
    if match := re.fullmatch(r"@(\d+)", wanted):
        return (_position(tokens, int(match[1])),)
    placed = re.fullmatch(r"(.+)@(\d+)", wanted, re.DOTALL)
    if placed and "@" not in _fold(" ".join((tokens.text, *tokens.pieces))):
        return _at(tokens, placed[1].strip(), int(placed[2]))  # no word has that sign itself
    found = _by_text(tokens, wanted)
    if re.fullmatch(r"\d+", wanted):
        if not found:
            return (_position(tokens, int(wanted)),)
        if len(wanted) < 9 and int(wanted) < len(tokens) and (int(wanted),) not in found:
            spots = [_name(tokens, group) for group in found]
            raise UsageError(
                f"{wanted} is both a position and a word of the text",
                f"Give @{wanted} for the token {_shown(tokens, int(wanted))} at that position, or {_list(spots)}.",
            )
    if len(found) == 1:
        return found[0]
    if not found and placed:
        return _at(tokens, placed[1].strip(), int(placed[2]))
    if not found:
        raise UsageError(f"there is no token or word {_quote(wanted)}", _hint_near(tokens, wanted))
    raise UsageError(
        f"{_quote(wanted)} is there {len(found)} times",
        "Say which: "
        + _list([f"{_name(tokens, group)} ({_context(tokens, group)})" for group in found[:_SHOWN]], len(found))
        + ".",
    )


def _by_text(tokens: Tokens, wanted: str) -> list[tuple[int, ...]]:
    """Everything that the text may mean, in order of position."""
    key = _fold(wanted)
    groups = group_words(tokens)
    words = [_fold(label(tokens, group)) for group in groups]
    found = [group for group, word in zip(groups, words, strict=True) if word == key]
    found += _phrases(groups, words, [_fold(wanted[start:stop]) for start, stop in split_words(wanted)])
    covered = {position for group in found for position in group}
    inner = []
    for position, piece in enumerate(tokens.pieces):
        if position in covered or not tokens.mask[position]:
            continue
        bare = _fold(piece.strip(" "))
        if bare == key and (tokens.special[position] or piece.startswith("##") or _stands_alone(tokens, position)):
            found.append((position,))
        elif key in {bare, bare.removeprefix("##")}:
            inner.append((position,))
    return sorted(found or inner)


def _phrases(groups: Sequence[tuple[int, ...]], words: Sequence[str], parts: Sequence[str]) -> list[tuple[int, ...]]:
    """Runs of words that follow one another as in the phrase."""
    if len(parts) < 2:
        return []
    size = len(parts)
    return [
        tuple(position for group in groups[i : i + size] for position in group)
        for i in range(len(groups) - size + 1)
        if list(words[i : i + size]) == list(parts)
    ]


def _stands_alone(tokens: Tokens, position: int) -> bool:
    """Whether no letter or digit touches the piece; pieces without a place in the text: whether it is its word."""
    start, stop = tokens.offsets[position]
    if stop <= start:
        return tokens.words.count(tokens.words[position]) == 1
    before, after = tokens.text[start - 1 : start] if start else "", tokens.text[stop : stop + 1]
    return not (before.isalnum() or after.isalnum())


def _at(tokens: Tokens, text: str, position: int) -> tuple[int, ...]:
    """What fits the text and holds the position."""
    _position(tokens, position)
    own = next((group for group in group_words(tokens) if position in group), None)
    if own is not None and _fold(label(tokens, own)) == _fold(text):
        return own
    matches = _by_text(tokens, text)
    for group in matches:
        if position in group:
            return group
    if _fold(tokens.pieces[position].strip(" ")).removeprefix("##") == _fold(text):
        return (position,)
    if not matches:
        raise UsageError(f"there is no token or word {_quote(text)}", _hint_near(tokens, text))
    raise UsageError(
        f"position {position} is {_shown(tokens, position)}, not {_quote(text)}",
        f"Give {_list([_name(tokens, group) for group in matches])}.",
    )


def _position(tokens: Tokens, position: int) -> int:
    if not 0 <= position < len(tokens):
        raise UsageError(
            f"there is no position {position}: the {len(tokens)} tokens are at 0 to {len(tokens) - 1}",
            _hint_all(tokens),
        )
    if not tokens.mask[position]:
        raise UsageError(f"position {position} is padding", _hint_all(tokens))
    return position


def _fold(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold()


def _quote(text: str) -> str:
    return f'"{visible(shorten(text, _LONGEST))}"'


def _shown(tokens: Tokens, position: int) -> str:
    return f'"{tokens.pieces[position].strip(" ")}"'


def _name(tokens: Tokens, group: Sequence[int]) -> str:
    name = f"{shorten(label(tokens, group), _LONGEST)}@{group[0]}"
    return f'"{name}"' if " " in name else name


def _context(tokens: Tokens, group: Sequence[int]) -> str:
    """The group between its neighbours: "because it was"."""
    groups = group_words(tokens)
    around = [g for g in groups if g[-1] >= group[0] - 2 and g[0] <= group[-1] + 2]
    return " ".join(shorten(label(tokens, g), _LONGEST) for g in around)


def _list(choices: Sequence[str], total: int = 0) -> str:
    shown = list(choices[:_SHOWN])
    if (more := max(total, len(choices)) - len(shown)) > 0:
        shown.append(f"one of {more} more")
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} or {shown[-1]}"


def _hint_near(tokens: Tokens, wanted: str) -> str:
    names: dict[str, str] = {}
    for group in group_words(tokens)[:_COMPARED]:
        names.setdefault(_fold(label(tokens, group)), _name(tokens, group))
    near = get_close_matches(_fold(wanted), list(names), n=5, cutoff=0.6)
    return f"Did you mean {_list([names[word] for word in near])}?" if near else _hint_all(tokens)


def _hint_all(tokens: Tokens) -> str:
    names = [_name(tokens, group) for group in group_words(tokens)]
    return f"There are: {', '.join(names[:40])}{f' and {len(names) - 40} more' if len(names) > 40 else ''}."
