"""Notes about several sites, which are joined where the sites were run some at a time."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any


class OfSites(str):
    """A note about some sites, of which the first is named: "L0 and 5 more: 10 positions, ...".

    Args:
        template: The note, with {sites} in place of the sites.
        sites: Their labels, in order; at least one.
    """

    __slots__ = ("sites", "template")
    template: str
    sites: tuple[str, ...]

    def __new__(cls, template: str, sites: Iterable[str]) -> OfSites:
        there = tuple(dict.fromkeys(sites))
        more = f" and {len(there) - 1} more" if len(there) > 1 else ""
        made = super().__new__(cls, template.replace("{sites}", there[0] + more))
        made.template, made.sites = template, there
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return OfSites, (self.template, self.sites)


def of_sites(found: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """A note for all sites of which the same is said.

    Args:
        found: The label of a site, and what is said of it, with {sites} in place of its name.
    """
    said: dict[str, list[str]] = {}
    for label, template in found:
        said.setdefault(template, []).append(label)
    return tuple(OfSites(template, labels) for template, labels in said.items())


def merged(*parts: Iterable[str]) -> tuple[str, ...]:
    """The notes of runs of different sites, each once; what is said of several sites as one note."""
    out: dict[str, str] = {}
    for note in (note for part in parts for note in part):
        key = note.template if isinstance(note, OfSites) else note
        before = out.get(key)
        if isinstance(note, OfSites) and isinstance(before, OfSites):
            out[key] = OfSites(key, (*before.sites, *note.sites))
        else:
            out.setdefault(key, note)
    return tuple(out.values())


def of_all_heads(parts: Sequence[Collection[str]]) -> tuple[str, ...]:
    """The notes of runs of different heads of a site; what is said of the site only where it is said of all heads."""
    held = [{note.template for note in part if isinstance(note, OfSites)} for part in parts]
    every = set.intersection(*held) if held else set()
    return tuple(note for note in merged(*parts) if not isinstance(note, OfSites) or note.template in every)
