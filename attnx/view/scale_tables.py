"""What scaling does to the softmax, as tables: one row, every layer, every head, every divisor; numbers and theory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnx.view.cells import number
from attnx.view.columns import Columns, both, column, columns
from attnx.view.reporting import SHOWN, largest, place, sourced

if TYPE_CHECKING:
    from attnx.measure.scaling import ScalingTable
    from attnx.records import Measurement, Trace


def one_row(
    title: str, row: Measurement, trace: Trace, site: int, top: int = SHOWN, *, explain: bool = True
) -> Columns:
    """One query's row: token, score, scaled, both softmaxes with bars, the difference; the `top` largest weights."""
    labels = row.axes[0].labels
    kept = largest(row.values[:, 2:4].max(axis=1), top)
    values = row.values[kept]
    special = trace.keys_of(trace.attentions[site]).special
    reach = float(abs(values[:, 4]).max(initial=0.0))
    return columns(
        title,
        [
            column("key", [place(at, len(labels), labels[at]) for at in kept]),
            column(row.axes[1].labels[0], values[:, 0], decimals=2),
            column("scaled", values[:, 1], decimals=2),
            column("softmax unscaled", values[:, 2], bar=(0.0, 1.0)),
            column("softmax scaled", values[:, 3], bar=(0.0, 1.0)),
            column("difference", values[:, 4], bar=(-reach, reach)),
        ],
        faint=[n for n, at in enumerate(kept) if len(special) == len(labels) and special[at]],
        notes=row.notes,
        explained=[sourced(row)] if explain else [],
    )


_COLUMNS = ("spread", "entropy", "largest", "saturated", "gradient")
_HEADINGS = ("score spread", "entropy (nats)", "largest weight", "saturated rows", "gradient 1-Σa²")


def layers(table: ScalingTable, *, explain: bool = True) -> Columns:
    """Every layer: the means over its heads, unscaled and scaled side by side."""
    values = table.layers.values
    parts = [column("layer", table.size.axes[0].labels), column("d_k", [number(v, 0) for v in table.size.values])]
    for at, name in enumerate(_HEADINGS):
        pairs = [both(one, two) for one, two in values[:, 2 * at : 2 * at + 2]]
        parts.append(column(name, pairs, whole=True))
    parts.append(column("KL", values[:, -1], decimals=2))
    told = _told(table) if explain else []
    title = "unscaled → scaled, means over the heads of each layer"
    return columns(title, parts, notes=table.notes, explained=told)


def heads(table: ScalingTable, *, explain: bool = True) -> Columns:
    """Every head, as `layers`."""
    names, numbers = (axis.labels for axis in table.divergence.axes)
    there = [(s, h) for s in range(len(names)) for h in range(len(numbers)) if table.spread.values[s, h, 0] >= 0]
    parts = [column("head", [f"{names[s]} {numbers[h]}" for s, h in there])]
    for name, heading in zip(_COLUMNS, _HEADINGS, strict=True):
        pairs = getattr(table, name).values
        parts.append(column(heading, [both(*pairs[s, h]) for s, h in there], whole=True))
    parts.append(column("KL", [float(table.divergence.values[s, h]) for s, h in there], decimals=2))
    return columns("unscaled → scaled, every head", parts, explained=_told(table) if explain else [])


def _told(table: ScalingTable) -> list[str]:
    return [
        "spread: standard deviation of visible scores; theory for unit-variance q, k: sqrt(d_k), then 1",
        "saturated: largest weight > 0.99; gradient: mean of Σa(1 - a); KL(scaled || unscaled) in nats "
        f"({table.size.source})",
    ]


def sweep(swept: Measurement, *, explain: bool = True) -> Columns:
    """Entropy, largest weight and saturation by divisor, over all layers."""
    whole = swept.values[:, -1]
    most = float(whole[:, 0].max(initial=0.0))
    return columns(
        "as the divisor grows, mean over all layers",
        [
            column("divisor", [f"{float(step):.4g}" for step in swept.axes[0].labels]),
            column("entropy", whole[:, 0], bar=(0.0, most)),
            column("largest weight", whole[:, 1], bar=(0.0, 1.0)),
            column("saturated rows", whole[:, 2], bar=(0.0, 1.0)),
        ],
        notes=swept.notes,
        explained=[sourced(swept)] if explain else [],
    )


def given_numbers(row: Measurement, summary: Measurement) -> Columns:
    """The softmax of numbers that were given, before and after they are divided."""
    values = row.values
    notes = [
        f"{way}: entropy {line[0]:.3f} nats, largest {line[1]:.3f}, gradient 1 - Σa² {line[2]:.3f}"
        for way, line in zip(summary.axes[0].labels, summary.values, strict=True)
    ]
    return columns(
        "softmax of the numbers as they are, and divided",
        [
            column("", row.axes[0].labels),
            column("number", values[:, 0]),
            column("divided", values[:, 1]),
            column("softmax of numbers", values[:, 2], bar=(0.0, 1.0)),
            column("softmax of divided", values[:, 3], bar=(0.0, 1.0)),
            column("difference", values[:, 4]),
        ],
        notes=[sourced(row), *notes],
    )


def theory(drawn: Measurement) -> Columns:
    """Random queries and keys of each size: what theory says, and what was drawn."""
    values = drawn.values
    parts = [
        column("d", drawn.axes[0].labels),
        column("Var(q·k) theory", values[:, 0], decimals=1),
        column("Var(q·k) measured", values[:, 1], decimals=1),
        column("sd of scores", [both(one, two) for one, two in values[:, 2:4]], whole=True),
    ]
    for at, name in enumerate(("entropy", "largest weight", "saturated rows", "gradient 1-Σa²")):
        pairs = values[:, 4 + 2 * at : 6 + 2 * at]
        parts.append(column(name, [both(one, two) for one, two in pairs], whole=True))
    return columns("unit-variance q and k; unscaled → scaled", parts, notes=[sourced(drawn), *drawn.notes], gap=1)
