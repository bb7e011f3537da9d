"""The head that is looked at as a file: a figure, the terminal's look, or the numbers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group

from attnx.explore import panes
from attnx.view.save import save, write

if TYPE_CHECKING:
    from attnx.explore.desk import Desk

TALL = 1000
"""Lines that a view may take in a file: all it has."""


def save_view(desk: Desk, name: str) -> None:
    """Save the head's pane, with the chosen token's row; the ending of the name says as what.

    Raises:
        AttnxError: An ending that this cannot be saved as, a file that exists or cannot be written.
    """
    path = Path(name).expanduser()
    notes: tuple[str, ...] = ()
    if path.suffix.lower() in (".png", ".pdf"):
        from attnx.view.figure import heatmap_figure

        figure = heatmap_figure(desk.matrix(), path.suffix.lower(), kind=desk.scale, mute=desk.muted())
        write(path, figure.data)
        notes = figure.notes
    else:
        shown = Group(panes.head(desk, TALL), "", panes.looks(desk, TALL))
        save(path, view=shown, numbers=desk.matrix())
    desk.note = " · ".join((f"wrote {path}", *notes))
