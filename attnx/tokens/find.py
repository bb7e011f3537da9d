"""Find a token or word by its text or its position."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from difflib import get_close_matches

from attnx.errors import UsageError
from attnx.numerals import real, whole
from attnx.records import Tokens
from attnx.tokens.pieces import shorten, visible
from attnx.tokens.words import group_words, label, may_part, split_words

_SHOWN = 12
_LONGEST = 40
"""How many choices a message lists, and how many characters of each it shows."""
_COMPARED = 5000
"""How many words a misspelt one is compared with: all words of a long text would take seconds."""


def find(tokens: Tokens, what: str | int) -> tuple[int, ...]:
    """The positions of one token, or of the pieces of one word.

    Args:
        tokens: The tokens.
        what: As for `places`.

    Returns:
        Positions in order, counted from 0.

    Raises:
        UsageError: Nothing or more than one thing fits; the message lists the choices.
    """
    found = places(tokens, what)
    if len(found) == 1:
        return found[0]
    if not found:
        raise UsageError(*missing(tokens, str(what)))
    raise UsageError(
        f"{_quote(str(what).strip())} occurs {len(found)} times",
        "Say which: "
        + _list([f"{name_of(tokens, group)} ({_context(tokens, group)})" for group in found[:_SHOWN]], len(found))
        + ".",
    )


def places(tokens: Tokens, what: str | int) -> list[tuple[int, ...]]:
    """Every place that a token, a word, a phrase or a position refers to: the one finder that all commands use.

    A text is looked up without regard to case: first among whole words ("didn't", "New York"), among pieces that
    nothing but spaces or punctuation surrounds, and among the characters of the text, where a word may begin and end
    beside any character of a script that puts no spaces between words; then among all pieces ("##ed" or "ed"). Padding
    is never found. Names of times are looked up by what they are worth ("1s" is "1.00s").

    Args:
        tokens: The tokens.
        what: "it"; "it@11", the one that is at position 11; "11" or 11, the single token at that position (special
            tokens count); "@11", the same where the text has a word 11 of its own.

    Returns:
        Groups of positions, each in order, counted from 0; none where nothing fits.

    Raises:
        UsageError: There is no such position, or a number is both a position and a word; the message lists the choices.
    """
    if isinstance(what, int):
        return [(_position(tokens, what),)]
    wanted = what.strip()
    if not wanted:
        raise UsageError("no token was given", _hint_all(tokens))
    if match := re.fullmatch(r"@([0-9]+)", wanted):
        return [(_position(tokens, match[1]),)]
    placed = re.fullmatch(r"(.+)@([0-9]+)", wanted, re.DOTALL)
    if placed and "@" not in _fold(" ".join((tokens.text, *tokens.pieces))):
        return [_at(tokens, placed[1].strip(), placed[2])]  # no word itself contains that sign
    found = _by_text(tokens, wanted)
    if re.fullmatch(r"[0-9]+", wanted):
        if not found:
            return [(_position(tokens, wanted),)]
        at = whole(wanted, most=len(tokens) - 1)
        if at is not None and (at,) not in found:
            spots = [name_of(tokens, group) for group in found]
            raise UsageError(
                f"{wanted} is both a position and a word of the text",
                f"Give @{wanted} for the token {_shown(tokens, at)} at that position, or {_list(spots)}.",
            )
    if not found and placed:
        return [_at(tokens, placed[1].strip(), placed[2])]
    return found


def missing(tokens: Tokens, wanted: str) -> tuple[str, str]:
    """The message and the hint for a text that was not found."""
    return f"there is no token or word {_quote(wanted.strip())}", _hint_near(tokens, wanted.strip())


def _by_text(tokens: Tokens, wanted: str) -> list[tuple[int, ...]]:
    """Everything that the text may refer to, in order of position."""
    key = _fold(wanted)
    groups = group_words(tokens)
    words = [_fold(label(tokens, group)) for group in groups]
    found = [group for group, word in zip(groups, words, strict=True) if word == key]
    found += _phrases(groups, words, [_fold(wanted[start:stop]) for start, stop in split_words(wanted)])
    found += _stretches(tokens, wanted, found)
    covered = {position for group in found for position in group}
    inner, time = [], _seconds(key)
    for position, piece in enumerate(tokens.pieces):
        if position in covered or not tokens.mask[position]:
            continue
        bare = _fold(piece.strip(" "))
        whole_piece = bare == key and (
            tokens.special[position] or piece.startswith("##") or _stands_alone(tokens, position)
        )
        if whole_piece or (time is not None and _seconds(bare) == time):
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


def _stretches(tokens: Tokens, wanted: str, found: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The tokens at further places where the text has these characters, beyond those already found.

    A place counts only if a word may begin at its start and end at its end. Pieces that reach beyond it ("它们" for
    "它") are taken only where there are no exact ones.
    """
    exact: list[tuple[int, ...]] = []
    wider: list[tuple[int, ...]] = []
    for hit in re.finditer(re.escape(wanted), tokens.text, re.IGNORECASE):
        start, end = hit.span()
        if not (may_part(tokens.text, start) and may_part(tokens.text, end)):
            continue
        pieces = covering(tokens, start, end)
        spans = [tokens.offsets[at] for at in pieces]
        if spans and (min(a for a, _ in spans), max(b for _, b in spans)) == (start, end):
            exact.append(pieces)
        elif spans:
            wider.append(pieces)
    new = exact if exact or found else wider
    return [pieces for pieces in dict.fromkeys(new) if not any(set(pieces) & set(group) for group in found)]


def covering(tokens: Tokens, start: int, end: int) -> tuple[int, ...]:
    """Positions of the tokens that cover characters [start, end) of the text, special ones and padding left out."""
    return tuple(
        at
        for at, (a, b) in enumerate(tokens.offsets)
        if a < b and a < end and b > start and tokens.mask[at] and not tokens.special[at]
    )


def _seconds(name: str) -> float | None:
    """The number of seconds in "1.00s"; None for anything else."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]*)?) ?s", name, re.ASCII)
    return real(match[1]) if match else None


def _stands_alone(tokens: Tokens, position: int) -> bool:
    """Whether no letter or digit touches the piece; pieces without a place in the text: whether it is its word."""
    start, stop = tokens.offsets[position]
    if stop <= start:
        return tokens.words.count(tokens.words[position]) == 1
    before, after = tokens.text[start - 1 : start] if start else "", tokens.text[stop : stop + 1]
    return not (before.isalnum() or after.isalnum())


def _at(tokens: Tokens, text: str, said: str) -> tuple[int, ...]:
    """The matches of the text that contain the position."""
    position = _position(tokens, said)
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
        raise UsageError(*missing(tokens, text))
    raise UsageError(
        f"position {position} is {_shown(tokens, position)}, not {_quote(text)}",
        f"Give {_list([name_of(tokens, group) for group in matches])}.",
    )


def _range(tokens: Tokens) -> str:
    return "the only token is at 0" if len(tokens) == 1 else f"the {len(tokens)} tokens are at 0 to {len(tokens) - 1}"


def _position(tokens: Tokens, said: int | str) -> int:
    """The position given by a number or by ASCII digits."""
    position = whole(said) if isinstance(said, str) else said
    if position is None or not 0 <= position < len(tokens):
        raise UsageError(
            f"there is no position {shorten(str(said))}: {_range(tokens)}",
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


def name_of(tokens: Tokens, group: Sequence[int]) -> str:
    """As a message names a token or a word: it@10, in quotes where it has a space."""
    name = f"{shorten(label(tokens, group), _LONGEST)}@{group[0]}"
    return f'"{name}"' if " " in name else name


def _context(tokens: Tokens, group: Sequence[int]) -> str:
    """The group with its neighbours: "because it was"."""
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
        names.setdefault(_fold(label(tokens, group)), name_of(tokens, group))
    near = get_close_matches(_fold(wanted), list(names), n=5, cutoff=0.6)
    return f"Did you mean {_list([names[word] for word in near])}?" if near else _hint_all(tokens)


def _hint_all(tokens: Tokens) -> str:
    names = [name_of(tokens, group) for group in group_words(tokens)]
    return f"There are: {', '.join(names[:40])}{f' and {len(names) - 40} more' if len(names) > 40 else ''}."
