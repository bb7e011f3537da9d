"""How far a model's own outputs move from one run to another: cosine, KL, and whether the first choice is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from attnx.records import Array, Trace
from attnx.session.protocol import OpenModel
from attnx.study.readout import readout


@dataclass(frozen=True, slots=True)
class OutputChange:
    """How far a model's output moved."""

    kind: str
    """ "next token", "masked token", "label", "embedding" or "outputs"."""
    output: str
    """The output that is read; "" if all are compared."""
    cosine: float | None
    """Cosine of the vectors that are read (logits, the text's embedding); None if all outputs are compared."""
    kl: float | None
    """KL(first || second) in nats, for a model that predicts tokens or labels."""
    first: tuple[str, str] | None
    """The first choice in each run, for a model that predicts tokens or labels."""
    relative: float | None
    """|second - first| / |first|, the largest over the outputs, if all are compared."""

    @property
    def kept(self) -> bool | None:
        """Whether the first choice is the same; None for a model that predicts no tokens or labels."""
        return None if self.first is None else self.first[0] == self.first[1]


def output_change(model: OpenModel, one: Trace, two: Trace) -> OutputChange | None:
    """Compare the outputs of two runs, in the terms of the first model.

    Args:
        model: The first model.
        one: Its run, with outputs.
        two: The other run, with outputs.

    Returns:
        None if no output of one matches an output of the other.
    """
    read = readout(model, one.outputs, one.tokens)
    names = [read.output] if read.output else [name for name, array in one.outputs.items() if array.dtype.kind == "f"]
    partners = {name: _partner(name, one.outputs, two.outputs) for name in names}
    other = {name: two.outputs[partner] for name, partner in partners.items() if partner is not None}
    if not other:
        return None
    first = {name: one.outputs[name] for name in other}
    changed = read.change(first, other)
    if read.kind == "outputs":
        return OutputChange(read.kind, "", None, None, None, changed.moved)
    if read.kind == "embedding":
        cosine = 1.0 - changed.reading.scores["1 - cosine, text"]
        return OutputChange(read.kind, read.output, cosine, None, None, None)
    choices = (read.read(first).first, read.read(other).first)
    left, right = (_row(run[read.output], read.position) for run in (first, other))
    return OutputChange(read.kind, read.output, _cosine(left, right), changed.moved, choices, None)


def read_of(model: OpenModel, trace: Trace) -> dict[str, Array]:
    """The outputs of a run with what `output_change` reads of them, copied: of logits by position only those read.

    Args:
        model: The first model.
        trace: Its run, with outputs.

    Returns:
        Arrays of the same shapes. Of logits that are read, every position has those of the one that is read, and
        outputs beside them are 0; either takes no memory for the rest.
    """
    read = readout(model, trace.outputs, trace.tokens)
    logits = trace.outputs.get(read.output)
    if read.kind not in ("next token", "masked token") or logits is None or logits.ndim != 3:
        return {name: np.copy(array) for name, array in trace.outputs.items()}
    at = min(read.position, logits.shape[1] - 1)
    bare = {name: np.broadcast_to(np.zeros((), array.dtype), array.shape) for name, array in trace.outputs.items()}
    return {**bare, read.output: np.broadcast_to(np.copy(logits[:, at : at + 1]), logits.shape)}


def said(changes: Sequence[OutputChange | None]) -> str:
    """The change over one or several texts, in a sentence."""
    found = [one for one in changes if one is not None]
    if not found:
        return "the outputs cannot be compared: none of one model has the shape of one of the other's"
    kind = {"embedding": "the text's vector", "outputs": "the outputs"}.get(found[0].kind, f"the {found[0].kind}")
    parts = []
    for values, name, least in (
        ([one.cosine for one in found], "cosine", True),
        ([one.kl for one in found], "KL", False),
        ([one.relative for one in found], "relative change", False),
    ):
        known = [value for value in values if value is not None]
        if known:
            extreme = min(known) if least else max(known)
            unit = " nats" if name == "KL" else ""
            mean = "" if len(known) == 1 else f", {'least' if least else 'most'} {_number(extreme, least)}"
            parts.append(f"{name} {_number(float(np.mean(known)), least)}{unit}{mean}")
    choices = [one.first for one in found if one.first is not None]
    if len(choices) == 1:
        (one, two) = choices[0]
        parts.append(f"first choice kept ({one})" if one == two else f"first choice {one} → {two}")
    elif choices:
        kept = sum(one == two for one, two in choices)
        parts.append(f"first choice kept in {kept} of {len(choices)}")
    return f"{kind}: {', '.join(parts)}"


def _number(value: float, near_one: bool) -> str:
    return f"{value:.5f}" if near_one else f"{value:.2g}"


def _partner(name: str, one: Mapping[str, Array], two: Mapping[str, Array]) -> str | None:
    """The other run's output that matches one of this run: by name, otherwise the only one of its shape."""
    shape = one[name].shape
    if name in two and two[name].shape == shape:
        return name
    alike = [other for other, array in two.items() if array.dtype.kind == "f" and array.shape == shape]
    return alike[0] if len(alike) == 1 else None


def _row(array: Array, position: int) -> Array:
    row = array[0]
    return np.asarray(row if row.ndim == 1 else row[min(position, len(row) - 1)], np.float64)


def _cosine(one: Array, two: Array) -> float:
    sizes = float(np.linalg.norm(one) * np.linalg.norm(two))
    return float(one @ two) / sizes if sizes else float(np.array_equal(one, two))


__all__ = ["OutputChange", "output_change", "read_of", "said"]
