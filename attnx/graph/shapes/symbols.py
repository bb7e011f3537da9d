"""Sizes for the named dimensions of a graph's inputs: primes, and which of them must be one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from attnx.graph.fact import Shape

if TYPE_CHECKING:
    from onnx import ValueInfoProto


def primes(start: int = 1009) -> Iterator[int]:
    """Primes from `start` on."""
    n = start
    while True:
        if all(n % p for p in range(2, int(n**0.5) + 1)):
            yield n
        n += 1


PROBE = 1000
"""Probe sizes, which stand for free dimensions, are larger than this; a number of heads, layers or steps never is."""
_OWN = "\0"
"""Ends the name that is made for a dimension without one; no exporter's name holds it."""


def free_dims(info: ValueInfoProto) -> list[str | None]:
    """A name for each dimension of an input that is free, None for the fixed ones.

    A dimension that the exporter gave no name, as many converters leave them, is one of its own until the graph says
    which others it must equal.
    """
    names: list[str | None] = []
    for i, dim in enumerate(info.type.tensor_type.shape.dim):
        if dim.HasField("dim_value") and dim.dim_value >= 0:
            names.append(None)
        else:
            names.append(dim.dim_param or f"{info.name}/{i}{_OWN}")
    return names


def is_named(dim: str) -> bool:
    """Whether the exporter gave a free dimension its name."""
    return not dim.endswith(_OWN)


def probe_sizes(inputs: Iterable[ValueInfoProto]) -> dict[str, int]:
    """A prime for each free dimension of the inputs."""
    supply = primes()
    sizes: dict[str, int] = {}
    for info in inputs:
        for name in free_dims(info):
            if name is not None and name not in sizes:
                sizes[name] = next(supply)
    return sizes


def input_shape(info: ValueInfoProto, sizes: Mapping[str, int]) -> Shape | None:
    """An input's shape, free dimensions bound by `sizes`; None for those that have no size there."""
    if not info.type.tensor_type.HasField("shape"):
        return None
    dims = zip(info.type.tensor_type.shape.dim, free_dims(info), strict=True)
    return tuple(dim.dim_value if name is None else sizes.get(name) for dim, name in dims)


def reconcile(sizes: dict[str, int], clashes: list[tuple[int, int]]) -> dict[str, int]:
    """Bind dimensions that must be equal, though they have different names, to one size.

    Exporters name the length of the attention mask "total_sequence_length" and feed it beside a past and a sequence of
    their own; where the graph adds the two, the sizes must agree for anything behind it to have a shape.
    """
    out = dict(sizes)
    symbol = {size: name for name, size in sizes.items()}
    for pair in clashes:
        a, b = _without_common_factor(pair, symbol)
        mine = a if a in symbol else b
        other = b if mine == a else a
        if mine in symbol and out[symbol[mine]] == mine:
            if other in symbol and other > mine:  # both are names: the later one follows the earlier
                mine, other = other, mine
            out[symbol[mine]] = other
    return out


def _without_common_factor(pair: tuple[int, int], symbol: Mapping[int, str]) -> tuple[int, int]:
    """Of "4 x batch" and "4 x batch_1", the two batches."""
    a, b = pair
    if a in symbol or b in symbol:
        return pair
    for p in symbol:
        if p and a % p == 0:
            q = next((q for q in symbol if q not in (0, p) and b % q == 0 and b // q == a // p), None)
            if q is not None:
                return min(p, q), max(p, q)
    return pair


def without_cuts(shape: Shape | None) -> Shape | None:
    """The shape of a buffer that probe sizes cut where it ends: those of its sizes that may be cut are not known."""
    return None if shape is None else tuple(None if d is not None and d < PROBE else d for d in shape)


def note_clash(shapes: list[Shape | None], clashes: list[tuple[int, int]]) -> None:
    """Note pairs of sizes, smaller first, that must agree for these shapes to be broadcast.

    Beside a scalar (what a Where puts into hidden cells) a size counts as a free one's alone: a buffer may be shorter
    than the probe sizes, and is then cut where it ends.
    """
    known = [s for s in shapes if s]
    least = PROBE if len(known) < len(shapes) else 1
    for i in range(1, min((len(s) for s in known), default=0) + 1):
        sizes = {d for s in known if (d := s[-i]) not in (1, None)}
        if len(sizes) == 2:
            a, b = sorted(n for n in sizes if n is not None)
            if a >= least or (least == 1 and a == 0):
                clashes.append((a, b))
