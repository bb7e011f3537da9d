"""What a run gave: every site's arrays, their shapes, where they came from, and the checks that were made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement as Extent
from rich.padding import Padding
from rich.text import Text

from attnx.numerals import counted
from attnx.records import QUANTITIES, Trace
from attnx.view.cells import cell_len, fit, safe
from attnx.view.page import Page, length, page


def traced(trace: Trace, *, saved: Sequence[str] = (), why: str = "") -> Traced:
    """Say what a run gave.

    Args:
        trace: The run.
        saved: What was written where, a line each.
        why: Where it stands why a node was refused.

    Returns:
        A renderable: a line for each site with the shape of every array, and what failed.
    """
    return Traced(trace, tuple(saved), why)


@dataclass(frozen=True, slots=True)
class Traced:
    """See `traced`."""

    trace: Trace
    saved: tuple[str, ...]
    why: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Write the header, a block a site, then notes."""
        here, t = page(console, options), self.trace
        dot = here.spell(" · ")
        count = f"{counted(len(t.attentions), 'attention site')}"
        head = Text(no_wrap=True, overflow="ellipsis")
        head.append(_plain(t.model, here), "bold").append(
            f"{dot}{count}{dot}{here.spell(length(t))}{dot}{_plain(t.device, here)}"
        )
        yield head
        groups = _groups(t)
        names = max((cell_len(name) for name, _, _ in groups), default=1)
        for name, arrays, failed in groups:
            for at, (quantity, shape, origin) in enumerate(arrays):
                line = Text(no_wrap=True, overflow="crop")
                line.append(fit(name if at == 0 else "", names), "bold").append(f"  {quantity:<8} {shape:<16} ")
                line.append(origin, "dim")
                line.rstrip()
                yield line
            for failure in failed:
                yield Padding(Text(_plain(failure, here), "bold red"), (0, 0, 0, names + 2))
        checks = [check for attention in t.attentions for check in attention.checks]
        if checks:
            held = sum(check.holds for check in checks)
            yield Text(f"{held} of {len(checks)} checks hold", "" if held == len(checks) else "bold red")
        if t.misses:
            where = f" ({self.why})" if self.why else ""
            yield Text(f"{counted(len(t.misses), 'node was', 'nodes were')} refused{where}")
        for note in (*t.notes, *self.saved):
            yield Text(_plain(note, here), "dim", overflow="fold")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Extent:
        """Any width will do."""
        return Extent(min(40, options.max_width), options.max_width)


def _groups(trace: Trace) -> list[tuple[str, list[tuple[str, str, str]], list[str]]]:
    """Sites of a kind in a row that gave the same: their name ("L0 to L5"), their arrays, the checks that failed.

    Of a decoder, self- and cross-attention take turns; each is a row of its own.
    """
    latest: dict[str, int] = {}
    out: list[tuple[list[str], list[tuple[str, str, str]], list[str]]] = []
    for name, attention in zip(trace.labels, trace.attentions, strict=True):
        arrays: list[tuple[str, str, str]] = [
            (quantity, "x".join(map(str, array.shape)), attention.origin.get(quantity, "tapped"))
            for quantity in QUANTITIES
            if (array := getattr(attention, quantity)) is not None
        ]
        failed = [
            f"{name}, {check.name}: does not hold, {check.difference:.2g} apart (tolerance {check.tolerance:.2g})"
            for check in attention.checks
            if not check.holds
        ]
        sort, _, _ = name.rpartition(" ")
        at = latest.get(sort)
        if at is not None and out[at][1] == arrays:
            out[at][0].append(name)
            out[at][2].extend(failed)
        else:
            latest[sort] = len(out)
            out.append(([name], arrays, failed))
    return [(names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}", a, f) for names, a, f in out]


def _plain(text: str, here: Page) -> str:
    return here.spell(safe(text))
