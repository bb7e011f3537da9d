"""What a run gave: every site's arrays, their shapes, where they came from, and the checks that were made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement as Extent
from rich.padding import Padding
from rich.text import Text

from attnx.records import QUANTITIES, Attention, Trace
from attnx.view.cells import cell_len, fit, in_ascii, safe
from attnx.view.page import Page, page


def traced(trace: Trace, *, saved: Sequence[str] = ()) -> Traced:
    """Say what a run gave.

    Args:
        trace: The run.
        saved: What was written where, a line each.

    Returns:
        A renderable: a line for each site with the shape of every array, and what failed.
    """
    return Traced(trace, tuple(saved))


@dataclass(frozen=True, slots=True)
class Traced:
    """See `traced`."""

    trace: Trace
    saved: tuple[str, ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Write the header, a block a site, then notes."""
        here, t = page(console, options), self.trace
        dot = " - " if here.ascii else " · "
        count = f"{len(t.attentions)} attention {'site' if len(t.attentions) == 1 else 'sites'}"
        head = Text(no_wrap=True, overflow="ellipsis")
        head.append(_plain(t.model, here), "bold").append(
            f"{dot}{count}{dot}{len(t.tokens)} tokens{dot}{safe(t.device)}"
        )
        yield head
        names = max((cell_len(name) for name in t.labels), default=1)
        for name, attention in zip(t.labels, t.attentions, strict=True):
            line = Text(overflow="fold")
            line.append(f"{fit(name, names)}  ", "bold")
            for at, (quantity, shape, tapped) in enumerate(_arrays(attention)):
                line.append(", " if at else "")
                line.append(quantity, "" if tapped else "italic").append(f" {shape}", "dim")
                line.append("" if tapped else " computed", "dim")
            yield line
            for check in attention.checks:
                if not check.holds:
                    said = f"does not hold: {check.name}, by {check.difference:.2g} (tolerance {check.tolerance:.2g})"
                    yield Padding(Text(_plain(said, here), "bold red"), (0, 0, 0, names + 2))
        checks = [check for attention in t.attentions for check in attention.checks]
        if checks:
            held = sum(check.holds for check in checks)
            yield Text(f"{held} of {len(checks)} checks hold", "" if held == len(checks) else "bold red")
        if t.misses:
            yield Text(
                f"{len(t.misses)} {'node was' if len(t.misses) == 1 else 'nodes were'} refused (see attnx sites)"
            )
        for note in (*t.notes, *self.saved):
            yield Text(_plain(note, here), "dim", overflow="fold")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Extent:
        """Any width will do."""
        return Extent(min(40, options.max_width), options.max_width)


def _arrays(attention: Attention) -> list[tuple[str, str, bool]]:
    """Name, shape, and whether it was tapped, of every array that is there."""
    return [
        (quantity, "x".join(map(str, array.shape)), attention.origin.get(quantity) != "computed")
        for quantity in QUANTITIES
        if (array := getattr(attention, quantity)) is not None
    ]


def _plain(text: str, here: Page) -> str:
    return in_ascii(safe(text)) if here.ascii else safe(text)
