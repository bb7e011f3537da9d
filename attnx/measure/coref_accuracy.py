"""Coreference over a dataset: how often every head is right, the best chosen on one half and tested on the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from attnx.errors import InputError
from attnx.formula import average
from attnx.measure.resampling import halves, interval, redrawn
from attnx.numerals import counted
from attnx.records import Array, Axis, Measurement

SOURCE = "Clark et al. 2019, section 4.3 (accuracy of a head); the split and the intervals: attnx"
STATISTICS = ("accuracy", "low", "high", "pairs right")


@dataclass(frozen=True, slots=True)
class Judged:
    """One example and the weights that a model's heads give its candidates."""

    weights: Array
    """[S,H,C]: weight of every head to every candidate; NaN for one that cannot be seen."""
    answer: int
    """Index of the right candidate."""
    group: str
    """Examples of one minimal pair share it; a group is never split between the halves."""
    others: Mapping[str, Array] = field(default_factory=dict)
    """Other ways to choose, [C] each: "nearest", "first", "rollout", ...; the same names in every example."""


@dataclass(frozen=True, slots=True)
class Accuracy:
    """How often heads and other methods are right."""

    heads: Measurement
    """[S,H]: accuracy of every head over all examples. Its maximum is chosen after the fact: see `methods`."""
    layers: Measurement
    """[S]: accuracy of the mean of each layer's heads."""
    methods: Measurement
    """[M,4]: accuracy, lower and upper end of the 95% interval, share of groups that are all correct."""
    chosen: tuple[tuple[int, int], ...]
    """(layer position, head) chosen on the first and on the second half."""
    examples: int
    groups: int
    notes: tuple[str, ...] = ()


def accuracy(
    examples: Sequence[Judged], layers: Sequence[str], *, seed: int = 0, draws: int = 2000, level: float = 0.95
) -> Accuracy:
    """Accuracy of every head and of heads chosen on held-out data, with bootstrap intervals.

    The groups are shuffled and cut in two; the head most often right on one half is tested on the other, both ways, so
    that every example is judged by a head chosen without it. Tied candidates share the credit, so a head that sees
    nothing scores at chance. Intervals are percentiles over groups drawn with replacement.

    Args:
        examples: Examples from at least two groups.
        layers: S labels.
        seed: The same seed gives the same halves and intervals.
        draws: Bootstrap draws.
        level: Confidence level of the intervals.

    Returns:
        See `Accuracy`; shares of examples. Methods: "best head, chosen on the other half", "mean of all heads",
        "best layer mean, chosen on the other half", the `others`, "uniform".

    Raises:
        InputError: Fewer than two groups, an answer that is not a candidate, or examples from different models.

    Source: Clark et al. 2019, section 4.3; bootstrap Efron and Tibshirani 1993, chapter 13.
    """
    groups = _check(examples)
    heads = np.stack([_credit(one.weights, one.answer) for one in examples])
    means = np.stack([_credit(average(one.weights, axis=1), one.answer) for one in examples])
    names = list(dict.fromkeys(one.group for one in examples))
    both = halves(groups, seed)
    rows: dict[str, Array] = {}
    rows["best head, chosen on the other half"], picks = _held_out(heads.reshape(len(examples), -1), both)
    rows["best layer mean, chosen on the other half"], _ = _held_out(means, both)
    rows["mean of all heads"] = np.array([_credit(average(one.weights, axis=(0, 1)), one.answer) for one in examples])
    for name in examples[0].others:
        rows[name] = np.array([_credit(np.asarray(one.others[name]), one.answer) for one in examples])
    rows["uniform"] = np.array([1.0 / one.weights.shape[-1] for one in examples])
    sample = redrawn(len(names), draws, seed)
    values = np.array([_interval(credit, groups, sample, level) for credit in rows.values()])
    chosen = tuple((int(at) // heads.shape[2], int(at) % heads.shape[2]) for at in picks)
    layer = Axis("layer", tuple(layers))
    return Accuracy(
        heads=_measured(
            "coreference accuracy", (layer, Axis("head", _numbers(heads.shape[2]))), average(heads, axis=0)
        ),
        layers=_measured("coreference accuracy, layer means", (layer,), average(means, axis=0)),
        methods=_measured(
            "coreference accuracy by method", (Axis("method", tuple(rows)), Axis("statistic", STATISTICS)), values
        ),
        chosen=chosen,
        examples=len(examples),
        groups=len(names),
        notes=(
            f"{level:.0%} intervals: {draws} bootstrap draws over {counted(len(names), 'group')}, seed {seed}",
            "the best of many heads over all examples is chosen after the fact: trust the one chosen on the other half",
        ),
    )


def _check(examples: Sequence[Judged]) -> Array:
    """Index of each example's group, [N]; raises for what cannot be measured."""
    names = list(dict.fromkeys(one.group for one in examples))
    if len(names) < 2:
        raise InputError(
            f"{counted(len(names), 'group')} of examples cannot be cut in two halves",
            "Give a dataset with two pairs or more.",
        )
    for one in examples:
        if one.weights.shape[:2] != examples[0].weights.shape[:2] or one.others.keys() != examples[0].others.keys():
            raise InputError("the examples were measured with different models or methods")
        if one.weights.shape[-1] < 2:
            raise InputError("an example has one candidate, so that any method is right", "Leave it out.")
        if not 0 <= one.answer < one.weights.shape[-1]:
            raise InputError(f"answer {one.answer} is not one of {one.weights.shape[-1]} candidates")
    return np.array([names.index(one.group) for one in examples])


def _credit(weights: Array, answer: int) -> Array:
    """1 if the answer has the largest weight, shared if candidates tie, otherwise 0: [...,C] to [...].

    A NaN counts as less than any weight. If every candidate is NaN, all tie.
    """
    filled = np.where(np.isnan(weights), -1.0, weights)
    level = filled == filled.max(axis=-1, keepdims=True)
    return np.asarray(np.where(level[..., answer], 1.0 / level.sum(axis=-1), 0.0))


def _held_out(credit: Array, both: tuple[Array, Array]) -> tuple[Array, tuple[int, int]]:
    """Reduce credit [N,M] of M methods to that of the best on the other half, [N]; and the two chosen methods."""
    out, picks = np.zeros(len(credit)), []
    for train, test in (both, both[::-1]):
        pick = int(np.argmax(credit[train].mean(axis=0)))
        out[test] = credit[test, pick]
        picks.append(pick)
    return out, (picks[0], picks[1])


def _interval(credit: Array, groups: Array, sample: Array, level: float) -> list[float]:
    """Accuracy, its interval over groups drawn with replacement, and the share of groups that are all correct."""
    count = np.bincount(groups).astype(np.float64)
    total = np.bincount(groups, weights=credit)
    drawn = total[sample].sum(axis=1) / count[sample].sum(axis=1)
    low, high = interval(drawn, level)
    return [float(credit.mean()), float(low), float(high), float((total == count).mean())]


def _numbers(count: int) -> tuple[str, ...]:
    return tuple(f"H{at}" for at in range(count))


def _measured(name: str, axes: tuple[Axis, ...], values: Array) -> Measurement:
    return Measurement(
        name, "share", axes, values, (0.0, 1.0), SOURCE, "share of examples whose answer has the most weight"
    )
