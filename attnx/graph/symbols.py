"""Sizes for the named dimensions of a graph's inputs: primes, and which of them must be one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import ValueInfoProto

    from attnx.graph.index import Graph
    from attnx.graph.infer import Shape


def primes(start: int = 1009) -> Iterator[int]:
    """Primes from `start` on."""
    n = start
    while True:
        if all(n % p for p in range(2, int(n**0.5) + 1)):
            yield n
        n += 1


def probe_sizes(graph: Graph) -> dict[str, int]:
    """A prime for each named dimension of the inputs."""
    supply = primes()
    sizes: dict[str, int] = {}
    for info in graph.inputs.values():
        for dim in info.type.tensor_type.shape.dim:
            if dim.dim_param and dim.dim_param not in sizes:
                sizes[dim.dim_param] = next(supply)
    return sizes


def input_shape(info: ValueInfoProto, sizes: Mapping[str, int], spare: Iterator[int] | None = None) -> Shape | None:
    """An input's shape, named dimensions bound by `sizes`; unnamed unknown ones from `spare`, else None."""
    if not info.type.tensor_type.HasField("shape"):
        return None
    out: list[int | None] = []
    for dim in info.type.tensor_type.shape.dim:
        if dim.HasField("dim_value"):
            out.append(dim.dim_value if dim.dim_value >= 0 else None)
        elif dim.dim_param in sizes:
            out.append(sizes[dim.dim_param])
        else:
            out.append(next(spare) if spare is not None else None)
    return tuple(out)


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


def note_clash(shapes: list[Shape | None], clashes: list[tuple[int, int]]) -> None:
    """Note pairs of sizes, smaller first, that must agree for these shapes to be broadcast."""
    known = [s for s in shapes if s is not None]
    for i in range(1, min((len(s) for s in known), default=0) + 1):
        sizes = {d for s in known if (d := s[-i]) not in (1, None)}
        if len(sizes) == 2:
            a, b = sorted(n for n in sizes if n is not None)
            clashes.append((a, b))
