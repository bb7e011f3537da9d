"""An inspection -> how it is shown: renderables, or one JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from shutil import get_terminal_size
from typing import Any

import numpy as np

from attnx.measure.looks import Look
from attnx.study.findings import findings, key_name, pair, query_name, ranked, ranking_measure, row_table
from attnx.study.inspection import Inspection, Pick
from attnx.tokens.axes import holds
from attnx.view.matrix import Matrix
from attnx.view.page import SCREEN

TALL, FEW = 32, {"most on one token": 1, "most confident": 1, "parked": 1}
"""On screens with fewer lines than this, the overview limits the number of heads of each kind."""
MANY = 16
"""Heads that get a line each where more do not fit on a screen."""
NAMED = ("previous-token", "next-token", "self", "induction", "punctuation")
"""Kinds of heads that are more informative than the pair of tokens that a head connects most strongly."""


def render(
    shown: Inspection,
    next_step: str = "",
    rest: str = "",
    *,
    every: bool = False,
    said: int = 0,
    suited: bool = False,
) -> list[Any]:
    """Renderables, in order; a first screen ends with a next step. A view is imported only when it is drawn.

    Args:
        shown: What is shown.
        next_step: The suggested next step.
        rest: How to see what does not fit on a first screen.
        every: Whether the first screen lists everything, however many lines that takes.
        said: How many lines have gone to stderr, which share the screen.
        suited: Whether the view was chosen because it suits, not named: another one may take its place.
    """
    view, asked = shown.request.view, shown.request
    if view == "overview":
        return [_overview(shown, next_step, rest, every, said), *_notes(shown)]
    if view == "grid":
        from attnx.view.grid import grid

        return [grid(shown.trace, asked.stage, kind=asked.scale, mute=shown.muted), *_notes(shown)]
    if view == "ranking":
        from attnx.view.bars import bars

        return [bars(ranking_measure(shown, every=every, rest=rest)), *_notes(shown)]
    if rest and (shortens(shown) or (suited and view == "table")):
        return [_shorter(shown, rest, every, said)]
    return [*_spaced(_matrices(shown, [pick.matrix for pick in shown.picks])), *_notes(shown)]


def shortens(shown: Inspection) -> bool:
    """Whether one query's rows in several heads are shown, in fewer lines where the screen has no more."""
    return shown.request.view == "row" and shown.request.top is None and len(shown.picks) > 1


def _shorter(shown: Inspection, rest: str, every: bool, said: int) -> Any:
    """A table, or one query's rows in several heads, in full, or as less where they take more than the screen.

    One head becomes a heatmap, several heads a line each.
    """
    from attnx.view.screen import choice, screen

    matrices, notes = [pick.matrix for pick in shown.picks], _notes(shown)
    ways: list[list[Any]] = [_spaced(_matrices(shown, matrices))]
    full = f"{'bars' if shown.request.view == 'row' else 'numbers'}{rest}"
    instead = ["", full]
    if len(matrices) == 1:
        from attnx.view.heatmap import heatmap

        height = get_terminal_size((80, SCREEN)).lines - 1 - said - len(notes)
        ways.append([heatmap(matrices[0], kind=shown.request.scale, query=shown.query, height=height)])
    elif shown.query is not None:
        from attnx.view.row_tables import rows

        ways.append([rows(matrices, shown.query)])
        if len(matrices) > MANY:
            ways.append([rows(matrices, shown.query, MANY)])
            instead.append(f"{len(matrices) - MANY} more heads, {full}")
    return screen(choice(*ways, instead=instead[: len(ways)]), *notes, said=said, every=every)


def _matrices(shown: Inspection, matrices: Sequence[Matrix]) -> list[Any]:
    """The views that are drawn for each head, and those for all heads together."""
    view, query, top = shown.request.view, shown.query, shown.request.top
    if view == "row":
        from attnx.study.patchmap import key_grid, patch_matrix
        from attnx.view.row import row

        assert query is not None
        grid = key_grid(shown) if top is None else None
        if grid is not None:
            from attnx.view.heatmap import heatmap

            return [heatmap(patch_matrix(matrix, query, grid), kind=shown.request.scale) for matrix in matrices]
        return [row(matrix, query, top=top or 8) for matrix in matrices]
    if view == "heatmap":
        from attnx.view.heatmap import heatmap

        return [heatmap(matrix, kind=shown.request.scale, query=query) for matrix in matrices]
    if view == "lines":
        from attnx.view.lines import lines

        return [lines(matrices, query=query, top=top)]
    from attnx.view.table import matrix_table, table

    if query is not None and len(matrices) > 1:
        return [table(row_table(shown), kind=shown.request.scale)]
    return [matrix_table(matrix, kind=shown.request.scale, query=query) for matrix in matrices]


def _spaced(renderables: Sequence[Any]) -> list[Any]:
    """Put an empty line between any two."""
    out: list[Any] = []
    for renderable in renderables:
        out += ["", renderable] if out else [renderable]
    return out


def _notes(shown: Inspection) -> list[Any]:
    from rich.text import Text

    from attnx.view.cells import safe

    return [Text(safe(note), "bold red" if "NOT TRUSTED" in note else "dim") for note in shown.notes]


def _overview(shown: Inspection, next_step: str, rest: str, every: bool, said: int) -> Any:
    from attnx.view import overview as first_screen

    trace, found = shown.trace, findings(shown)
    labels = trace.labels
    targets = [
        first_screen.Look(
            group[0].query or 0,
            tuple(first_screen.Target(look.key, look.value, f"{labels[look.site]} H{look.head}") for look in group),
        )
        for group in found["looks"]
    ]
    worth = []
    few = not every and get_terminal_size((80, SCREEN)).lines < TALL
    for name, group in found["worth"].items():
        for look in group[: FEW[name] if few else None]:
            note, weight = _why(shown, found, look)
            place = f"{labels[look.site]} H{look.head}"
            worth.append(first_screen.Worth(name, place, look.value, note=note, weight=weight))
    name, heads = labels[found["layer"]], found["heads"]
    is_last = shown.request.layers is None and not any("NOT TRUSTED" in note for note in shown.notes)
    last = trace.attentions[found["layer"]]
    own = " and the token itself" if holds(trace.keys_of(last), trace.queries_of(last)) else ""
    left = f"Left: {name}{', the last layer' * is_last}; special tokens{own} left out."
    hints = (left, next_step) if next_step else (left,)
    return first_screen.overview(
        trace,
        targets,
        worth,
        mass=found["mass"],
        heads=heads,
        hints=hints,
        rest=rest,
        every=every,
        below=len(shown.notes) + said,
    )


def _why(shown: Inspection, found: dict[str, Any], look: Look) -> tuple[str, float | None]:
    """The kind of head if it is informative, otherwise the two tokens it connects most strongly, or its one token.

    Returns:
        What to say; with two tokens, the weight from the one to the other.
    """
    if look.key >= 0:
        return f"→ {key_name(shown, look.key, look.site)}", None
    kind: str = found["kinds"][look.site][look.head]
    if kind in NAMED:
        return kind, None
    joined = pair(shown, look)
    if joined is None or joined.query is None:
        return "", None
    ends = f"{query_name(shown, joined.query, look.site)} → {key_name(shown, joined.key, look.site)}"
    return ends, joined.value


def document(shown: Inspection) -> dict[str, Any]:
    """An inspection as one document; the schema is attnx/data/schema/inspect.json."""
    from attnx.view.json import document as as_document

    trace, asked = shown.trace, shown.request
    body: dict[str, Any] = {
        "model": trace.model,
        "device": trace.device,
        "tokens": trace.tokens,
        "memory": trace.memory,
        "site": shown.sort,
        "stage": asked.stage,
        "view": asked.view,
        "words": asked.words,
        "muted": list(shown.muted),
        "query": None
        if shown.query is None
        else {"position": shown.query, "piece": query_name(shown, shown.query), "positions": shown.group},
        "notes": [*trace.notes, *shown.notes],
    }
    if asked.view == "overview":
        body["overview"] = _findings_object(shown)
    if asked.view == "ranking":
        body["ranking"] = [
            {
                "label": pick.label,
                "layer": None if pick.site is None else pick.site.layer,
                "head": pick.head,
                "key": key,
                "piece": key_name(shown, key),
                "value": value,
            }
            for pick, key, value in ranked(shown)
        ]
    elif asked.view != "overview":
        body["heads"] = [_pick_object(shown, pick) for pick in shown.picks]
    return as_document("attnx/inspect", body)


def _pick_object(shown: Inspection, pick: Pick) -> dict[str, Any]:
    matrix = pick.matrix
    rows = range(len(matrix.queries)) if shown.query is None else [matrix.row_of(shown.query)]
    out: dict[str, Any] = {
        "label": pick.label,
        "layer": None if pick.site is None else pick.site.layer,
        "head": pick.head,
        "site": None if pick.site is None else pick.site.index,
        "trusted": pick.trusted,
        "queries": [matrix.queries.at[at] for at in rows],
        "keys": list(matrix.keys.at),
    }
    if shown.request.top is None:
        out["values"] = matrix.values[list(rows)]
    else:
        out["top"] = [_largest(matrix, at, shown.request.top) for at in rows]
    return out


def _largest(matrix: Matrix, at: int, top: int) -> list[dict[str, Any]]:
    values = matrix.shown[at]
    order = [int(key) for key in np.argsort(-np.where(np.isnan(values), -np.inf, values), kind="stable")]
    return [
        {"key": matrix.keys.at[key], "piece": matrix.keys.labels[key].strip(), "value": float(values[key])}
        for key in order[:top]
        if np.isfinite(values[key])
    ]


def _findings_object(shown: Inspection) -> dict[str, Any]:
    found, labels = findings(shown), shown.trace.labels

    def one(look: Look) -> dict[str, Any]:
        return {
            "label": f"{labels[look.site]} H{look.head}",
            "layer": shown.trace.attentions[look.site].site.layer,
            "head": look.head,
            "key": look.key if look.key >= 0 else None,
            "piece": key_name(shown, look.key, look.site) if look.key >= 0 else None,
            "value": look.value,
        }

    return {
        "looks": [
            {
                "query": g[0].query,
                "piece": query_name(shown, g[0].query or 0, g[0].site),
                "targets": [one(look) for look in g],
            }
            for g in found["looks"]
        ],
        "worth": {name: [one(look) for look in group] for name, group in found["worth"].items()},
        "mass": found["mass"],
        "heads": found["heads"],
        "kinds": found["kinds"],
    }
