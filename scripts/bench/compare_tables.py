"""What `compare.py` found, and its tables in Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class Cost:
    """What one process took: seconds of wall clock and processor, peak resident memory in bytes, and what it said."""

    wall: float
    cpu: float
    peak: int
    code: int = 0
    said: str = ""


@dataclass
class Found:
    """What came out for one model: costs by job and tool, differences from attnx, reasons, sizes of pages in bytes."""

    costs: dict[tuple[str, str], list[Cost]] = field(default_factory=dict)
    off: dict[tuple[str, str], float] = field(default_factory=dict)
    reasons: dict[tuple[str, str], str] = field(default_factory=dict)
    pages: dict[str, tuple[int, bool]] = field(default_factory=dict)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows of Markdown; the first is the head."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, "|---" * len(rows[0]) + "|")
    return "\n".join(lines)


def middle(costs: Sequence[Cost]) -> tuple[float, float, float]:
    """Medians of wall seconds, processor seconds and peak bytes."""
    wall, cpu, peak = (statistics.median(getattr(cost, name) for cost in costs) for name in ("wall", "cpu", "peak"))
    return wall, cpu, peak


def ratios(found: Found, tools: Sequence[str], jobs: Sequence[str], seconds: bool) -> str:
    """Wall time, processor time and peak memory of each job and tool, as ratios to attnx; attnx itself in units."""
    rows = [["wall; processor; memory", *tools]]
    for job in jobs:
        own = found.costs.get((job, "attnx"))
        cells = []
        for tool in tools:
            costs = found.costs.get((job, tool))
            if costs is None or own is None:
                cells.append("no" if (job, tool) in found.reasons else "")
            elif tool == "attnx":
                wall, cpu, peak = middle(own)
                time = f"{wall:.2f} s; {cpu:.2f} s" if seconds else "1; 1"
                cells.append(f"{time}; 1 ({peak / 1e6:.0f} MB)")
            else:
                pairs = zip(middle(costs), middle(own), strict=True)
                cells.append("; ".join(f"{other / mine:.1f}" for other, mine in pairs))
        rows.append([job, *cells])
    return table(rows)


def agreement(found: Found, tools: Sequence[str], jobs: Sequence[str]) -> str:
    """The largest difference from what attnx found, of each job that gives numbers."""
    others = [tool for tool in tools if any((job, tool) in found.off for job in jobs) and tool != "attnx"]
    rows = [["largest difference from attnx", *others]]
    for job in jobs:
        if any((job, tool) in found.off for tool in others):
            offs = [found.off.get((job, tool)) for tool in others]
            rows.append([job, *("" if off is None else f"{off:.1g}" for off in offs)])
    return table(rows) if others else "No other tool gave numbers."


def sizes(installed: dict[str, tuple[str, int, int]], pages: dict[str, dict[str, tuple[int, bool]]]) -> str:
    """Version, packages and bytes of each environment, and of the page of each model."""
    rows = [["tool", "version", "packages", "installed", *(f"page, {model}" for model in pages)]]
    for tool, (version, packages, size) in installed.items():
        drawn = [page_size(of.get(tool)) for of in pages.values()]
        rows.append([tool, version, str(packages), f"{size / 1e6:,.0f} MB", *drawn])
    return table(rows)


def page_size(page: tuple[int, bool] | None) -> str:
    """Of a page: its size, and whether it needs the network to be seen."""
    return "" if page is None else f"{page[0] / 1e6:.2f} MB" + (", needs the network" if page[1] else "")


def left_out(reasons: dict[tuple[str, str], str]) -> str:
    """What was not done, and why; jobs of a tool with the same reason on one line."""
    lines: dict[tuple[str, str], list[str]] = {}
    for (job, tool), why in reasons.items():
        lines.setdefault((tool, why), []).append(job)
    return "\n".join(f"- {tool}, {', '.join(jobs)}: {why}" for (tool, why), jobs in lines.items())
