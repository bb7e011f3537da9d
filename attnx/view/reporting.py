"""Parts that all measuring commands share: a heading, a line with formula and source, the first JSON fields."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from attnx.records import Attention, Measurement, Tokens, Trace
from attnx.tokens.spans import axis_labels
from attnx.view.page import Line, length, line

LONG = 400
"""The most characters shown of a long text."""
SHOWN = 24
"""Keys that a table of one row lists; of a longer text those with the largest weights."""


def heading(trace: Trace, *, what: str = "") -> str:
    """One line: the model, the text's length, what is shown, where it ran."""
    return " · ".join(part for part in (trace.model, length(trace), what, trace.device) if part)


def opening(trace: Trace, *, what: str = "", device: str = "") -> list[Line]:
    """The lines that a report begins with: `heading`, and the text where it is short."""
    where = trace if not device else replace(trace, device=device)
    text = text_of(trace.tokens)
    return [line(heading(where, what=what)), *([line(text)] if 0 < len(text) < LONG else [])]


def sourced(measure: Measurement) -> str:
    """The line under a table: the formula, and whose it is."""
    return f"{measure.formula} ({measure.source})" if measure.formula and measure.source else measure.formula


def base(trace: Trace) -> dict[str, Any]:
    """The fields with which the JSON of every measuring command begins."""
    return {"model": trace.model, "device": trace.device, "tokens": trace.tokens, "memory": trace.memory}


def site_object(trace: Trace, site: int, head: int | None = None) -> dict[str, Any]:
    """Which site, and which head of it, for JSON."""
    attention = trace.attentions[site]
    out: dict[str, Any] = {"label": trace.labels[site], "index": attention.site.index, "layer": attention.site.layer}
    if head is not None:
        out |= {"label": f"{trace.labels[site]} H{head}", "head": head}
    return out


def query_labels(trace: Trace, attention: Attention) -> tuple[str, ...]:
    """The labels of a site's query axis."""
    return axis_labels(trace.queries_of(attention), _sizes(attention)[0])


def key_labels(trace: Trace, attention: Attention) -> tuple[str, ...]:
    """The labels of a site's key axis."""
    return axis_labels(trace.keys_of(attention), _sizes(attention)[1])


def _sizes(attention: Attention) -> tuple[int, int]:
    for array in (attention.weights, attention.masked, attention.scaled, attention.scores):
        if array is not None:
            return int(array.shape[2]), int(array.shape[3])
    return 0, 0


def place(at: int, count: int, piece: str) -> str:
    """A token with its position, which distinguishes repeated ones."""
    return f"{at:>{len(str(max(0, count - 1)))}} {piece.strip() or piece}"


def largest(values: Sequence[float] | np.ndarray, most: int) -> list[int]:
    """Positions of the largest so many values, in their own order; NaN counts as smallest."""
    flat = np.nan_to_num(np.asarray(values, np.float64), nan=-np.inf)
    return sorted(int(at) for at in np.argsort(-flat, kind="stable")[:most])


def text_of(tokens: Tokens) -> str:
    """The text on one line, where there is one."""
    return " ".join(tokens.text.split())


def grouped(notes: Sequence[str]) -> tuple[str, ...]:
    """Notes "L0: so", "L1: so" as one, "L0 to L1: so"; others as they are."""
    found: dict[str, list[str]] = {}
    for note in notes:
        label, colon, text = note.partition(": ")
        found.setdefault(text if colon else note, []).append(label if colon else "")
    out = []
    for text, labels in found.items():
        span = labels[0] if len(labels) == 1 else f"{labels[0]} to {labels[-1]}"
        out.append(f"{span}: {text}" if labels[0] else text)
    return tuple(out)
