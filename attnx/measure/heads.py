"""Heads: every measure of every head side by side, and a name for what a head does if it passes a threshold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from attnx.errors import UsageError
from attnx.measure.remainder import LEFT
from attnx.measure.rows import SINK
from attnx.records import Axis, Measurement
from attnx.wording import Wording

MIXED, NOTHING, REST = "mixed", "nothing", "rest"
KINDS: Mapping[str, tuple[str, float, str]] = MappingProxyType(
    {
        "previous-token": ("previous", 0.5, "Clark et al. 2019, section 3.1"),
        "next-token": ("next", 0.5, "Clark et al. 2019, section 3.1"),
        "self": ("self", 0.5, "attnx"),
        "induction": ("induction", 0.4, "attnx: over 0.4 on what followed an earlier copy"),
        "punctuation": ("punctuation", 0.5, "attnx"),
        "sink": ("sink", SINK, f"Gu et al. 2025: importance of the first token over {SINK:g}"),
        "broad": ("entropy share", 0.8, "attnx; Clark et al.: 3.8 of 4.8 nats"),
    }
)
"""For each kind: the measure that decides, its threshold, and the reason. The first threshold passed names a head."""


@dataclass(frozen=True, slots=True)
class HeadTable:
    """The measures and kinds of every head."""

    measures: tuple[Measurement, ...]
    """Each [S,H], all with the same axes."""
    kinds: tuple[tuple[str, ...], ...]
    """[S][H]: a name of `KINDS`, "mixed" if no threshold is passed, "" if a layer has no such head."""
    thresholds: tuple[str, ...]
    """One line per kind, as shown under the table, and one for the weight off the first token."""
    texts: int = 1
    """How many texts the measures are averaged over."""
    spread: tuple[Measurement, ...] = ()
    """Standard deviation of each measure over the texts, in the same order; empty for one text."""
    rest: tuple[Measurement, ...] = ()
    """What a head does with the weight not on the first token (see `remainder`), each [S,H]; () if not measured."""
    rest_kinds: tuple[tuple[str, ...], ...] = ()
    """[S][H], for each sink: a name of `KINDS` that fits what is left, "mixed" if none does, "nothing" if nothing
    is left; "" for other heads. () if the rest was not measured."""

    def measure(self, name: str) -> Measurement:
        """The measure of that name.

        Raises:
            UsageError: There is no such measure.
        """
        for measure in self.measures:
            if measure.name == name:
                return measure
        raise UsageError(f"no measure is called {name!r}", f"Choose from: {', '.join(m.name for m in self.measures)}.")


def table(measures: Sequence[Measurement], rest: Sequence[Measurement] = ()) -> HeadTable:
    """Put measures of heads side by side and name each head.

    Args:
        measures: Each [S,H] with the same axes (entropy, mean distance, previous, ...).
        rest: The same measures without the first token's weight, by the same names.

    Returns:
        The measures with a kind per head; a kind whose measure is absent or NaN is never assigned.

    Raises:
        UsageError: No measures, or their axes differ.

    Source: thresholds in `KINDS`, each with its source.
    """
    _same_axes((*measures, *rest))
    return _table(measures, rest)


class Means:
    """Means and spread over texts, added one table at a time: any number of texts in the memory of one.

    Source: Welford 1962, "Note on a method for calculating corrected sums of squares and products".
    """

    def __init__(self) -> None:
        self.texts = 0
        self._first: HeadTable | None = None
        self._notes: list[dict[str, int]] = []
        self._none: list[int] = []
        self._count: Any = 0
        self._mean: Any = 0.0
        self._squares: Any = 0.0

    def add(self, one: HeadTable) -> None:
        """Add one text. Where a measure is NaN, the text does not count for it.

        Raises:
            UsageError: A table with other measures, or of a different model.
        """
        if self._first is None:
            self._first = one
            self._notes, self._none = [{} for _ in _all(one)], [0] * len(_all(one))
        if [m.name for m in _all(one)] != [m.name for m in _all(self._first)]:
            raise UsageError("the texts were measured differently, so their means cannot be taken")
        _same_axes((*self._first.measures, *_all(one)))
        for at, measure in enumerate(_all(one)):
            for note in measure.notes:
                self._notes[at][note] = self._notes[at].get(note, 0) + 1
            self._none[at] += bool(np.isnan(measure.values).all())
        values = np.stack([measure.values for measure in _all(one)]).astype(np.float64)
        there = ~np.isnan(values)
        self.texts += 1
        self._count = self._count + there
        gap = np.where(there, values - self._mean, 0.0)
        self._mean = self._mean + gap / np.maximum(self._count, 1)
        self._squares = self._squares + gap * np.where(there, values - self._mean, 0.0)

    def table(self) -> HeadTable:
        """One table: means, standard deviations (divided by n - 1), and kinds named from the means.

        Returns:
            A table with `spread`; where fewer than two texts count, the spread is NaN.

        Raises:
            UsageError: There was no text.

        Source: attnx.
        """
        if self._first is None:
            raise UsageError("there are no texts to take a mean over")
        mean = np.where(self._count > 0, self._mean, np.nan)
        deviation = np.sqrt(np.where(self._count > 1, self._squares / np.maximum(self._count - 1, 1), np.nan))
        firsts, count = _all(self._first), len(self._first.measures)
        means = tuple(
            replace(m, values=values, notes=self._notes_of(at, m.name))
            for at, (m, values) in enumerate(zip(firsts, mean, strict=True))
        )
        spread = tuple(
            replace(m, values=values, bounds=(0.0, None), formula="standard deviation over texts", notes=())
            for m, values in zip(firsts, deviation, strict=True)
        )
        return replace(_table(means[:count], means[count:]), texts=self.texts, spread=spread[:count])

    def _notes_of(self, at: int, name: str) -> tuple[str, ...]:
        """The notes that a measure has in all texts, and in how many texts it has no value."""
        every = "in each text, " if self.texts > 1 else ""
        shared = tuple(
            Wording("{every}{note}", every=every, note=note)
            for note, count in self._notes[at].items()
            if count == self.texts
        )
        others = {note: count for note, count in self._notes[at].items() if count < self.texts}
        if self._none[at] and others:
            note, count = next(iter(others.items()))
            said = "{name}: no value in {none} of {texts} texts; in {count} of them, {note}"
            found = Wording(said, name=name, none=self._none[at], texts=self.texts, count=count, note=note)
            return (*shared, found)
        said = "in {count} of {texts} texts, {note}"
        some = (Wording(said, count=count, texts=self.texts, note=note) for note, count in others.items())
        return (*shared, *some)


def over_texts(tables: Iterable[HeadTable]) -> HeadTable:
    """One table over many texts (see `Means`); the spread of one text is NaN.

    Args:
        tables: One per text, with the same measures and axes.

    Raises:
        UsageError: No tables, or tables of different models.

    Source: attnx.
    """
    means = Means()
    for one in tables:
        means.add(one)
    return means.table()


def with_measure(table: HeadTable, measure: Measurement, rest: Measurement | None = None) -> HeadTable:
    """The table with one measure replaced, and the kinds that follow from it.

    Args:
        table: Any.
        measure: [S,H] with the same axes, such as induction on a probe.
        rest: The same measure without the first token's weight.

    Returns:
        A table; the replaced measure has no spread.

    Raises:
        UsageError: The axes differ, or there is no such measure.

    Source: attnx.
    """
    table.measure(measure.name)
    measures = tuple(measure if one.name == measure.name else one for one in table.measures)
    _same_axes(measures)
    spread = tuple(
        replace(one, values=np.full_like(one.values, np.nan)) if one.name == measure.name else one
        for one in table.spread
    )
    others = tuple(rest if rest is not None and one.name == rest.name else one for one in table.rest)
    made = _table(measures, others)
    return replace(table, measures=measures, kinds=made.kinds, spread=spread, rest=others, rest_kinds=made.rest_kinds)


def thresholds() -> tuple[str, ...]:
    """One line per kind: the measure, its threshold and its source; the last line is about the rest."""
    named = (f"{kind}: {name} > {limit:g} ({why})" for kind, (name, limit, why) in KINDS.items())
    return (*named, f"{REST}: a sink's weights without the first token, each row of which over {LEFT:g} is left "
            "scaled to sum to 1; the thresholds are the same (attnx)")  # fmt: skip


def _all(table: HeadTable) -> tuple[Measurement, ...]:
    return (*table.measures, *table.rest)


def _table(measures: Sequence[Measurement], rest: Sequence[Measurement]) -> HeadTable:
    kinds = _kinds(measures)
    others = _kinds(rest, nothing=NOTHING) if rest else ()
    only = (
        tuple(
            tuple(other if kind == "sink" else "" for kind, other in zip(*row, strict=True))
            for row in zip(kinds, others, strict=True)
        )
        if others
        else ()
    )
    return HeadTable(tuple(measures), kinds, thresholds(), rest=tuple(rest), rest_kinds=only)


def _kinds(measures: Sequence[Measurement], nothing: str = "") -> tuple[tuple[str, ...], ...]:
    """The first kind in `KINDS` whose threshold is passed, for every head; `nothing` if no measure has a value."""
    shape = measures[0].values.shape
    named = {measure.name: measure.values for measure in measures}
    there = np.zeros(shape, bool)
    for values in named.values():
        there |= ~np.isnan(values)
    out = np.where(there, MIXED, nothing).astype(object)
    for kind, (name, limit, _) in reversed(list(KINDS.items())):
        if name in named:
            # NaN > limit is False, so a missing measure assigns no kind.
            out[named[name] > limit] = kind
    return tuple(tuple(str(kind) for kind in row) for row in out)


def _same_axes(measures: Sequence[Measurement]) -> None:
    if not measures:
        raise UsageError("there are no measures to put in a table")
    axes: tuple[Axis, ...] = measures[0].axes
    if any(measure.axes != axes for measure in measures):
        raise UsageError("the measures are of different models or texts: their layers and heads differ")
