"""--set NAME=VALUE and --dim NAME=SIZE: arrays for a model's inputs, written on the command line."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from attnx.errors import InputError, UsageError, reason
from attnx.feed.arrays import check_declared
from attnx.numerals import LARGEST, beyond, real, whole
from attnx.records import Array
from attnx.session import memory
from attnx.session.ort import Slot

_LARGEST = 10**9
"""The most entries along a dimension."""
_HOW = "NAME=VALUE with a number, a list 1,2,3, true, false, zeros, ones, arange, randn:SEED or @file.npy."


def parse_dims(texts: Sequence[str]) -> dict[str, int]:
    """Read batch=1, height=32 as sizes by name.

    Raises:
        UsageError: One is not of the form NAME=SIZE.
    """
    out: dict[str, int] = {}
    for text in texts:
        name, equals, said = text.rpartition("=")
        size = whole(said, most=_LARGEST)
        if equals and beyond(said, _LARGEST):
            raise UsageError(f"--dim {name}: the size is too large", f"Sizes go up to {_LARGEST:,}.")
        if not equals or not name or size is None:
            raise UsageError(
                f"--dim {text!r} is not of the form NAME=SIZE", "For example: --dim batch=1 --dim height=32."
            )
        out[name] = size
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
        given: Other arrays of the feed; sizes of symbolic dimensions are taken from them.

    Raises:
        UsageError: No such input or dimension, a value that cannot be read, a size that is not known, or one that
            nothing asks for.
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
    needed = set[str]()
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or name not in by_name:
            raise UsageError(f"--set {text!r} names no input of the model", f"{_HOW} It takes: {', '.join(by_name)}.")
        out[name] = _value(by_name[name], value.strip(), sizes)
        if not value.strip().startswith("@"):
            needed |= {d for d in by_name[name].shape if isinstance(d, str)}
    if idle := [name for name in dims or {} if name not in needed]:
        raise UsageError(
            f"--dim {idle[0]}={(dims or {})[idle[0]]} would do nothing: no --set makes an array of that dimension",
            "Leave it out, or set an input that has it: --set NAME=zeros.",
        )
    return out


def _value(slot: Slot, value: str, sizes: Mapping[str, int]) -> Array:
    if value.startswith("@"):
        return _from_file(slot, Path(value[1:]))
    kind, _, said = value.lower().partition(":")
    if kind in ("zeros", "ones", "arange", "randn"):
        if said and kind != "randn":
            raise UsageError(f"--set {slot.name}={value}: this is not a value", _HOW)
        shape = _shape(slot, sizes)
        if kind == "randn":
            if slot.dtype not in (np.float32, np.float16, np.float64):
                raise UsageError(f"--set {slot.name}=randn: the input takes {slot.type}", "randn makes fractions.")
            seed = whole(said or "0")
            if seed is None:
                raise UsageError(f"--set {slot.name}={value}: the seed is not a whole number", "For example: randn:0.")
            return np.asarray(np.random.default_rng(seed).standard_normal(shape), dtype=slot.dtype)
        if kind == "arange":
            return _cast(slot, np.arange(math.prod(shape)).reshape(shape), value)
        return np.full(shape, 1 if kind == "ones" else 0, dtype=slot.dtype or np.float32)
    numbers = _numbers(value)
    if numbers is None:
        raise UsageError(f"--set {slot.name}={value}: this is not a value", _HOW)
    if len(numbers) == 1:
        return _cast(slot, np.full(_shape(slot, sizes, alone=True), numbers[0]), value)
    fixed = [d if isinstance(d, int) else sizes.get(str(d), 1) for d in slot.shape]
    if not fixed or math.prod(fixed[:-1]) != 1:
        raise UsageError(
            f"--set {slot.name}: a list fills one row, and the model wants {slot.describe()}", "Use @file.npy."
        )
    return _cast(slot, numbers.reshape([*fixed[:-1], len(numbers)]), value)


def _numbers(text: str) -> Array | None:
    """The numbers in a list: int64 if all are whole, so that none is rounded, else float64; None for anything else.

    True and false are 1 and 0; inf and -inf are for additive masks.
    """
    words = {"true": "1", "false": "0"}
    parts = [words.get(part.strip(), part) for part in text.lower().split(",")]
    wholes = [whole(part, least=-LARGEST - 1) for part in parts]
    if None not in wholes:
        return np.array(wholes, np.int64)
    reals = [real(part, infinite=True) for part in parts]
    return None if None in reals else np.array(reals, np.float64)


def _cast(slot: Slot, array: Array, value: str) -> Array:
    """An array in the input's type.

    Raises:
        UsageError: The type cannot hold its numbers: none may be truncated or become infinite.
    """
    with np.errstate(all="ignore"):
        cast = np.asarray(array.astype(slot.dtype or np.float32))
    if cast.dtype.kind in "iub":
        exact = array.dtype.kind != "f" or bool((np.abs(array) <= 2**53).all())  # beyond this, a float64 is rounded
        fits = exact and np.array_equal(cast.astype(array.dtype), array) and bool(np.all((cast < 0) == (array < 0)))
        if not fits:
            raise UsageError(
                f"--set {slot.name}={value} does not fit into {slot.type}", "Give whole numbers in its range."
            )
    elif np.isinf(cast).any() and not np.array_equal(np.isinf(cast), np.isinf(array)):
        raise UsageError(f"--set {slot.name}={value} does not fit into {slot.type}", "Give numbers in its range.")
    return cast


def _shape(slot: Slot, sizes: Mapping[str, int], *, alone: bool = False) -> list[int]:
    """The input's shape with its symbols filled in: by --dim, else 1 for a batch (for a single number: 1 for all)."""
    shape = []
    for place, dim in enumerate(slot.shape):
        if isinstance(dim, int):
            shape.append(dim)
        elif dim is not None and dim in sizes:
            shape.append(sizes[dim])
        elif alone or (place == 0 and _is_batch(dim, len(slot.shape))):
            shape.append(1)
        else:
            raise UsageError(
                f"how large {slot.describe()} is, nothing says: {dim or f'its dimension {place}'} is open",
                f"Give it: --dim {dim}=8." if _named(dim) else "Use @file.npy.",
            )
    needed, free = math.prod(shape) * np.dtype(slot.dtype or np.float32).itemsize, memory.available()
    if needed > (LARGEST if free is None else free):
        raise UsageError(
            f"--set {slot.name}: {' x '.join(map(str, shape))} entries take {needed / 1e9:.3g} GB, and less is free",
            "Give smaller sizes: --dim NAME=SIZE.",
        )
    return shape


def _named(dim: str | None) -> bool:
    """Whether a dimension has a name of its own; exporters write "?" for one without."""
    return dim is not None and dim.strip("? ") != ""


def _is_batch(dim: str | None, rank: int) -> bool:
    """Whether the first dimension is the batch: it is, unless its name says that it is a sequence."""
    if dim is None or not _named(dim) or "batch" in dim.lower():
        return True
    return rank > 1 and not any(word in dim.lower() for word in ("seq", "len", "token", "past", "time", "frame"))


def _from_file(slot: Slot, path: Path) -> Array:
    try:
        if path.suffix == ".npy":
            with path.open("rb") as file:
                check_declared(file, path.stat().st_size, str(path))
        array = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise InputError(f"there is no file {path}", f"--set {slot.name}=@FILE takes a .npy file.") from None
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{path} is not a .npy file of one array: {reason(error)}", "numpy.save writes one.") from None
    if not isinstance(array, np.ndarray):
        array.close()
        raise InputError(f"{path} holds several arrays", "Give it with --inputs, or one array with numpy.save.")
    return np.asarray(array)
