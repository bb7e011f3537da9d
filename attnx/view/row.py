"""One query's row: the keys it looks at, the largest first, as bars."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement as Extent
from rich.text import Text

from attnx.errors import UsageError
from attnx.records import Array
from attnx.view.cells import cell_len, label, number, safe, trimmed
from attnx.view.matrix import Matrix
from attnx.view.page import Page, page
from attnx.view.strokes import bar
from attnx.wording import Wording

LABEL, BAR = 18, 60
"""The widest that a token is written, and a bar drawn."""


def row(matrix: Matrix, query: int, *, top: int | None = 8, mute: Collection[int] = (), decimals: int = 3) -> RowBars:
    """Show where one query looks.

    Args:
        matrix: [Q,K].
        query: Position of the query.
        top: How many keys; all in the text's order where None.
        mute: Key positions that are left out, and listed under the bars.
        decimals: Digits after the point.

    Returns:
        A renderable: a line for each key, then what was left out.

    Raises:
        UsageError: No such query; top below 1.
    """
    matrix.row_of(query)
    if top is not None and top < 1:
        raise UsageError(Wording("<top={top}> shows nothing", top=top), "Give 1 or more.")
    return RowBars(matrix, query, top, frozenset(mute), decimals)


@dataclass(frozen=True, slots=True)
class RowBars:
    """See `row`."""

    matrix: Matrix
    query: int
    top: int | None
    mute: frozenset[int]
    decimals: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Write the title, the bars, and what is not among them."""
        here, m = page(console, options), self.matrix
        at = m.row_of(self.query)
        keys, values = m.keys, m.shown[at]
        there = [k for k in range(len(keys)) if np.isfinite(values[k]) and keys.at[k] not in self.mute]
        ranked = sorted(there, key=lambda k: -values[k])
        chosen = there if self.top is None else ranked[: self.top]
        arrow = "->" if here.ascii else "→"
        title = Text(no_wrap=True, overflow="ellipsis")
        title.append(here.spell(safe(" · ".join(part for part in (m.title, m.name) if part))), "bold")
        name = trimmed(m.queries.labels[at])
        title.append(f"   {m.queries.name} {self.query} ", "dim")
        title.append(here.spell(name), "bold")
        title.append(f" {arrow} {keys.name}", "dim")
        yield title
        digits = len(str(max(0, keys.total - 1)))
        written = [number(float(values[k]), self.decimals) for k in chosen]
        width = max((len(text) for text in written), default=1)
        token = max((cell_len(trimmed(keys.labels[k])) for k in chosen), default=1)
        token = min(token, LABEL, max(4, here.width // 4))
        length = max(4, min(BAR, here.width - digits - token - width - 5))
        lowest = min((float(values[k]) for k in chosen), default=0.0)
        most = max((float(values[k]) for k in chosen), default=0.0)
        base, reach = (0.0, 1.0) if m.unit == "share" else (min(0.0, lowest), max(most, 0.0))
        for k, text in zip(chosen, written, strict=True):
            line = Text(no_wrap=True, overflow="crop")
            line.append(f" {keys.at[k]:>{digits}} ", "dim")
            line.append(label(keys.labels[k], token, ascii_only=here.ascii), "dim" if keys.special[k] else "")
            line.append(f" {text:>{width}} ")
            share = (float(values[k]) - base) / (reach - base) if reach > base else 0.0
            line.append_text(bar(share, length, here))
            line.rstrip()
            yield line
        span = f"bars: {number(base)} to {number(reach)}"
        yield from self._rest(here, [k for k in there if k not in set(chosen)], values, span)

    def _rest(self, here: Page, rest: list[int], values: Array, span: str) -> RenderResult:
        m = self.matrix
        caption = [span]
        if rest:
            together = f", {number(float(values[rest].sum()), self.decimals)} together" if m.unit == "share" else ""
            caption.append(f"{len(rest)} more{together}")
        if count := int(m.hidden[m.row_of(self.query)].sum()):
            caption.append(f"{count} hidden by the mask")
        if names := [safe(p).strip() for p, at in zip(m.keys.labels, m.keys.at, strict=True) if at in self.mute]:
            caption.append(f"muted: {' '.join(names)}")
        for line in (" · ".join(caption), *m.notes):
            if line:
                yield Text(here.spell(line), "dim")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Extent:
        """Say what widths make sense."""
        return Extent(min(30, options.max_width), min(options.max_width, LABEL + BAR + 14))
