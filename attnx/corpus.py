"""Files of texts -> texts with where they stand: text, JSON Lines, CSV and Parquet; files, patterns and folders."""

from __future__ import annotations

import csv
import glob
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from attnx.errors import InputError

SUFFIXES = (".txt", ".jsonl", ".ndjson", ".csv", ".tsv", ".parquet")
"""What is read in a folder; any other file that is named outright is read as text, one text a line."""


@dataclass(frozen=True, slots=True)
class Text:
    """One text of a corpus."""

    source: str
    """The file, as it was found."""
    line: int
    """Its line, or row, from 1."""
    text: str


def find(places: Sequence[str]) -> list[Path]:
    """The files that files, patterns (`**` too) and folders name: sorted within each, each once.

    Raises:
        InputError: A place with nothing in it.
    """
    found: dict[Path, None] = {}
    for place in places:
        path = Path(place)
        if path.is_dir():
            files = sorted(p for p in path.rglob("*") if p.is_file() and p.suffix.lower() in SUFFIXES)
        elif path.exists():
            files = [path]
        else:
            files = sorted(p for p in map(Path, glob.glob(place, recursive=True)) if p.is_file())  # noqa: PTH207
        if not files:
            raise InputError(f"there is nothing to read at {place}", f"It reads {', '.join(SUFFIXES)}.")
        found.update(dict.fromkeys(files))
    return list(found)


def read(files: Sequence[Path], field: str = "text") -> Iterator[Text]:
    """The texts of some files, one after another; empty ones are left out. Nothing is held but one line.

    Args:
        files: From `find`.
        field: The field or column that holds the text, where the file has such.

    Raises:
        InputError: A file that cannot be read, or a line without that field.
    """
    for path in files:
        kind = path.suffix.lower()
        try:
            if kind in (".jsonl", ".ndjson"):
                rows = _jsonl(path, field)
            elif kind in (".csv", ".tsv"):
                rows = _csv(path, field, "\t" if kind == ".tsv" else ",")
            elif kind == ".parquet":
                rows = _parquet(path, field)
            else:
                rows = _lines(path)
            for line, text in rows:
                if text.strip():
                    yield Text(str(path), line, text)
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
        except UnicodeDecodeError:
            raise InputError(f"{path} is not UTF-8 text", "Save it as UTF-8.") from None


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    with path.open(encoding="utf-8-sig") as file:
        for at, line in enumerate(file, 1):
            yield at, line.rstrip("\n")


def _jsonl(path: Path, field: str) -> Iterator[tuple[int, str]]:
    for at, line in _lines(path):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError:
            raise InputError(f"{path}, line {at} is not JSON") from None
        if isinstance(row, dict):
            if field not in row:
                raise _lacks(path, at, field, list(row))
            row = row[field]
        if not isinstance(row, str):
            raise InputError(f"{path}, line {at}: there is no text in it", "Each line is a text or holds one: --field.")
        yield at, row


def _csv(path: Path, field: str, delimiter: str) -> Iterator[tuple[int, str]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.DictReader(file, delimiter=delimiter)
        if field not in (rows.fieldnames or ()):
            raise _lacks(path, 1, field, list(rows.fieldnames or ()))
        for at, row in enumerate(rows, 2):
            yield at, row[field] or ""


def _parquet(path: Path, field: str) -> Iterator[tuple[int, str]]:
    try:
        from pyarrow import ArrowInvalid
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise InputError(f"{path} needs pyarrow", "pip install 'attnx[scan]'") from None
    try:
        with ParquetFile(path) as file:
            if field not in file.schema_arrow.names:
                raise _lacks(path, 1, field, file.schema_arrow.names)
            at = 0
            for batch in file.iter_batches(batch_size=1024, columns=[field]):
                for value in batch.column(0).to_pylist():
                    at += 1
                    yield at, str(value) if value is not None else ""
    except ArrowInvalid as error:
        raise InputError(f"{path} is not a Parquet file: {str(error)[:120]}") from None


def _lacks(path: Path, line: int, field: str, has: Sequence[str]) -> InputError:
    names = ", ".join(has[:8]) or "none"
    return InputError(f"{path}, line {line} has no field {field!r}; it has {names}", "Name the text's: --field NAME.")
