"""Coreference: where every head looks from a pronoun, among candidates that the corpus names beside each text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from attnx.errors import AttnxError, InputError
from attnx.measure.coreference import coreference
from attnx.records import Array, Axis, Measurement, Tokens, Trace
from attnx.study.antecedents import text_of
from attnx.study.mentioned import mentions
from attnx.tokens.spans import Mention, mention

SOURCE = "Clark et al. 2019, section 4.3"


def antecedents(trace: Trace, fields: Mapping[str, Any]) -> Sequence[Measurement]:
    """Weight and share of every candidate, the margin, and whether the answer has the most weight.

    Args:
        trace: With weights; masked tells hidden keys from keys of no weight.
        fields: `pronoun`: a word of the text, "it@10" for the one at that position, or [start, end] in characters;
            `candidates`: a list of such, or "animal,street"; `answer`: the right candidate, as a word or an index. In
            CSV lists stand as JSON: "[43, 45]".

    Returns:
        coreference weight and share [S,H,C], coreference margin [S,H], and with an answer coreference accuracy [S,H]:
        1 where it has the most weight, 1/k where it is level with k - 1 others, else 0.

    Raises:
        InputError: A field does not fit the text.

    Source: Clark et al. 2019, sections 4.1 and 4.3; see `measure.coreference`.
    """
    text = text_of(trace)
    pronoun = _one(text, _parsed(fields["pronoun"]), "pronoun")
    said = _parsed(fields["candidates"])
    if isinstance(said, str):
        said = [word for word in said.split(",") if word.strip()]
    if not isinstance(said, list) or not said:
        raise InputError(f"candidates are {said!r}, and a list of words or of [start, end] was expected")
    there = [_one(text, one, "candidate") for one in said]
    try:
        found = coreference(trace, pronoun, there, tokens=text)
    except InputError:
        raise
    except AttnxError as error:
        raise InputError(error.message) from None
    labels = tuple(f"{_named(pronoun)} → {_named(one)}" for one in there)
    out = [replace(one, axes=(*one.axes[:2], Axis("candidate", labels))) for one in (found.weights, found.shares)] + [
        replace(found.margin, name="coreference margin")
    ]
    answer = fields.get("answer")
    if answer is not None and answer != "":
        right = _credit(found.weights.values, _index(answer, there))
        formula = "1 where the answer has the most weight; level candidates share it"
        out.append(
            Measurement("coreference accuracy", "share", found.weights.axes[:2], right, (0.0, 1.0), SOURCE, formula)
        )
    return out


def _parsed(value: Any) -> Any:
    """A field of CSV that holds a list, or the value itself."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            return json.loads(value)
        except ValueError:
            raise InputError(f"{value!r} is not a list that can be read", "Write it as JSON: [43, 45].") from None
    return value


def _one(text: Tokens, said: Any, what: str) -> Mention:
    """The one place in the text that is meant."""
    if isinstance(said, (list, tuple)) and len(said) == 2 and all(isinstance(n, int) for n in said):
        start, end = said
        if not 0 <= start < end <= len(text.text):
            raise InputError(f"the {what} {list(said)} is no stretch of a text of {len(text.text)} characters")
        return mention(text, start, end)
    if not isinstance(said, str) or not said.strip():
        raise InputError(f"the {what} is {said!r}, and a word or [start, end] was expected")
    try:
        found = mentions(text, said.strip())
    except AttnxError as error:
        raise InputError(error.message) from None
    if len(found) > 1:
        raise InputError(f"the {what} {said!r} stands there {len(found)} times", "Give [start, end] in characters.")
    return found[0]


def _named(one: Mention) -> str:
    return f"{one.text}@{one.pieces[0]}"


def _index(answer: Any, there: Sequence[Mention]) -> int:
    words = [one.text.lower() for one in there]
    if isinstance(answer, str) and not answer.strip().isdigit():
        if answer.strip().lower() not in words:
            raise InputError(f"the answer {answer!r} is none of the candidates {', '.join(words)}")
        return words.index(answer.strip().lower())
    try:
        at = int(answer)
    except (TypeError, ValueError):
        at = -1
    if not 0 <= at < len(there):
        raise InputError(f"the answer {answer!r} is none of {len(there)} candidates, from 0")
    return at


def _credit(weights: Array, answer: int) -> Array:
    """1 where the answer has the largest weight, shared where candidates are level, else 0; NaN where none is seen."""
    filled = np.where(np.isnan(weights), -1.0, weights)
    level = filled == filled.max(axis=-1, keepdims=True)
    credit = np.where(level[..., answer], 1.0 / level.sum(axis=-1), 0.0)
    return np.asarray(np.where(np.isnan(weights).all(axis=-1), np.nan, credit))
