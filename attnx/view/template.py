"""A feed for a model, as Python that writes it: every input with its type and shape, numbers to be replaced."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attnx.records import Array
from attnx.view.cells import safe

LENGTH = 8
"""What an open dimension that is no batch and no past is filled in with."""
_DTYPES = {"float": "float32", "double": "float64", "bool": "bool_"}
Dim = int | str | None


def feed_template(inputs: Sequence[tuple[str, str, Sequence[Dim], Array | None]]) -> str:
    """Write the program.

    Args:
        inputs: Of each its name, its type as onnxruntime writes it ("tensor(int64)"), its shape, and an array for it,
            where one is known.

    Returns:
        Python that runs as it is.
    """
    sizes = _sizes(inputs)
    lines = ["import numpy as np", "", "feed = {"]
    for name, kind, shape, array in inputs:
        dtype = kind.removeprefix("tensor(").removesuffix(")")
        made = _code(array, f"np.{_DTYPES.get(dtype, dtype)}") if array is not None else None
        if made is None:
            open_sizes = [_size(at, dim, sizes) for at, dim in enumerate(shape)]
            made = f"np.zeros({open_sizes}, np.{_DTYPES.get(dtype, dtype)})"
        known = ", ".join("?" if dim is None else str(dim) for dim in shape)
        lines.append(f"    {name!r}: {made},  # [{safe(known)}]")
    lines += ["}", 'np.savez("FEED.npz", **feed)']
    return "\n".join(lines)


def _code(array: Array, dtype: str) -> str:
    """Python that makes an array."""
    shape = list(array.shape)
    if array.size > 1 and array.size == array.shape[-1] and np.array_equal(array.ravel(), np.arange(array.size)):
        return f"np.arange({array.size}, dtype={dtype}).reshape({shape})"
    for value, name in ((0, "zeros"), (1, "ones")):
        if (array == value).all():
            return f"np.{name}({shape}, {dtype})"
    return f"np.array({array.tolist()}, {dtype})"


def _sizes(inputs: Sequence[tuple[str, str, Sequence[Dim], Array | None]]) -> dict[str, int]:
    """A size for each named dimension that the arrays settle, or that stands somewhere else than first."""
    out: dict[str, int] = {}
    for _, _, shape, array in inputs:
        for at, dim in enumerate(shape):
            if isinstance(dim, str) and array is not None:
                out[dim] = array.shape[at]
            elif isinstance(dim, str) and at:
                out.setdefault(dim, _size(at, dim, {}))
    return out


def _size(at: int, dim: Dim, sizes: dict[str, int]) -> int:
    if isinstance(dim, int):
        return dim
    if dim in sizes:
        return sizes[str(dim)]
    name = str(dim).lower()
    if "past" in name and "sequence" in name and "+" not in name:
        return 0
    return 1 if at == 0 or "batch" in name else LENGTH
