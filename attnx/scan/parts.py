"""The Parquet file of a scan, and the parts that it is put together from: one row for each value that was measured.

A part covers consecutive texts. Its bytes follow from the texts, the model and the settings alone, so that it does not
matter which process makes it. It is written beside its name and then renamed: it is there whole or not at all. What it
says of itself (which texts, sums by head) stands in its metadata.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attnx.errors import RunError
from attnx.scan.observations import COLUMNS, Rows, Sums, arrow_of, schema

NOTE = b"attnx.part"
SCAN = b"attnx.scan"
"""Keys of the metadata of a part (zlib, base64) and of the whole file; their values are JSON."""


@dataclass(frozen=True, slots=True)
class Note:
    """What a part says of itself."""

    number: int
    start: int
    """Number of its first text."""
    texts: int
    digest: str
    """Tells its texts from others."""
    tokens: int
    """Tokens of all of them."""
    device: str
    notes: tuple[str, ...]
    left: Mapping[str, tuple[int, str]]
    """Survey -> how many texts it could not take, and the first of them with the reason."""
    sums: Mapping[str, Sums]


def options() -> dict[str, Any]:
    """How the columns are stored: words and numbers that repeat as such, values byte by byte, all compressed."""
    return {
        "compression": "zstd",
        "use_dictionary": [name for name in COLUMNS if name != "value"],
        "column_encoding": {"value": "BYTE_STREAM_SPLIT"},
    }


def encode(rows: Rows, note: Note) -> bytes:
    """A part as the bytes of its file."""
    arrow, parquet = arrow_of()
    body = {
        "number": note.number, "start": note.start, "texts": note.texts, "digest": note.digest,
        "tokens": note.tokens, "device": note.device,
        "notes": list(note.notes), "left": {name: list(what) for name, what in note.left.items()},
        "sums": {
            name: {
                "unit": one.unit, "formula": one.formula, "source": one.source, "bounds": list(one.bounds),
                "layers": one.layers, "sums": one.sums.tolist(), "counts": one.counts.tolist(),
            }
            for name, one in note.sums.items()
        },
    }  # fmt: skip
    packed = base64.b64encode(zlib.compress(json.dumps(body).encode()))
    sink = arrow.BufferOutputStream()
    table = rows.table()
    parquet.write_table(table.replace_schema_metadata({NOTE: packed}), sink, **options())
    return bytes(sink.getvalue())


def note_of(path: Path) -> Note | None:
    """What a part says of itself; None where it is not there, or is no whole part."""
    arrow, parquet = arrow_of()
    try:
        body = json.loads(zlib.decompress(base64.b64decode(parquet.read_schema(path).metadata[NOTE])))
        sums = {
            name: Sums(
                one["unit"], one["formula"], one["source"], tuple(one["bounds"]), one["layers"],
                np.array(one["sums"], np.float64), np.array(one["counts"], np.int64),
            )
            for name, one in body["sums"].items()
        }  # fmt: skip
        left = {name: (int(count), str(first)) for name, (count, first) in body["left"].items()}
        plain = {name: body[name] for name in ("number", "start", "texts", "digest", "tokens", "device")}
        return Note(**plain, notes=tuple(body["notes"]), left=left, sums=sums)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, zlib.error, arrow.ArrowException):
        return None


def path_of(folder: Path, number: int) -> Path:
    """Where a part stands."""
    return folder / f"{number:08d}.parquet"


def write(path: Path, fill: Callable[[Path], Any]) -> None:
    """Write a file whole or not at all: beside its name, then renamed.

    Raises:
        RunError: It cannot be written (the disk is full, the folder is read-only).
    """
    unfinished = path.with_name(f".{path.name}.unfinished")
    with writing(path):
        try:
            fill(unfinished)
            with unfinished.open("rb+") as file:
                os.fsync(file.fileno())
            unfinished.replace(path)
        finally:
            with contextlib.suppress(OSError):
                unfinished.unlink()


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """What the system has to say of a file that cannot be written becomes an error to be shown.

    Raises:
        RunError: The disk is full, the folder is read-only.
    """
    try:
        yield
    except OSError as error:
        why = re.sub(r"^.*\[errno \d+\] ", "", error.strerror or str(error))  # pyarrow wraps it in a sentence
        raise RunError(
            f"{path} cannot be written: {why}",
            "Make room there, or make it writable; the same command then goes on with the parts that are done.",
        ) from None


def join(parts: Sequence[Path], out: Path, about: Mapping[str, Any]) -> None:
    """Put parts together in one file, one of them in memory at a time.

    Args:
        parts: In order.
        out: The file.
        about: What its metadata says of the scan.

    Raises:
        RunError: It cannot be written.
    """
    _, parquet = arrow_of()
    whole = schema().with_metadata({SCAN: json.dumps(about)})

    def fill(path: Path) -> None:
        with parquet.ParquetWriter(path, whole, **options()) as writer:
            for part in parts:
                writer.write_table(parquet.read_table(part).replace_schema_metadata(whole.metadata))

    write(out, fill)
