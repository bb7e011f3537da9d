"""Where a patch of a picture looks, as a map of the picture: in the terminal, and laid over the picture itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from attnx.errors import UsageError
from attnx.feed.patches import Grid, as_map, grid_of
from attnx.records import Array
from attnx.session.protocol import OpenModel
from attnx.study.inspection import Inspection
from attnx.view.matrix import Matrix, Side
from attnx.wording import Wording

PICTURES = (".png", ".jpg", ".jpeg", ".webp")


def key_grid(shown: Inspection) -> Grid | None:
    """How the keys are laid out on a picture; None if they are not patches, or were merged or left out."""
    if not shown.trace.attentions or shown.request.words or shown.muted:
        return None
    return grid_of(shown.keys)


def patch_matrix(matrix: Matrix, query: int, grid: Grid) -> Matrix:
    """One row of a matrix as a map: row r0, r1, ... by column c0, c1, ... of the picture.

    Tokens before the patches ([CLS]) have no place on the map; their share is given below it.
    """
    row = matrix.shown[query]
    apart = [
        f"{label.strip()} {value:.3f}"
        for label, value in zip(matrix.keys.labels[: grid.prefix], row[: grid.prefix], strict=True)
    ]
    down, across = (
        Side(name, tuple(f"{name[0]}{i}" for i in range(count)), tuple(range(count)), (False,) * count, count)
        for name, count in (("row", grid.rows), ("column", grid.columns))
    )
    title = " · ".join(part for part in (matrix.title, f"from {matrix.queries.labels[query].strip()}") if part)
    notes = (*matrix.notes, *([f"not on the map: {', '.join(apart)}"] if apart else []))
    return replace(
        matrix,
        values=as_map(row, grid),
        hidden=as_map(matrix.hidden[query], grid),
        queries=down,
        keys=across,
        title=title,
        notes=notes,
    )


def laid_out(shown: Inspection, grid: Grid) -> tuple[Array, str]:
    """The weights that an overlay shows, [K], and a description of them.

    They are averaged over the chosen heads, or the last layer's if none is chosen, and belong to the chosen query,
    otherwise to the token before the patches ([CLS]); without one they are averaged over all queries.

    Raises:
        UsageError: A stage other than the weights: scores have no zero to fade to.
    """
    if shown.request.stage != "weights":
        raise UsageError(f"an overlay shows weights, not {shown.request.stage}", Wording("Leave out <stage>."))
    if len({pick.matrix.values.shape for pick in shown.picks}) > 1:
        raise UsageError("the heads that were chosen lie over different tokens", "Choose a layer or a head.")
    if shown.picks:
        stack = np.stack([pick.matrix.shown for pick in shown.picks])
        what = shown.picks[0].label if len(shown.picks) == 1 else f"the mean of {len(shown.picks)} heads"
    else:
        last = shown.trace.attentions[-1]
        stack, what = last.need("weights")[0], f"the mean of all heads of {shown.trace.labels[-1]}"
    rows = np.nan_to_num(stack).mean(axis=0)
    if shown.query is not None:
        return rows[shown.query], f"{what}, from {shown.queries.pieces[shown.query].strip()}"
    if grid.prefix and shown.queries.pieces[0] == shown.keys.pieces[0]:
        return rows[0], f"{what}, from {shown.queries.pieces[0].strip()}"
    return rows.mean(axis=0), f"{what}, from all tokens on average"


def save_overlay(shown: Inspection, model: OpenModel, picture: Path, path: Path, *, force: bool = False) -> str:
    """Write the picture with the weights of its patches over it; returns what they are.

    Raises:
        UsageError: The keys are not patches of the picture, or the file exists.
    """
    from attnx.feed.recipes import read_recipe
    from attnx.feed.vision import load_picture, picture_slot
    from attnx.view.overlay import blend
    from attnx.view.overlay import save_overlay as write

    grid = key_grid(shown)
    if grid is None:
        raise UsageError(
            "what is looked at here is not a grid of patches, so it cannot be laid over the picture",
            Wording("Leave out <words> and <mute>; or choose the vision side with <site>."),
        )
    row, what = laid_out(shown, grid)
    slots = [s for m in (model.encoder, model) if m is not None for s in m.slots()]
    slot = picture_slot(slots)
    assert slot is not None  # else the picture could not have been fed
    mark = None if shown.query is None else grid.place(shown.query)
    image = blend(load_picture(picture), read_recipe(model.path, slot), row, grid, mark=mark)
    write(path, image, force=force)
    return f"overlay: {what}; the brightest patch has {float(as_map(row, grid).max()):.3f}"
