"""--save of a result that is one list of numbers: those numbers, the JSON document, or what a terminal shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnx.cli.unused_options import refuse
from attnx.errors import UsageError
from attnx.paths import resolved

if TYPE_CHECKING:
    from attnx.records import Measurement
    from attnx.view.save import Numbers

WHAT = ("column", "step", "vector", "way")
"""Axes that say what is measured, not where."""
DRAWN = (".png", ".pdf")


def check(path: Path | None, *, force: bool) -> None:
    """Check before a long run that its result can be written there.

    Raises:
        UsageError: Another ending, the file exists and is not to be replaced, its folder does not exist; or --force
            without --save.
    """
    if path is None:
        refuse("without --save", {"--force": force})
        return
    from attnx.view.save import LOOKS, NUMBERS, no_format

    if path.suffix.lower() not in (every := (*NUMBERS, ".json", *LOOKS, *DRAWN)):
        raise no_format(path, every)
    if path.is_file() and not force:
        raise UsageError(f"{path} exists", "Give --force to replace it, or another name.")
    resolved(path)
    if not path.parent.is_dir():
        raise UsageError(f"the folder of {path} does not exist", f"Create it: mkdir -p {path.parent}")


def columns_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Turn rows into columns; a missing value is NaN in a column of numbers, empty in a column of words."""
    names = dict.fromkeys(name for row in rows for name in row)
    out = {name: [row.get(name) for row in rows] for name in names}
    for values in out.values():
        words = any(isinstance(value, str) for value in values)
        values[:] = [("" if words else float("nan")) if value is None else value for value in values]
    return out


def rows_of(measure: Measurement, at: Mapping[str, Any], name: str = "") -> list[dict[str, Any]]:
    """A line for each value of a measurement that is there.

    Args:
        measure: Any rank; of its axes the one called "column", "step", "vector" or "way" says what is measured.
        at: What holds of all of it, such as the head.
        name: What its value is called besides; its own name where nothing else names it.
    """
    import numpy as np

    out = []
    for where in np.ndindex(measure.values.shape):
        value = float(measure.values[where])
        if value != value:
            continue
        row, said = dict(at), [name] if name else []
        for axis, place in zip(measure.axes, where, strict=True):
            if axis.name in WHAT:
                said.append(axis.labels[place])
            else:
                row |= {axis.name: place, f"{axis.name}_label": axis.labels[place]}
        out.append(row | {"measure": ", ".join(said) or measure.name, "value": value})
    return out


def give(
    views: Sequence[Any],
    numbers: Numbers,
    document: Mapping[str, Any],
    *,
    json: bool,
    path: Path | None = None,
    force: bool = False,
) -> None:
    """Show a result, as JSON or as tables, and write it to a file if one is named; see `save`."""
    from attnx.cli import output
    from attnx.view.page import line

    if path is not None:
        output.notes(save(path, views=views, numbers=numbers, document=document, force=force))
    if json:
        if path is not None:
            output.note(output.wrote(path))
        output.emit_json(document)
        return
    output.show(*views, *([line(output.wrote(path), "dim")] if path is not None else []))


def save(
    path: Path, *, views: Sequence[Any], numbers: Numbers, document: Mapping[str, Any], force: bool
) -> tuple[str, ...]:
    """Write a result in the format that the file name's ending says.

    Args:
        path: .csv, .npz, .parquet (the numbers), .json (the document), .txt, .svg, .html, .png or .pdf (the views).
        views: What a terminal shows.
        numbers: One dictionary per row.
        document: As --json gives it.
        force: Replace an existing file.

    Returns:
        Notes for the user.

    Raises:
        UsageError: Another ending, the file exists, or a package is missing.
        RunError: It cannot be written.
    """
    from rich.console import Group

    from attnx.view import save as saving

    ending = path.suffix.lower()
    if ending == ".json":
        from attnx.cli.wording import worded_within
        from attnx.view.json import dumps, tidy

        saving.write(path, dumps(worded_within(tidy(document)), indent=True), force=force)
        return ()
    if ending in DRAWN:
        from attnx.view.portrait import portrait

        figure = portrait(Group(*views), ending)
        saving.write(path, figure.data, force=force)
        return figure.notes
    saving.save(path, view=Group(*views), numbers=numbers, force=force, more=(".json",))
    return ()


__all__ = ["check", "columns_of", "give", "rows_of", "save"]
