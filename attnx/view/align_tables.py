"""Alignments as tables: links between words, and how far alignments are from gold ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from attnx.formula import average
from attnx.numerals import counted
from attnx.records import Array, Axis, Measurement
from attnx.view.columns import Columns, column, columns
from attnx.view.matrix import Matrix, of_measurement

if TYPE_CHECKING:
    from attnx.measure.alignment_error import Errors


def links(
    words: tuple[Sequence[str], Sequence[str]],
    linked: Sequence[tuple[int, int]],
    weights: Sequence[tuple[str, Array]],
    *,
    title: str,
    said: Sequence[str] = (),
) -> Columns:
    """A line for each link, in the order of the target; words without one last.

    Args:
        words: Source and target.
        linked: Pairs of source and target word.
        weights: A column each: its name, and the weight of each target word on each source word, [T,S].
        title: Stands above.
        said: Lines under the table.
    """
    source, target = words
    rows = sorted(linked, key=lambda link: (link[1], link[0]))
    free = [at for at in range(len(target)) if at not in {t for _, t in rows}]
    alone = [at for at in range(len(source)) if at not in {s for s, _ in rows}]
    left = [
        f"no link: {side} {', '.join(f'{at} {named[at]}' for at in some)}"
        for side, named, some in (("target", target, free), ("source", source, alone))
        if some
    ]
    return columns(
        title,
        [
            column("target", [f"{t} {target[t]}" for _, t in rows]),
            column("source", [f"{s} {source[s]}" for s, _ in rows]),
            *(column(name, [of[t, s] for s, t in rows], bar=(0.0, 1.0)) for name, of in weights),
        ],
        notes=[*left, *said],
    )


def linked_matrix(
    words: tuple[Sequence[str], Sequence[str]], weights: Array, linked: Sequence[tuple[int, int]] | None, title: str
) -> Matrix:
    """The weights of target words on source words, [T,S]; of links alone where these are given."""
    source, target = words
    axes = (Axis("target", tuple(target)), Axis("source", tuple(source)))
    made = of_measurement(Measurement("cross-attention", "share", axes, np.asarray(weights), (0.0, 1.0)))
    hidden = np.full(weights.shape, linked is not None)
    for s, t in linked or ():
        hidden[t, s] = False
    return replace(made, hidden=hidden, title=title)


def errors(model: str, name: str, found: Errors, *, explain: bool) -> Columns:
    """Error rates by method with their intervals; the formula if `explain`."""
    values, layers = found.methods.values, found.heads.axes[0].labels
    chosen = ", ".join(f"{layers[s]} H{h}" for s, h in found.chosen)
    picked = ", ".join(layers[s] for s in found.chosen_layers)
    formula = f"AER = {found.heads.formula} ({found.heads.source})"
    return columns(
        f"{model} on {name}: {counted(found.sentences, 'sentence')}",
        [
            column("method", found.methods.axes[0].labels, whole=True),
            column("AER", values[:, 0], bar=(0.0, 1.0)),
            column("95% interval", [f"{low:.3f} to {high:.3f}" for low, high in values[:, 1:3]], whole=True),
            column("precision", values[:, 3]),
            column("recall", values[:, 4]),
        ],
        notes=[
            f"chosen on one half, judged on the other: heads {chosen}; layers {picked}" if chosen else "",
            *found.notes,
        ],
        explained=[formula] if explain else [],
        gap=1,  # all on 80 columns
    )


def best_heads(found: Errors, count: int, more: Callable[[int], str]) -> Columns:
    """The heads with the smallest error rates, after the fact; `more` says how the others are seen."""
    layers = found.heads.axes[0].labels
    flat = np.nan_to_num(found.heads.values, nan=np.inf)
    best = [divmod(int(at), flat.shape[1]) for at in np.argsort(flat, axis=None, kind="stable")[:count]]
    return columns(
        "the best heads, after the fact",
        [
            column("head", [f"{layers[s]} H{h}" for s, h in best], whole=True),
            column("AER", [found.heads.values[at] for at in best], bar=(0.0, 1.0)),
            column("layer mean", [found.layers.values[s] for s, _ in best]),
        ],
        notes=[more(found.heads.values.size - len(best))],
    )


def timed(words: Sequence[tuple[str, float, float]], heads: str, *, explain: bool) -> Columns:
    """Each word with the seconds at which it begins and ends; how they were found if `explain`."""
    how = f"by dynamic time warping over the cross-attention of {heads} (openai-whisper, transformers)"
    return columns(
        "",
        [
            column("start", [f"{start:.2f}" for _, start, _ in words], whole=True),
            column("end", [f"{end:.2f}" for *_, end in words], whole=True),
            column("word", [text.strip() for text, *_ in words]),
        ],
        explained=[f"seconds; {how}"] if explain else [],
    )


_SPANS = "share of the weight on all spans; times its length: that share by its share of their tokens"


def spans(
    named: Sequence[tuple[str, str]], shares: Array, sizes: Sequence[int], said: Sequence[str], *, explain: bool = True
) -> Columns:
    """The spans of a prompt: each one's share of the weight on all of them, and that share relative to its length."""
    total = sum(sizes)
    over = [share * total / size if size else np.nan for share, size in zip(shares, sizes, strict=True)]
    return columns(
        "what was read of the prompt",
        [
            column("span", [name for name, _ in named], whole=True),
            column("share", shares, bar=(0.0, 1.0)),
            column("times its length", over, decimals=2),
            column("tokens", [str(size) for size in sizes]),
            column("text", [" ".join(text.split()) for _, text in named]),
        ],
        notes=said,
        explained=[_SPANS] if explain else [],
    )


def units(rows: Sequence[tuple[str, Array, float]], names: Sequence[str], by: str, *, explain: bool = True) -> Columns:
    """The parts of an answer: the span that each relied on most, and where the rest of its weight went.

    Args:
        rows: Its text; its weight on each span, on the rest of the prompt, on sinks and on the model's own words;
            its lookback ratio.
        names: Of the spans.
        by: What the parts are.
    """
    count = len(names)
    best = [int(np.argmax(w[:count])) if count and w[:count].sum() > 0 else -1 for _, w, _ in rows]
    weights = [w[at] if at >= 0 else np.nan for at, (_, w, _) in zip(best, rows, strict=True)]
    return columns(
        f"what was written, by {by}" if by != "whole" else "what was written",
        [
            column("written", [" ".join(text.split()) for text, *_ in rows]),
            column("leans on", [names[at] if at >= 0 else "-" for at in best], whole=True),
            column("weight", weights, bar=(0.0, 1.0)),
            column("prompt", [w[: count + 1].sum() for _, w, _ in rows], decimals=2),
            column("sinks", [w[-2] for _, w, _ in rows], decimals=2),
            column("own", [w[-1] for _, w, _ in rows], decimals=2),
            column("lookback", [ratio for *_, ratio in rows], decimals=2),
        ],
        explained=["sinks: the first token and special tokens; own: what the model had written before"] * explain,
    )


def lookback(
    ratios: Measurement, count: int, said: Sequence[str], more: Callable[[int], str], *, explain: bool = True
) -> Columns:
    """The heads that look back most, and least, over all steps; `more` says how the others are seen."""
    means = average(ratios.values, axis=-1)
    layers, heads = (axis.labels for axis in ratios.axes[:2])
    ranked = np.argsort(-np.nan_to_num(means, nan=-1.0), axis=None, kind="stable")
    order = [at for at in (divmod(int(n), means.shape[1]) for n in ranked) if not np.isnan(means[at])]
    kept = order if len(order) <= count else [*order[: -(-count // 2)], *order[len(order) - count // 2 :]]
    whole = f"{np.nanmean(means):.3f} over all heads" if order else "nothing was written before a single token"
    return columns(
        f"lookback ratio: {whole}",
        [
            column("head", [f"{layers[s]} {heads[h]}" for s, h in kept], whole=True),
            column("mean over steps", [means[at] for at in kept], bar=(0.0, 1.0)),
        ],
        notes=[*said, more(len(order) - len(kept))],
        explained=[f"{ratios.formula} ({ratios.source})"] if explain else [],
    )


__all__ = ["best_heads", "errors", "linked_matrix", "links", "lookback", "spans", "timed", "units"]
