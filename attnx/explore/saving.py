"""Save the current head to a file: as a figure, as shown in the terminal, or as numbers."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from rich.console import Group

from attnx.explore import panes
from attnx.paths import expand
from attnx.view.save import save, write

if TYPE_CHECKING:
    from attnx.explore.desk import Desk

DRAWN = (".png", ".pdf", ".svg")
TALL = 1000
"""The most lines of a view in a file: no limit in practice."""


def save_view(desk: Desk, name: str) -> None:
    """Save the head's pane with the chosen token's row; the file's extension decides the format.

    Raises:
        AttnxError: An extension that this cannot be saved as, a file that exists or cannot be written.
    """
    path = expand(name)
    ending = path.suffix.lower()
    shown = Group(panes.head(desk, TALL), "", panes.looks(desk, TALL))
    notes: tuple[str, ...] = ()
    if ending in DRAWN and desk.view != "lines" and (ending != ".svg" or find_spec("matplotlib") is not None):
        from attnx.view.figure import heatmap_figure

        figure = heatmap_figure(desk.matrix(), ending, kind=desk.scale, mute=desk.muted())
        write(path, figure.data)
        notes = figure.notes
    elif ending in (".png", ".pdf"):
        from attnx.view.portrait import portrait

        figure = portrait(shown, ending)
        write(path, figure.data)
        notes = figure.notes
    else:
        save(path, view=shown, numbers=desk.matrix())
    desk.note = " · ".join((f"wrote {path}", *notes))
