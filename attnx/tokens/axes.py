"""Tokens that only name the positions of an axis; and tokens joined or masked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from attnx.records import Array, Tokens


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


def holds(keys: Tokens, queries: Tokens) -> bool:
    """Whether the last positions of a key axis are those of the queries, in order, so that each query has a key."""
    return keys is queries or (len(keys) >= len(queries) and keys.pieces[len(keys) - len(queries) :] == queries.pieces)
