"""What a scan can measure in a text: a table of surveys, found by name.

A new survey is one new entry of `SURVEYS`. A single measure can also be requested by its name: "mean
distance" is the part of the survey "distance" with this name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from attnx.errors import UsageError
from attnx.measure import (
    REPEATS,
    confidence,
    describe_heads,
    distance,
    duplicate,
    entropy,
    induction,
    offsets,
    sinks,
    special,
)
from attnx.records import Measurement, Trace
from attnx.scan.coref import antecedents

Compute = Callable[[Trace, Mapping[str, Any]], Sequence[Measurement]]
"""A trace with the survey's arrays, and the fields of its row -> measurements: [layer], [layer, head], or these by
something in the text. Raises InputError if the fields do not fit the text, which this survey then leaves out."""


@dataclass(frozen=True, slots=True)
class Survey:
    """What is measured for every text of a corpus."""

    about: str
    """What it measures, in a few words."""
    compute: Compute
    batched: tuple[str, ...] = ()
    """The names of its measures, which `attnx.study.batch_head_stats` computes for a whole batch; or ()."""
    required: tuple[str, ...] = ()
    """Fields that a row of the corpus must have in addition to its text."""
    optional: tuple[str, ...] = ()
    """Fields that a row may have."""
    arrays: tuple[str, ...] = ("masked", "weights")
    """The quantities it needs from every site."""


def _sinks(trace: Trace) -> tuple[Measurement, ...]:
    found = sinks.sinks(trace)
    return found.first, found.strongest, found.token


def _of_heads(about: str, batched: tuple[str, ...], measure: Callable[[Trace], Sequence[Measurement]]) -> Survey:
    """A survey that only needs the text of a row."""
    return Survey(about, lambda trace, fields: measure(trace), batched)


SURVEYS: Mapping[str, Survey] = {
    "heads": _of_heads(
        "all of entropy, distance, place, tokens, sharpness and repeats, and the sink on the first token",
        (
            "entropy", "entropy share", "mean distance", "locality", "confidence", "largest weight", "previous", "next",
            "self", "first", "special", "punctuation", "sink", "duplicate", "induction",
        ),
        lambda trace: describe_heads(trace, rest=False).measures,
    ),
    "coref": Survey(
        "weight from a pronoun to candidates; fields pronoun, candidates, and answer where it is known",
        antecedents,
        required=("pronoun", "candidates"),
        optional=("answer",),
    ),
    "distance": _of_heads(
        "mean distance, and the weight within two tokens",
        ("mean distance", "locality"),
        lambda trace: (distance.mean_distance(trace), distance.locality(trace)),
    ),
    "entropy": _of_heads(
        "entropy, and its share of the most possible",
        ("entropy", "entropy share"),
        lambda trace: (entropy.entropy(trace), entropy.entropy_share(trace)),
    ),
    "place": _of_heads(
        "weight on the previous, the next, the own and the first token",
        ("previous", "next", "self", "first"),
        lambda trace: (*(offsets.offset(trace, delta) for delta in (-1, 1, 0)), offsets.first(trace)),
    ),
    "repeats": _of_heads(
        "weight on earlier copies of a token (duplicate), and on what followed them (induction)",
        ("duplicate", "induction"),
        lambda trace: (duplicate.duplicate(trace), induction.induction(trace, REPEATS)),
    ),
    "sharpness": _of_heads(
        "largest weight, and the same without special tokens (confidence)",
        ("confidence", "largest weight"),
        lambda trace: (confidence.confidence(trace), confidence.largest(trace)),
    ),
    "sinks": _of_heads(
        "importance of the first token, and the share and position of the key that gathers most",
        ("sink", "strongest key", "strongest key position"),
        _sinks,
    ),
    "tokens": _of_heads(
        "weight on special tokens and on punctuation",
        ("special", "punctuation"),
        lambda trace: (special.special(trace), special.punctuation(trace)),
    ),
}  # fmt: skip


def names() -> tuple[str, ...]:
    """The available surveys: "heads" first."""
    return tuple(SURVEYS)


def about() -> str:
    """All surveys with what they measure, one line each."""
    return "\n".join(f"{name}: {survey.about}" for name, survey in SURVEYS.items())


def measures() -> dict[str, str]:
    """The measures that can be requested by name, each with the narrowest survey that includes it."""
    widest_first = sorted(SURVEYS.items(), key=lambda entry: -len(entry[1].batched))
    return {measure: name for name, survey in widest_first for measure in survey.batched}


def canonical(name: str) -> str:
    """The canonical name of a survey or a measure: hyphens and underscores may replace spaces; case does not matter.

    Raises:
        UsageError: There is none with that name.
    """
    plain = " ".join(name.lower().replace("-", " ").replace("_", " ").split())
    single = measures()
    if plain in SURVEYS or plain in single:
        return plain
    from difflib import get_close_matches

    near = get_close_matches(plain, (*SURVEYS, *single), 1)
    guess = f"Did you mean {near[0]!r}? " if near else ""
    raise UsageError(
        f"scan measures no {name!r}",
        f"{guess}Choose from {', '.join(SURVEYS)}; or a single measure: {', '.join(SURVEYS['heads'].batched)}.",
    )


def load(name: str) -> Survey:
    """A survey, or one measure of it, by its name (see `canonical`).

    Raises:
        UsageError: There is none with that name.
    """
    plain = name if name in SURVEYS else canonical(name)
    return SURVEYS[plain] if plain in SURVEYS else _single(SURVEYS[measures()[plain]], plain)


def _single(whole: Survey, name: str) -> Survey:
    """One measure of a survey, as a survey."""

    def compute(trace: Trace, fields: Mapping[str, Any]) -> Sequence[Measurement]:
        return [one for one in whole.compute(trace, fields) if one.name == name]

    return replace(whole, about=name, batched=(name,), compute=compute)
