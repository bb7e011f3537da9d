"""Pieces of recognised speech, joined into words with the punctuation attached to them.

Source: openai-whisper, tokenizer.py (split_to_word_tokens) and timing.py (merge_punctuations); transformers'
_combine_tokens_into_words. The marks and the languages without spaces are theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

BEFORE = "\"'“¡¿([{-"
"""Marks that attach to the word after them."""
AFTER = "\"'.。,，!！?？:：”)]}、"
"""Marks that attach to the word before them."""
SPACELESS = frozenset({"zh", "ja", "th", "lo", "my", "yue"})
"""Codes of languages that put no spaces between words."""
_PUNCTUATION = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
_PART = "\ufffd"
"""What a decoder writes for bytes that are not yet a whole character."""

Word = tuple[str, tuple[int, ...]]
"""A word's text, including the space before it, and the tokens that it is made of."""


def spoken(ids: Sequence[int], decode: Callable[[Sequence[int]], str], *, spaces: bool = True) -> tuple[Word, ...]:
    """The words of a text by its tokens.

    Args:
        ids: Tokens of text alone.
        decode: Ids to text, spaces kept.
        spaces: Whether the language puts spaces between words; else every run of whole characters is one.
    """
    parts = _characters(ids, decode)
    words: list[tuple[str, list[int]]] = []
    for text, at in parts:
        apart = not spaces or not words or text.startswith(" ") or text.strip() in _PUNCTUATION
        if apart:
            words.append((text, at))
        else:
            words[-1] = (words[-1][0] + text, words[-1][1] + at)
    return tuple((text, tuple(at)) for text, at in _with_marks(words))


def _characters(ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> list[tuple[str, list[int]]]:
    """Tokens, joined where one alone ends within a character."""
    whole = decode(ids)
    out: list[tuple[str, list[int]]] = []
    done = ""
    pending: list[int] = []
    for at in range(len(ids)):
        pending.append(at)
        # Decoded from the beginning: of a piece alone, the leading space may be taken for the text's own.
        text = decode(ids[: at + 1])[len(done) :]
        cut = text.find(_PART)
        place = len(done) + cut
        if cut < 0 or place >= len(whole) or whole[place] == _PART:
            out.append((text, pending))
            done, pending = done + text, []
    if pending:
        out.append((whole[len(done) :], pending))
    return out


def _with_marks(words: list[tuple[str, list[int]]]) -> list[tuple[str, list[int]]]:
    """Merge punctuation into the word that it attaches to."""
    merged: list[tuple[str, list[int]]] = []
    for text, at in reversed(words):
        if merged and text.startswith(" ") and text.strip() in BEFORE:
            merged[-1] = (text + merged[-1][0], at + merged[-1][1])
        else:
            merged.append((text, at))
    out: list[tuple[str, list[int]]] = []
    for text, at in reversed(merged):
        if out and not out[-1][0].endswith(" ") and text in AFTER:
            out[-1] = (out[-1][0] + text, out[-1][1] + at)
        else:
            out.append((text, at))
    return [(text, at) for text, at in out if text]


__all__ = ["AFTER", "BEFORE", "SPACELESS", "Word", "spoken"]
