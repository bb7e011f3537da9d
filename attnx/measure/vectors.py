"""Vectors: one word in two contexts, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from attnx.errors import InputError
from attnx.formula import average
from attnx.records import Array, Axis, Measurement, Tokens
from attnx.tokens.spans import Mention, word_text, words

COLUMNS = ("the word", "other words both have", "different words")
SOURCE = "Ethayarajh 2019, How Contextual are Contextualized Word Representations?, section 3.3"


def contexts(
    one: Mapping[str, Array], two: Mapping[str, Array], tokens: tuple[Tokens, Tokens], mentions: tuple[Mention, Mention]
) -> Measurement:
    """Cosine of a word's vectors in two contexts, by layer, against two baselines.

    A word's vector is the mean over its pieces. The baselines: the other words that both texts share (compared with
    themselves: the effect of context alone), and different words (how close any two words are at that layer).

    Args:
        one: Vectors [Q,E] of the first text by layer name, in order.
        two: Vectors of the second text, with the same names.
        tokens: The tokens of the two texts.
        mentions: The word in each.

    Returns:
        [layers,3], cosine, -1 to 1; NaN where a baseline has no words, or a vector is zero.

    Raises:
        InputError: The layers differ, or vectors do not fit the tokens.

    Source: Ethayarajh 2019, section 3.3 (self-similarity; different words as the baseline for anisotropy);
    the shared words: attnx.
    """
    if list(one) != list(two):
        raise InputError(f"the texts have vectors of different layers: {list(one)} and {list(two)}")
    groups = [_plain(text, mention) for text, mention in zip(tokens, mentions, strict=True)]
    names = [[word_text(text, group).lower() for group in part] for text, part in zip(tokens, groups, strict=True)]
    same = np.array([[a == b for b in names[1]] for a in names[0]], bool).reshape(len(names[0]), len(names[1]))
    lines = []
    for layer in one:
        for vectors, text in ((one[layer], tokens[0]), (two[layer], tokens[1])):
            if vectors.ndim != 2 or len(vectors) != len(text):
                raise InputError(f"{layer} has vectors {vectors.shape} for {len(text)} tokens")
        word = [_mean(v[layer], m.pieces) for v, m in zip((one, two), mentions, strict=True)]
        rest = [
            np.array([_mean(v[layer], g) for g in part]).reshape(len(part), v[layer].shape[1])
            for v, part in zip((one, two), groups, strict=True)
        ]
        table = _cosine(rest[0], rest[1])
        lines.append(
            [
                float(_cosine(word[0][None], word[1][None])[0, 0]),
                float(average(table, where=same)),
                float(average(table, where=~same)),
            ]
        )
    return Measurement(
        name="word in two contexts",
        unit="cosine",
        axes=(Axis("layer", tuple(one)), Axis("compared", COLUMNS)),
        values=np.array(lines, np.float64).reshape(len(one), len(COLUMNS)),
        bounds=(-1.0, 1.0),
        source=SOURCE,
        formula="u·v / (|u| |v|), a word's vector being the mean of its pieces'",
    )


def _plain(tokens: Tokens, mention: Mention) -> list[tuple[int, ...]]:
    """Words that are not special tokens, not padding and not the word itself."""
    own = set(mention.pieces)
    return [
        group
        for group in words(tokens)
        if not own & set(group) and not any(tokens.special[at] or not tokens.mask[at] for at in group)
    ]


def _mean(vectors: Array, pieces: tuple[int, ...]) -> Array:
    return np.asarray(vectors[list(pieces)].astype(np.float64).mean(axis=0))


def _cosine(one: Array, two: Array) -> Array:
    """Cosine of every row of one with every row of the other; NaN for a vector that is zero or not finite."""
    with np.errstate(invalid="ignore", over="ignore"):  # of a vector that is not finite it is NaN
        sizes = np.linalg.norm(one, axis=-1)[:, None] * np.linalg.norm(two, axis=-1)[None, :]
        return np.asarray((one @ two.T) / np.where(sizes > 0, sizes, np.nan))
