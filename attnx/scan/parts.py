"""The Parquet file of a scan, and the parts that it is assembled from: one row per measured value.

A part covers consecutive texts. Its bytes depend only on the texts, the model and the settings, so it does not
matter which process makes it. It is written to a temporary file and renamed, so it is never incomplete. Its
description (which texts, sums by head) is in its metadata.
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
    """A part's description of itself."""

    number: int
    start: int
    """Number of its first text."""
    texts: int
    digest: str
    """Identifies its texts."""
    tokens: int
    """Number of tokens in all of them."""
    device: str
    notes: tuple[str, ...]
    left: Mapping[str, tuple[int, str]]
    """Survey -> how many texts it could not measure, and the first of them with the reason."""
    sums: Mapping[str, Sums]


def options() -> dict[str, Any]:
    """How the columns are stored: repeated words and numbers as dictionaries, values split by byte, all compressed."""
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
    """A part's description of itself; None if the part does not exist or is incomplete."""
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
    """The path of a part."""
    return folder / f"{number:08d}.parquet"


def write(path: Path, fill: Callable[[Path], Any]) -> None:
    """Write a file completely or not at all: to a temporary file, which is then renamed.

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
    """Turn the system's errors about a file that cannot be written into errors for the user.

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
    """Join parts into one file, with one in memory at a time.

    Args:
        parts: In order.
        out: The file.
        about: The scan's description for its metadata.

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
