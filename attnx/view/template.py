"""A feed for a model, as Python that writes it: every input with its type and shape, zeros to be replaced."""

from __future__ import annotations

from collections.abc import Sequence

from attnx.view.cells import safe

LENGTH = 8
"""What an open dimension that is no batch and no past is filled in with."""
_DTYPES = {"float": "float32", "double": "float64"}


def feed_template(inputs: Sequence[tuple[str, str, Sequence[int | str | None]]]) -> str:
    """Write the program.

    Args:
        inputs: Name, type as onnxruntime writes it ("tensor(int64)"), and shape of each.

    Returns:
        Python that runs as it is.
    """
    lines = ["import numpy as np", "", "feed = {"]
    for name, kind, shape in inputs:
        dtype = kind.removeprefix("tensor(").removesuffix(")")
        sizes = ", ".join(str(_size(at, dim)) for at, dim in enumerate(shape))
        known = ", ".join("?" if dim is None else str(dim) for dim in shape)
        lines.append(f"    {name!r}: np.zeros([{sizes}], np.{_DTYPES.get(dtype, dtype)}),  # [{safe(known)}]")
    lines += ["}", 'np.savez("FEED.npz", **feed)']
    return "\n".join(lines)


def _size(at: int, dim: int | str | None) -> int:
    if isinstance(dim, int):
        return dim
    name = str(dim).lower()
    if "past" in name and "sequence" in name and "+" not in name:
        return 0
    return 1 if at == 0 or "batch" in name else LENGTH
