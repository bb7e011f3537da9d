"""A [Q,K] matrix with its labels: what heatmaps, tables, lines, rows and figures draw.

Cutting a window out of it and averaging blocks of it are layout: both keep a sentence about what they did, and the
views print it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from attnx.errors import UsageError
from attnx.formula import visible
from attnx.records import SHOWN, Array, Attention, Measurement, Stage, Tokens, Trace
from attnx.tokens.spans import axis_labels
from attnx.view.cells import number, safe
from attnx.wording import Wording


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a matrix: its tokens, in order."""

    name: str
    """ "query", "key", or the name of a measurement's axis."""
    labels: tuple[str, ...]
    """Pieces as the tokenizer has them; a view makes them safe to print."""
    at: tuple[int, ...]
    """Position of each in the whole text (of the first, where a label stands for a block)."""
    special: tuple[bool, ...]
    """True for [CLS], [SEP] and the like."""
    total: int
    """How many there are in the whole text."""
    block: int = 1
    """The most positions that one label stands for."""

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, span: slice) -> Side:
        return replace(self, labels=self.labels[span], at=self.at[span], special=self.special[span])


@dataclass(frozen=True, slots=True)
class Matrix:
    """Numbers by query and key."""

    name: str
    """ "weights", "scaled", "entropy", ..."""
    unit: str
    values: Array
    """[Q,K], NaN where a value does not exist (muted, never computed)."""
    queries: Side
    keys: Side
    hidden: Array
    """bool [Q,K]: what the mask hides. Drawn unlike any value, however small."""
    title: str = ""
    """ "L5 H11"."""
    bounds: tuple[float | None, float | None] = (None, None)
    """Smallest and largest value that is possible."""
    notes: tuple[str, ...] = ()
    """What was done to it for display."""

    @property
    def shown(self) -> Array:
        """float64 [Q,K]: the values, NaN where hidden or not finite."""
        values = np.asarray(self.values, np.float64)
        return np.where(self.hidden | ~np.isfinite(values), np.nan, values)

    def window(self, rows: int, columns: int, query: int | None = None) -> Matrix:
        """Cut out what fits, round a query.

        Args:
            rows: Queries that fit.
            columns: Keys that fit.
            query: Position (in the whole text) to keep in the middle; None for the start. Keys are cut round the
                same position and the query's largest value where both fit; a note says it where they do not.

        Returns:
            A matrix of at most `rows` x `columns`, with a note where anything is left out.
        """
        focus = None if query is None else self.row_of(query)
        down = _span(len(self.queries), rows, focus)
        across, outside = self._columns(columns, focus)
        ranges = [
            f"{_plural(side.name)} {side.at[span.start]}–{side.at[span.stop - 1]} of 0–{side.total - 1}"
            for side, span in ((self.queries, down), (self.keys, across))
            if span.stop - span.start < len(side)
        ]
        if not ranges:
            return self
        round_it = "" if query is None else f", round {self.queries.name} {query}"
        return replace(
            self,
            values=self.values[down, across],
            hidden=self.hidden[down, across],
            queries=self.queries[down],
            keys=self.keys[across],
            notes=(*self.notes, f"shown: {' · '.join(ranges)}{round_it}", *outside),
        )

    def _columns(self, columns: int, focus: int | None) -> tuple[slice, tuple[str, ...]]:
        """Choose the keys beside a row: the row's own position and its largest value, both where that is possible.

        Returns:
            The keys, and a note where the row's largest value is not among them.
        """
        row = None if focus is None else self.shown[focus]
        if focus is None or row is None or np.isnan(row).all():
            return _span(len(self.keys), columns, focus), ()
        largest = int(np.nanargmax(row))
        own = focus if self.queries.labels == self.keys.labels else largest
        if abs(own - largest) < columns:
            return _span(len(self.keys), columns, (own + largest + 1) // 2), ()
        extreme = f"outside: its largest, {number(float(row[largest]))} on {self.keys.name} {self.keys.at[largest]}"
        return _span(len(self.keys), columns, own), (f"{extreme} ({safe(self.keys.labels[largest])})",)

    def blocks(self, rows: int, columns: int) -> Matrix:
        """Average blocks of cells so that at most `rows` x `columns` are left.

        Hidden and missing cells are left out of a block's mean; a block of hidden cells alone is hidden.

        Returns:
            A smaller matrix with a note that says how large the blocks are, or the matrix itself where it fits.
        """
        down, across = edges(len(self.queries), rows), edges(len(self.keys), columns)
        if len(down) == len(self.queries) and len(across) == len(self.keys):
            return self
        values, _ = block_means(self.shown, down, across)
        hidden = np.logical_and.reduceat(np.logical_and.reduceat(self.hidden, across, axis=1), down, axis=0)
        queries, keys = _merged(self.queries, down), _merged(self.keys, across)
        note = f"each cell is the mean of up to {queries.block} x {keys.block} (queries x keys)"
        return replace(self, values=values, hidden=hidden, queries=queries, keys=keys, notes=(*self.notes, note))

    def row_of(self, query: int) -> int:
        """Give the row that holds a position of the whole text.

        Raises:
            UsageError: No row does.
        """
        for row, at in enumerate(self.queries.at):
            last = self.queries.at[row + 1] if row + 1 < len(self.queries) else at + self.queries.block
            if at <= query < last:
                return row
        raise UsageError(
            f"there is no {self.queries.name} {query}: they are numbered 0 to {self.queries.total - 1}",
            "Count from 0, special tokens included.",
        )


def of_attention(trace: Trace, attention: Attention, head: int, stage: Stage = "weights") -> Matrix:
    """Take one head's matrix from a trace.

    Args:
        trace: Gives the tokens.
        attention: One of its attentions.
        head: From 0.
        stage: One of `SHOWN`.

    Returns:
        The first sequence's [Q,K]. What the mask hides is marked where it can be known and the stage is the masked
        scores or the weights; earlier stages are shown as they are, for there the mask has not been applied.

    Raises:
        UsageError: No such head or stage.
        UnsupportedError: The stage was not traced or does not exist there.
    """
    if stage not in SHOWN:
        raise UsageError(f"{stage!r} is not a stage of attention", f"Choose from {', '.join(SHOWN)}.")
    whole = attention.need(stage)
    if not 0 <= head < whole.shape[1]:
        raise UsageError(
            f"there is no head {head}: {attention.site.label} has heads 0 to {whole.shape[1] - 1}",
            Wording("Choose one of them (<heads=>)."),
        )
    values = whole[0, head]
    hidden = np.zeros(values.shape, bool)
    if stage in ("bias", "masked", "weights") and attention.masked is not None:
        weights = None if attention.weights is None else attention.weights[0, head]
        capped = None if attention.capped is None else attention.capped[0, head]
        hidden = ~visible(attention.masked[0, head], capped, weights)
    place = trace.labels[next(i for i, a in enumerate(trace.attentions) if a is attention)]
    queries = _side("query", trace.queries_of(attention), values.shape[0])
    if trace.rows is not None:
        queries = replace(queries, at=trace.rows, total=len(trace.tokens))
    return Matrix(
        name=stage,
        unit="share" if stage == "weights" else "",
        values=values,
        queries=queries,
        keys=_side("key", trace.keys_of(attention), values.shape[1]),
        hidden=hidden,
        title=f"{place} H{head}",
        bounds=(0.0, 1.0) if stage == "weights" else (None, None),
    )


def without_hidden(attention: Attention, stage: str) -> Array | None:
    """A stage of the first sequence, [H,Q,K], NaN where the mask hides a cell of it; None where there is none.

    Stages before the mask are shown as they are. Weights too: a weight of exactly 0 is left blank by those who draw.
    """
    whole: Array | None = getattr(attention, stage)
    if whole is None or attention.masked is None or stage not in ("bias", "masked"):
        return None if whole is None else whole[0]
    first = [None if part is None else part[0] for part in (attention.capped, attention.weights)]
    return np.where(visible(attention.masked[0], *first), whole[0], np.nan)


def of_measurement(measurement: Measurement) -> Matrix:
    """Take a measurement of rank 2 as a matrix: the first axis downwards, the second across.

    Raises:
        UsageError: It has another rank.
    """
    if measurement.values.ndim != 2:
        raise UsageError(
            f"{measurement.name} has {axes(measurement.values.ndim)}, and this view shows two",
            "Choose one layer or one head, or show it as a table.",
        )
    down, across = (
        Side(axis.name, axis.labels, tuple(range(len(axis.labels))), (False,) * len(axis.labels), len(axis.labels))
        for axis in measurement.axes
    )
    return Matrix(
        name=measurement.name,
        unit=measurement.unit,
        values=measurement.values,
        queries=down,
        keys=across,
        hidden=np.zeros(measurement.values.shape, bool),
        bounds=measurement.bounds,
        notes=measurement.notes,
    )


def axes(count: int) -> str:
    """Count axes in words."""
    return f"{count} axis" if count == 1 else f"{count} axes"


def edges(length: int, most: int) -> Array:
    """Give the starts of at most `most` blocks, as even as whole positions allow: int [min(length, most)]."""
    return np.unique(np.linspace(0, length, min(length, max(1, most)), endpoint=False).astype(int))


def block_means(values: Array, down: Array, across: Array) -> tuple[Array, Array]:
    """Average blocks over the last two axes, NaN left out.

    Args:
        values: [...,Q,K].
        down: Starts of the blocks of queries, from 0, ascending.
        across: Starts of the blocks of keys.

    Returns:
        Means [...,rows,columns] (NaN for a block of NaN) and bool of the same shape: the blocks of NaN.
    """
    there = np.isfinite(values)
    known = np.where(there, values, 0.0).astype(np.float64, copy=False)  # two cells of -3.4e38 are more than a float32
    sums = np.add.reduceat(np.add.reduceat(known, across, axis=-1), down, axis=-2)
    if there.all():
        counts = np.outer(np.diff([*down, values.shape[-2]]), np.diff([*across, values.shape[-1]]))
        return sums / counts, np.zeros(sums.shape, bool)
    count = np.add.reduceat(np.add.reduceat(there, across, axis=-1, dtype=int), down, axis=-2)
    return np.where(count > 0, sums / np.maximum(count, 1), np.nan), count == 0


def _side(name: str, tokens: Tokens, size: int) -> Side:
    """Lay a sequence's tokens along an axis; keys of the past come before them, unnamed and not special."""
    labels = axis_labels(tokens, size)
    special = (False,) * (size - len(tokens)) + tokens.special if size >= len(tokens) else (False,) * size
    return Side(name, labels, tuple(range(size)), special, size)


def _span(length: int, size: int, focus: int | None) -> slice:
    """A stretch of `size` round `focus`, moved so that it stays inside and as full as it can be."""
    start = 0 if focus is None else max(0, min(focus - size // 2, length - size))
    return slice(start, min(length, start + max(1, size)))


def _merged(side: Side, starts: Array) -> Side:
    """Label blocks by their positions, "12–15"; a block of one keeps its token."""
    stops = [*starts[1:], len(side)]
    labels = [
        side.labels[a] if b - a == 1 else f"{side.at[a]}–{side.at[b - 1]}" for a, b in zip(starts, stops, strict=True)
    ]
    return replace(
        side,
        labels=tuple(labels),
        at=tuple(side.at[a] for a in starts),
        special=tuple(all(side.special[a:b]) for a, b in zip(starts, stops, strict=True)),
        block=max(int(b - a) for a, b in zip(starts, stops, strict=True)),
    )


def _plural(name: str) -> str:
    return "queries" if name == "query" else f"{name}s"
