"""Read texts and their positions from text, JSON Lines, CSV and Parquet; files, patterns and folders."""

from __future__ import annotations

import csv
import glob
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from attnx.errors import InputError, lacks_memory
from attnx.installed import pip
from attnx.numerals import counted
from attnx.tokens.json_object import TwiceError, read_json
from attnx.tokens.text_file import byte_lines, remedy, wide
from attnx.wording import Wording

SUFFIXES = (".txt", ".jsonl", ".ndjson", ".csv", ".tsv", ".parquet")
"""The files that are read in a folder; any other explicitly named file is read as text, one text per line, and one
called .json as JSON Lines."""
_ROWS = "Each line is one JSON value: a text, or an object with one. A list over several lines is not read."
_LONGEST = 1 << 30
"""The longest CSV field, in characters; the csv module's own limit is 131,072."""


class _Fields:
    """The csv module's limit of a field, one for all threads: the first reader widens it, the last restores it."""

    def __init__(self) -> None:
        self._turn, self._readers, self._before = threading.Lock(), 0, 0

    def widen(self) -> None:
        with self._turn:
            if not self._readers:
                self._before = csv.field_size_limit(_LONGEST)
            self._readers += 1

    def restore(self) -> None:
        with self._turn:
            self._readers -= 1
            if not self._readers:
                csv.field_size_limit(self._before)


_FIELDS = _Fields()


@dataclass(frozen=True, slots=True)
class Text:
    """One text of a corpus."""

    source: str
    """The file's path as it was found."""
    line: int
    """Its line, or row, from 1."""
    text: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Other fields of its row: those that were requested and exist."""
    end: int = 0
    """Bytes of all files up to the end of this text: how much of the corpus has been read."""


_Row = tuple[int, str, Mapping[str, Any], int]
"""Line, text, other fields, bytes of its file up to its end."""


def find(places: Sequence[str]) -> list[Path]:
    """The files that files, patterns (`**` too) and folders name: sorted within each, each once.

    Raises:
        InputError: A path or pattern without files, or one that can be read only once.
    """
    found: dict[Path, None] = {}
    for place in places:
        path = Path(place)
        if path.is_dir():
            files = sorted(p for p in path.rglob("*") if p.is_file() and p.suffix.lower() in SUFFIXES)
        elif path.exists():
            if not path.is_file():
                raise InputError(
                    f"{place} is a pipe or a device, and can be read only once",
                    "A scan may read its texts again, to go on where it was: save them in a file first.",
                )
            files = [path]
        else:
            files = sorted(p for p in map(Path, glob.glob(place, recursive=True)) if p.is_file())  # noqa: PTH207
        if not files:
            raise InputError(f"there is nothing to read at {place}", f"It reads {', '.join(SUFFIXES)}.")
        found.update(dict.fromkeys(files))
    return list(found)


def size(files: Sequence[Path]) -> int:
    """Bytes of all files; those that no longer exist do not count."""
    return sum(path.stat().st_size for path in files if path.exists())


def read(
    files: Sequence[Path], name: str = "text", needs: Sequence[str] = (), may: Sequence[str] = ()
) -> Iterator[Text]:
    """The texts of some files, one after another, without empty ones. Only one line is in memory.

    Args:
        files: From `find`.
        name: The field or column with the text, if the file has fields.
        needs: Other fields that every row must have.
        may: Other fields that are returned if they exist.

    Raises:
        InputError: A file that cannot be read, or a row without those fields.
    """
    before = 0
    for path in files:
        kind = path.suffix.lower()
        try:
            if kind in (".jsonl", ".ndjson", ".json"):
                rows = _jsonl(path, name, needs, may)
            elif kind in (".csv", ".tsv"):
                rows = _csv(path, name, needs, may, "\t" if kind == ".tsv" else ",")
            elif kind == ".parquet":
                rows = _parquet(path, name, needs, may)
            else:
                if needs:
                    raise InputError(
                        f"{path} holds texts and nothing else; {_listed(needs)} must stand beside each",
                        "Give a JSON Lines, CSV or Parquet file with these fields.",
                    )
                rows = ((at, line, {}, end) for at, line, end in _lines(path))
            for line, text, fields, end in rows:
                if text.strip():
                    yield Text(str(path), line, text, fields, before + end)
            before += path.stat().st_size
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror or error}") from None


def _decoded(path: Path, *, universal: bool = True) -> Iterator[tuple[int, str, int]]:
    """Lines with their ends, the line's number, and the bytes of the file up to its end.

    Args:
        path: The file.
        universal: Whether a carriage return alone ends a line.
    """
    end = 0
    with path.open("rb") as file:
        for at, raw in enumerate(byte_lines(file) if universal else file, 1):
            end += len(raw)
            try:
                line = raw.decode("utf-8-sig" if at == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise InputError(
                    f"{path}, line {at} is not UTF-8 text (byte {error.start + 1} is 0x{raw[error.start]:02x})",
                    remedy(raw) if at == 1 else "Save the file as UTF-8, or take the line out.",
                ) from None
            if at == 1 and wide(raw):
                raise InputError(f"{path} is not UTF-8 text: every other byte is NUL", remedy(raw))
            yield at, line, end


def _lines(path: Path) -> Iterator[tuple[int, str, int]]:
    return ((at, line.rstrip("\r\n"), end) for at, line, end in _decoded(path))


def _jsonl(path: Path, name: str, needs: Sequence[str], may: Sequence[str]) -> Iterator[_Row]:
    for at, line, end in _lines(path):
        if not line.strip():
            continue
        try:
            row = read_json(line)
        except TwiceError as error:
            raise InputError(
                f"{path}, line {at} has {error} twice, with different values", "Take one of them out."
            ) from None
        except (ValueError, RecursionError):
            raise InputError(f"{path}, line {at} is not JSON", _ROWS) from None
        text: object = row
        fields: dict[str, Any] = {}
        if isinstance(row, dict):
            for wanted in (name, *needs):
                if wanted not in row:
                    raise _lacks(path, at, wanted, name, list(row))
            text, fields = row[name], {one: row[one] for one in (*needs, *may) if one in row}
        elif needs:
            raise InputError(f"{path}, line {at} is a bare text; {_listed(needs)} must stand beside it")
        if not isinstance(text, str):
            raise InputError(
                f"{path}, line {at}: there is no text in it",
                _ROWS if isinstance(row, list) else Wording("Each line is a text or holds one: <field>."),
            )
        yield at, text, fields, end


def _csv(path: Path, name: str, needs: Sequence[str], may: Sequence[str], delimiter: str) -> Iterator[_Row]:
    last = [0, 0]

    def lines() -> Iterator[str]:
        for at, line, end in _decoded(path, universal=False):  # a cell in quotes may hold one
            last[:] = at, end
            yield line

    _FIELDS.widen()
    try:
        # Strict: a quote that is never closed would make one text of all that follows.
        rows = csv.reader(lines(), delimiter=delimiter, strict=True)
        there = next((row for row in rows if row), [])
        for wanted in (name, *needs):
            if there and wanted not in there:
                raise _lacks(path, 1, wanted, name, there)
        _once(path, there, (name, *needs, *may))
        places = {one: there.index(one) for one in (name, *needs, *may) if one in there}
        start = last[0] + 1
        for row in rows:
            if row and (len(row) < len(there) or any(row[len(there) :])):
                raise InputError(
                    f"{path}, line {start} has {counted(len(row), 'cell')}, and the first line {len(there)}",
                    f"Put a text with {'a tab' if delimiter == chr(9) else 'commas'} in it in quotes."
                    if len(row) > len(there) else "Each row needs a cell for each column, be it empty.",
                )  # fmt: skip
            if row:
                fields = {one: row[place] for one, place in places.items() if one in needs or one in may}
                yield start, row[places[name]], fields, last[1]
            start = last[0] + 1
    except csv.Error as error:
        quote = "A quote inside a quoted text is written twice; is one never closed?"
        raise InputError(f"{path}, line {last[0]} is not CSV that can be read: {error}", quote) from None
    finally:
        _FIELDS.restore()


def _parquet(path: Path, name: str, needs: Sequence[str], may: Sequence[str]) -> Iterator[_Row]:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        if lacks_memory(error):
            raise
        raise InputError(f"{path} needs pyarrow", pip("parquet")) from None
    try:
        with ParquetFile(path) as file:
            there = file.schema_arrow.names
            for wanted in (name, *needs):
                if wanted not in there:
                    raise _lacks(path, 1, wanted, name, there)
            _once(path, there, (name, *needs, *may))
            columns = list(dict.fromkeys((name, *needs, *(one for one in may if one in there))))
            share = path.stat().st_size / max(file.metadata.num_rows, 1)
            at = 0
            for batch in file.iter_batches(batch_size=1024, columns=columns):
                for row in batch.to_pylist():
                    at += 1
                    fields = {one: row[one] for one in columns if one in needs or one in may}
                    yield at, _cell(path, at, name, row[name]), fields, int(at * share)
    except ArrowException as error:
        raise InputError(f"{path} is not a Parquet file that can be read: {str(error)[:120]}") from None


def _cell(path: Path, at: int, name: str, cell: object) -> str:
    """A text in a Parquet file; some tools write text as bytes without saying that it is text."""
    if cell is None:
        return ""
    if isinstance(cell, str):
        return cell
    if not isinstance(cell, bytes):
        kind = f"the column {name!r} has no text but {type(cell).__name__} in it"
        raise InputError(f"{path}, row {at}: {kind}", Wording("Name the column with the text: <field>."))
    try:
        return cell.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}, row {at}: the column {name!r} holds bytes that are not UTF-8 text (byte {error.start + 1} is "
            f"0x{cell[error.start]:02x})",
            "Save the texts as UTF-8, or take the row out.",
        ) from None


def _lacks(path: Path, line: int, wanted: str, name: str, has: Sequence[str]) -> InputError:
    names = ", ".join(has[:8]) + (", ..." if len(has) > 8 else "") or "none"
    near = get_close_matches(wanted, has, 1) or [one for one in has if one.lower() == wanted.lower()][:1]
    guess = f"Did you mean {near[0]!r}? " if near else ""
    hint = "{guess}Name the text's: <field=>." if wanted == name else "{guess}What is measured needs that field."
    return InputError(f"{path}, line {line} has no field {wanted!r}; it has {names}", Wording(hint, guess=guess))


def _once(path: Path, there: Sequence[str], wanted: Sequence[str]) -> None:
    """Refuse a column of which there are two: which one is meant?"""
    for one in wanted:
        if there.count(one) > 1:
            raise InputError(f"{path} has {there.count(one)} columns called {one!r}", "Give each its own name.")


def _listed(names: Sequence[str]) -> str:
    return " and ".join(repr(name) for name in names)
