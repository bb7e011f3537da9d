"""A corpus -> a Parquet file of measures by text and head: in parts, so that a killed scan can be resumed.

Each part covers a fixed number of texts and is either complete or absent (`attnx.scan.parts`). Existing parts are not
made again; a text is in one part only. At the end the parts are checked against one another, joined and removed.
Parts are the same whether they are made in this process or on a Ray cluster.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnx.errors import InputError, UsageError
from attnx.paths import resolved
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
"""Extensions that cannot be those of a Parquet file."""


@dataclass(frozen=True, slots=True)
class Made:
    """One part as an engine returns it."""

    number: int
    start: int
    texts: int
    end: int
    """Bytes of the corpus up to its end."""
    body: bytes | None
    """The part's file; None if it existed before."""


Engine = Callable[["Model", Job, Corpus, Path], Iterator[Made]]
"""Makes the parts of a corpus, in any order, except those already in the folder (`there`)."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a scan."""

    texts: int
    kept: int
    """How many of them come from an earlier scan."""
    seconds: float
    read: int
    """Bytes of the corpus that are finished."""
    kept_read: int
    """How many of them were finished before."""
    total: int
    """Bytes of the corpus."""

    @property
    def rate(self) -> float:
        """Texts per second, not counting those from before."""
        return (self.texts - self.kept) / self.seconds if self.seconds > 0 else 0.0

    @property
    def left(self) -> float | None:
        """Estimated seconds left; None if nothing has been measured yet."""
        fresh = self.read - self.kept_read
        return self.seconds * (self.total - self.read) / fresh if fresh > 0 else None


@dataclass(frozen=True, slots=True)
class Scanned:
    """The result of a scan."""

    texts: int
    tokens: int
    kept: int
    """How many of the texts come from an earlier scan."""
    seconds: float
    """Seconds of this run, from the first text to the finished file."""
    device: str
    summary: tuple[Measurement, ...]
    """[S,H] for each measure: the mean over texts, NaN where it never had a value."""
    left: Mapping[str, tuple[int, str]]
    """Survey -> how many texts it could not measure, and the first of them; "notes": notes on texts."""
    notes: tuple[str, ...]

    @property
    def rate(self) -> float | None:
        """Texts per second of this run; None if all were finished before."""
        return (self.texts - self.kept) / self.seconds if self.texts > self.kept and self.seconds > 0 else None


def there(folder: Path, chunk: Chunk) -> bool:
    """Whether the part with exactly these texts is in the folder."""
    note = note_of(path_of(folder, chunk.number))
    return note is not None and (note.number, note.start, note.digest) == (chunk.number, chunk.start, chunk.digest)


def local(model: Model, job: Job, corpus: Corpus, folder: Path) -> Iterator[Made]:
    """The parts, made in this process one after another."""
    for chunk in corpus.chunks():
        body = None if there(folder, chunk) else made_of(model, job, chunk)
        yield Made(chunk.number, chunk.start, len(chunk.texts), chunk.texts[-1].end, body)


def made_of(model: Model, job: Job, chunk: Chunk) -> bytes:
    """The bytes of a part: the function that every engine runs for each part."""
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
    """Measure every text of a corpus, or resume an interrupted scan.

    Args:
        model: The model.
        files: The corpus.
        out: The Parquet file: one row per value, see `parts.COLUMNS`.
        field: The field or column with the text.
        measures: Names of surveys.
        size: Texts per batch.
        part: Texts per part.
        force: Replace `out`, and parts of another scan: see `begun.begin`.
        engine: Makes the parts: `local`, or one of `attnx.scan.distributed`.
        tell: Called after each part.

    Raises:
        UsageError: `out` exists, or a scan with other settings was begun or is running there.
        InputError: A file of the corpus cannot be read, or there is no text.
        RunError: A run failed, or something cannot be written; finished parts are kept.
    """
    if not measures:
        raise UsageError("there is nothing to measure", f"Choose from {', '.join(surveys.names())}.")
    job = Job(tuple(dict.fromkeys(surveys.canonical(name) for name in measures)), size)
    if out.is_dir() or not out.name:
        raise UsageError(f"{out} is a folder", "Give the name of a Parquet file.")
    if out.exists() and not out.is_file():  # a device or a pipe would be replaced by a file
        raise UsageError(f"{out} is not an ordinary file", "Give the name of a Parquet file.")
    if out.exists() and any(path.exists() and path.samefile(out) for path in files):
        raise UsageError(f"{out} is a file of the corpus: it would be overwritten", Wording("Give another <out>."))
    if out.suffix.lower() in OTHER:
        raise UsageError(
            f"a scan writes Parquet, and {out} is named as another kind of file", f"Call it {out.stem}.parquet."
        )
    try:
        place = resolved(out)
    except OSError as error:
        raise UsageError(f"{out} cannot be written: {error.strerror or error}", "Give another path.") from None
    if not place.parent.exists():
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
            if body is not None:  # no part from another device may be left for a later run
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
    """Join the parts, and remove them once the complete file is in place."""
    whole = folder / "whole.parquet"
    join([path_of(folder, number) for number in range(parts)], whole, wanted)
    with writing(out):
        whole.replace(out)
        folder.rename(spent(folder))  # in one step: from here on there is nothing to resume
    shutil.rmtree(spent(folder), ignore_errors=True)
