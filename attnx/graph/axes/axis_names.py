"""Name the axes of an attention computation: b batch, h head, q query, k key, d feature."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from attnx.graph.axes.atoms import Atom, Axes, Axis, atoms_of, leaves
from attnx.graph.axes.axes import MIXED
from attnx.graph.axes.head_finder import merged_with
from attnx.graph.axes.head_origin import split_from
from attnx.graph.axes.pairing import Candidate, Use
from attnx.graph.axes.paths import depends
from attnx.graph.shapes.symbols import PROBE

if TYPE_CHECKING:
    from attnx.graph.shapes.index import Graph


class AxisNames:
    """A letter for each atom; see `layout`."""

    def __init__(self) -> None:
        self._names: dict[Atom, str] = {}
        self.heads: int | None = 1
        self.head_size: int | None = 1

    def name(self, atoms: Iterable[Atom], letter: str) -> None:
        """Give a letter to atoms, numbered where there are several; existing names stay."""
        fresh = [leaf for leaf in leaves(atoms) if leaf not in self._names]
        for i, leaf in enumerate(fresh):
            token = letter if len(fresh) == 1 else f"{letter}{i}"
            fixed = letter == "h" or (letter == "b" and len(fresh) > 1 and (leaf.size or PROBE) < PROBE)
            self._names[leaf] = f"{token}:{leaf.size}" if fixed and leaf.size is not None else token

    def named(self, atom: Atom) -> bool:
        """Whether every leaf of an atom has a letter."""
        return all(leaf in self._names for leaf in atom.leaves())

    def unnamed(self, atoms: Iterable[Atom]) -> list[Atom]:
        """The leaves of the given atoms that have no letter yet."""
        return [leaf for leaf in leaves(atoms) if leaf not in self._names]

    def apart(self, axes: Axes) -> tuple[Axes, Callable[[Axis], bool]]:
        """A copy of axes, and a predicate that says whether one of its axes holds heads and nothing else.

        Following the copy through reshapes splits its own atoms and leaves those that have letters whole.
        """
        heads: list[Atom] = []
        copy: Axes = []
        for axis in axes:
            copy.append([])
            for leaf in leaves(axis):
                copy[-1].append(Atom(leaf.size))
                if self._names.get(leaf, "").startswith("h"):
                    heads.append(copy[-1][-1])

        def are_heads(axis: Axis) -> bool:
            own = set(leaves(heads))
            return bool(axis) and all(leaf in own for leaf in leaves(axis))

        return copy, are_heads

    def layout(self, axes: Axes) -> str | None:
        """Axes in einops style, "(b h:4) q k"; "1" for an axis of size 1; None where an atom has no letter."""
        words: list[str] = []
        for axis in axes:
            tokens = [self._names.get(a, f"h:{a.size}" if a.name == MIXED else "") for a in leaves(axis)]
            if not all(tokens):
                return None
            words.append("1" if not tokens else tokens[0] if len(tokens) == 1 else f"({' '.join(tokens)})")
        return " ".join(words)


def name_axes(graph: Graph, pair: Candidate, use: Use | None) -> AxisNames:
    """Letters for the atoms of the score product and, where there is one, of the product with the value.

    k is what the softmax normalises, d what the score product sums over. Of the rest, h are the heads (see `_heads`), q
    the axes that the query has and the key does not, and b all others.

    Args:
        graph: The graph.
        pair: The score product.
        use: The product of weights and value.
    """
    names = AxisNames()
    out_axes, contracted = pair.way.product.out_axes, pair.way.product.contracted
    names.name(pair.keys, "k")
    names.name(contracted, "d")
    free = names.unnamed(atom for axis in out_axes for atom in axis)
    # A size that the graph leaves free is never a number of heads.
    heads = {leaf for leaf in leaves(_heads(graph, pair, use, names, free)) if not _is_free(graph, leaf)}
    free = names.unnamed(free)  # reshapes on the way to the heads may have split atoms
    names.name([a for a in free if a in heads], "h")
    rest = [a for a in free if a not in heads]
    names.name(_query_atoms(rest, pair, use), "q")
    names.name(rest, "b")
    names.heads = _count([a for a in free if a in heads])
    names.head_size = _count(leaves(contracted))
    return names


def _heads(graph: Graph, pair: Candidate, use: Use | None, names: AxisNames, free: list[Atom]) -> list[Atom]:
    """The atoms of the scores' heads: found after the context, else before the query, else by their position.

    Atoms of features and of heads that are not among `free` are named on the way.
    """
    product = pair.way.product
    if use is not None:
        feature = _features(use, product.out_axes, names)
        heads = merged_with(graph, use.way.product, feature)
        names.name(feature, "d")
        if heads and set(leaves(heads)).isdisjoint(leaves(free)):
            # Heads are mixed between the product and the value: the atoms after the mixing differ from those before.
            names.name(heads, "h")
        elif heads is not None:
            return heads
    heads = split_from(graph, pair.query, pair.query_axes, product.contracted)
    names.name(pair.keys, "k")  # following the query may have split them
    names.name(product.contracted, "d")
    # Heads that were lost on the way (queries picked out of all heads at once) are other atoms.
    if heads is not None and (not heads or not set(leaves(heads)).isdisjoint(leaves(free))):
        return heads
    heads = _by_position(product.out_axes, names)
    if use is None or depends(graph, pair.query):
        return heads
    # A learned vector in place of the query has no axes: the query is what distinguishes rows of weights.
    in_value = atoms_of(use.value_axes)
    return [leaf for leaf in leaves(heads) if leaf in in_value]


def _features(use: Use, out_axes: Axes, names: AxisNames) -> list[Atom]:
    """The atoms of the value's features: those in neither the scores nor the weights."""
    product = use.way.product
    weights_axes = product.left_axes if use.value_axes is product.right_axes else product.right_axes
    others = atoms_of([*out_axes, *weights_axes])
    return names.unnamed(leaf for axis in use.value_axes for leaf in leaves(axis) if leaf not in others)


def _query_atoms(rest: list[Atom], pair: Candidate, use: Use | None) -> list[Atom]:
    """Of the atoms that are neither keys nor heads, those that only the query has."""
    in_query, in_key = atoms_of(pair.query_axes), atoms_of(pair.key_axes)
    found = [a for a in rest if a in in_query and a not in in_key]
    if not found and use is not None:
        # A learned vector in place of the query: the query is what distinguishes rows of weights but not values.
        in_value = atoms_of(use.value_axes)
        found = [a for a in rest if a not in in_value]
    return found


def _is_free(graph: Graph, atom: Atom) -> bool:
    """Whether the size of an axis comes from an input's free dimension."""
    size = atom.size
    return size is not None and any(prime > PROBE and size and size % prime == 0 for prime in graph.sizes.values())


def _count(atoms: list[Atom]) -> int | None:
    total = 1
    for atom in atoms:
        if atom.size is None or atom.size > PROBE * 16:
            return None
        total *= atom.size
    return total


def _by_position(out_axes: Axes, names: AxisNames) -> list[Atom]:
    """Without a value to follow: of two or more batch axes, the last holds the heads (the usual convention).

    A batch exported with size 1 has no atom, but still comes before the heads.
    """
    batch = [axis for axis in out_axes[:-2] if axis and not all(names.named(a) for a in axis)]
    after_one = len(batch) == 1 and batch[0] is out_axes[-3] and not any(out_axes[:-3])
    return list(leaves(batch[-1])) if len(out_axes) >= 4 and (len(batch) >= 2 or after_one) else []
