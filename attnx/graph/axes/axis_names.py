"""Name the axes of an attention computation: b batch, h head, q query, k key, d feature."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from attnx.graph.axes.axes import MIXED, Atom, Axes, Axis, leaves
from attnx.graph.axes.head_finder import merged_with, split_from
from attnx.graph.axes.product import Product
from attnx.graph.shapes.symbols import PROBE

if TYPE_CHECKING:
    from attnx.graph.shapes.index import Graph


class Letters:
    """A letter for each atom; see `layout`."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._kept: list[Atom] = []  # keeps the atoms alive, so that their ids stay theirs
        self.heads: int | None = 1
        self.head_size: int | None = 1

    def name(self, atoms: Iterable[Atom], letter: str) -> None:
        """Give a letter to atoms, numbered where there are several; earlier names stay."""
        fresh = [leaf for atom in atoms for leaf in atom.leaves() if id(leaf) not in self._names]
        for i, leaf in enumerate(fresh):
            token = letter if len(fresh) == 1 else f"{letter}{i}"
            fixed = letter == "h" or (letter == "b" and len(fresh) > 1 and (leaf.size or PROBE) < PROBE)
            self._names[id(leaf)] = f"{token}:{leaf.size}" if fixed and leaf.size is not None else token
            self._kept.append(leaf)

    def named(self, atom: Atom) -> bool:
        """Whether every leaf of an atom has a letter."""
        return all(id(leaf) in self._names for leaf in atom.leaves())

    def apart(self, axes: Axes) -> tuple[Axes, Callable[[Axis], bool]]:
        """A copy of axes, and what tells of one of its axes whether it holds heads and nothing else.

        Reshapes that the copy is followed through split its atoms and leave those that have letters whole.
        """
        heads: list[Atom] = []
        copy: Axes = []
        for axis in axes:
            copy.append([])
            for leaf in leaves(axis):
                copy[-1].append(Atom(leaf.size))
                if self._names.get(id(leaf), "").startswith("h"):
                    heads.append(copy[-1][-1])

        def are_heads(axis: Axis) -> bool:
            own = {id(leaf) for head in heads for leaf in head.leaves()}
            return bool(axis) and all(id(leaf) in own for leaf in leaves(axis))

        return copy, are_heads

    def layout(self, axes: Axes) -> str | None:
        """Axes in einops style, "(b h:4) q k"; "1" for an axis of size 1; None where an atom has no letter."""
        words: list[str] = []
        for axis in axes:
            atoms = leaves(axis)
            tokens = [self._names.get(id(a), f"h:{a.size}" if a.name == MIXED else "") for a in atoms]
            if not all(tokens):
                return None
            words.append("1" if not tokens else tokens[0] if len(tokens) == 1 else f"({' '.join(tokens)})")
        return " ".join(words)


def name_axes(
    graph: Graph, out_axes: Axes, query: str, query_axes: Axes, key_axes: Axes, keys: list[Atom],
    contracted: list[Atom], use: tuple[Product, Axes] | None,
) -> Letters:  # fmt: skip
    """Letters for the atoms of the score product and, where there is one, of the product with the value.

    Args:
        graph: The graph.
        out_axes: Axes of the score product's result.
        query: Its query operand.
        query_axes: Axes of that.
        key_axes: Axes of its key operand.
        keys: The atoms that the softmax normalises.
        contracted: The atoms that the score product sums over.
        use: The product of weights and value, and the axes of the value in it.
    """
    letters = Letters()
    letters.name(keys, "k")
    letters.name(contracted, "d")
    free = [leaf for axis in out_axes for leaf in leaves(axis) if not letters.named(leaf)]
    heads: list[Atom] | None = None
    if use is not None:
        product, value_axes = use
        weighing = product.left_axes if value_axes is product.right_axes else product.right_axes
        mine = {id(leaf) for axis in (*out_axes, *weighing) for leaf in leaves(axis)}
        feature = [
            leaf for axis in value_axes for leaf in leaves(axis) if id(leaf) not in mine and not letters.named(leaf)
        ]
        heads = merged_with(graph, product, feature)
        free = [leaf for atom in free for leaf in atom.leaves()]  # reshapes behind the product may have split them
        letters.name(feature, "d")
    known = {id(a) for a in free}
    if heads and not any(id(leaf) in known for atom in heads for leaf in atom.leaves()):
        # Heads are mixed between the product and the value: those behind are other atoms than those before.
        letters.name(heads, "h")
        heads = None
    if heads is None:
        heads = split_from(graph, query, query_axes, contracted)
        letters.name(keys, "k")  # what was followed may have split them
        letters.name(contracted, "d")
        free = [leaf for atom in free for leaf in atom.leaves() if not letters.named(leaf)]
    if heads is None:
        heads = _by_position(out_axes, letters)
    chosen = {id(leaf) for atom in heads for leaf in atom.leaves()}
    letters.name([a for a in free if id(a) in chosen], "h")
    in_key = {id(leaf) for axis in key_axes for leaf in leaves(axis)}
    in_query = {id(leaf) for axis in query_axes for leaf in leaves(axis)}
    asking = [a for a in free if id(a) in in_query and id(a) not in in_key and id(a) not in chosen]
    if not asking and use is not None:
        # A learned vector in the place of the query: what tells rows of weights apart, and not values, is the query.
        weighed = {id(leaf) for axis in use[1] for leaf in leaves(axis)}
        asking = [a for a in free if id(a) not in weighed and id(a) not in chosen]
    letters.name(asking, "q")
    letters.name([a for a in free if id(a) not in chosen], "b")
    letters.heads = _count([a for a in free if id(a) in chosen])
    letters.head_size = _count([leaf for atom in contracted for leaf in atom.leaves()])
    return letters


def _count(atoms: list[Atom]) -> int | None:
    total = 1
    for atom in atoms:
        if atom.size is None or atom.size > PROBE * 16:
            return None
        total *= atom.size
    return total


def _by_position(out_axes: Axes, letters: Letters) -> list[Atom]:
    """Without a value to follow: of two or more batch axes, the last is the heads' (the field's convention).

    A batch that was exported as 1 has no atom, and still stands before the heads.
    """
    batch = [axis for axis in out_axes[:-2] if axis and not all(letters.named(a) for a in axis)]
    after_one = len(batch) == 1 and batch[0] is out_axes[-3] and not any(out_axes[:-3])
    return list(leaves(batch[-1])) if len(out_axes) >= 4 and (len(batch) >= 2 or after_one) else []
