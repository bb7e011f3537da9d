"""Layers counted from the end: resolve "last" and "-1" to a model's layer numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence

from attnx.errors import UsageError
from attnx.records import Site
from attnx.study.attention_kind import named_sort, sort_of

_END = r"(?:last|-\d{1,6})"
_ANY = rf"(?:L?\d{{1,6}}|{_END})"
_PART = re.compile(rf"\s*({_ANY})(?:\s*-\s*({_ANY}))?\s*", re.ASCII | re.IGNORECASE)
_HEAD = re.compile(rf"\s*L?({_END})(?=\.\d|\s*H\d)", re.ASCII | re.IGNORECASE)


def from_end(text: str, *, head: bool = False) -> bool:
    """Whether a text names a layer, or the layer of a head, from the end: "last", "-1", "2-last", "last.3", "-1.3".

    Args:
        text: What names it.
        head: It names a head: a number alone is one of heads, which do not count from the end.
    """
    if head or _HEAD.match(text):
        return bool(_HEAD.match(text))
    parts = [_PART.fullmatch(part) for part in text.split(",")]
    return any(_of_end(end) for match in parts if match for end in match.groups())


def numbered(text: str, sites: Sequence[Site], sort: str | None = None, *, head: bool = False) -> str:
    """Resolve layers, or a head, to layer numbers.

    Args:
        text: "last", "-2--1", "0,last", "last.3", "-1H3"; anything else is returned unchanged.
        sites: The sites of the model.
        sort: The requested kind of attention, if any.
        head: The text names a head, not layers.

    Raises:
        UsageError: The model's layers are not known, differ between its parts, or are too few.
    """
    if not from_end(text, head=head):
        return text
    layers = _layers(sites, sort)
    if match := _HEAD.match(text):
        return _number(match[1], layers) + text[match.end() :]
    parts = []
    for part in text.split(","):
        match = _PART.fullmatch(part)
        parts.append(part if match is None else "-".join(_number(end, layers) for end in match.groups() if end))
    return ",".join(parts)


def from_the_end(layers: Collection[int], sites: Sequence[Site], sort: str | None = None) -> list[int]:
    """Layer numbers, with negative ones counted from the end: -1 is the last.

    Args:
        layers: Whole numbers.
        sites: The sites of the model.
        sort: The requested kind of attention, if any.

    Raises:
        UsageError: The model's layers are not known, differ between its parts, or are too few.
    """
    if min(layers, default=0) >= 0:
        return list(layers)
    return [int(_number(str(layer), _layers(sites, sort))) for layer in layers]


def layers_and_heads(
    heads: Sequence[tuple[int, int]], sites: Callable[[], Sequence[Site]], sort: str | None = None
) -> list[tuple[int, int]]:
    """Pairs of layer and head, with layers resolved to their numbers; see `from_the_end`.

    Args:
        heads: Layer and head of each.
        sites: Returns the sites of the model; called only if a layer counts from the end.
        sort: The requested kind of attention, if any.

    Raises:
        UsageError: As for `from_the_end`.
    """
    return [(from_the_end([layer], sites(), sort)[0] if layer < 0 else layer, head) for layer, head in heads]


def numbered_pairs(
    texts: Sequence[str], one: Sequence[Site], two: Sequence[Site], sort: str | None = None
) -> list[str]:
    """Pairs of layers of two models, "0=0,-1=last", likewise; "last" alone is the last of each."""
    out = []
    for part in ",".join(texts).split(","):
        left, equals, right = part.partition("=")
        if from_end(left) or from_end(right):
            right = right if equals else left
            part = f"{numbered(left, one, sort)}={numbered(right, two, sort)}"
        out.append(part)
    return out


def _of_end(layer: str | None) -> bool:
    return layer is not None and (layer[0] == "-" or layer.lower() == "last")


def _layers(sites: Sequence[Site], sort: str | None) -> tuple[int, ...]:
    """The layers that are counted, in order."""
    if sort is not None:
        wanted = named_sort(sites, sort)
        sites = [site for site in sites if sort_of(site) == wanted]
    by_sort: dict[str, set[int]] = {}
    for site in sites:
        if site.layer is not None:
            by_sort.setdefault(sort_of(site), set()).add(site.layer)
    if not by_sort:
        raise UsageError("the layers of this model are not known, so none is the last", "Leave the layer out.")
    ends = {max(layers) for layers in by_sort.values()}
    if len(ends) > 1:
        named = ", ".join(f"{name} {max(layers)}" for name, layers in by_sort.items())
        raise UsageError(f"the last layer is not the same everywhere: {named}", "Give its number.")
    return tuple(sorted(set().union(*by_sort.values())))


def _number(layer: str, layers: tuple[int, ...]) -> str:
    if not _of_end(layer):
        return layer
    back = 1 if layer.lower() == "last" else int(layer[1:])
    if not 1 <= back <= len(layers):
        there = f"The layers are {layers[0]} to {layers[-1]}, or -{len(layers)} to -1."
        raise UsageError(f"there is no layer {layer}", there)
    return str(layers[-back])


__all__ = ["from_end", "from_the_end", "layers_and_heads", "numbered", "numbered_pairs"]
