"""Two columns of tokens, joined: queries on the left, keys on the right, a line for each weight that counts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement as Extent
from rich.style import Style
from rich.text import Text

from attnx.errors import UsageError
from attnx.records import Array
from attnx.view import colour
from attnx.view.cells import cell_len, label, number, safe, trimmed
from attnx.view.matrix import Matrix
from attnx.view.page import Page, page
from attnx.view.strokes import Canvas, tint

LABEL, CANVAS = 16, 46
"""The widest that a token is written, and the space for lines."""
LEAST = 0.1
"""Weights below this are not drawn by default: a dozen faint lines from each token hide the one that matters."""
FEWEST, AROUND, WRAPS = 6, 5, 75
"""Lines that are drawn even on a tiny screen; lines above and below the drawing; columns below which these wrap."""


def lines(
    heads: Sequence[Matrix],
    *,
    query: int | None = None,
    least: float | None = None,
    top: int | None = None,
    mute: Collection[int] = (),
    height: int | None = None,
) -> Lines:
    """Join queries with the keys they look at.

    Args:
        heads: One or several matrices over the same tokens; several get a colour each.
        query: Draw this query's lines alone.
        least: Draw weights of at least this; 0.1 where None (with `query`: 0.02), for quantities that are no shares
            everything.
        top: Draw at most this many keys for each query and head; all where None (for quantities that are no shares:
            the largest alone).
        mute: Key positions that get no line.
        height: Lines that may be used; the terminal's where None.

    Returns:
        A renderable.

    Raises:
        UsageError: No matrix, matrices over different tokens, no such query.
    """
    if not heads:
        raise UsageError("there is no head to draw")
    first = heads[0]
    if any((h.queries, h.keys, h.name) != (first.queries, first.keys, first.name) for h in heads):
        raise UsageError("lines join one pair of token columns, and these heads look at different tokens")
    if query is not None:
        first.row_of(query)
    share = first.unit == "share"
    if least is None:
        least = (LEAST if query is None else LEAST / 5) if share else -np.inf
    if top is None and not share:
        top = 1
    return Lines(tuple(heads), query, float(least), top, frozenset(mute), height)


@dataclass(frozen=True, slots=True)
class _Stroke:
    query: int
    key: int
    head: int
    value: float
    share: float
    """Of the most that there is: thickness and colour."""


@dataclass(frozen=True, slots=True)
class Lines:
    """See `lines`."""

    heads: tuple[Matrix, ...]
    query: int | None
    least: float
    top: int | None
    mute: frozenset[int]
    height: int | None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Fit the tokens, draw the lines between them, and say what was left out."""
        here = page(console, options)
        room = self.height or here.height
        around = AROUND if here.width >= WRAPS else AROUND + 2  # the two lines below the drawing take two each
        most = None if room is None else max(FEWEST, room - around)
        parts = [head.window(most or len(head.queries), most or len(head.keys), self.query) for head in self.heads]
        first = parts[0]
        strokes = sorted(self._strokes(parts), key=lambda s: s.value)
        drawn, all_strokes = len(strokes), sum(int(np.isfinite(part.shown).sum()) for part in parts)
        down = max(len(first.queries), len(first.keys))
        left, right = (self._label_width(side.labels, here.width) for side in (first.queries, first.keys))
        across = max(8, min(CANVAS, here.width - left - right - 2))
        canvas = Canvas(across, down)
        for stroke in strokes:
            style = self._style(stroke, here)
            canvas.curve(stroke.query + 0.5, stroke.key + 0.5, stroke.value, _thickness(stroke.share), style)
        yield self._title(first, here)
        arrow = ("v", "v") if here.ascii else ("↓", "↓")
        ends = f"{first.keys.name} {arrow[1]}"
        yield Text(f"{f'{first.queries.name} {arrow[0]}':>{left}} {' ' * across} {ends}", "dim", no_wrap=True)
        joined = {s.query for s in strokes}, {s.key for s in strokes}
        for at in range(down):
            line = Text(no_wrap=True, overflow="crop")
            line.append_text(self._token(first, at, left, here, joined[0], keys=False))
            line.append(" ")
            line.append_text(canvas.line_ascii(at) if here.ascii else canvas.line(at))
            line.append(" ")
            line.append_text(self._token(first, at, right, here, joined[1], keys=True))
            line.rstrip()
            yield line
        yield from self._legend(here, drawn, all_strokes, first)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Extent:
        """Say what widths make sense."""
        return Extent(min(30, options.max_width), min(options.max_width, 2 * LABEL + CANVAS + 2))

    def _strokes(self, parts: Sequence[Matrix]) -> list[_Stroke]:
        """Every value that is to be drawn, with its share of the largest possible (or, without one, that occurs)."""
        out = []
        values = [part.shown for part in parts]
        there = np.concatenate([v[np.isfinite(v)] for v in values])
        high = 1.0 if parts[0].unit == "share" else float(there.max(initial=0.0))
        low = 0.0 if parts[0].unit == "share" else float(there.min(initial=0.0))
        muted = np.isin(parts[0].keys.at, list(self.mute))
        chosen = None if self.query is None else parts[0].row_of(self.query)
        for head, shown in enumerate(values):
            for row in range(len(shown)) if chosen is None else [chosen]:
                for key in self._keys(shown[row], muted):
                    value = float(shown[row, key])
                    out.append(_Stroke(row, key, head, value, (value - low) / (high - low) if high > low else 1.0))
        return out

    def _keys(self, row: Array, muted: Array) -> list[int]:
        wanted = np.flatnonzero(np.isfinite(row) & ~muted & (row >= self.least))
        ranked = sorted((int(k) for k in wanted), key=lambda k: -row[k])
        return ranked if self.top is None else ranked[: self.top]

    def _style(self, stroke: _Stroke, here: Page) -> Style:
        if len(self.heads) > 1:
            return colour.head_style(stroke.head, here.depth)
        return tint(stroke.share, here)

    def _title(self, first: Matrix, here: Page) -> Text:
        names = self.heads[0].title if len(self.heads) == 1 else f"{len(self.heads)} heads"
        text = Text(here.spell(safe(" · ".join(part for part in (names, first.name) if part))), "bold", no_wrap=True)
        text.overflow = "ellipsis"
        return text

    def _label_width(self, labels: Sequence[str], width: int) -> int:
        longest = max((cell_len(trimmed(piece)) for piece in labels), default=1)
        return min(max(7, longest), LABEL, max(7, width // 4))

    def _token(self, m: Matrix, at: int, width: int, here: Page, joined: set[int], *, keys: bool) -> Text:
        side = m.keys if keys else m.queries
        if at >= len(side):
            return Text(" " * width)
        chosen = not keys and self.query is not None and m.row_of(self.query) == at
        style = "bold" if chosen else "" if at in joined else "dim"
        return Text(label(side.labels[at], width, right=not keys, ascii_only=here.ascii), style)

    def _legend(self, here: Page, drawn: int, of: int, first: Matrix) -> RenderResult:
        if len(self.heads) > 1:
            names = Text()
            for at, head in enumerate(self.heads):
                names.append("   " if at else "")
                names.append("-- " if here.ascii else "━━ ", colour.head_style(at, here.depth))
                names.append(here.spell(safe(head.title)) or str(at))
            yield names
            if here.depth != "none" and len(self.heads) > len(colour.HEADS):
                yield Text(f"Colours repeat after {len(colour.HEADS)} heads; draw fewer to tell them apart.", "dim")
            if here.depth == "none":
                yield Text("Heads are told apart by colour, and there is none here; draw one head at a time.", "dim")
        what = f"{first.name} of at least {number(self.least)}" if np.isfinite(self.least) else first.name
        most = "" if self.top is None else f", the {self.top} largest of each query".replace(" 1 ", " ")
        muted = [safe(p).strip() for p, at in zip(first.keys.labels, first.keys.at, strict=True) if at in self.mute]
        caption = [f"{drawn} {'line' if drawn == 1 else 'lines'} of {of}: {what}{most}; thicker is more"]
        if self.query is not None:
            caption.append(f"{first.queries.name} {self.query} alone")
        if muted:
            caption.append(f"muted: {' '.join(dict.fromkeys(muted))}")
        for line in (" · ".join(caption), *first.notes):
            yield Text(here.spell(line), "dim")


def _thickness(share: float) -> int:
    """Dots for a stroke: one below 0.4, two below 0.8, three above."""
    return 1 + (share >= 0.4) + (share >= 0.8)
