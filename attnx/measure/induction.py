"""Induction: in [A][B] ... [A], the last token looks at [B]. Also the probe for it: repeated random blocks."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np

from attnx.errors import UsageError
from attnx.measure.rows import Rows, share_by_head
from attnx.numerals import counted
from attnx.records import Array, Measurement, Tokens, Trace
from attnx.wording import Wording

LENGTH, REPEATS = 25, 4
"""Tokens per block of the probe, and how often the block is repeated. Source: Olsson et al. 2022."""


def induction(trace: Trace, at_least: int = 1) -> Measurement:
    """Induction score: mean over queries i with an earlier copy at j of sum a_{i,j+1}, over all such j.

    On the probe (a block of P different tokens, repeated) this is the stripe mean_t a_{t,t-(P-1)}. Copies that follow
    each other directly are left out (their j + 1 is the query itself).

    Args:
        trace: With weights [B,H,Q,K] and token ids; special tokens and padding are neither queries nor copies.
        at_least: With fewer such queries, the score is NaN and a note says so: a word or two that happen to
            repeat say nothing about induction.

    Returns:
        [S,H], share, 0 to 1; NaN for cross-attention and if too few tokens repeat.

    Raises:
        UnsupportedError: A site has no weights.

    Source: Olsson et al. 2022, "In-context Learning and Induction Heads" (prefix matching); Elhage et al. 2021.
    """
    few: list[int] = []

    def compute(rows: Rows) -> Array:
        copies = rows.copies(2)  # a copy at j is followed by j + 1, which must come before the query: j <= i - 2
        if copies is None:
            return rows.none()
        after = np.zeros_like(copies)
        after[:, 1:] = copies[:, :-1]
        on = np.where(after, rows.weights, 0.0).sum(axis=-1, dtype=np.float64)
        repeated = np.asarray(after.any(axis=1))
        if repeated.sum() < at_least:
            few.append(int(repeated.sum()))
            return rows.none()
        return rows.mean(np.where(repeated, on, np.nan))

    found = share_by_head(
        trace,
        compute,
        name="induction",
        formula="mean over repeated tokens of the weight on what followed their earlier copies",
        source="Olsson et al. 2022, prefix matching",
    )
    if not few:
        return found
    return replace(found, notes=(*found.notes, too_few(max(few), at_least)))


def too_few(repeats: int, least: int) -> Wording:
    """A note that a text has no induction score, since too few of its tokens repeat."""
    count = f"only {counted(repeats, 'token repeats', 'tokens repeat')}" if repeats else "no token repeats"
    said = "no induction score: {count} ({least} are needed); <attnx.measure.induction.probe()> measures it"
    return Wording(said, count=count, least=least)


def probe_ids(
    vocab: int,
    special: Collection[int] = (),
    *,
    length: int = 25,
    repeats: int = 2,
    prefix: Collection[int] = (),
    suffix: Collection[int] = (),
    seed: int = 0,
) -> Array:
    """Ids of a random block of different tokens, repeated: text that only induction can predict.

    Args:
        vocab: Size of the vocabulary; ids are drawn from 0 to vocab - 1.
        special: Ids never drawn ([CLS], padding, ...).
        length: Tokens per block. Olsson et al. use 25.
        repeats: How often the block occurs, at least 2. Olsson et al. use 4.
        prefix: Ids put in front once (a beginning-of-text token).
        suffix: Ids put at the end once.
        seed: The same seed gives the same ids.

    Returns:
        int64 [len(prefix) + length x repeats + len(suffix)].

    Raises:
        UsageError: Fewer than 2 repeats, an empty block, or a vocabulary too small for `length` different tokens.

    Source: Olsson et al. 2022, "In-context Learning and Induction Heads", head activation evaluators.
    """
    if repeats < 2 or length < 1:
        raise UsageError(f"a probe of {repeats} blocks of {length} tokens shows nothing", "Use 2 blocks or more.")
    allowed = np.setdiff1d(np.arange(vocab, dtype=np.int64), np.asarray(list(special), np.int64))
    if len(allowed) < length:
        raise UsageError(
            f"a block of {length} different tokens is needed, but the vocabulary has {len(allowed)} to draw from",
            f"Use a block of {len(allowed)} tokens or fewer.",
        )
    block = np.random.default_rng(seed).choice(allowed, size=length, replace=False)
    ends = [np.asarray(list(part), np.int64) for part in (prefix, suffix)]
    return np.concatenate([ends[0], np.tile(block, repeats), ends[1]]).astype(np.int64)


def probe(tokenizer: Any, *, length: int = LENGTH, repeats: int = REPEATS, seed: int = 0) -> Tokens:
    """The probe as tokens of a model: random blocks between the special tokens that it puts around a text.

    Args:
        tokenizer: An `attnx.tokens.Tokenizer`.
        length: Tokens per block.
        repeats: How often the block occurs.
        seed: The same seed gives the same tokens.

    Returns:
        length x repeats tokens, plus the special ones.

    Raises:
        UsageError: As for `probe_ids`.

    Source: Olsson et al. 2022, head activation evaluators.
    """
    frame = tokenizer.encode("a")
    plain = [at for at, special in enumerate(frame.special) if not special]
    ends = (frame.ids[: plain[0]], frame.ids[plain[-1] + 1 :]) if plain else (frame.ids, frame.ids[:0])
    special = [number for number in range(tokenizer.size) if tokenizer.is_special(number)]
    ids = probe_ids(
        tokenizer.size,
        special,
        length=length,
        repeats=repeats,
        prefix=ends[0].tolist(),
        suffix=ends[1].tolist(),
        seed=seed,
    )
    made: Tokens = tokenizer.from_ids(ids.tolist())
    return made
