"""Arrays in and out of files: .npz feeds, .npz and .safetensors results, written whole or not at all."""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np

from attnx.errors import InputError, RunError, UsageError, reason
from attnx.paths import new_mode, resolved
from attnx.records import QUANTITIES, Array, Trace
from attnx.wording import Wording


def load_feed(path: Path) -> dict[str, Array]:
    """The arrays of an .npz file, by name.

    Raises:
        InputError: No such file, or not an .npz file of plain arrays.
    """
    try:
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise InputError(f"{path} holds one array without a name", "Save it with numpy.savez(FILE, name=array).")
        with archive:
            _foresee(path, archive)
            return {name: archive[name] for name in archive.files}
    except FileNotFoundError:
        raise InputError(
            f"there is no file {path}", "Arrays for a model's inputs are read from an .npz file."
        ) from None
    except (OSError, ValueError, zipfile.BadZipFile, EOFError, KeyError) as error:
        raise InputError(
            f"{path} is not an .npz file of plain arrays: {reason(error)}",
            "Save it with numpy.savez(FILE, name=array).",
        ) from None


def _foresee(path: Path, archive: Any) -> None:
    """Check the sizes that an archive declares for its arrays against its contents and against memory, first of all.

    Raises:
        InputError: An array that is larger than its bytes, or arrays that do not fit in memory.
    """
    from attnx.session import memory

    total = 0
    for item in archive.zip.infolist():
        total += item.file_size
        with archive.zip.open(item) as file:
            check_declared(file, item.file_size, f"{item.filename.removesuffix('.npy')} in {path}")
    free = memory.available()
    if free is not None and total > free:
        raise InputError(
            f"{path} unpacks to {total / 1e9:.1f} GB, and {free / 1e9:.1f} GB of memory are free",
            "Give a smaller feed, or free some memory.",
        )


def check_declared(file: IO[bytes], size: int, name: str) -> None:
    """Check the shape that the header of a .npy file declares against the bytes in the file.

    Raises:
        InputError: The file has fewer bytes.
        ValueError: It is not a .npy file.
    """
    kind = np.lib.format
    version = kind.read_magic(file)
    read = kind.read_array_header_1_0 if version == (1, 0) else kind.read_array_header_2_0
    shape, _, dtype = read(file)
    needed = math.prod(shape) * dtype.itemsize
    if needed > size and not dtype.hasobject:
        raise InputError(
            f"{name} declares the shape {list(shape)} of {dtype}, which takes {needed} bytes; there are {size}",
            "The file is cut short or damaged; save it again with numpy.",
        )


def write_whole(path: Path, write: Callable[[IO[bytes]], None], *, force: bool = False) -> None:
    """Write a file whole or not at all: first beside its destination, then moved there. A link is followed.

    Raises:
        UsageError: It exists and `force` is not given.
        RunError: It cannot be written (folder missing, no permission, disk full).
    """
    if path.exists() and not force:
        raise UsageError(f"{path} exists", Wording("Give <force=True> to replace it, or another name."))
    if path.is_dir():
        raise UsageError(f"{path} is a folder", "Give the name of a file.")
    place = _place(path)
    temporary = None
    try:
        handle, temporary = tempfile.mkstemp(dir=place.parent, prefix=".attnx-", suffix=".part")
        with os.fdopen(handle, "wb") as file:
            write(file)
        Path(temporary).chmod(new_mode())
        Path(temporary).replace(place)
        temporary = None
    except OSError as error:
        raise RunError(
            f"{path} cannot be written: {error.strerror or error}", "Choose another folder, or free some space."
        ) from None
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


def _place(path: Path) -> Path:
    """Where a file is really written, links followed."""
    try:
        return resolved(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}", "Give another path.") from None


def trace_arrays(trace: Trace) -> dict[str, Array]:
    """The arrays of a trace under the names that scripts rely on: "attention.{i}.{quantity}", "output.{name}"."""
    out: dict[str, Array] = {}
    for attention in trace.attentions:
        for quantity in QUANTITIES:
            array = getattr(attention, quantity)
            if array is not None:
                out[f"attention.{attention.site.index}.{quantity}"] = array
    out |= {f"output.{name}": array for name, array in trace.outputs.items()}
    return out


def check_target(path: Path, *, force: bool = False) -> None:
    """Check before a long run that its arrays can be written there.

    Raises:
        UsageError: Another ending, the file exists and is not to be replaced, or its folder does not exist.
    """
    if path.suffix not in (".npz", ".safetensors"):
        raise UsageError(
            f"arrays are written to .npz or .safetensors, not {path.suffix or 'a name without an ending'}",
            "For example: arrays.npz.",
        )
    if path.exists() and not force:
        raise UsageError(f"{path} exists", Wording("Give <force=True> to replace it, or another name."))
    _place(path)
    if not path.parent.is_dir():
        raise UsageError(f"the folder {path.parent} does not exist", f"Create it: mkdir -p {path.parent}")


def save_trace(trace: Trace, path: Path, *, force: bool = False) -> None:
    """Write the arrays of a trace to .npz or .safetensors.

    Raises:
        UsageError: Another ending, or the file exists.
    """
    save_arrays(trace_arrays(trace), path, force=force)


def save_arrays(arrays: Mapping[str, Array], path: Path, *, force: bool = False) -> None:
    """Write arrays to .npz or .safetensors, by name.

    Raises:
        UsageError: Another ending, or the file exists.
    """
    if path.suffix == ".npz":
        write_whole(path, lambda file: np.savez(file, **arrays), force=force)  # type: ignore[arg-type]
    elif path.suffix == ".safetensors":
        write_whole(path, lambda file: _write_safetensors(file, arrays), force=force)
    else:
        check_target(path, force=True)


_SAFETENSORS = {
    "float32": "F32", "float64": "F64", "float16": "F16", "int64": "I64", "int32": "I32", "int8": "I8", "uint8": "U8",
    "int16": "I16", "uint16": "U16", "uint32": "U32", "uint64": "U64", "bool": "BOOL",
}  # fmt: skip

_LENGTH = 8
"""Bytes of the header's length."""
_ENTRY = 320
"""Bytes that an array's entry in the header takes at most: a name of a site's quantity, a type, sizes and offsets."""


def _write_safetensors(file: IO[bytes], arrays: Mapping[str, Array]) -> None:
    """Write arrays that are all at hand: the header takes no more room than it needs."""
    writer = Safetensors(file, 0)
    for name, array in arrays.items():
        writer.declare(name, array)
    file.write(writer.header())
    for array in arrays.values():
        file.write(np.ascontiguousarray(array).data)


class ArrayFile(Protocol):
    """A file that arrays are added to, one after another."""

    def add(self, name: str, array: Array) -> None:
        """Write an array."""

    def add_parts(self, name: str, kind: np.dtype[Any], shape: Sequence[int], parts: Iterable[IO[bytes]]) -> None:
        """Write an array whose bytes lie in files, one behind the other, each open at its beginning."""


class Npz:
    """An .npz file that is written array by array, as numpy.savez would."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive

    def add(self, name: str, array: Array) -> None:
        """Write an array."""
        with self._archive.open(f"{name}.npy", "w", force_zip64=True) as file:
            np.lib.format.write_array(file, np.ascontiguousarray(array), allow_pickle=False)

    def add_parts(self, name: str, kind: np.dtype[Any], shape: Sequence[int], parts: Iterable[IO[bytes]]) -> None:
        """Write an array whose bytes lie in files."""
        head = {"descr": np.lib.format.dtype_to_descr(kind), "fortran_order": False, "shape": tuple(shape)}
        with self._archive.open(f"{name}.npy", "w", force_zip64=True) as file:
            np.lib.format.write_array_header_1_0(file, head)
            for part in parts:
                shutil.copyfileobj(part, file, _COPIED)


_COPIED = 1 << 20
"""Bytes that are copied from file to file at once."""


class Safetensors:
    """A .safetensors file that is written array by array, before the shapes of those that follow are known.

    The header stands in front of the arrays and gives their shapes and places, so room is left for it, and it is
    written when all arrays are.

    Args:
        file: Open for writing, empty.
        most: The most arrays that will be added.

    Source: the safetensors format: 8 bytes of header length, a JSON header padded with spaces to 8, the arrays' bytes.
    """

    def __init__(self, file: IO[bytes], most: int) -> None:
        self._file, self._room = file, most * _ENTRY + len("{}")
        self._entries: dict[str, object] = {}
        self._at = 0

    def declare(self, name: str, array: Array) -> None:
        """Give an array the next place in the file."""
        self._declare(name, array.dtype, array.shape)

    def _declare(self, name: str, kind: np.dtype[Any], shape: Sequence[int]) -> None:
        end = self._at + math.prod(shape) * kind.itemsize
        entry = {"dtype": _SAFETENSORS[kind.name], "shape": list(shape), "data_offsets": [self._at, end]}
        self._entries[name] = entry
        self._at = end

    def _begin(self) -> None:
        """Leave room for the header."""
        if not self._entries:
            self._file.seek(_LENGTH + self._padded(self._room))

    def add(self, name: str, array: Array) -> None:
        """Write an array."""
        self._begin()
        self.declare(name, array)
        self._file.write(np.ascontiguousarray(array).data)

    def add_parts(self, name: str, kind: np.dtype[Any], shape: Sequence[int], parts: Iterable[IO[bytes]]) -> None:
        """Write an array whose bytes lie in files."""
        self._begin()
        self._declare(name, kind, shape)
        for part in parts:
            shutil.copyfileobj(part, self._file, _COPIED)

    def finish(self) -> None:
        """Write the header."""
        header = self.header()
        assert len(header) == _LENGTH + self._padded(self._room), "the header would run into the arrays"
        self._file.seek(0)
        self._file.write(header)

    def header(self) -> bytes:
        """The header and its length, padded to the room that was left for it."""
        text = json.dumps(self._entries, separators=(",", ":")).encode()
        text = text.ljust(self._padded(max(self._room, len(text))))
        return len(text).to_bytes(_LENGTH, "little") + text

    @staticmethod
    def _padded(size: int) -> int:
        return size + -size % 8
