"""Axes as runs of atoms, so that the effect of a reshape on one tensor is known for all tensors.

An axis is a run of atoms; an atom is an axis that no reshape has split so far. Reshaping [B*H, Q, D] to [B, H, Q, D]
splits one atom in two, and because every tensor refers to the same atoms, the split is known at once wherever that atom
occurs: `split_to` and `split_alike` change atoms in place. Axes of size 1 have no atoms.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np


class Atom:
    """One indivisible run of an axis, until a reshape divides it."""

    __slots__ = ("name", "parts", "size")

    def __init__(self, size: int | None, name: str = "") -> None:
        self.size, self.name = size, name
        self.parts: tuple[Atom, ...] = ()

    def leaves(self) -> list[Atom]:
        """The atoms that this one has been divided into, or itself."""
        return [leaf for part in self.parts for leaf in part.leaves()] if self.parts else [self]

    def split(self, *sizes: int | None) -> None:
        """Divide into parts of these sizes, outermost first."""
        self.parts = tuple(Atom(size) for size in sizes)


Axis = list[Atom]
Axes = list[Axis]


def fresh(shape: Sequence[int | None]) -> Axes:
    """Axes with one new atom each (none for size 1)."""
    return [[] if size == 1 else [Atom(size)] for size in shape]


def leaves(atoms: Iterable[Atom]) -> list[Atom]:
    """The atoms that the given atoms, such as those of an axis, have been divided into."""
    return [leaf for atom in atoms for leaf in atom.leaves()]


def atoms_of(axes: Axes) -> set[Atom]:
    """All atoms of the given axes, as divided so far."""
    return {leaf for axis in axes for leaf in leaves(axis)}


def axes_with(axes: Axes, atoms: set[Atom]) -> list[int]:
    """The axes that have any of these atoms."""
    return [i for i, axis in enumerate(axes) if not atoms.isdisjoint(axis)]


def beside(axes: Axes, marks: set[Atom]) -> list[Atom]:
    """The atoms that share an axis with marked atoms."""
    for axis in axes:
        atoms = leaves(axis)
        if not marks.isdisjoint(atoms):
            merged = [a for a in atoms if a not in marks]
            if merged:
                return merged
    return []


def split_alike(mine: Axes, traced: Axes) -> None:
    """Split the atoms of a product's operand, in place, into the atoms that the operand's axes were traced to."""
    for own, known in zip(mine, traced, strict=True):
        if len(own) == 1 and not own[0].parts and known:
            own[0].parts = tuple(leaves(known))


def split_to(axes: Axes, target: Sequence[int | None]) -> Axes | None:
    """Distribute the atoms of `axes`, in order, over the sizes of `target`, splitting them in place where necessary.

    Returns:
        The new axes; None where the sizes do not fit. Atoms that were already split stay split.
    """
    flat = [leaf for axis in axes for leaf in leaves(axis)]
    if any(a.size is None for a in flat) or None in target:
        return _loose(axes, target)
    out: Axes = []
    queue = list(flat)
    for size in target:
        need, axis = int(size or 0), []
        while need > 1:
            if not queue:
                return None
            atom = queue.pop(0)
            have = int(atom.size or 0)
            if have == 0:
                return None
            if need % have == 0:
                axis.append(atom)
                need //= have
            elif have % need == 0:
                atom.split(need, have // need)
                axis.append(atom.parts[0])
                queue.insert(0, atom.parts[1])
                need = 1
            else:
                return None
        out.append(axis)
    return None if queue else out


def _loose(axes: Axes, target: Sequence[int | None]) -> Axes | None:
    """Where sizes are unknown: match equal sizes from both ends; one run in the middle may be merged whole."""
    source = [leaves(axis) for axis in axes]
    sizes = [_size(axis) for axis in source]
    wanted = list(target)
    left = 0
    while left < min(len(source), len(wanted)) and sizes[left] is not None and sizes[left] == wanted[left]:
        left += 1
    right = 0
    while (
        right < min(len(source), len(wanted)) - left
        and sizes[-1 - right] is not None
        and sizes[-1 - right] == wanted[-1 - right]
    ):
        right += 1
    middle, gap = source[left : len(source) - right], wanted[left : len(wanted) - right]
    if len(middle) == len(gap) and all(
        a is None or b is None or a == b for a, b in zip(map(_size, middle), gap, strict=True)
    ):
        filled = middle
    elif len(gap) == 1:
        filled = [[atom for axis in middle for atom in axis]]
    elif len(middle) == 1 and len(middle[0]) == 1 and sum(g is None for g in gap) <= 1:
        parts = [g for g in gap if g != 1]
        middle[0][0].split(*parts)
        queue = list(middle[0][0].parts)
        filled = [[] if g == 1 else [queue.pop(0)] for g in gap]
    else:
        return None
    return source[:left] + filled + source[len(source) - right :]


def _size(axis: Axis) -> int | None:
    sizes = [leaf.size for leaf in leaves(axis)]
    return None if any(s is None for s in sizes) else int(np.prod([s for s in sizes if s is not None], dtype=object))
