"""Words in a reader's sense, and which pieces make them up.

A word is a stretch between spaces, without the punctuation around it: "didn't", "well-known", "3.14", "e.g" are
single words. Inside it, apostrophes, hyphens, full stops and @ may join letters and digits; commas and colons may join
digits. Any other character is a word of its own, and so is a run of the same one ("...", "!!"). Emoji that are joined
into one picture are one word. Han, kana, Thai, Lao, Khmer and Burmese do not put spaces between words: there every
character starts a word, and a piece of several characters is one word.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache

from attnx.records import Tokens
from attnx.tokens.pieces import visible

_APOSTROPHES_AND_HYPHENS = "'’ʼ＇-‐‑.@"
_BETWEEN_DIGITS = ",:"
_INVISIBLE = "\u200c\u200d\u00ad"
_SPACELESS = (
    (0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x2E80, 0x2FDF), (0x3005, 0x3007), (0x3021, 0x30FF),
    (0x31F0, 0x31FF), (0x3400, 0x9FFF), (0xF900, 0xFAFF), (0xFF66, 0xFF9F), (0x20000, 0x3FFFF),
)  # fmt: skip


def _is_letter(character: str) -> bool:
    return character.isalnum() or character == "_"


@lru_cache(4096)
def _is_mark(character: str) -> bool:
    """Whether a character belongs to the one before it: accents, vowel signs, variation selectors, skin tones."""
    return unicodedata.category(character)[0] == "M" or "\U0001f3fb" <= character <= "\U0001f3ff"


@lru_cache(4096)
def _is_spaceless(character: str) -> bool:
    return any(start <= ord(character) <= stop for start, stop in _SPACELESS)


def _is_flag_half(character: str) -> bool:
    return "\U0001f1e6" <= character <= "\U0001f1ff"


def split_words(text: str, until: int | None = None) -> list[tuple[int, int]]:
    """Start and end of every word, in characters, in order.

    Args:
        text: The text.
        until: No word that starts here or later is wanted.
    """
    size, i, spans = len(text), 0, []
    stop = size if until is None else min(until, size)
    while i < stop:
        if text[i].isspace():
            i += 1
            continue
        end = _word_end(text, i) if _is_letter(text[i]) and not _is_spaceless(text[i]) else _symbol_end(text, i)
        spans.append((i, end))
        i = end
    return spans


def _word_end(text: str, start: int) -> int:
    i, size = start + 1, len(text)
    while i < size:
        character = text[i]
        if _is_mark(character) or (_is_letter(character) and not _is_spaceless(character)):
            i += 1
            continue
        after = text[i + 1] if i + 1 < size else ""
        digits = text[i - 1].isdigit() and after.isdigit()
        joins = character in _APOSTROPHES_AND_HYPHENS or character in _INVISIBLE
        if not (joins or (character in _BETWEEN_DIGITS and digits)):
            break
        if not after or not _is_letter(after) or _is_spaceless(after):
            break
        i += 2
    return i


def _symbol_end(text: str, start: int) -> int:
    first, i, size = text[start], start + 1, len(text)
    repeats = not _is_letter(first) and first.isascii()
    if _is_flag_half(first) and i < size and _is_flag_half(text[i]):
        return i + 1
    while i < size:
        if _is_mark(text[i]) or (repeats and text[i] == first):
            i += 1
        elif text[i] == "\u200d" and i + 1 < size and not _is_letter(first) and not text[i + 1].isspace():
            i += 2
        else:
            break
    return i


def may_part(text: str, at: int) -> bool:
    """Whether a word may end and another begin before a character of the text: not between letters of one word.

    Scripts without spaces between words may part at every character, though not before a mark that belongs to one.
    """
    if not 0 < at < len(text):
        return True
    before, after = text[at - 1], text[at]
    if _is_mark(after) or _is_mark(before):
        return not _is_mark(after) and (_is_spaceless(before) or not _is_letter(after) or _is_spaceless(after))
    apart = not (_is_letter(before) and _is_letter(after))
    return apart or _is_spaceless(before) or _is_spaceless(after)


def index_words(
    text: str, offsets: Sequence[tuple[int, int]], special: Sequence[bool], pieces: Sequence[str]
) -> tuple[int | None, ...]:
    """The word of each piece: None for special tokens, else counted from 0 in the order of the pieces.

    A piece belongs to the word in which it starts. A piece of spaces, or one without a place in the text, is a word of
    its own.

    Args:
        text: What the offsets point into.
        offsets: Q pairs, without surrounding spaces.
        special: Q flags.
        pieces: Q pieces; only their number matters.
    """
    spans = split_words(text, max((stop for _, stop in offsets), default=0))
    starts = [start for start, _ in spans]
    numbers: dict[object, int] = {}
    words: list[int | None] = []
    for i in range(len(pieces)):
        if special[i]:
            words.append(None)
            continue
        start, stop = offsets[i]
        at = bisect_right(starts, start) - 1
        inside = stop > start and at >= 0 and start < spans[at][1]
        words.append(numbers.setdefault(at if inside else ("alone", i), len(numbers)))
    return tuple(words)


def group_words(tokens: Tokens) -> tuple[tuple[int, ...], ...]:
    """The positions of each word, in order; each special token is a group of its own, padding is left out."""
    groups: list[list[int]] = []
    last: int | None = None
    for position, word in enumerate(tokens.words):
        if not tokens.mask[position]:
            last = None
            continue
        if word is not None and word == last:
            groups[-1].append(position)
        else:
            groups.append([position])
        last = word
    return tuple(tuple(group) for group in groups)


def label(tokens: Tokens, positions: Sequence[int]) -> str:
    """A label for a word: its text as written, else its pieces joined, without anything invisible.

    Args:
        tokens: The tokens.
        positions: One of `group_words`'s groups, or any run of positions.
    """
    start, stop = tokens.offsets[positions[0]][0], tokens.offsets[positions[-1]][1]
    if tokens.text and stop > start and not any(tokens.special[p] for p in positions):
        return visible(tokens.text[start:stop])
    parts = [tokens.pieces[p] for p in positions]
    return "".join([parts[0], *(part.removeprefix("##") for part in parts[1:])]).strip(" ") or parts[0]
