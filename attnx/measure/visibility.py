"""Visibility: which keys each query can see, derived from the softmax's input."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from attnx.errors import UsageError
from attnx.measure.rows import read
from attnx.numerals import counted
from attnx.records import HIDES, Array, Attention, Axis, Measurement, Trace


@dataclass(frozen=True, slots=True)
class Visibility:
    """The mask of one site, as it acted on this text."""

    matrix: Measurement
    """[Q,K]: 1 visible, 0 hidden; in between if heads differ (the share of heads that see the key)."""
    pattern: str
    """ "bidirectional", "causal", "anti-causal", "sliding window", "look-ahead", "prefix" or "cross", if every cell
    agrees with it; otherwise "irregular"."""
    window: int | None
    """The most keys a query sees, itself included; None without a window."""
    prefix: int | None
    """How many first tokens are visible to all queries; None without a prefix."""
    ahead: int | None
    """How many later tokens a query sees in addition to all earlier ones; None without a look-ahead."""
    padding: tuple[int, ...]
    """Positions of padding: keys that no real query sees although the pattern would allow it."""
    hidden: int
    """Number of cells that no head sees, padding included."""
    cells: int
    """Number of cells."""
    empty_rows: tuple[int, ...]
    """Queries that see nothing at all."""
    stand_in: float | None
    """The value used as minus infinity to hide keys (-inf, -10000, ...); None if nothing is hidden or
    masked scores are not known."""
    heads_differ: bool
    """Whether some heads see keys that others do not."""
    statement: str
    """A one-line summary."""
    said: str
    """The pattern in words, with its size."""
    notes: tuple[str, ...]


def visibility(trace: Trace, site: int) -> Visibility:
    """Which keys each query can see at a site: pattern, padding, how much is hidden, and by what value.

    A short text cannot distinguish some patterns (one token is causal and bidirectional; a window wider than the text
    has no effect). In that case the pattern that the site declares is named, or the simplest if it declares none.

    Args:
        trace: With weights [B,H,Q,K], and masked (with capped) to read the mask itself.
        site: Position in `trace.attentions`.

    Returns:
        See `Visibility`; counts in cells.

    Raises:
        UsageError: There is no such site.
        UnsupportedError: The site has no weights.

    Source: attnx.
    """
    if not 0 <= site < len(trace.attentions):
        raise UsageError(f"there is no site {site}", f"Sites run from 0 to {len(trace.attentions) - 1}.")
    attention = trace.attentions[site]
    rows = read(trace, attention)
    seen = np.asarray(rows.visible)
    padding = rows.key_flags([not flag for flag in rows.keys.mask])
    cells = Cells(seen.mean(axis=0), rows.position, padding, rows.query_labels, rows.key_labels)
    cells.across = attention.site.kind != "self"
    return _visibility(attention, cells, _stand_in(attention, seen))


@dataclass(frozen=True, slots=True)
class Pattern:
    """The name of a pattern, and its size."""

    name: str
    window: int | None = None
    prefix: int | None = None
    ahead: int | None = None

    def __str__(self) -> str:
        """The pattern in words."""
        if self.window:
            return f"sliding window of {self.window}"
        if self.prefix:
            return f"prefix of {self.prefix}, then causal"
        return f"causal, looking {self.ahead} ahead" if self.ahead else self.name


class Cells:
    """Which keys each query can see, cell by cell, described once for all sites that share this."""

    def __init__(
        self,
        share: Array,
        position: Array | None,
        declared: Array,
        query_labels: tuple[str, ...],
        key_labels: tuple[str, ...],
    ) -> None:
        """Take the share of heads that see each cell, float [Q,K]; see `read.rows.Rows` for the others."""
        self.share, self.position, self.declared = share.astype(np.float64), position, declared
        self.across = False  # whether queries and keys are of two texts
        self.axes = (Axis("query", query_labels), Axis("key", key_labels))
        self.union = self.share > 0
        self._named: dict[tuple[bool, int | None], tuple[Pattern, Array]] = {}

    @classmethod
    def of_text(cls, trace: Trace, seen: Array) -> Cells:
        """Cells that are the same for all heads, bool [Q,K], over a trace's own tokens."""
        labels = trace.tokens.pieces
        return cls(seen, np.arange(len(labels)), ~np.asarray(trace.tokens.mask, bool), labels, labels)

    @cached_property
    def differ(self) -> bool:
        """Whether some heads see keys that others do not."""
        return bool((self.union & (self.share < 1)).any())

    @cached_property
    def hidden(self) -> int:
        """How many cells no head sees."""
        return int(self.union.size - np.count_nonzero(self.union))

    @cached_property
    def empty(self) -> tuple[int, ...]:
        """Queries that see nothing at all."""
        return tuple(int(at) for at in np.flatnonzero(~self.union.any(axis=1)))

    @cached_property
    def ahead(self) -> bool:
        """Whether some query sees a key to the right of the diagonal."""
        return bool(np.triu(self.union, 1).any())

    @cached_property
    def apart(self) -> bool:
        """Whether no query sees its own key, though some see others: a key that none sees need not be padding."""
        if self.position is None or not self.union.any():
            return False
        return not self.union[np.arange(len(self.position)), self.position].any()

    def named(self, causal: bool, reach: int | None) -> tuple[Pattern, Array]:
        """Pattern and padding, given what the site says about causality and its window."""
        if (causal, reach) not in self._named:
            self._named[causal, reach] = self._name(causal, reach)
        return self._named[causal, reach]

    def looks_back(self, pattern: Pattern, padding: Array) -> bool:
        """Whether no query sees a key after it, although there are such keys."""
        if self.position is None or pattern.name in ("causal", "bidirectional"):
            return pattern.name == "causal"
        return not _future(self.union, padding, self.position)

    def _name(self, causal: bool, reach: int | None) -> tuple[Pattern, Array]:
        union, position = self.union, self.position
        padding = _padding(union, self.declared)
        if self.apart:
            padding = padding[self.declared[padding]]
        pattern = _pattern(union, padding, position, self.across)
        if position is not None and causal:
            if _within(union, position, reach):
                # Keys that a window has left behind are not padding, although no query sees them.
                return Pattern("sliding window", window=reach), padding[:0]
            if pattern.name == "bidirectional" and not _future(union, padding, position):
                pattern = Pattern("causal")
        elif causal and _triangle(union):
            pattern, padding = Pattern("causal"), padding[:0] if self.across else padding
        return pattern, padding


def visibility_of_cells(cells: Cells, some: Attention, shown: Array) -> Visibility:
    """The same if it is known cell by cell and the same in all heads.

    Args:
        cells: From `Cells.of_text`, made from what the graph adds to the scores.
        some: The site with capped and masked for a few rows that have hidden cells, if there are any.
        shown: Which cells of these are visible, bool [H,rows,K].

    Source: attnx.
    """
    return _visibility(some, cells, _stand_in(some, shown))


def _visibility(attention: Attention, cells: Cells, stand_in: float | None) -> Visibility:
    """The mask in words."""
    pattern, padding = cells.named(bool(attention.site.causal), attention.site.window)
    parts = [str(pattern), *([f"padding at {counted(len(padding), 'key')}"] if len(padding) else [])]
    parts.append(f"{cells.hidden} of {cells.union.size} cells hidden")
    parts += [f"by {stand_in:g}"] if stand_in is not None else []
    return Visibility(
        matrix=Measurement(
            name="visible",
            unit="share of heads",
            axes=cells.axes,
            values=cells.share,
            bounds=(0.0, 1.0),
            source="attnx",
            formula=f"1 visible, 0 hidden: masked is -inf, or the mask added {HIDES:g} or less",
        ),
        pattern=pattern.name,
        window=pattern.window,
        prefix=pattern.prefix,
        ahead=pattern.ahead,
        padding=tuple(int(at) for at in padding),
        hidden=cells.hidden,
        cells=cells.union.size,
        empty_rows=cells.empty,
        stand_in=stand_in,
        heads_differ=cells.differ,
        statement=", ".join(parts),
        said=str(pattern),
        notes=_notes(attention, pattern, padding, cells),
    )


def _padding(seen: Array, declared: Array) -> Array:
    """Keys that no query sees: in self-attention every token sees itself, so only padding is hidden from all.

    If nothing is seen at all, the padding that the tokens declare.
    """
    if not seen.any():
        return np.flatnonzero(declared)
    return np.flatnonzero(~seen.any(axis=0))


def _pattern(seen: Array, padding: Array, position: Array | None, across: bool) -> Pattern:
    """Name the pattern over the keys and queries that are not padding."""
    keys = np.setdiff1d(np.arange(seen.shape[1]), padding)
    if not seen.any():
        return Pattern("irregular")
    if position is None:
        return Pattern(("cross" if across else "bidirectional") if seen[:, keys].all() else "irregular")
    queries = np.flatnonzero(~np.isin(position, padding) & seen.any(axis=1))
    at, block = position[queries], seen[np.ix_(queries, keys)]
    if block.all():
        return Pattern("bidirectional")
    behind = at[:, None] - keys[None, :]
    back, ahead = int(behind[block].max()), int((-behind[block]).max())
    if back < 0 or ahead < 0:
        return Pattern("irregular")  # no query sees itself
    if np.array_equal(block, (behind <= back) & (-behind <= ahead)):
        # A band; if it reaches the first key, or the last, from every query, it is bounded on one side only.
        whole = (back >= behind.max(), ahead >= (-behind).max())
        if whole == (True, False):
            return Pattern("causal") if ahead == 0 else Pattern("look-ahead", ahead=ahead)
        if whole == (False, True):
            return Pattern("anti-causal" if back == 0 else "irregular")
        return Pattern("sliding window", window=back + ahead + 1)
    for count in range(1, len(keys)):
        if np.array_equal(block, (behind >= 0) | (np.arange(len(keys)) < count)[None, :]):
            return Pattern("prefix", prefix=count)
    return Pattern("irregular")


def _within(seen: Array, position: Array, window: int | None) -> bool:
    """Whether queries see exactly the keys of a causal window, and the window hides something."""
    behind = position[:, None] - np.arange(seen.shape[1])[None, :]
    if window is None or not (behind >= window).any():
        return False
    return bool(np.array_equal(seen, (behind >= 0) & (behind < window)))


def _triangle(seen: Array) -> bool:
    """Whether each query sees one key more than the one before it, from the first key on."""
    rows, keys = seen.shape
    return rows > 0 and np.array_equal(seen, np.tri(rows, keys, k=int(seen[0].sum()) - 1, dtype=bool))


def _future(seen: Array, padding: Array, position: Array) -> bool:
    """Whether some query sees a key after it."""
    keys = np.setdiff1d(np.arange(seen.shape[1]), padding)
    return bool((seen[:, keys] & (keys[None, :] > position[:, None])).any())


def _stand_in(attention: Attention, seen: Array) -> float | None:
    """The value that hides a cell: what was added to the score or replaced it, whichever is constant."""
    if attention.masked is None or seen.all():
        return None
    masked = attention.masked[0].astype(np.float64)[~seen]
    if np.isneginf(masked).any():
        return float("-inf")
    if attention.capped is None:
        return float(np.median(masked))
    gap = masked - attention.capped[0].astype(np.float64)[~seen]
    put = float(np.median(masked))
    # Where(mask, score, -10000) replaces the score with a constant; Add(mask) keeps the score's own variation.
    return put if np.ptp(masked) <= np.ptp(gap) else _rounded(float(np.median(gap)))


def _rounded(value: float) -> float:
    """The number the exporter wrote: an added mask is recovered with float32's rounding of score + mask."""
    return float(f"{value:.4g}") if abs(value) < 1e30 else float(np.float32(value))


def _notes(attention: Attention, pattern: Pattern, padding: Array, cells: Cells) -> tuple[str, ...]:
    site, notes = attention.site, []
    if attention.masked is None:
        notes.append("masked scores were not traced: hidden cells are inferred from the weights and the site alone")
    if (
        not cells.apart
        and site.causal is not None
        and site.kind == "self"
        and site.causal != cells.looks_back(pattern, padding)
    ):
        says = "causal" if site.causal else "not causal"
        notes.append(f"the site is {says} by its graph; on this text it looks {pattern.name}")
    if site.window is not None and pattern.window is None:
        notes.append(f"the site has a sliding window of {site.window}, wider than this text shows")
    if site.causal is None and site.kind == "self" and pattern.name == "bidirectional" and len(cells.share) == 1:
        notes.append("one query at the end of the keys cannot tell causal from bidirectional")
    if cells.apart:
        notes.append("no query sees its own key")
    if cells.differ:
        notes.append("heads differ in what they see")
    if cells.empty:
        notes.append(f"{counted(len(cells.empty), 'query sees', 'queries see')} nothing at all")
    return tuple(notes)
