"""Copy a model's files to a machine that lacks them, or has other files under their names, and keep them there.

Results must not depend on the machine that measures them. So the command sends a digest of each file of the model,
and a machine whose own files differ or are missing gets them from where the command runs.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnx.errors import RunError
from attnx.graph.load.load import SELF
from attnx.session import cache
from attnx.tokens.files import search_folders
from attnx.wording import Wording

if TYPE_CHECKING:
    from attnx.model import Model

KEPT = 7 * 24 * 3600.0
"""Seconds for which unused models stay on a machine that they were copied to."""
READ = (".json", ".txt")
"""Extensions of the files beside a model that determine how texts are read."""
Fetch = Callable[[Path], Any]
"""Reads a file on the machine where the command runs, as bytes or an array of bytes."""


@dataclass(frozen=True, slots=True)
class File:
    """One file of a model, on the machine where the command runs."""

    name: Path
    """Absolute path under which the model opens it."""
    real: Path
    """The path with links resolved."""
    size: int
    digest: str
    """SHA-256."""


@dataclass(frozen=True, slots=True)
class Carried:
    """The files that a model consists of."""

    model: Mapping[str, Any]
    """Arguments of `Model`."""
    files: tuple[File, ...] = ()
    """Every file that it is read from; empty if it is only opened on its own machine."""

    def arguments(self, fetch: Fetch | None) -> dict[str, Any]:
        """Arguments of `Model` on this machine, after making sure that its files are here.

        Raises:
            RunError: The files are not here and cannot be stored here.
        """
        if fetch is None or all(_same(file) for file in self.files):
            return dict(self.model)
        root = self._kept(fetch)
        return {name: _under(root, at) if isinstance(at, Path) else at for name, at in self.model.items()}

    def _kept(self, fetch: Fetch) -> Path:
        """The folder that contains the files with their full paths; it is filled if it does not exist yet."""
        where = cache.folder()
        path = str(self.model["path"])
        if where is None:
            raise RunError(
                f"a machine of the cluster has not the files of {path}, and keeps nothing: its cache is turned off",
                f"Turn it on there ({cache.VARIABLE}), or put the model there under the same path.",
            )
        root = where / cache.CARRIED / hashlib.sha256(repr(self.files).encode()).hexdigest()[:32]
        try:
            root.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not root.is_dir():
                _tidy(root.parent)
                with tempfile.TemporaryDirectory(dir=root.parent, suffix=".part", ignore_cleanup_errors=True) as part:
                    for file in self.files:
                        place = _under(Path(part) / "whole", file.name)
                        place.parent.mkdir(parents=True, exist_ok=True)
                        place.write_bytes(fetch(file.real))
                    if not root.is_dir():  # another process on this machine was first
                        (Path(part) / "whole").rename(root)
            os.utime(root)
        except OSError as error:
            if not root.is_dir():
                raise RunError(
                    Wording(
                        "a machine of the cluster has not the files of {path}, and they cannot be written to {where}: "
                        "{why}", path=path, where=str(root.parent), why=str(error),
                    ),
                    f"Give it room, another folder ({cache.VARIABLE}), or the model under the same path.",
                ) from None  # fmt: skip
        return root


def carried(model: Model) -> Carried:
    """All the files of a model, identified by their contents."""
    return Carried(model.elsewhere(), tuple(_files(model)))


def _files(model: Model) -> Iterator[File]:
    given = {name: at for name, at in model.elsewhere().items() if isinstance(at, Path)}
    found: dict[Path, Path] = {}
    for name, place in given.items():
        if place.is_file():
            found[place] = place
        if name != "tokenizer":
            of = model if name == "path" else getattr(model, name)
            files = of.graph().loaded.files
            found |= {place.parent / location: real for location, real in files.items() if location != SELF}
        beside = {path for folder in search_folders(place) if folder.is_dir() for path in folder.iterdir()}
        found |= {path: path for path in sorted(beside) if path.suffix.lower() in READ and path.is_file()}
    for path, real in found.items():
        with real.open("rb") as file:
            yield File(path, real.resolve(), real.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())


def _same(file: File) -> bool:
    """Whether this machine has the file."""
    try:
        if file.name.stat().st_size != file.size:
            return False
        with file.name.open("rb") as here:
            return hashlib.file_digest(here, "sha256").hexdigest() == file.digest
    except OSError:
        return False


def _under(root: Path, path: Path) -> Path:
    return root / path.relative_to(path.anchor)


def _tidy(folder: Path) -> None:
    """Remove what has not been used for long."""
    for path in folder.iterdir():
        if time.time() - path.stat().st_mtime > KEPT:
            shutil.rmtree(path, ignore_errors=True)
