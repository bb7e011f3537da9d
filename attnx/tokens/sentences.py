"""Sentences and paragraphs of a text, by punctuation and line breaks, with only the commonest rules of any language."""

from __future__ import annotations

import re

Stretch = tuple[int, int]
"""Start and end in a text, in characters, without surrounding white space."""

_BREAK = re.compile(r"\n[^\S\n]*\n\s*")
_END = re.compile(r"[.?!…]+[\"'”’»)\]]*(?=\s)|[。！？]+[」』”’）]*|\n")
_SHORT = re.compile(
    r"(?:^|[\s(\[\"'“])(?:[A-Za-z]|Mr|Mrs|Ms|Dr|Prof|St|No|vs|cf|al|etc|e\.g|i\.e|approx|Fig|Eq|Sec|Inc|Ltd|Co|Jr|Sr)\.$"
)
"""Abbreviations: their full stop does not end a sentence."""


def paragraphs(text: str) -> tuple[Stretch, ...]:
    """The stretches between empty lines."""
    text = _plain(text)
    ends = [hit.span() for hit in _BREAK.finditer(text)]
    starts = [0, *(stop for _, stop in ends)]
    return _stretches(text, starts, [*(start for start, _ in ends), len(text)])


def sentences(text: str) -> tuple[Stretch, ...]:
    """The stretches that end with a sentence's final mark, or with their line.

    A full stop after an initial or a common abbreviation, or before a lower-case letter, does not end a sentence.
    """
    text = _plain(text)
    cuts = []
    for hit in _END.finditer(text):
        rest = text[hit.end() :].lstrip()
        goes_on = hit[0].startswith((".", "…")) and (
            rest[:1].islower() or (hit[0] == "." and _SHORT.search(text, max(0, hit.end() - 12), hit.end()))
        )
        if hit[0] == "\n" or not goes_on:
            cuts.append(hit.end())
    return _stretches(text, [0, *cuts], [*cuts, len(text)])


def _plain(text: str) -> str:
    """The text with line breaks in place of their control pictures, which occur in text that a model wrote."""
    return text.replace("␊", "\n").replace("␠", " ")


def _stretches(text: str, starts: list[int], stops: list[int]) -> tuple[Stretch, ...]:
    out = []
    for start, stop in zip(starts, stops, strict=True):
        bare = text[start:stop].strip()
        if bare:
            at = start + text[start:stop].index(bare)
            out.append((at, at + len(bare)))
    return tuple(out)


__all__ = ["Stretch", "paragraphs", "sentences"]
