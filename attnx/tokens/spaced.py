"""The words of a text, whatever pieces its tokenizer cuts it into: in a reader's sense, or between spaces."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from attnx.records import Tokens
from attnx.tokens.words import group_words, label, split_words

Words = tuple[tuple[str, tuple[int, ...]], ...]
"""The words of a text in order: the text of each, and the positions of its pieces (empty if no piece begins in it)."""
Cut = Callable[[Tokens], Words]


def spaced(tokens: Tokens) -> Words:
    """Every word between spaces, with the punctuation attached to it, as corpora count words."""
    return _words(tokens, [hit.span() for hit in re.finditer(r"\S+", tokens.text)])


def readers(tokens: Tokens) -> Words:
    """Every word in a reader's sense: "didn't" is one, "tired" and "." are two; see `attnx.tokens.words`."""
    return _words(tokens, split_words(tokens.text))


def _words(tokens: Tokens, spans: Sequence[tuple[int, int]]) -> Words:
    """The text of each span, with the pieces that begin in it; tokens without a text give their own words.

    A text thus has the same words in every tokenizer. Special tokens and padding belong to none.
    """
    if not spans:
        return tuple((label(tokens, group), group) for group in group_words(tokens) if not tokens.special[group[0]])
    held: list[list[int]] = [[] for _ in spans]
    at = 0
    for position, (start, stop) in enumerate(tokens.offsets):
        if tokens.special[position] or not tokens.mask[position] or stop <= start:
            continue
        while at + 1 < len(spans) and spans[at + 1][0] <= start:
            at += 1
        if spans[at][0] <= start < spans[at][1]:
            held[at].append(position)
    return tuple((tokens.text[start:stop], tuple(group)) for (start, stop), group in zip(spans, held, strict=True))


__all__ = ["Cut", "Words", "readers", "spaced"]
