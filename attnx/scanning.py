"""A corpus -> a Parquet file of measures by text and head: in parts, so that a scan that was killed goes on.

Each part covers a fixed number of texts and is written beside its name and then renamed: it is there whole or not at
all. What is there is not made again; a text is in one part only. At the end the parts are put together and removed.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attnx import cache
from attnx.corpus import Text, read
from attnx.errors import AttnxError, InputError, UsageError
from attnx.records import Array, Axis, Measurement

if TYPE_CHECKING:
    from attnx.measure.heads import HeadTable
    from attnx.pipeline import Model

PART = 512
"""Texts in a part: what is lost at most when a scan is killed."""
MEASURES = ("heads",)
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Scanned:
    """What a scan gave."""

    texts: int
    kept: int
    """How many of them were there from a scan before."""
    seconds: float
    summary: tuple[Measurement, ...]
    """[S,H] for each measure: the mean over texts, NaN where it was never to be had."""
    notes: tuple[str, ...]


def plan(model: Model, files: Sequence[Path], field: str, measures: Sequence[str], part: int) -> dict[str, Any]:
    """What makes a scan the same scan: the model's file, the corpus' files, the settings."""
    for name in measures:
        if name not in MEASURES:
            raise UsageError(f"scan measures no {name!r}", f"Choose from {', '.join(MEASURES)}.")
    corpus = [cache.identity(file) for file in files]
    return {
        "version": _VERSION, "model": cache.identity(model.path), "corpus": corpus, "field": field,
        "measures": list(measures), "part": part,
    }  # fmt: skip


def scan(
    model: Model,
    files: Sequence[Path],
    out: Path,
    *,
    field: str = "text",
    measures: Sequence[str] = MEASURES,
    size: int = 32,
    part: int = PART,
    force: bool = False,
    tell: Callable[[int, int, float], None] = lambda texts, kept, seconds: None,
) -> Scanned:
    """Measure every text of a corpus, or go on with a scan that was broken off.

    Args:
        model: The model.
        files: The corpus.
        out: The Parquet file: a row for each text and head, with a column for each measure.
        field: The field or column of the text.
        measures: Names of `MEASURES`.
        size: Texts a batch.
        part: Texts a part.
        force: Replace `out` and begin anew.
        tell: Called after each part with the texts done, those kept from before, and the seconds so far.

    Raises:
        UsageError: `out` exists, or a scan with other settings was begun there.
        InputError: A file of the corpus cannot be read, or there is no text.
    """
    wanted = plan(model, files, field, measures, part)
    folder = out.with_name(out.name + ".parts")
    _begin(folder, out, wanted, force)
    start = time.perf_counter()
    texts, number, done, kept = read(files, field), 0, 0, 0
    notes: dict[str, None] = {}
    while chunk := list(islice(texts, part)):
        path = folder / f"{number:08d}.parquet"
        if path.exists():
            kept += len(chunk)
        else:
            _write(path, _rows(model, chunk, done, size, notes))
        done, number = done + len(chunk), number + 1
        tell(done, kept, time.perf_counter() - start)
    if not done:
        raise InputError("there is no text in the corpus")
    summary = _join([folder / f"{at:08d}.parquet" for at in range(number)], out)
    shutil.rmtree(folder, ignore_errors=True)
    return Scanned(done, kept, time.perf_counter() - start, summary, tuple(notes))


def _begin(folder: Path, out: Path, wanted: Mapping[str, Any], force: bool) -> None:
    """Make the folder of parts, or hold the one that is there against what is wanted."""
    plan_file = folder / "scan.json"
    if force:
        shutil.rmtree(folder, ignore_errors=True)
        out.unlink(missing_ok=True)
    if plan_file.exists():
        try:
            had = json.loads(plan_file.read_text(encoding="utf-8"))
        except ValueError:
            had = None
        if had != json.loads(json.dumps(wanted)):
            raise UsageError(
                f"{folder} holds parts of another scan: its model, corpus or settings were different",
                "Give the settings of that scan to go on with it, another --out, or --force to begin anew.",
            )
    elif out.exists():
        raise UsageError(f"{out} exists", "Give --force to replace it, or another name.")
    folder.mkdir(parents=True, exist_ok=True)
    if not plan_file.exists():
        _atomic(plan_file, lambda path: path.write_text(json.dumps(wanted), encoding="utf-8"))


def _atomic(path: Path, fill: Callable[[Path], Any]) -> None:
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
    try:
        fill(unfinished)
        with unfinished.open("rb") as file:
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _rows(model: Model, chunk: Sequence[Text], start: int, size: int, notes: dict[str, None]) -> dict[str, list[Any]]:
    """Columns of one part: a row for each text and head."""
    from attnx.batch import trace_many
    from attnx.measure import describe_heads

    rows: dict[str, list[Any]] = {}
    traces = trace_many(model, [text.text for text in chunk], ("masked", "weights"), size=size)
    for at in range(len(chunk)):
        text = chunk[at]
        try:
            trace = next(traces)
        except AttnxError as error:
            raise InputError(f"{text.source}, near line {text.line}: {error.message}", error.hint) from None
        doubtful = [a.site.label for a in trace.attentions if not a.trusted]
        notes.update((f"not trusted and left out: {label}", None) for label in doubtful)
        trace = replace(trace, attentions=tuple(a for a in trace.attentions if a.trusted))
        if trace.attentions:
            _add(rows, describe_heads(trace), text, start + at, len(trace.tokens))
    return rows


def _add(rows: dict[str, list[Any]], table: HeadTable, text: Text, number: int, tokens: int) -> None:
    layers, heads = (axis.labels for axis in table.measures[0].axes)
    for layer, label in enumerate(layers):
        for head in range(len(heads)):
            values = {m.name: float(m.values[layer, head]) for m in table.measures}
            if all(np.isnan(value) for value in values.values()):
                continue
            told = {
                "text": number, "source": text.source, "line": text.line, "tokens": tokens, "layer": label,
                "head": head, "kind": table.kinds[layer][head],
            }  # fmt: skip
            for name, value in {**told, **values}.items():
                rows.setdefault(name, []).append(value)


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UsageError("scan writes Parquet and needs pyarrow", "pip install 'attnx[scan]'") from None
    return pyarrow, pyarrow.parquet


def _write(path: Path, rows: Mapping[str, list[Any]]) -> None:
    arrow, parquet = _arrow()
    columns = {}
    for name, values in rows.items():
        if isinstance(values[0], float):
            numbers = np.asarray(values, np.float32)
            columns[name] = arrow.array(numbers, mask=np.isnan(numbers))
        elif isinstance(values[0], int):
            columns[name] = arrow.array(values, arrow.int64())
        else:
            columns[name] = arrow.array(values, arrow.string())
    _atomic(path, lambda unfinished: parquet.write_table(arrow.table(columns), unfinished))


def _join(parts: Sequence[Path], out: Path) -> tuple[Measurement, ...]:
    """Put the parts together, one in memory at a time, and take the means by head."""
    arrow, parquet = _arrow()
    sums: dict[str, dict[tuple[str, int], list[float]]] = {}

    def fill(path: Path) -> None:
        writer = None
        for part in parts:
            table = parquet.read_table(part)
            if not table.num_columns:
                continue
            if writer is None:
                writer = parquet.ParquetWriter(path, table.schema)
            writer.write_table(table)
            _count(sums, table, arrow)
        if writer is None:
            raise InputError("no text of the corpus gave anything that can be trusted")
        writer.close()

    _atomic(out, fill)
    return tuple(_summary(sums))


def _count(sums: dict[str, dict[tuple[str, int], list[float]]], table: Any, arrow: Any) -> None:
    keys = list(zip(table.column("layer").to_pylist(), table.column("head").to_pylist(), strict=True))
    for field in table.schema:
        if field.type == arrow.float32():
            of_head = sums.setdefault(field.name, {})
            for key, value in zip(keys, table.column(field.name).to_pylist(), strict=True):
                total = of_head.setdefault(key, [0.0, 0.0])
                if value is not None:
                    total[0] += value
                    total[1] += 1


def _summary(sums: Mapping[str, Mapping[tuple[str, int], Sequence[float]]]) -> Iterator[Measurement]:
    for name, of_head in sums.items():
        layers = list(dict.fromkeys(layer for layer, _ in of_head))
        heads = sorted({head for _, head in of_head})
        values: Array = np.full((len(layers), len(heads)), np.nan)
        for (layer, head), (total, count) in of_head.items():
            if count:
                values[layers.index(layer), heads.index(head)] = total / count
        axes = (Axis("layer", tuple(layers)), Axis("head", tuple(f"H{head}" for head in heads)))
        yield Measurement(name, "", axes, values, source="attnx", formula="mean over texts")
