"""A prompt and the answer after it, and the spans that the prompt is cut into."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from attnx.errors import InputError
from attnx.feed.text import encode
from attnx.records import Tokens
from attnx.session.protocol import OpenModel
from attnx.tokens.axes import join, pick
from attnx.tokens.json_object import read_json
from attnx.tokens.sentences import paragraphs, sentences
from attnx.tokens.text_file import read_text

CUTS = ("sentence", "paragraph")
"""How a prompt is cut if no file is given."""


@dataclass(frozen=True, slots=True)
class Span:
    """A part of the prompt."""

    name: str
    start: int
    """First character."""
    end: int
    text: str
    tokens: tuple[int, ...]
    """Positions of the tokens that begin in it."""


def with_text(tokens: Tokens) -> Tokens:
    """Tokens with a text joined from their pieces if they came without one (from ids)."""
    if tokens.text:
        return tokens
    text, offsets = "", []
    for piece, special in zip(tokens.pieces, tokens.special, strict=True):
        spaces = len(piece) - len(piece.lstrip(" "))
        offsets.append((0, 0) if special else (len(text) + spaces, len(text) + len(piece)))
        text += "" if special else piece
    return replace(tokens, text=text, offsets=tuple(offsets))


def answered(model: OpenModel, prompt: Tokens, text: str | None, target: str) -> tuple[Tokens, int]:
    """A prompt followed by an answer, as if the model had written it; and how many tokens the prompt has.

    Args:
        model: Its tokenizer tokenizes the answer.
        prompt: The prompt's tokens.
        text: The prompt if it is plain text: then both are tokenized as one; otherwise (a chat) the answer separately.
        target: The answer.

    Raises:
        InputError: Nothing of the answer is left.
    """
    if text is None:
        made, shift = _unended(model.tokenizer.encode(target, add_special=False)), len(prompt.text)
        offsets = tuple((a + shift, b + shift) if b > a else (a, b) for a, b in made.offsets)
        whole = join(prompt, replace(made, offsets=offsets))
        return replace(whole, text=prompt.text + target), len(prompt)
    between = "" if target[:1].isspace() or text[-1:].isspace() else " "
    whole = _unended(encode(model, text + between + target))
    border = len(text) + len(between)
    start = next((at for at, (a, b) in enumerate(whole.offsets) if b > max(a, border)), None)
    if start is None:
        raise InputError(
            "nothing of the answer is left: prompt and answer are cut to the length that the model takes",
            "Give a shorter prompt.",
        )
    return whole, start


def _unended(tokens: Tokens) -> Tokens:
    """Tokens without the special ones that a tokenizer appends."""
    count = len(tokens)
    while count and tokens.special[count - 1]:
        count -= 1
    return tokens if count == len(tokens) else pick(tokens, range(count))


def cut(tokens: Tokens, prompt: int, how: str) -> tuple[Span, ...]:
    """The spans of a prompt.

    Args:
        tokens: With a text.
        prompt: How many of them belong to the prompt.
        how: "sentence", "paragraph", or the name of a file of spans.

    Raises:
        InputError: The file cannot be read, or a span is outside the prompt.
    """
    end = max((stop for _, stop in tokens.offsets[:prompt]), default=0)
    text = tokens.text[:end]
    if how in CUTS:
        found = sentences(text) if how == "sentence" else paragraphs(text)
        named = [(start, stop, str(at)) for at, (start, stop) in enumerate(found, 1)]
    else:
        named = read_spans(Path(how))
        for start, stop, name in named:
            if not 0 <= start < stop <= len(text):
                raise InputError(
                    f"the span {name!r}, {start} to {stop}, is not of the prompt, which has {len(text)} characters",
                    "Start and end count the prompt's characters from 0; the end is the first one behind the span.",
                )
    begins = np.array([a if b > a else -1 for a, b in tokens.offsets[:prompt]])
    spans = []
    for start, stop, name in named:
        inside = tuple(int(at) for at in np.flatnonzero((begins >= start) & (begins < stop)))
        spans.append(Span(name, start, stop, text[start:stop], inside))
    by_start = sorted(spans, key=lambda span: span.start)
    for one, two in pairwise(by_start):
        if two.start < one.end:
            raise InputError(f"the spans {one.name!r} and {two.name!r} overlap", "Each character may be of one span.")
    return tuple(spans)


def read_spans(path: Path) -> list[tuple[int, int, str]]:
    """Start, end and name of each line of a file: JSON Lines, or columns with commas or tabs between them.

    Raises:
        InputError: It cannot be read, or a line does not start with two whole numbers.
    """
    lines = read_text(path, f"Spans are {', '.join(CUTS)}, or a file with start, end and name.").splitlines()
    out: list[tuple[int, int, str]] = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            made = _fields(line)
            if made is None:
                if number == 1 and not any(map(str.isdigit, line)):  # the names of the columns
                    continue
                raise InputError(
                    f"line {number} of {path} is not a span: {line[:60]!r}",
                    'Each line is start, end and name: 0,57,first passage or {"start": 0, "end": 57, "name": "first"}.',
                )
            out.append((made[0], made[1], made[2] or str(len(out) + 1)))
    if not out:
        raise InputError(f"{path} has no spans in it", "Each line is start, end and name: 0,57,first passage.")
    return out


def _fields(line: str) -> tuple[int, int, str] | None:
    fields: Sequence[Any]
    if line.lstrip().startswith("{"):
        try:
            told = read_json(line)
        except ValueError:
            return None
        if not isinstance(told, dict):
            return None
        fields = [told.get("start"), told.get("end"), told.get("name", "")]
    else:
        try:
            fields = next(csv.reader([line], delimiter="\t" if "\t" in line else ",", strict=True))
        except csv.Error:  # a quote that is not closed
            return None
    if len(fields) < 2 or any(fields[3:]):
        return None
    ends = [int(f) if (isinstance(f, str) and f.strip().isascii() and f.strip().isdigit() and len(f) < 12)
            or (isinstance(f, int) and not isinstance(f, bool)) else None for f in fields[:2]]  # fmt: skip
    if ends[0] is None or ends[1] is None:
        return None
    return ends[0], ends[1], str(fields[2]).strip() if len(fields) > 2 and fields[2] is not None else ""


__all__ = ["CUTS", "Span", "answered", "cut", "read_spans", "with_text"]
