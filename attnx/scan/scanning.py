"""A corpus -> a Parquet file of measures by text and head: in parts, so that a scan that was killed goes on.

Each part covers a fixed number of texts and is there whole or not at all (`attnx.scan.parts`). What is there is not
made again; a text is in one part only. At the end the parts are held against one another, put together and removed.
Where the parts are made, in this process or on a Ray cluster, makes no difference to them.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnx.errors import InputError, UsageError
from attnx.records import Measurement
from attnx.scan import surveys
from attnx.scan.chunks import PART, Chunk, Corpus
from attnx.scan.corpus import size as bytes_of
from attnx.scan.identity import complete, plan, same_device
from attnx.scan.measuring import Job, measure
from attnx.scan.observations import Sums
from attnx.scan.parts import join, note_of, path_of, write, writing
from attnx.scan.resume import alone, begin, folder_of, has_parts, spent
from attnx.wording import Wording

if TYPE_CHECKING:
    from attnx.model import Model

MEASURES = ("heads",)
OTHER = frozenset({".csv", ".tsv", ".txt", ".json", ".jsonl", ".ndjson", ".npz", ".npy", ".html", ".xlsx"})
"""Endings that say of a file that it is no Parquet."""


@dataclass(frozen=True, slots=True)
class Made:
    """One part as an engine gives it."""

    number: int
    start: int
    texts: int
    end: int
    """Bytes of the corpus up to its end."""
    body: bytes | None
    """The part's file; None where it was there before."""


Engine = Callable[["Model", Job, Corpus, Path], Iterator[Made]]
"""Makes the parts of a corpus, in any order, but for those that are in the folder already (`there`)."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a scan is."""

    texts: int
    kept: int
    """How many of them were there from a scan before."""
    seconds: float
    read: int
    """Bytes of the corpus that are done."""
    kept_read: int
    """How many of them were there before."""
    total: int
    """Bytes of the corpus."""

    @property
    def rate(self) -> float:
        """Texts a second, those from before not counted."""
        return (self.texts - self.kept) / self.seconds if self.seconds > 0 else 0.0

    @property
    def left(self) -> float | None:
        """Seconds that are left if it goes on as it did; None where nothing has been measured yet."""
        fresh = self.read - self.kept_read
        return self.seconds * (self.total - self.read) / fresh if fresh > 0 else None


@dataclass(frozen=True, slots=True)
class Scanned:
    """What a scan gave."""

    texts: int
    tokens: int
    kept: int
    """How many of the texts were there from a scan before."""
    seconds: float
    """Of this run, from the first text to the finished file."""
    device: str
    summary: tuple[Measurement, ...]
    """[S,H] for each measure: the mean over texts, NaN where it was never to be had."""
    left: Mapping[str, tuple[int, str]]
    """Survey -> how many texts it could not take, and the first of them; "notes": notes on texts."""
    notes: tuple[str, ...]

    @property
    def rate(self) -> float | None:
        """Texts a second of this run; None where all were there before."""
        return (self.texts - self.kept) / self.seconds if self.texts > self.kept and self.seconds > 0 else None


def there(folder: Path, chunk: Chunk) -> bool:
    """Whether the part of these very texts is in the folder."""
    note = note_of(path_of(folder, chunk.number))
    return note is not None and (note.number, note.start, note.digest) == (chunk.number, chunk.start, chunk.digest)


def local(model: Model, job: Job, corpus: Corpus, folder: Path) -> Iterator[Made]:
    """The parts, made here one after another."""
    for chunk in corpus.chunks():
        body = None if there(folder, chunk) else made_of(model, job, chunk)
        yield Made(chunk.number, chunk.start, len(chunk.texts), chunk.texts[-1].end, body)


def made_of(model: Model, job: Job, chunk: Chunk) -> bytes:
    """The bytes of a part: what every engine runs for each."""
    return measure(model, job, chunk.number, chunk.start, chunk.texts, chunk.digest)


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
    engine: Engine = local,
    tell: Callable[[Progress], None] = lambda progress: None,
) -> Scanned:
    """Measure every text of a corpus, or go on with a scan that was broken off.

    Args:
        model: The model.
        files: The corpus.
        out: The Parquet file: a row for each value, see `parts.COLUMNS`.
        field: The field or column of the text.
        measures: Names of surveys.
        size: Texts a batch.
        part: Texts a part.
        force: Replace `out`, and parts of another scan: see `begun.begin`.
        engine: Makes the parts: `local`, or one of `attnx.scan.distributed`.
        tell: Called after each part.

    Raises:
        UsageError: `out` exists, or a scan with other settings was begun there, or is going on there.
        InputError: A file of the corpus cannot be read, or there is no text.
        RunError: A run failed, or something cannot be written; parts that are done stay.
    """
    if not measures:
        raise UsageError("there is nothing to measure", f"Choose from {', '.join(surveys.names())}.")
    job = Job(tuple(dict.fromkeys(surveys.canonical(name) for name in measures)), size)
    if out.is_dir() or not out.name:
        raise UsageError(f"{out} is a folder", "Give the name of a Parquet file.")
    if out.exists() and not out.is_file():  # a device, a pipe: it would be replaced by a file
        raise UsageError(f"{out} is not an ordinary file", "Give the name of a Parquet file.")
    if out.exists() and any(path.exists() and path.samefile(out) for path in files):
        raise UsageError(f"{out} is a file of the corpus: it would be overwritten", Wording("Give another <out>."))
    if out.suffix.lower() in OTHER:
        raise UsageError(
            f"a scan writes Parquet, and {out} is named as another kind of file", f"Call it {out.stem}.parquet."
        )
    if not out.resolve().parent.exists():
        raise UsageError(f"the folder of {out} does not exist", f"Create it: mkdir -p {out.parent}")
    corpus = Corpus(tuple(files), field, job.needs, job.may, part)
    folder = folder_of(out)
    wanted = plan(model, job, corpus)
    with writing(out):
        folder.mkdir(parents=True, exist_ok=True)
    with alone(folder):
        try:
            with writing(out):
                begin(folder, out, wanted, force)
            return _scan(model, job, corpus, out, folder, wanted, engine, tell)
        finally:
            if folder.exists() and not has_parts(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _scan(
    model: Model,
    job: Job,
    corpus: Corpus,
    out: Path,
    folder: Path,
    wanted: Mapping[str, Any],
    engine: Engine,
    tell: Callable[[Progress], None],
) -> Scanned:
    start = time.perf_counter()
    total = bytes_of(corpus.files)

    done: dict[int, Made] = {}
    device: str | None = None
    texts = kept = end = kept_end = 0
    for made in engine(model, job, corpus, folder):
        body = made.body
        if body is not None:
            write(path_of(folder, made.number), lambda path, body=body: path.write_bytes(body))  # type: ignore[misc]
        else:
            kept, kept_end = kept + made.texts, max(kept_end, made.end)
        try:
            device = same_device(folder, made.number, device)
        except UsageError:
            if body is not None:  # on the device of the others the same command shall find no part of this one
                path_of(folder, made.number).unlink()
            raise
        done[made.number] = Made(made.number, made.start, made.texts, made.end, None)
        end, texts = max(end, made.end), texts + made.texts
        tell(Progress(texts, kept, time.perf_counter() - start, end, kept_end, total))
    if not done:
        named = ", ".join(str(path) for path in corpus.files[:3]) + (", ..." if len(corpus.files) > 3 else "")
        raise InputError(f"there is no text in the corpus: {named} has empty lines at most", "Give files with texts.")
    notes = complete(folder, done)
    _finish(folder, out, len(done), wanted)
    first = notes[0]
    sums: dict[str, Sums] = {}
    left: dict[str, tuple[int, str]] = {}
    for note in notes:
        for name, one in note.sums.items():
            if name in sums:
                sums[name].add(one)
            else:
                sums[name] = one
        for name, (count, why) in note.left.items():
            before, earliest = left.get(name, (0, why))
            left[name] = (before + count, earliest)
    texts = sum(note.texts for note in notes)
    return Scanned(
        texts, sum(note.tokens for note in notes), kept, time.perf_counter() - start,
        first.device, tuple(one.mean(name, texts) for name, one in sums.items()), left,
        tuple(dict.fromkeys(line for note in notes for line in note.notes)),
    )  # fmt: skip


def _finish(folder: Path, out: Path, parts: int, wanted: Mapping[str, Any]) -> None:
    """Put the parts together, and remove them once the whole file is in its place."""
    whole = folder / "whole.parquet"
    join([path_of(folder, number) for number in range(parts)], whole, wanted)
    with writing(out):
        whole.replace(out)
        folder.rename(spent(folder))  # at once: from here on there is nothing to go on with
    shutil.rmtree(spent(folder), ignore_errors=True)
