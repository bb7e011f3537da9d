"""--set NAME=VALUE and --dim NAME=SIZE: arrays for a model's inputs, written on the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from attnx.errors import InputError, UsageError
from attnx.feed.arrays import check_declared
from attnx.records import Array
from attnx.session.ort import Slot

_HOW = "NAME=VALUE with a number, a list 1,2,3, true, false, zeros, ones, arange, randn:SEED or @file.npy."


def parse_dims(texts: Sequence[str]) -> dict[str, int]:
    """Read batch=1, height=32 as sizes by name.

    Raises:
        UsageError: One that is no NAME=SIZE.
    """
    out: dict[str, int] = {}
    for text in texts:
        name, equals, size = text.rpartition("=")
        if not equals or not name or not (size.isascii() and size.isdigit()) or len(size) > 9:
            raise UsageError(f"--dim {text!r} is no NAME=SIZE", "For example: --dim batch=1 --dim height=32.")
        out[name] = int(size)
    return out


def read_settings(
    texts: Sequence[str],
    slots: Sequence[Slot],
    dims: Mapping[str, int] | None = None,
    given: Mapping[str, Array] | None = None,
) -> dict[str, Array]:
    """Make the arrays that are set.

    Args:
        texts: NAME=VALUE each.
        slots: The model's inputs.
        dims: Sizes of symbolic dimensions, by name.
        given: Arrays that are given besides; sizes of symbolic dimensions are read off them.

    Raises:
        UsageError: No such input or dimension, a value that cannot be read, or a size that is not known.
        InputError: A file that cannot be read.
    """
    by_name = {s.name: s for s in slots}
    symbols = list(dict.fromkeys(d for s in slots for d in s.shape if isinstance(d, str)))
    if unknown := [name for name in dims or {} if name not in symbols]:
        raise UsageError(
            f"the model has no dimension {', '.join(unknown)}", f"It has: {', '.join(symbols) or 'none with a name'}."
        )
    sizes: dict[str, int] = {}
    for name, array in (given or {}).items():
        if name in by_name and len(by_name[name].shape) == array.ndim:
            sizes |= {d: n for d, n in zip(by_name[name].shape, array.shape, strict=True) if isinstance(d, str)}
    sizes |= dims or {}
    out: dict[str, Array] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or name not in by_name:
            raise UsageError(f"--set {text!r} names no input of the model", f"{_HOW} It takes: {', '.join(by_name)}.")
        out[name] = _value(by_name[name], value.strip(), sizes)
    return out


def _value(slot: Slot, value: str, sizes: Mapping[str, int]) -> Array:
    if value.startswith("@"):
        return _from_file(slot, Path(value[1:]))
    kind, _, seed = value.lower().partition(":")
    if kind in ("zeros", "ones", "arange", "randn"):
        shape = _shape(slot, sizes)
        if kind == "randn":
            if slot.dtype not in (np.float32, np.float16, np.float64):
                raise UsageError(f"--set {slot.name}=randn: the input takes {slot.type}", "randn makes fractions.")
            if seed and not seed.isdigit():
                raise UsageError(f"--set {slot.name}={value}: the seed is no number", "For example: randn:0.")
            return np.asarray(np.random.default_rng(int(seed or 0)).standard_normal(shape), dtype=slot.dtype)
        if kind == "arange":
            return _cast(slot, np.arange(int(np.prod(shape))).reshape(shape), value)
        return np.full(shape, 1 if kind == "ones" else 0, dtype=slot.dtype or np.float32)
    words = {"true": 1.0, "false": 0.0}
    try:
        numbers = [words[p.strip()] if p.strip() in words else float(p) for p in value.lower().split(",")]
    except ValueError:
        raise UsageError(f"--set {slot.name}={value}: this is no value", _HOW) from None
    if len(numbers) == 1:
        return _cast(slot, np.full(_shape(slot, sizes, alone=True), numbers[0]), value)
    fixed = [d if isinstance(d, int) else sizes.get(str(d), 1) for d in slot.shape]
    if not fixed or int(np.prod(fixed[:-1])) != 1:
        raise UsageError(
            f"--set {slot.name}: a list fills one row, and the model wants {slot.describe()}", "Use @file.npy."
        )
    return _cast(slot, np.array(numbers).reshape([*fixed[:-1], len(numbers)]), value)


def _cast(slot: Slot, array: Array, value: str) -> Array:
    cast = array.astype(slot.dtype or np.float32)
    if cast.dtype.kind in "iub" and not np.array_equal(cast.astype(np.float64), array.astype(np.float64)):
        raise UsageError(f"--set {slot.name}={value} does not fit into {slot.type}", "Give whole numbers in its range.")
    return np.asarray(cast)


def _shape(slot: Slot, sizes: Mapping[str, int], *, alone: bool = False) -> list[int]:
    """The input's shape with its symbols filled in: by --dim, else 1 for a batch (for every one of a single number)."""
    shape = []
    for place, dim in enumerate(slot.shape):
        if isinstance(dim, int):
            shape.append(dim)
        elif dim is not None and dim in sizes:
            shape.append(sizes[dim])
        elif alone or (place == 0 and (dim is None or "batch" in dim.lower())):
            shape.append(1)
        else:
            raise UsageError(
                f"how large {slot.describe()} is, nothing says: {dim or f'its dimension {place}'} is open",
                f"Say it: --dim {dim}=8." if dim else "Use @file.npy.",
            )
    return shape


def _from_file(slot: Slot, path: Path) -> Array:
    try:
        if path.suffix == ".npy":
            with path.open("rb") as file:
                check_declared(file, path.stat().st_size, str(path))
        array = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise InputError(f"there is no file {path}", f"--set {slot.name}=@FILE takes a .npy file.") from None
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{path} is no .npy file of one array: {str(error)[:120]}", "numpy.save writes one.") from None
    if not isinstance(array, np.ndarray):
        array.close()
        raise InputError(f"{path} holds several arrays", "Give it with --inputs, or one array with numpy.save.")
    return np.asarray(array)
