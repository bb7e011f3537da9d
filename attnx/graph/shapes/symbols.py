"""Sizes for the named dimensions of a graph's inputs: primes, and which of them must be the same."""

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
"""Probe sizes, which stand for free dimensions, are larger than this; numbers of heads, layers or steps never are."""
_OWN = "\0"
"""Suffix of the name made up for an unnamed dimension; no exporter's name contains it."""


def free_dims(info: ValueInfoProto) -> list[str | None]:
    """A name for each free dimension of an input, None for each fixed one.

    A dimension that the exporter left unnamed, as many converters do, counts as separate until the graph shows which
    other dimensions it must equal.
    """
    names: list[str | None] = []
    for i, dim in enumerate(info.type.tensor_type.shape.dim):
        if dim.HasField("dim_value") and dim.dim_value >= 0:
            names.append(None)
        else:
            names.append(dim.dim_param or f"{info.name}/{i}{_OWN}")
    return names


def is_named(dim: str) -> bool:
    """Whether the name of a free dimension came from the exporter."""
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
    """An input's shape, with free dimensions bound by `sizes`; None for those that have no size there."""
    if not info.type.tensor_type.HasField("shape"):
        return None
    dims = zip(info.type.tensor_type.shape.dim, free_dims(info), strict=True)
    return tuple(dim.dim_value if name is None else sizes.get(name) for dim, name in dims)


def reconcile(sizes: dict[str, int], clashes: list[tuple[int, int]]) -> dict[str, int]:
    """Bind dimensions that have different names but must be equal to one size.

    Exporters name the length of the attention mask "total_sequence_length" and feed it together with a past and a
    sequence length of their own; where the graph adds the two, the sizes must agree or no later value has a shape.
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
    """The two batches, from "4 x batch" and "4 x batch_1"."""
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
    """The shape of a buffer that probe sizes cut at its end: any of its sizes that may have been cut is unknown."""
    return None if shape is None else tuple(None if d is not None and d < PROBE else d for d in shape)


def note_clash(shapes: list[Shape | None], clashes: list[tuple[int, int]]) -> None:
    """Note pairs of sizes, smaller first, that must agree for these shapes to be broadcast.

    Against a scalar (what a Where puts into hidden cells) only the sizes of free dimensions count: a buffer may be
    shorter than the probe sizes, and is then cut at its end.
    """
    known = [s for s in shapes if s]
    least = PROBE if len(known) < len(shapes) else 1
    for i in range(1, min((len(s) for s in known), default=0) + 1):
        sizes = {d for s in known if (d := s[-i]) not in (1, None)}
        if len(sizes) == 2:
            a, b = sorted(n for n in sizes if n is not None)
            if a >= least or (least == 1 and a == 0):
                clashes.append((a, b))
