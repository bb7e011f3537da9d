"""Scaling without a model: the arithmetic on given numbers, and the theory compared with random draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attnx.errors import UsageError
from attnx.formula import entropy, gradient_size, log_softmax
from attnx.records import Axis, Measurement
from attnx.wording import Wording

SOURCE = "Vaswani et al. 2017, section 3.2.1, footnote 4"
LARGEST = 1 << 14
"""The largest head size that can be drawn: 1024 queries of 32 keys are half a billion numbers, some seconds."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """The softmax of given numbers, before and after they are divided."""

    row: Measurement
    """[n,5]: number, divided, softmax of the numbers, softmax of the divided, difference."""
    summary: Measurement
    """[2,3]: entropy in nats, largest weight, 1 - sum a^2; unscaled and scaled."""


def numbers(values: Sequence[float], divide: float = 1.0) -> Numbers:
    """The softmax of numbers, and of the same numbers divided.

    Args:
        values: At least one; -inf is a hidden key.
        divide: The divisor, usually sqrt(d_k).

    Returns:
        See `Numbers`.

    Raises:
        UsageError: No numbers, a NaN or +inf, only -inf, or a divisor that is not positive.

    Source: Vaswani et al. 2017, equation 1.
    """
    given = np.asarray(list(values), np.float64)
    if given.size == 0:
        raise UsageError(
            "there are no numbers to take a softmax of",
            Wording("Give some: <attnx.measure.scaling_theory.numbers([8.2, 1.1, 2.0])>."),
        )
    if np.isnan(given).any() or np.isposinf(given).any() or np.isneginf(given).all():
        raise UsageError(
            "a softmax needs numbers; -inf hides a key, but one at least has to be finite",
            Wording("For example: <attnx.measure.scaling_theory.numbers([2, 1, 0])>."),
        )
    if not (np.isfinite(divide) and divide > 0):
        raise UsageError(f"scores cannot be divided by {divide:g}", "Use a positive number, such as 8 for d_k = 64.")
    with np.errstate(over="ignore"):  # the softmax is known even where the quotients are beyond all numbers
        small, apart = given / divide, (given - given.max()) / divide
    before, after = np.exp(log_softmax(given)), np.exp(log_softmax(apart))
    labels = tuple(str(at + 1) for at in range(len(given)))
    return Numbers(
        row=Measurement(
            name="softmax of numbers",
            unit="",
            axes=(
                Axis("number", labels),
                Axis("column", ("number", "divided", "softmax", "softmax of divided", "difference")),
            ),
            values=np.stack([given, small, before, after, after - before], axis=-1),
            source="Vaswani et al. 2017, equation 1",
            formula=f"exp(x) / sum exp(x), with x and with x / {divide:g}",
        ),
        summary=Measurement(
            name="softmax of numbers, summary",
            unit="",
            axes=(Axis("way", ("unscaled", "scaled")), Axis("measure", ("entropy", "largest weight", "gradient size"))),
            values=np.stack([np.stack([entropy(a), a.max(), gradient_size(a)]) for a in (before, after)]),
            bounds=(0.0, None),
            source=SOURCE,
            formula="-sum a ln a; max a; 1 - sum a^2",
        ),
    )


def theory(
    sizes: Sequence[int] = (2, 16, 64, 256), *, queries: int = 1024, keys: int = 32, seed: int = 0
) -> Measurement:
    """Unit-variance queries and keys of each size: the theory for their scores, compared with a random draw.

    For independent q and k with mean 0 and variance 1, Var(q.k) = d, so sd(q.k / sqrt(d)) = 1 for every d.

    Args:
        sizes: Head sizes d, each from 1 to `LARGEST`.
        queries: Queries drawn per size, each with its own keys.
        keys: Keys per query.
        seed: The same seed gives the same numbers.

    Returns:
        [sizes,12]: variance of q.k in theory and measured; standard deviation measured, and after dividing by sqrt(d)
        (theory: 1); then entropy (nats; ln keys at most), largest weight, saturated rows (largest > 0.99) and gradient
        size, each unscaled and scaled.

    Raises:
        UsageError: No sizes, or one that is below 1 or above `LARGEST`.

    Source: Vaswani et al. 2017, section 3.2.1, footnote 4.
    """
    if not sizes or any(not 1 <= size <= LARGEST for size in sizes):
        raise UsageError(
            f"head sizes have to be whole numbers from 1 to {LARGEST}",
            Wording("Try <attnx.measure.scaling_theory.theory([2, 16, 64, 256])>."),
        )
    lines = []
    for size in sizes:
        # One generator per size, so that a size gives the same numbers whatever other sizes there are.
        draw = np.random.default_rng([seed, size])
        score = np.empty((queries, keys))
        for at in range(queries):
            query, key = draw.standard_normal(size), draw.standard_normal((keys, size))
            score[at] = key @ query
        ways = [np.exp(log_softmax(score)), np.exp(log_softmax(score / np.sqrt(size)))]
        line = [float(size), score.var(), score.std(), (score / np.sqrt(size)).std()]
        line += [entropy(a).mean() for a in ways]
        line += [a.max(axis=-1).mean() for a in ways]
        line += [(a.max(axis=-1) > 0.99).mean() for a in ways]
        line += [gradient_size(a).mean() for a in ways]
        lines.append(line)
    pairs = ("entropy", "largest weight", "saturated rows", "gradient size")
    columns = (
        "Var(q·k) in theory", "Var(q·k) measured", "sd(q·k) measured", "sd(q·k/sqrt(d)) measured",
        *(f"{name} {way}" for name in pairs for way in ("unscaled", "scaled")),
    )  # fmt: skip
    return Measurement(
        name="scaling theory",
        unit="",
        axes=(Axis("d", tuple(str(size) for size in sizes)), Axis("column", columns)),
        values=np.array(lines, np.float64),
        source=SOURCE,
        formula=f"q, k ~ N(0, 1): Var(q·k) = d; {queries} queries of {keys} keys each, seed {seed}",
        notes=(f"the largest entropy possible is ln {keys} = {np.log(keys):.4f}",),
    )
