"""A text and its translation in a translation model: the weight of every target word on every source word."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from attnx.errors import InputError, UsageError
from attnx.formula import average
from attnx.measure import alignment_error, links
from attnx.measure.alignment_error import Counted, Errors, Gold
from attnx.measure.words import merge
from attnx.numerals import counted
from attnx.records import Array, Axis, Measurement, Trace
from attnx.run.axis_tokens import in_place
from attnx.run.encdec import target_tokens
from attnx.run.generate import Plan
from attnx.run.prompt import Prompt
from attnx.session.memory import LARGE
from attnx.session.protocol import OpenModel
from attnx.study.crossing import cross, cross_sites, summed
from attnx.study.request import Head
from attnx.tokens.spaced import Cut, Words, readers
from attnx.wording import Wording

When = Literal["read", "written"]
WHENS: tuple[When, ...] = ("read", "written")
"""Which row represents a target word: the one that reads it, or the one before, which writes it."""


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """A source, its translation, and the cross-attention between them."""

    trace: Trace
    source: Words
    target: Words
    weights: Measurement
    """[L,H,T,S]: rows are the mean over a word's pieces, columns the sum."""
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Chosen:
    """The heads whose mean is read."""

    weights: Array
    """float64 [T,S]."""
    where: str
    """ "L3", "L3 H5", "all 48 heads"."""
    notes: tuple[str, ...] = ()


def pair(
    model: OpenModel,
    prompt: Prompt,
    cut: Cut = readers,
    when: When = "read",
    layers: Collection[int] | None = None,
) -> Pair:
    """Run a translation model on a text and its translation, which it writes itself if none is given.

    For a long text, each row is summed over source words inside the graph, so that no head's matrix leaves it.

    Args:
        model: An encoder-decoder.
        prompt: A text, and its `target` or how to `generate` it.
        cut: What counts as a word.
        when: Which row represents a target word.
        layers: Only these layers.

    Raises:
        InputError: Nothing was written.
    """
    layers = _layers(model, layers)
    found = _reduced(model, prompt, cut, layers)
    sums: list[Array] | None = None
    if found is None:
        trace, doubts = cross(model, prompt, layers)
        in_place([a.site for a in trace.attentions])
    else:
        trace, sums, doubts = found
    if trace.memory is None:
        raise InputError(
            f"what the encoder of {model.name} reads is not known", Wording("Give it a text[, or ids (<tokens>)].")
        )
    source, target = cut(trace.memory), cut(trace.tokens)
    if not any(pieces for _, pieces in target):
        raise InputError(f"{model.name} wrote no word", Wording("Give the translation: <target=>."))
    back = 0 if when == "read" else 1
    rows = [[at - back for at in pieces if at >= back] for _, pieces in target]
    columns = [list(pieces) for _, pieces in source]
    if sums is None:
        parts = [merge(a.need("weights")[0], rows, columns) for a in trace.attentions]
    else:
        parts = [merge(one, rows, None) for one in sums]
    heads = max(len(part) for part in parts)
    stacked = np.full((len(parts), heads, len(rows), len(columns)), np.nan)
    for layer, part in enumerate(parts):
        stacked[layer, : len(part)] = part
    axes = (
        Axis("layer", trace.labels),
        Axis("head", tuple(f"H{at}" for at in range(heads))),
        Axis("target word", tuple(word for word, _ in target)),
        Axis("source word", tuple(word for word, _ in source)),
    )
    measured = Measurement(
        "cross-attention by words", "share", axes, stacked, (0.0, 1.0), "Clark et al. 2019, section 4.1",
        "from a word the mean over its pieces, to a word the sum; special tokens left out",
    )  # fmt: skip
    return Pair(trace, source, target, measured, doubts)


def _layers(model: OpenModel, layers: Collection[int] | None) -> Collection[int] | None:
    """The layers that need running; all if a wanted one does not exist, which `choose` then reports."""
    have = {site.layer for site in cross_sites(model)}
    return layers if layers is not None and have.issuperset(layers) else None


def _reduced(
    model: OpenModel, prompt: Prompt, cut: Cut, layers: Collection[int] | None
) -> tuple[Trace, list[Array], tuple[str, ...]] | None:
    """The trace and each site's weights on source words, [H,T,S], if the text is long and the graph allows it."""
    memory = next(iter(prompt.encode(model)), None)
    if memory is None:
        return None
    if prompt.target is not None:
        length = len(target_tokens(model, prompt.target))
    else:
        length = prompt.generate.count if isinstance(prompt.generate, Plan) else prompt.generate or 0
    heads = sum(site.heads or 1 for site in cross_sites(model) if layers is None or site.layer in layers)
    if 4 * heads * length * len(memory) <= LARGE:
        return None
    return summed(model, prompt, [pieces for _, pieces in cut(memory)], len(memory), layers)


def choose(one: Pair, heads: Sequence[Head] = (), layers: Sequence[int] | None = None, every: bool = False) -> Chosen:
    """The mean over the requested heads; by default over the layer that agrees best with itself.

    Args:
        one: From `pair`.
        heads: Heads; a head without a layer means that head in every layer.
        layers: Only these layers.
        every: All heads of all layers.

    Raises:
        UsageError: There is no such head or layer.
    """
    weights, labels = one.weights.values, one.weights.axes[0].labels
    have = [a.site.layer for a in one.trace.attentions]
    for layer in (*(layers or ()), *(h.layer for h in heads if h.layer is not None)):
        if layer not in have:
            said = f"The cross-attention has layers {', '.join(str(at) for at in have)}."
            raise UsageError(f"there is no layer {layer}", said)
    kept = [at for at, layer in enumerate(have) if layers is None or layer in layers]
    if heads:
        picked = [(at, h.head) for h in heads for at in kept if h.layer in (None, have[at])]
        for at, head in picked:
            if head >= (count := int((~np.isnan(weights[at]).all(axis=(1, 2))).sum())):
                raise UsageError(f"there is no head {head}", f"{labels[at]} has heads 0 to {count - 1}.")
        if not picked:
            raise UsageError(
                Wording("<heads> names no head of the layers that <layers> leaves"), "Leave one of them out."
            )
        where = " ".join(f"{labels[at]} H{head}" for at, head in picked)
        return Chosen(np.mean([weights[at, head] for at, head in picked], axis=0), where)
    if layers is not None or every:
        flat = weights[kept].reshape(-1, *weights.shape[2:])
        count = int((~np.isnan(flat).all(axis=(1, 2))).sum())
        where = labels[kept[0]] if len(kept) == 1 else f"{counted(count, 'head')} of {counted(len(kept), 'layer')}"
        return Chosen(average(flat, axis=0), where)
    means = average(weights, axis=1)
    agreed = links.agreement(means)
    best = int(np.argmax(agreed))
    note = (
        f"{labels[best]} is read: of all layers the mean of its heads agrees best with itself from source to target "
        f"and back ({agreed[best]:.2f}; the layers: {agreed.min():.2f} to {agreed.max():.2f})"
    )
    return Chosen(means[best], labels[best], (note,))


def both_ways(forward: Array, backward: Array, how: links.How) -> Array:
    """Links from two models, one per direction.

    Args:
        forward: [T,S], from the model that writes the target.
        backward: [S,T], from the model that writes the source.
        how: How to combine them; see `links.symmetrise`.

    Raises:
        InputError: The words differ.
    """
    if forward.shape != backward.shape[::-1]:
        raise InputError(
            f"the two models read different texts: {forward.shape[::-1]} and {backward.shape} words",
            "Neither text may be longer than its model takes.",
        )
    return links.symmetrise(links.strongest(forward), links.strongest(backward).T, how)


def judge(
    pairs: Iterable[Pair], gold: Sequence[Gold], tell: Callable[[int], None] = lambda _: None
) -> tuple[Errors, tuple[str, ...]]:
    """Score every head, layer and method against gold links.

    Args:
        pairs: One for each line of `gold`, with words separated by spaces.
        gold: The links.
        tell: Called with the number of finished sentences.

    Returns:
        The error rates, and notes.

    Raises:
        InputError: A gold link to a word that does not exist.
    """
    counted: list[Counted] = []
    labels: tuple[str, ...] = ()
    said: dict[str, None] = {}
    for number, (one, want) in enumerate(zip(pairs, gold, strict=True), 1):
        weights = one.weights.values
        try:
            sure, possible = want.matrices(*weights.shape[2:])
        except InputError as error:
            raise InputError(Wording("line {n}: {what}", n=number, what=error.message), error.hint) from None
        means = average(weights, axis=1)
        others = {
            "layer that agrees best with itself": means[int(np.argmax(links.agreement(means)))],
            "mean of all heads": average(weights, axis=(0, 1)),
            "baseline: diagonal": _diagonal(*weights.shape[2:]),
        }
        counted.append(
            Counted(
                heads=alignment_error.count(links.strongest(weights), sure, possible),
                layers=alignment_error.count(links.strongest(means), sure, possible),
                others={k: alignment_error.count(links.strongest(v), sure, possible) for k, v in others.items()},
                sure=int(sure.sum()),
            )
        )
        labels = one.weights.axes[0].labels
        said |= dict.fromkeys(one.notes)
        tell(number)
    return alignment_error.errors(counted, labels), tuple(said)


def _diagonal(targets: int, sources: int) -> Array:
    """A model-free baseline, [T,S]: weight on the source word at the same relative position as the target word."""
    at = np.minimum((np.arange(targets) + 0.5) * sources / max(targets, 1), sources - 1).astype(int)
    return np.asarray(np.arange(sources) == at[:, None], np.float64)


__all__ = ["WHENS", "Chosen", "Pair", "When", "both_ways", "choose", "judge", "pair"]
