"""Where a decoder looks while it writes: parts of the prompt, sinks, its own words; and the lookback ratio."""

from __future__ import annotations

import numpy as np

from attnx.records import Array

SOURCE = "Chuang et al. 2024, Lookback Lens, section 2.1"
FORMULA = "mean weight of a prompt's token / (that + mean weight of a token written before)"


def groups(size: int, spans: list[tuple[int, ...]], sinks: tuple[int, ...], prompt: int, blocks: int) -> Array:
    """A matrix that sums weights over groups of keys.

    Args:
        size: Number of keys, K; those from `prompt` on are the model's own words.
        spans: Positions of the prompt's tokens in each span, S of them; no two share a token.
        sinks: Positions to set aside, wherever they are.
        prompt: Number of tokens of the prompt.
        blocks: Number of stretches of equal length into which the prompt is also cut.

    Returns:
        float32 [K, S + 3 + blocks + 1]: the spans, the rest of the prompt, the sinks, the model's own words; the
        blocks without sinks; all. The first S + 3 are disjoint and cover every key.
    """
    out = np.zeros((size, len(spans) + 3 + blocks + 1), np.float32)
    rest, aside, own, first = (len(spans) + at for at in range(4))
    out[:prompt, rest] = 1
    out[prompt:, own] = 1
    for at, span in enumerate(spans):
        out[list(span), at], out[list(span), rest] = 1, 0
    places = np.arange(min(prompt, size))
    out[places, first + places * blocks // max(prompt, 1)] = 1
    kept = [at for at in sinks if at < size]
    out[kept] = 0
    out[kept, aside] = 1
    out[:, -1] = 1
    return out


def lookback(on_prompt: Array, on_own: Array, prompt: int) -> Array:
    """The lookback ratio of each head and step: A(context) / (A(context) + A(new)), each the mean over its tokens.

    Args:
        on_prompt: [...,T], the weight on all of the prompt's tokens at each step.
        on_own: [...,T], the weight on all tokens written before that step.
        prompt: Number of the prompt's tokens.

    Returns:
        float64 [...,T], 0 to 1; NaN at the first step, before which nothing was written.

    Source: Chuang et al. 2024, section 2.1.
    """
    written = np.arange(on_own.shape[-1], dtype=np.float64)
    context = on_prompt.astype(np.float64) / max(prompt, 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        new = on_own / written
        return np.asarray(np.where(written > 0, context / (context + new), np.nan))


__all__ = ["FORMULA", "SOURCE", "groups", "lookback"]
