"""Coreference: where every head looks from a pronoun, among candidates that the corpus gives with each text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from attnx.errors import AttnxError, InputError
from attnx.measure.coreference import coreference
from attnx.numerals import whole, whole_of
from attnx.records import Array, Axis, Measurement, Tokens, Trace
from attnx.study.antecedents import text_of
from attnx.study.mentioned import mentions
from attnx.tokens.spans import Mention, mention

SOURCE = "Clark et al. 2019, section 4.3"


def antecedents(trace: Trace, fields: Mapping[str, Any]) -> Sequence[Measurement]:
    """Weight and share of every candidate, the margin, and whether the answer has the most weight.

    Args:
        trace: With weights; masked distinguishes hidden keys from keys without weight.
        fields: `pronoun`: a word of the text, "it@10" for the one at that position, or [start, end] in characters;
            `candidates`: a list of these, or "animal,street"; `answer`: the right candidate, as a word or an index. In
            CSV, lists are written as JSON: "[43, 45]".

    Returns:
        coreference weight and share [S,H,C], coreference margin [S,H], and with an answer coreference accuracy [S,H]:
        1 if it has the most weight, 1/k if it ties with k - 1 others, otherwise 0.

    Raises:
        InputError: A field does not fit the text.

    Source: Clark et al. 2019, sections 4.1 and 4.3; see `measure.coreference`.
    """
    text = text_of(trace)
    pronoun = _one(text, _parsed(fields["pronoun"]), "pronoun")
    value = _parsed(fields["candidates"])
    if isinstance(value, str):
        value = [word for word in value.split(",") if word.strip()]
    if not isinstance(value, list) or not value:
        raise InputError(f"candidates are {value!r}, and a list of words or of [start, end] was expected")
    there = [_one(text, one, "candidate") for one in value]
    for at, one in enumerate(there):
        if any(set(one.pieces) & set(other.pieces) for other in there[:at]):
            raise InputError(f"the candidate {_named(one)} shares tokens with another", "Name each of them once.")
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
        index = _index(answer, there)
        if len(there) < 2:
            raise InputError("one candidate is always the answer", "Give all that could be meant, or no answer.")
        right = _credit(found.weights.values, index)
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


def _one(text: Tokens, value: Any, what: str) -> Mention:
    """The single place in the text that is meant."""
    if isinstance(value, (list, tuple)) and len(value) == 2 and not any(isinstance(end, str) for end in value):
        start, end = (whole_of(end) for end in value)
        if start is None or end is None or not 0 <= start < end <= len(text.text):
            raise InputError(f"the {what} {list(value)} does not lie in a text of {len(text.text)} characters")
        return mention(text, start, end)
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"the {what} is {value!r}, and a word or [start, end] was expected")
    try:
        found = mentions(text, value.strip())
    except AttnxError as error:
        raise InputError(error.message) from None
    if len(found) > 1:
        raise InputError(f"the {what} {value!r} occurs {len(found)} times", "Give [start, end] in characters.")
    return found[0]


def _named(one: Mention) -> str:
    return f"{one.text}@{one.pieces[0]}"


def _index(answer: Any, there: Sequence[Mention]) -> int:
    words = [one.text.lower() for one in there]
    at = whole(answer) if isinstance(answer, str) else whole_of(answer)
    if isinstance(answer, str) and at is None:
        if answer.strip().lower() not in words:
            raise InputError(f"the answer {answer!r} is none of the candidates {', '.join(words)}")
        return words.index(answer.strip().lower())
    if at is None or at >= len(there):
        raise InputError(f"the answer {answer!r} is none of {len(there)} candidates, from 0")
    return at


def _credit(weights: Array, answer: int) -> Array:
    """1 if the answer has the largest weight, shared if candidates tie, otherwise 0; NaN if none is visible."""
    filled = np.where(np.isnan(weights), -1.0, weights)
    level = filled == filled.max(axis=-1, keepdims=True)
    credit = np.where(level[..., answer], 1.0 / level.sum(axis=-1), 0.0)
    return np.asarray(np.where(np.isnan(weights).all(axis=-1), np.nan, credit))
