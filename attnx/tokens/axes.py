"""Tokens that only name the positions of an axis; and tokens joined or masked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from attnx.records import Array, Order, Tokens


def numbered(length: int, mark: str = "") -> Tokens:
    """Tokens without meaning: "0", "1", ...; no padding among them."""
    return labelled([f"{mark}{i}" for i in range(length)])


def labelled(pieces: Sequence[str], special: Sequence[bool] | None = None) -> Tokens:
    """Tokens that are only names: no text, no ids of their own; each a word."""
    count = len(pieces)
    flags = tuple(special) if special is not None else (False,) * count
    words = tuple(None if flag else i for i, flag in enumerate(flags))
    return Tokens(np.arange(count), tuple(pieces), ((0, 0),) * count, words, flags, (True,) * count)


def join(first: Tokens, second: Tokens) -> Tokens:
    """Two sequences as one: the second's words are numbered after the first's, and its offsets in the text are kept."""
    shift = max((w for w in first.words if w is not None), default=-1) + 1
    return Tokens(
        ids=np.concatenate([first.ids, second.ids]),
        pieces=first.pieces + second.pieces,
        offsets=first.offsets + second.offsets,
        words=first.words + tuple(None if w is None else w + shift for w in second.words),
        special=first.special + second.special,
        mask=first.mask + second.mask,
        type_ids=(first.type_ids or (0,) * len(first)) + (second.type_ids or (0,) * len(second)),
        text=first.text or second.text,
        notes=first.notes + second.notes,
    )


def masked(tokens: Tokens, mask: Array) -> Tokens:
    """Tokens with those marked as padding (special, in no word) for which a mask [Q] is 0."""
    real = tuple(bool(m) for m in mask)
    special = tuple(s or not m for s, m in zip(tokens.special, real, strict=True))
    words = tuple(w if m else None for w, m in zip(tokens.words, real, strict=True))
    return replace(tokens, mask=real, special=special, words=words)


def pick(tokens: Tokens, positions: Sequence[int]) -> Tokens:
    """Some tokens of a text, in the order of `positions`."""
    at = list(positions)

    def take(values: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(values[i] for i in at) if values else ()

    return replace(
        tokens,
        ids=np.asarray(tokens.ids)[at],
        pieces=take(tokens.pieces),
        offsets=take(tokens.offsets),
        words=take(tokens.words),
        special=take(tokens.special),
        mask=take(tokens.mask),
        type_ids=take(tokens.type_ids),
    )


def reordered(tokens: Tokens, order: Order) -> Tokens | None:
    """A text as a graph has moved it: positions of no token are "+0", "+1" ...

    Args:
        tokens: The text.
        order: Which token stands at each position.

    Returns:
        None where the order is not known for a text of that length.
    """
    n = len(tokens)
    at: list[int | None] = []
    for slope, start, step, more, count in order:
        size = more * n + count
        if not 0 <= size <= n - len(at):
            return None
        at += [None if start < 0 and not slope else slope * n + start + i * step for i in range(size)]
    if len(at) != n or not all(i is None or 0 <= i < n for i in at):
        return None
    new = labelled([f"+{i}" for i in range(at.count(None))], [True] * at.count(None))
    whole = join(tokens, new)
    free = iter(range(n, len(whole)))
    return replace(pick(whole, [next(free) if i is None else i for i in at]), notes=tokens.notes)


def holds(keys: Tokens, queries: Tokens) -> bool:
    """Whether the last positions of a key axis are those of the queries, in order, so that each query has a key."""
    return keys is queries or (len(keys) >= len(queries) and keys.pieces[len(keys) - len(queries) :] == queries.pieces)
