"""What was found in a graph, and what was refused and why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement as Extent
from rich.padding import Padding
from rich.text import Text

from attnx.records import Miss, Place, Site
from attnx.view.cells import ELLIPSIS, cell_len, clusters, fit, safe
from attnx.view.page import Page, page

NODE, OP = 16, 12
"""The least that a node's name and an operator's are given; both keep their ends."""


def sites_table(
    found: Sequence[Site],
    misses: Sequence[Miss] = (),
    *,
    places: bool = False,
    notes: Sequence[str] = (),
    elsewhere: str = "",
) -> SitesTable:
    """List attention sites and refused nodes.

    Args:
        found: In execution order.
        misses: Nodes that looked like attention and were refused.
        places: Say below each site where in the graph its quantities live.
        notes: Printed at the end.
        elsewhere: Where everything stands, for columns that do not fit.

    Returns:
        A renderable. Columns that do not fit are left out and named; a node's name keeps its end.
    """
    return SitesTable(tuple(found), tuple(misses), places, tuple(notes), elsewhere)


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    write: Callable[[Site], str]
    right: bool = False
    need: int = 0
    """How early the column is dropped when space is short; 0 never."""
    said: str = ""
    """What it shows, where it is dropped."""


def _kind(site: Site) -> str:
    return site.kind if site.kind != "self" or not site.component_known else site.component


def _heads(site: Site) -> str:
    if site.heads is None:
        return "?"
    return str(site.heads) if site.kv_heads in (None, site.heads) else f"{site.heads}/{site.kv_heads}"


def _scale(site: Site) -> str:
    if site.scale is None:
        return "?"
    return f"{site.scale:.4g}" if isinstance(site.scale, float | int) else "by head"


def _sees(site: Site) -> str:
    """What a query can see."""
    causal = {True: "causal", False: "all", None: "?"}[site.causal]
    return causal if site.window is None else f"{causal}, {site.window} wide"


def _also(site: Site) -> str:
    """What else changes the scores."""
    cap = "" if site.softcap is None else f"softcap {site.softcap:g}"
    parts = ["heads mixed" if site.heads_mixed else "", site.bias or "", cap, "sink" if site.sink else ""]
    return ", ".join(part for part in parts if part)


_COLUMNS = (
    _Column("#", lambda site: str(site.index), right=True),
    _Column("layer", lambda site: site.label),
    _Column("kind", _kind),
    _Column("heads", _heads, right=True),
    _Column("d_k", lambda site: "?" if site.head_size is None else str(site.head_size), right=True),
    _Column("scale", _scale, right=True),
    _Column("sees", _sees),
    _Column("also", _also, need=2, said="what else changes the scores"),
    _Column("scale applied", lambda site: site.scale_place, need=1, said="where the scale is applied"),
    _Column("op", lambda site: site.op, need=3, said="operators"),
)


@dataclass(frozen=True, slots=True)
class SitesTable:
    """See `sites_table`."""

    found: tuple[Site, ...]
    misses: tuple[Miss, ...]
    places: bool
    notes: tuple[str, ...]
    elsewhere: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Write the sites, their notes, the refusals."""
        here = page(console, options)
        yield Text(_counted(len(self.found), "attention site"), "bold")
        if self.found:
            yield from self._table(here)
        for site in self.found:
            for note in site.notes:
                yield Padding(_text(f"{site.label} #{site.index}: {note}", here, "dim"), (0, 0, 0, 2))
        if self.misses:
            yield Text()
            yield Text(f"{_counted(len(self.misses), 'node')} refused", "bold")
            for miss in self.misses:
                line = Text(no_wrap=True, overflow="ellipsis")
                line.append(f"  {_plain(miss.op, here)} ")
                line.append(
                    here.spell(_tail(_plain(miss.node, here), max(NODE, here.width - cell_len(safe(miss.op)) - 3))),
                    "dim",
                )
                yield line
                yield Padding(_text(miss.reason, here), (0, 0, 0, 4))
        for note in self.notes:
            yield _text(note, here, "dim")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Extent:
        """Any width will do, from the columns that are always there on."""
        return Extent(min(50, options.max_width), options.max_width)

    def _table(self, here: Page) -> RenderResult:
        texts = {c.name: [_plain(c.write(s) or " ", here) for s in self.found] for c in _COLUMNS}
        texts = {name: ["" if t.strip("␣ ") == "" else t for t in column] for name, column in texts.items()}
        widths = {name: max([cell_len(name), *map(cell_len, column)]) for name, column in texts.items()}
        columns = [c for c in _COLUMNS if any(texts[c.name])]
        dropped = []
        for need in (1, 2, 3):
            if need == 3:
                rest = here.width - NODE - 2 - sum(widths[c.name] + 2 for c in columns if c.name != "op")
                widths["op"] = min(widths["op"], max(OP, rest))
                texts["op"] = [here.spell(_tail(text, widths["op"])) for text in texts["op"]]
            if sum(widths[c.name] + 2 for c in columns) + NODE > here.width:
                dropped += [c.said for c in columns if c.need == need]
                columns = [c for c in columns if c.need != need]
        nodes = [_plain(site.node, here) for site in self.found]
        room = here.width - sum(widths[c.name] + 2 for c in columns)
        shown = room >= NODE // 2
        if not shown:
            dropped.append("nodes")
        head = Text(no_wrap=True, overflow="crop")
        for c in columns:
            head.append(fit(c.name, widths[c.name], right=c.right) + "  ")
        head.append("node" if shown else "")
        head.stylize("dim")
        yield head
        for at, site in enumerate(self.found):
            line = Text(no_wrap=True, overflow="crop")
            for c in columns:
                style = "bold" if c.name == "layer" else ""
                line.append(fit(texts[c.name][at], widths[c.name], right=c.right), style).append("  ")
            if shown:
                line.append(here.spell(_tail(nodes[at], room)), "dim")
            line.rstrip()
            yield line
            if self.places:
                for quantity, place in site.places.items():
                    yield Padding(_text(f"{quantity}: {_where(place)}", here, "dim"), (0, 0, 0, 4))
        if dropped:
            more = f"; {self.elsewhere}" if self.elsewhere else ""
            yield _text(f"a wider terminal also shows {', '.join(dropped)}{more}", here, "dim")


def _where(place: Place) -> str:
    """A place in words: tensor, layout, factors, the part of it."""
    parts = [place.value, f"[{place.layout}]"]
    parts += [f"x {factor:.4g}" if isinstance(factor, float) else "x one per head" for factor in place.factors]
    if place.window is not None:
        start, stop = ("" if end is None else str(end) for end in place.window)
        parts.append(f"columns {start}:{stop}")
    return " ".join(parts)


def _tail(text: str, width: int) -> str:
    """Cut at the front: the end of a node's name tells most."""
    if cell_len(text) <= width:
        return text
    mark = ELLIPSIS
    kept = ""
    for cluster in reversed(list(clusters(text))):
        if cell_len(cluster) + cell_len(kept) > width - 1:
            break
        kept = cluster + kept
    return mark + kept


def _plain(text: str, here: Page) -> str:
    return here.spell(safe(text))


def _text(text: str, here: Page, style: str = "") -> Text:
    return Text(_plain(text, here), style, overflow="fold")


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count or 'no'} {noun}s"
