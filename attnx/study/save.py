"""Save what is shown: a figure, the terminal's output, numbers or JSON; the file's extension decides which."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from attnx.errors import UsageError
from attnx.installed import pip
from attnx.records import Axis, Measurement
from attnx.study.findings import findings, ranking_measure, row_table
from attnx.study.inspection import Inspection
from attnx.study.presentation import document, render
from attnx.view.matrix import Matrix, of_attention
from attnx.wording import Wording

DRAWN = (".png", ".pdf", ".svg")
MOST = 2_000_000
"""The most values written one per line; a larger file could hardly be opened."""


def save(shown: Inspection, path: Path, *, force: bool) -> tuple[str, ...]:
    """Write what is shown to a file.

    A head as a heatmap or a table, and the grid of heads, become figures with real axes, as .png, .pdf and .svg; every
    other view is drawn as in a terminal.

    Returns:
        What the user should know about the file.

    Raises:
        UsageError: An extension that this cannot be saved as, or the file exists.
        RunError: It cannot be written.
    """
    from rich.console import Group

    from attnx.view import save as saving

    ending = path.suffix.lower()
    if ending == ".json":
        from attnx.view.json import dumps

        saving.write(path, dumps(document(shown), indent=True), force=force)
        return ()
    asked = shown.request
    axes = asked.view == "grid" or (
        asked.view in ("heatmap", "table") and len(shown.picks) == 1 and shown.query is None
    )
    if ending == ".svg" and axes and find_spec("matplotlib") is None:
        saving.save(path, view=Group(*render(shown, every=True)), force=force)
        return (f"drawn as a terminal shows it: a figure with axes needs matplotlib, {pip('figures')}",)
    if ending in DRAWN and axes:
        from attnx.view.figure import grid_figure, heatmap_figure

        if asked.view == "grid":
            figure = grid_figure(shown.trace, ending, asked.stage)
        else:
            figure = heatmap_figure(shown.picks[0].matrix, ending, kind=asked.scale)
    elif ending in (".png", ".pdf"):
        from attnx.view.portrait import portrait

        figure = portrait(Group(*render(shown, every=True)), ending)
    else:
        wanted = numbers(shown) if ending in saving.NUMBERS else None
        if wanted is not None and ending != ".npz" and wanted.values.size > MOST:
            raise UsageError(
                f"{wanted.values.size:,} values are too many for one per line in {ending}",
                Wording("Save .npz, or choose <layers>, <heads> or <query>."),
            )
        saving.save(path, view=Group(*render(shown, every=True)), numbers=wanted, force=force, more=(".json",))
        return ()
    saving.write(path, figure.data, force=force)
    return figure.notes


def numbers(shown: Inspection) -> Measurement | Matrix | None:
    """The numbers behind what is shown; for .csv, .npz and .parquet."""
    if shown.request.view == "overview":
        return findings(shown)["heads"]  # type: ignore[no-any-return]
    if shown.request.view == "ranking":
        return ranking_measure(shown)
    if shown.query is not None and shown.picks:
        return row_table(shown)
    if len(shown.picks) == 1:
        return shown.picks[0].matrix
    if shown.request.view == "grid":
        return _together(*_all_heads(shown))
    return _together([pick.label for pick in shown.picks], [pick.matrix for pick in shown.picks])


def _all_heads(shown: Inspection) -> tuple[list[str], list[Matrix]]:
    """Every head of the grid by name, and its matrix."""
    stage = shown.request.stage
    there = [
        (label, attention, head)
        for label, attention in zip(shown.trace.labels, shown.trace.attentions, strict=True)
        if getattr(attention, stage) is not None
        for head in range(attention.need(stage).shape[1])
    ]
    names = [f"{label} H{head}" for label, _, head in there]
    return names, [of_attention(shown.trace, attention, head, stage) for _, attention, head in there]


def _together(labels: Sequence[str], matrices: Sequence[Matrix]) -> Measurement | None:
    """Several heads as one array [heads,Q,K]; None if their sizes differ. Hidden cells are NaN."""
    if not matrices or any(m.values.shape != matrices[0].values.shape for m in matrices):
        return None
    first = matrices[0]
    return Measurement(
        name=first.name,
        unit=first.unit,
        axes=(
            Axis("head", tuple(labels)),
            Axis(first.queries.name, first.queries.labels),
            Axis(first.keys.name, first.keys.labels),
        ),
        values=np.stack([m.shown for m in matrices]),
        bounds=first.bounds,
        notes=first.notes,
    )
