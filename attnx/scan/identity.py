"""The identity of a scan and its parts: everything that can change a row."""

from __future__ import annotations

from collections.abc import Collection
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnx.errors import RunError, UsageError
from attnx.scan.parts import Note, note_of, path_of
from attnx.session import cache
from attnx.tokens.files import shaping_files
from attnx.version import __version__
from attnx.wording import Wording

if TYPE_CHECKING:
    from attnx.model import Model
    from attnx.scan.chunks import Corpus
    from attnx.scan.measuring import Job

_VERSION = 3
"""Version of the format of a part."""


def _runtime() -> dict[str, str]:
    """The onnxruntime that computes: the version of its distribution, with or without CUDA."""
    return {name: version for name in ("onnxruntime", "onnxruntime-gpu") if (version := _installed(name))}


def _installed(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def software() -> dict[str, str]:
    """The software that computes, by version: another one may round differently or tokenize differently.

    The distribution of onnxruntime does not count: the command's machine may have no GPU.
    """
    runtime = ", ".join(sorted(set(_runtime().values())))
    return {"attnx": __version__, "onnxruntime": runtime, "tokenizers": _installed("tokenizers")}


def plan(model: Model, job: Job, corpus: Corpus) -> dict[str, Any]:
    """The identity of a scan: everything that can change one of its rows.

    That is the model's file and its weights, the tokenizer's files, the corpus' files, the settings, and the versions
    of attnx and of what it computes with.
    """
    tokenizer = [cache.identity(file) for file in shaping_files(model.tokenizer.path, model.path)]
    return {
        "version": _VERSION, **software(),
        "onnxruntime": ", ".join(f"{name} {version}" for name, version in _runtime().items()),
        "model": cache.identity(model.path), "weights": list(model.find().files), "tokenizer": tokenizer,
        "device": model.device,
        "corpus": [cache.identity(file) for file in corpus.files], "field": corpus.field,
        "measure": list(job.measures), "batch": job.size, "part": corpus.part,
    }  # fmt: skip


def same_device(folder: Path, number: int, before: str | None) -> str | None:
    """The kind of device that a part was made on, which must be that of the parts before it.

    Raises:
        UsageError: It differs: "auto" may mean a GPU one day and the processor the next, and they round
            differently.
    """
    note = note_of(path_of(folder, number))
    own = note.device.partition(":")[0] if note is not None else ""
    if before and own and own != before:
        raise UsageError(
            f"parts of this scan were made on {before} and on {own}, which round differently",
            Wording("Give <force=True> and <device={own}> to begin anew.", own=own),
        )
    return own or before


def complete(folder: Path, done: Collection[int]) -> list[Note]:
    """The notes of all parts, after checking that every text is in exactly one part.

    Raises:
        RunError: A part is missing, or covers other texts than it should.
    """
    notes, start = [], 0
    for number in range(len(done)):
        note = note_of(path_of(folder, number))
        if note is None or number not in done or (note.number, note.start) != (number, start):
            raise RunError(
                f"part {number} of the scan is missing or damaged: {path_of(folder, number)}",
                "Run the same command again: it makes what is missing.",
            )
        start += note.texts
        notes.append(note)
    return notes
