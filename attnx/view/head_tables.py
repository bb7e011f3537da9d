"""What heads do, as tables: how many of each kind, a map of kinds, the measures of a few, the nearest to one."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attnx.numerals import counted
from attnx.view.cells import number
from attnx.view.columns import Columns, column, columns
from attnx.view.reporting import sourced

if TYPE_CHECKING:
    from attnx.measure.heads import HeadTable
    from attnx.records import Measurement

EFFECT = "effect"
"""The measure that ablating each head adds."""
SHORT = {
    "previous-token": "prev",
    "next-token": "next",
    "self": "self",
    "sink": "sink",
    "broad": "broad",
    "induction": "induc",
    "punctuation": "punct",
    "mixed": "·",
    "nothing": "none",
    "": "-",
}
"""Kinds as the map writes them."""
WIDE = max(map(len, SHORT.values())) + 1
"""Cells of one in the map, with a star or a space."""
FEW = 2
"""Heads of a kind that are named."""


def counts(table: HeadTable) -> list[str]:
    """How many heads there are of each kind, one or two of a kind by name; and what sinks do with the rest."""
    if not any(map(any, table.kinds)):
        return ["no head has a value: no token sees a key"]
    out = [f"{counted(sum(map(bool, sum(table.kinds, ()))), 'head')}: {_counted(table, table.kinds)}"]
    if any(map(bool, sum(table.rest_kinds, ()))):
        out.append(f"apart from the sink: {_counted(table, table.rest_kinds)}")
    return out


def _counted(table: HeadTable, kinds: Sequence[Sequence[str]]) -> str:
    layers, names = (axis.labels for axis in table.measures[0].axes)
    places: dict[str, list[str]] = {}
    for s, row in enumerate(kinds):
        for h, kind in enumerate(row):
            if kind:
                places.setdefault(kind, []).append(f"{layers[s]} {names[h]}")
    parts = [
        f"{len(found)} {kind.removesuffix('-token')}" + (f" ({', '.join(found)})" if len(found) <= FEW else "")
        for kind, found in sorted(places.items(), key=lambda item: -len(item[1]))
    ]
    return ", ".join(parts)


def kinds(table: HeadTable, explain: bool) -> Columns:
    """Layers by heads: what each head is; a sink by a star, and what it does with the rest of its weight."""
    layers, names = (axis.labels for axis in table.measures[0].axes)
    wide = max(len("layer"), *map(len, layers)) + 1
    parts = [column("layer", [f"{layer:<{wide}}" for layer in layers], whole=True)]
    for at, name in enumerate(names):
        cells = [f"{_short(table, s, at):<{WIDE}}" for s in range(len(layers))]
        parts.append(column(name, cells, whole=True))
    named = {kind for row in (*table.kinds, *table.rest_kinds) for kind in row}
    notes = ["· mixed: no threshold is passed"] if "mixed" in named else []
    notes += ["no such head, or no value: -"] if not all(map(all, table.kinds)) else []
    if any(map(any, table.rest_kinds)):
        notes.insert(0, "* sink, and what the rest of its weight does")
        named.add("rest")
    said = [line for line in table.thresholds if line.partition(":")[0] in named] if explain else []
    return columns("what each head does", parts, notes=["; ".join(notes)], explained=said, gap=0)


def _short(table: HeadTable, site: int, head: int) -> str:
    kind, rest = table.kinds[site][head], table.rest_kinds[site][head] if table.rest_kinds else ""
    return f"{SHORT[rest]}*" if rest else f"{SHORT[kind]} "


def named(table: HeadTable, site: int, head: int) -> str:
    """What a head does, in a word, or of a sink in two."""
    kind, rest = table.kinds[site][head], table.rest_kinds[site][head] if table.rest_kinds else ""
    both = f"{kind}, {rest}" if rest else kind
    return both.replace("-token", "")


_TABLE = (
    "effect", "largest weight", "entropy", "mean distance", "previous", "next", "self", "first", "induction", "special",
    "punctuation", "sink", "duplicate", "entropy share", "locality", "confidence",
)  # fmt: skip
"""Measures in the order of the table; those from "induction" on only where there is room."""
_SPARE = _TABLE[_TABLE.index("induction") :]


def measures(table: HeadTable, sort: str, count: int, more: Callable[[int], str], *, explain: bool) -> Columns:
    """The heads with the largest of one measure, and all their measures; `more` says how the others are seen."""
    chosen = table.measure(sort)
    layers, names = (axis.labels for axis in chosen.axes)
    order = np.argsort(-np.nan_to_num(chosen.values, nan=-np.inf), axis=None, kind="stable")
    places = [divmod(int(at), chosen.values.shape[1]) for at in order]
    places = [(s, h) for s, h in places if table.kinds[s][h]]
    kept = places[:count]
    parts = [
        column("head", [f"{layers[s]} {names[h]}" for s, h in kept], whole=True),
        column("kind", [named(table, s, h) for s, h in kept], whole=True),
    ]
    known = {measure.name for measure in table.measures}
    for name in dict.fromkeys((sort, *_TABLE)):
        if name not in known:
            continue
        values = table.measure(name).values
        if np.isnan(values).all():
            continue
        spare = name in _SPARE and name != sort
        if table.spread:
            deviation = table.spread[[m.name for m in table.measures].index(name)].values
            cells: list[Any] = [f"{number(values[s, h])}±{number(deviation[s, h])}" for s, h in kept]
            parts.append(column(name, cells, whole=True, spare=spare))
        else:
            decimals = 4 if name == EFFECT else 2
            parts.append(column(name, [values[s, h] for s, h in kept], decimals=decimals, spare=spare))
    found = (re.findall(r"[A-Z][\w ]*?(?: et al\.| and [A-Z]\w+)? \d{4}", m.source) for m in table.measures)
    papers = dict.fromkeys(paper for papers in found for paper in papers)
    said = [more(len(places) - len(kept))]
    told = [*_formulas(table), f"Sources: {', '.join(papers)}"] if explain else []
    if table.spread:
        said.insert(0, "±: standard deviation over the texts")
    return columns("", parts, notes=said, explained=told, gap=1)


_MEANS = "mean over queries of "


def _formulas(table: HeadTable) -> list[str]:
    """The formulas of measures that have a value somewhere; plain means over the queries on one line."""
    there = [m for m in table.measures if m.formula and not np.isnan(m.values).all()]
    means = [f"{m.name}: {m.formula.removeprefix(_MEANS)}" for m in there if m.formula.startswith(_MEANS)]
    others = [f"{m.name}: {m.formula}" for m in there if not m.formula.startswith(_MEANS)]
    return [*([f"means over queries · {' · '.join(means)}"] if means else []), *others]


def nearest(near: Measurement, count: int) -> Columns:
    """The heads nearest to one."""
    layers, names = (axis.labels for axis in near.axes)
    order = np.argsort(np.nan_to_num(near.values, nan=np.inf), axis=None, kind="stable")
    places = [divmod(int(at), near.values.shape[1]) for at in order]
    places = [(s, h) for s, h in places if not np.isnan(near.values[s, h])][: count + 1]
    return columns(
        near.notes[0],
        [
            column("head", [f"{layers[s]} {names[h]}" for s, h in places], whole=True),
            column("distance", [near.values[s, h] for s, h in places], bar=(0.0, float(np.log(2)))),
        ],
        notes=[f"{sourced(near)}; 0 is the same, ln 2 = 0.693 the most", *near.notes[1:]],
    )


__all__ = ["EFFECT", "counts", "kinds", "measures", "named", "nearest"]
