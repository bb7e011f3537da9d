"""The first screen of an inspection: where each token looks, and which heads are worth a look."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from attnx.numerals import counted
from attnx.records import Measurement, Tokens, Trace
from attnx.view import colour
from attnx.view.cells import cell_len, cut, fit, label, number, safe
from attnx.view.headmap import headmap_lines
from attnx.view.page import PROSE, UNBOUNDED, Page, length, page, screen_lines
from attnx.view.strokes import bar

LABEL, KIND, BAR = 14, 22, 10
"""The widest that a token and a kind of key ("<|endoftext|> (parked)") are written, and a bar drawn."""
TWO_COLUMNS = 76
"""From this width on both parts stand side by side."""
AROUND = 4
"""Lines besides the two parts, the mass and the hints: the header and the prompt."""
NAME = 16
"""Cells that a model's name keeps as long as anything else in the first line can give way."""
FEWEST, ENOUGH = 5, 5
"""Lines that each part gets at least; lines of heads below which there is no map of all of them."""


@dataclass(frozen=True, slots=True)
class Target:
    """A key that a query looks at."""

    key: int
    """Position."""
    weight: float
    place: str
    """Whose weight it is: "L5 H11", or how it was put together: "mean of 12 heads"."""


@dataclass(frozen=True, slots=True)
class Look:
    """Where one query looks."""

    query: int
    targets: tuple[Target, ...]
    """The strongest first."""


@dataclass(frozen=True, slots=True)
class Worth:
    """A head worth a look, and why."""

    what: str
    """ "most confident", "most on one token", "previous token", ..."""
    place: str
    """ "L5 H11"."""
    value: float
    unit: str = ""
    note: str = ""
    """ "it → animal"."""
    weight: float | None = None
    """Of the pair in the note; it stays whole where the note is cut."""


def overview(
    trace: Trace,
    looks: Sequence[Look],
    worth: Sequence[Worth],
    *,
    mass: Measurement | None = None,
    heads: Measurement | None = None,
    hints: Sequence[str] = (),
    height: int | None = None,
    rest: str = "",
    every: bool = False,
    below: int = 0,
) -> Overview:
    """Compose the first screen from the measurements.

    Args:
        trace: Gives model, tokens, layers, device.
        looks: Where each token looks, in the text's order. What does not fit is counted at the end.
        worth: Heads to point out, best first.
        mass: Rank 1: where the weight goes ("[CLS]", "[SEP]", "punctuation", "words"), shares.
        heads: Rank 2, layer by head: a small map beside the list.
        hints: What to type next, a line each.
        height: Lines that may be used; the terminal's where None, and of a pipe those of the smallest screen.
        rest: How what does not fit is seen, said after its number.
        every: List every token and head, however many lines that takes.
        below: Lines that are shown under it, on the same screen.

    Returns:
        A renderable of 80 x 24 at its smallest best; narrower terminals get the two parts below each other.
    """
    return Overview(trace, tuple(looks), tuple(worth), mass, heads, tuple(hints), height, rest, every, below)


@dataclass(frozen=True, slots=True)
class Overview:
    """See `overview`."""

    trace: Trace
    looks: tuple[Look, ...]
    worth: tuple[Worth, ...]
    mass: Measurement | None
    heads: Measurement | None
    hints: tuple[str, ...]
    height: int | None
    rest: str
    every: bool
    below: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Write header, both parts, mass and hints."""
        here = page(console, options)
        height = screen_lines(console, options) if self.height is None else self.height
        # In a pipe: both parts stand side by side as on the smallest screen, whose width a pager will have.
        width = PROSE if here.width >= UNBOUNDED else here.width
        here = replace(here, width=width, height=None if self.every else height)
        yield from self._header(here)
        mass = [] if self.mass is None else _mass(self.mass, here)
        used = AROUND + len(mass) + len(self.hints) + self.below
        room = None if here.height is None else max(FEWEST, here.height - used)
        if here.width >= TWO_COLUMNS:
            gap = 3
            right = max(32, min(46, here.width * 2 // 5))
            left = here.width - gap - right
            looks = self._looks(replace(here, width=left), room)
            sides = Table.grid(padding=(0, gap, 0, 0), pad_edge=False)
            sides.add_column(width=min(left, max(cell_len(line) for line in looks.plain.split("\n"))), no_wrap=True)
            sides.add_column(width=right, no_wrap=True)
            sides.add_row(looks, self._worth(replace(here, width=right), room))
            yield sides
        else:
            yield self._looks(here, None if room is None else max(FEWEST, room // 2))
            yield Text()
            yield self._worth(here, None if room is None else max(FEWEST, room // 2))
        yield from mass
        for hint in self.hints:
            yield Text(here.spell(hint), "dim", no_wrap=True, overflow="ellipsis")

    def _header(self, here: Page) -> RenderResult:
        t = self.trace
        sizes = sorted({a.site.head_size for a in t.attentions if a.site.head_size is not None})
        heads = sorted({a.site.heads for a in t.attentions if a.site.heads is not None})
        shared = sorted({a.site.kv_heads for a in t.attentions if a.site.kv_heads not in (None, a.site.heads)}, key=str)
        count = counted(len(t.attentions), "layer")
        parts = [
            length(t),
            f"{count} × {_range(heads)} {'head' if heads == [1] else 'heads'}"
            + (f" ({_range(shared)} key/value)" if shared else ""),
            f"d_k {_range(sizes)}",
            t.device,
        ]
        dot, name = here.spell(" · "), here.spell(safe(t.model))
        caption = [here.spell(part) for part in parts]
        # What gives way to the length and the device: the size of heads, a long name's end, layers and heads.
        least = cell_len(name)
        while len(caption) > 2 and least + cell_len(dot.join(["", *caption])) > here.width:
            caption.pop(-2)
            least = min(least, NAME)
        room = max(FEWEST, here.width - cell_len(dot.join(["", *caption])))
        line = Text(no_wrap=True, overflow="ellipsis")
        line.append(name if cell_len(name) <= room else cut(name, room, ascii_only=here.ascii), "bold")
        yield line.append(dot.join(["", *caption]))
        text = t.tokens.text or " ".join(piece.strip() for piece in t.tokens.pieces)
        shown = cut(here.spell(safe(text)), here.width, ascii_only=here.ascii)
        yield Text(shown, "dim", no_wrap=True, overflow="crop")
        yield Text()

    def _looks(self, here: Page, room: int | None) -> Text:
        """The left part: token, arrow, where it looks hardest."""
        queries, keys = _sides(self.trace)
        arrow = "->" if here.ascii else "→"
        token = _width([queries.pieces[look.query] for look in self.looks])
        goal = _width([keys.pieces[t.key] for look in self.looks for t in look.targets])
        place = max((len(t.place) for look in self.looks for t in look.targets), default=0)
        digits = len(str(max(0, len(queries) - 1)))
        each = goal + 6 + place + 1
        spare = here.width - digits - 1 - token - len(arrow) - 2
        count = max(1, min(3, (spare + 2) // (each + 2)))
        length = max(0, min(BAR, spare - each - 1)) if count == 1 else 0
        out = Text(no_wrap=True, overflow="ellipsis").append("where each token looks", "bold")
        out.append("  its largest weight" if count == 1 else "  its largest weights", "dim")
        rows = self.looks if room is None or len(self.looks) <= room - 1 else self.looks[: room - 2]
        for look in rows:
            special = queries.special[look.query]
            out.append(f"\n{look.query:>{digits}} ", "dim")
            out.append(label(queries.pieces[look.query], token, ascii_only=here.ascii), "dim" if special else "bold")
            out.append(f" {arrow} ", "dim")
            for at, target in enumerate(look.targets[:count]):
                out.append("  " if at else "")
                dull = "dim" if keys.special[target.key] else ""
                out.append(label(keys.pieces[target.key], goal, ascii_only=here.ascii), dull)
                out.append(f" {number(target.weight)} ")
                if length:
                    out.append_text(bar(target.weight, length, here)).append(" ")
                out.append(fit(here.spell(target.place), place), "dim")
        if len(rows) < len(self.looks):
            more = f"and {counted(len(self.looks) - len(rows), 'more token')}{self.rest}"
            out.append(f"\n{' ' * digits} {'...' if here.ascii else '…'} {more}", "dim")
        return out

    def _worth(self, here: Page, room: int | None) -> Text:
        """The right part: heads, why, and the map of all of them."""
        out = Text(no_wrap=True, overflow="ellipsis").append("heads worth a look", "bold")
        chart = (
            [] if self.heads is None else headmap_lines(self.heads, here, None if room is None else room - 1 - ENOUGH)
        )
        limit = None if room is None else max(2, room - 1 - len(chart))
        place = max((len(w.place) for w in self.worth), default=0)
        used, before, left = 0, "", len(self.worth)
        for item in self.worth:
            need = 1 + (item.what != before)
            if limit is not None and used + need + (left > 1) > limit:
                break
            used, left = used + need, left - 1
            if item.what != before:
                out.append(here.spell(f"\n{safe(item.what)}"), "" if here.depth == "none" else "italic")
                before = item.what
            value = number(item.value) + (f" {item.unit}" if item.unit else "")
            out.append(here.spell(f"\n  {safe(item.place):<{place}} "), "bold").append(value)
            if item.note:
                note, weight = here.spell(safe(item.note)), "" if item.weight is None else f" {item.weight:.2f}"
                spare = here.width - place - len(value) - len(weight) - 5
                out.append(f"  {cut(note, max(4, spare), ascii_only=here.ascii)}{weight}", "dim")
        if left:
            out.append(f"\n{'...' if here.ascii else '…'} and {left} more", "dim")
        for line in chart:
            out.append("\n").append_text(line)
        return out


def _mass(mass: Measurement, here: Page) -> list[Text]:
    """One bar, cut into shares: where the weight goes. On one line, or with what it means on the next."""
    values = np.asarray(mass.values, np.float64)
    fills = "#=-." if here.ascii else "█▓▒░"
    title = Text(no_wrap=True, overflow="ellipsis").append(here.spell(f"{safe(mass.name)}  "), "bold")
    meaning = Text(no_wrap=True, overflow="ellipsis")
    for at, (name, value) in enumerate(zip(mass.axes[0].labels, values, strict=True)):
        meaning.append("  ").append(_fill(at, fills, here), colour.head_style(at, here.depth))
        name = cut(here.spell(safe(name)), KIND, ascii_only=here.ascii)
        meaning.append(f" {name} {number(float(value))}")
    room = here.width - cell_len(title.plain) - cell_len(meaning.plain)
    width = min(40, room if room >= 12 else here.width - cell_len(title.plain))
    start = 0
    for at, stop in enumerate(np.rint(np.cumsum(np.nan_to_num(values)) * width).astype(int)):
        title.append(_fill(at, fills, here) * (min(width, stop) - start), colour.head_style(at, here.depth))
        start = max(start, min(width, int(stop)))
    title.append(" " * (width - start))
    return [Text(), title.append_text(meaning)] if room >= 12 else [Text(), title, meaning]


def _fill(at: int, fills: str, here: Page) -> str:
    """A full block where colours tell parts apart, else a shade for each."""
    return fills[0] if colour.smooth(here.depth) else fills[at % len(fills)]


def _sides(trace: Trace) -> tuple[Tokens, Tokens]:
    """The tokens that looks are about: those of the last site."""
    if not trace.attentions:
        return trace.tokens, trace.tokens
    last = trace.attentions[-1]
    return trace.queries_of(last), trace.keys_of(last)


def _range(values: Sequence[int | None]) -> str:
    """A number, "4–16", or "?" where unknown."""
    if not values:
        return "?"
    return str(values[0]) if len(values) == 1 else f"{values[0]}–{values[-1]}"


def _width(pieces: Sequence[str]) -> int:
    return min(LABEL, max((cell_len(safe(piece)) for piece in pieces), default=1))
