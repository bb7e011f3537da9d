"""Views and numbers as files: whole or not at all, and never over a file that was not to be replaced."""

from __future__ import annotations

import contextlib
import csv
import io
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from rich.console import Console, RenderableType
from rich.terminal_theme import SVG_EXPORT_THEME

from attnx.errors import RunError, UsageError, lacks_memory
from attnx.installed import pip
from attnx.paths import new_mode, resolved
from attnx.records import Measurement
from attnx.view.cells import safe
from attnx.view.matrix import Matrix
from attnx.wording import Wording

LOOKS = (".txt", ".svg", ".html")
"""What a view can be saved as: what a terminal shows."""
NUMBERS = (".csv", ".npz", ".parquet")
"""What a matrix or a measurement can be saved as."""
WIDTH = 100
Numbers = Measurement | Matrix | Mapping[str, Sequence[Any]]
"""What can be saved as numbers; columns of a table by name are saved as they are."""

_SVG = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{
  font-family: "Fira Code", "DejaVu Sans Mono", Menlo, Consolas, "Noto Sans Mono CJK KR", monospace;
  font-size: {char_height}px; line-height: {line_height}px; font-variant-east-asian: full-width;
}}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>
{lines}
</defs>
<rect fill="#292929" width="{width}" height="{height}" rx="8"/>
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""
"""Rich's own frame loads a font from the network; this one uses fonts that are installed."""
_HTML = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>attnx</title>
<style>
{stylesheet}
body {{ color: {foreground}; background: {background}; margin: 1em; }}
pre {{ font-family: "Fira Code", "DejaVu Sans Mono", Menlo, Consolas, monospace; line-height: 1.2; }}
</style>
</head>
<body><pre><code>{code}</code></pre></body>
</html>
"""


def save(
    path: str | Path,
    *,
    view: RenderableType | None = None,
    numbers: Numbers | None = None,
    width: int = WIDTH,
    force: bool = False,
    more: Sequence[str] = (),
) -> Path:
    """Save a view or its numbers; the ending of the path says as what.

    Args:
        path: Ends in .txt, .svg, .html (the view) or .csv, .npz, .parquet (the numbers).
        view: What a terminal would show.
        numbers: The matrix or measurement behind it, or columns by name.
        width: Columns of the view.
        force: Replace a file that exists.
        more: Endings that the caller writes itself, named with the others where one is unknown.

    Returns:
        The path.

    Raises:
        UsageError: Another ending; nothing to save as that; the file exists; a package is missing.
        RunError: The file cannot be written.
    """
    path = Path(path)
    ending = path.suffix.lower()
    if ending in LOOKS:
        if view is None:
            raise UsageError(f"there is no view to save as {ending}", f"Save the numbers: {', '.join(NUMBERS)}.")
        return write(path, look(view, ending, width), force=force)
    if ending in NUMBERS:
        if numbers is None:
            raise UsageError(f"there are no numbers behind this view to save as {ending}", "Save .txt, .svg or .html.")
        return write(path, _NUMBERS[ending](numbers), force=force)
    raise no_format(path, (*LOOKS, ".png", ".pdf", *NUMBERS, *more))


def no_format(path: Path, endings: Iterable[str]) -> UsageError:
    """That a file's ending is none of those that can be written."""
    if path.suffix:
        found = f"{safe(path.name)}: {safe(path.suffix.lower())} is not a format that this can be saved in"
    else:
        found = f"{safe(path.name)} has no ending" if path.name else f"{safe(str(path))} is a folder"
    return UsageError(found, f"Use {', '.join(endings)}.")


def look(view: RenderableType, ending: str, width: int = WIDTH) -> bytes:
    """Draw a view as it would look in a terminal.

    Args:
        view: Any renderable.
        ending: ".txt" (without colours), ".svg" or ".html" (with all of them, nothing loaded from elsewhere).
        width: Columns.

    Returns:
        The file's content, UTF-8.
    """
    plain = ending == ".txt"
    console = Console(
        file=io.StringIO(),
        record=True,
        force_jupyter=False,
        width=width,
        force_terminal=not plain,
        color_system=None if plain else "truecolor",
        no_color=plain,
        legacy_windows=False,
        height=10_000,
        _environ={},
    )
    console.print(view)
    if ending == ".svg":
        return console.export_svg(title="", code_format=_SVG).encode()
    if ending == ".html":
        return console.export_html(theme=SVG_EXPORT_THEME, code_format=_HTML).encode()
    lines = console.export_text(styles=False).splitlines()
    return "".join(f"{line.rstrip()}\n" for line in lines).encode()


def write(path: str | Path, content: bytes, *, force: bool = False) -> Path:
    """Write a file whole or not at all.

    Raises:
        UsageError: It exists and is not to be replaced, or is a folder.
        RunError: The folder is missing, or the disk or its permissions refuse.
    """
    with writing(path, force=force) as file:
        file.write(content)
    return Path(path)


@contextlib.contextmanager
def writing(path: str | Path, *, force: bool = False) -> Iterator[IO[bytes]]:
    """Open a file that appears under its name only when all of it has been written.

    It is written beside its place under another name, then moved. What was there before stays until that moment, and
    stays for good if anything goes wrong. A link is followed; a device or pipe (/dev/stdout) is written directly.

    Raises:
        UsageError: It exists and is not to be replaced, or is a folder.
        RunError: The folder is missing, or the disk or its permissions refuse.
    """
    name = safe(str(path))
    try:
        target = resolved(Path(path))
    except OSError as error:
        raise UsageError(f"{name} cannot be written: {error.strerror or error}", "Give another path.") from None
    if target.is_dir():
        raise UsageError(f"{name} is a folder", "Give the name of a file.")
    try:
        if Path(path).exists() and not Path(path).is_file():
            with Path(path).open("wb") as file:
                yield file
            return
        if target.exists() and not force:
            raise _exists(name)
        if not target.parent.is_dir():
            raise UsageError(f"the folder of {name} does not exist", f"Create it: mkdir -p {safe(str(target.parent))}")
        handle, beside = tempfile.mkstemp(prefix=".attnx-", suffix=".part", dir=target.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            _permit(beside, target)
            _move(Path(beside), target, force, name)
        except BaseException:
            Path(beside).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise RunError(
            f"{name} cannot be written: {error.strerror or error}", "Choose another folder, or free some space."
        ) from error


def _exists(name: str) -> UsageError:
    return UsageError(f"{name} exists", Wording("Give <force=True> to replace it, or another name."))


def _permit(beside: str, target: Path) -> None:
    """Give the new file the permissions of the one it replaces, or those of any new file here."""
    Path(beside).chmod(target.stat().st_mode & 0o777 if target.exists() else new_mode())


def _move(beside: Path, target: Path, force: bool, name: str) -> None:
    """Put the finished file in its place; without `force` even a file that came just now is not replaced."""
    if force:
        beside.replace(target)
        return
    try:
        os.link(beside, target)
    except FileExistsError:
        raise _exists(name) from None
    except OSError:  # a file system without hard links
        beside.replace(target)
        return
    beside.unlink()


def _csv(numbers: Numbers) -> bytes:
    """One line a value, whatever the rank: every label in its own column, NaN empty."""
    columns = _columns(numbers)
    out = io.StringIO(newline="")
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow(columns)
    for line in zip(*columns.values(), strict=True):
        rows.writerow(["" if isinstance(item, float | np.floating) and np.isnan(item) else str(item) for item in line])
    return out.getvalue().encode("utf-8", "backslashreplace")


def _columns(numbers: Numbers) -> dict[str, list[Any]]:
    """The same numbers as columns: positions and labels by axis, then the value (and whether it is hidden)."""
    if isinstance(numbers, Mapping):
        return {name: list(values) for name, values in numbers.items()}
    if isinstance(numbers, Matrix):
        axes = [(side.name, side.at, side.labels) for side in (numbers.queries, numbers.keys)]
    else:
        axes = [(axis.name, tuple(range(len(axis.labels))), axis.labels) for axis in numbers.axes]
    where = np.indices(numbers.values.shape).reshape(len(axes), -1)
    columns: dict[str, list[Any]] = {}
    for (name, at, labels), places in zip(axes, where, strict=True):
        columns[name] = [at[place] for place in places]
        columns[f"{name}_label"] = [labels[place] for place in places]
    columns[numbers.name if numbers.name not in columns else f"{numbers.name}_value"] = list(numbers.values.ravel())
    if isinstance(numbers, Matrix):
        columns["hidden"] = [int(flag) for flag in numbers.hidden.ravel()]
    return columns


def _npz(numbers: Numbers) -> bytes:
    """The array under `values`, its labels under the axes' names, no pickles; columns under their own names."""
    if isinstance(numbers, Mapping):
        return _zipped({name: np.array(values) for name, values in numbers.items()})
    arrays: dict[str, Any] = {"values": numbers.values, "name": np.array(numbers.name), "unit": np.array(numbers.unit)}
    if isinstance(numbers, Matrix):
        arrays |= {side.name: np.array(side.labels, dtype=str) for side in (numbers.queries, numbers.keys)}
        arrays["hidden"] = numbers.hidden
    else:
        arrays |= {axis.name: np.array(axis.labels, dtype=str) for axis in numbers.axes}
    return _zipped(arrays)


def _zipped(arrays: Mapping[str, Any]) -> bytes:
    out = io.BytesIO()
    np.savez_compressed(out, **arrays)
    return out.getvalue()


def _parquet(numbers: Numbers) -> bytes:
    """The columns of the CSV, typed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        if lacks_memory(error):
            raise
        raise UsageError("Parquet needs pyarrow, which is not installed", pip("parquet")) from error
    out = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(_columns(numbers)), out)
    return out.getvalue()


_NUMBERS = {".csv": _csv, ".npz": _npz, ".parquet": _parquet}
