"""Which layers of two models are compared: as requested, "3=7", or in execution order if they have equally many."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from attnx.errors import UsageError
from attnx.records import Site, Trace
from attnx.study.attention_kind import named_sort, sort_of
from attnx.study.request import parse_layers
from attnx.study.selection import sorts
from attnx.wording import Wording

Pairs = tuple[tuple[int, int], ...]
"""A layer of the first model, and the layer of the second that it is compared with."""


def parse_pairs(texts: Sequence[str]) -> Pairs:
    """Read "3=7", "0-2=9-11", "0=1,1=3"; "5" and "2-4" are the same layers of both.

    Args:
        texts: As given, several times or as a list.

    Returns:
        In the order of the first model's layers, each pair once.

    Raises:
        UsageError: Anything else, or spans of different lengths.
    """
    out: set[tuple[int, int]] = set()
    for part in ",".join(texts).split(","):
        if not re.fullmatch(r"[^=]+(=[^=]+)?", part):
            raise UsageError(
                Wording("<layers={part!r}> pairs no layers", part=part),
                "Give 3=7, spans 0-2=9-11, or a list 0=1,1=3; the first model's first.",
            )
        left, equals, right = part.partition("=")
        one = parse_layers(left)
        two = parse_layers(right) if equals else one
        if len(one) != len(two):
            raise UsageError(
                Wording("<layers={part!r}> pairs {one} layers with {two}", part=part, one=len(one), two=len(two)),
                "Give two spans of the same length: 0-2=9-11.",
            )
        out |= set(zip(one, two, strict=True))
    return tuple(sorted(out))


def check(names: Sequence[str], sites: Sequence[Sequence[Site]], sort: str | None, pairs: Pairs | None) -> None:
    """Check the request against the sites of two models before either is run.

    Args:
        names: The models' displayed names.
        sites: All sites of each.
        sort: Only this kind of attention; None for all.
        pairs: The layers to compare; None for all, in execution order.

    Raises:
        UsageError: A kind or layer that does not exist, or it is not clear how sites are paired.
    """
    chosen = []
    for name, all_of in zip(names, sites, strict=True):
        wanted = named_sort(all_of, sort, name) if sort is not None and all_of else None
        chosen.append([site for site in all_of if wanted in (None, sort_of(site))])
    if all(chosen):  # a model without attention is reported when it is run
        _places(names, chosen, pairs)


def aligned(names: Sequence[str], one: Trace, two: Trace, pairs: Pairs | None) -> tuple[Trace, Trace]:
    """Two traces with their attentions in the order of comparison.

    Raises:
        UsageError: See `check`.
    """
    sides = [[attention.site for attention in trace.attentions] for trace in (one, two)]
    places = _places(names, sides, pairs)
    first, second = (
        replace(trace, attentions=tuple(trace.attentions[pair[side]] for pair in places))
        for side, trace in enumerate((one, two))
    )
    return first, second


def _places(names: Sequence[str], sites: Sequence[Sequence[Site]], pairs: Pairs | None) -> list[tuple[int, int]]:
    """The positions of the sites to compare with one another."""
    one, two = sites
    if pairs is None:
        if [sort_of(site) for site in one] == [sort_of(site) for site in two] or (
            len(one) == len(two) and len(sorts(one)) == len(sorts(two)) == 1
        ):
            return list(enumerate(range(len(two))))
        raise _unpaired(names, sites)
    if len(sorts(one)) == len(sorts(two)) == 1:
        alike = [(sorts(one)[0], sorts(two)[0])]
    elif sorts(one) == sorts(two):
        alike = [(sort, sort) for sort in sorts(one)]
    else:
        raise _unpaired(names, sites)
    out: list[tuple[int, int]] = []
    for left, right in pairs:
        for sort, other in alike:
            found = [
                [at for at, site in enumerate(side) if site.layer == layer and sort_of(site) == which]
                for side, layer, which in ((one, left, sort), (two, right, other))
            ]
            for side, layer, there in zip((0, 1), (left, right), found, strict=True):
                if not there:
                    raise _no_layer(names[side], sites[side], layer, (sort, other)[side])
            if len(found[0]) != len(found[1]):
                raise UsageError(
                    f"layer {left} of {names[0]} has {len(found[0])} {sort} sites, and layer {right} of {names[1]} has "
                    f"{len(found[1])}",
                    Wording("Pair layers with as many sites; <model.find()> lists them."),
                )
            out += zip(*found, strict=True)
    return sorted(out)


def _no_layer(name: str, sites: Sequence[Site], layer: int, sort: str) -> UsageError:
    which = f"{sort} layer" if len(sorts(sites)) > 1 else "layer"
    more = "; <site> chooses one sort of attention" if len(sorts(sites)) > 1 else ""
    return UsageError(f"{name} has no {which} {layer}", Wording("It has {layers}" + more + ".", layers=_layers(sites)))


def _unpaired(names: Sequence[str], sites: Sequence[Sequence[Site]]) -> UsageError:
    """What each model has, and how their layers could be paired."""
    have = [f"{name} has {_layers(side)}" for name, side in zip(names, sites, strict=True)]
    told = f"{have[0]}, and {have[1]}: nothing says which are compared"
    shared = [sort for sort in sorts(sites[0]) if sort in sorts(sites[1])]
    alone = all(len(sorts(side)) == 1 for side in sites)
    if not alone and not shared:
        return UsageError(told, "They have no sort of attention in common.")
    sort = (
        None
        if alone
        else next((s for s in shared if len(_numbers(sites[0], s)) != len(_numbers(sites[1], s))), shared[0])
    )
    which = "" if sort is None else "<site={sort}> "
    one, two = (_numbers(side, sort) for side in sites)
    if not one or not two or one == two:
        return UsageError(told, Wording(f"Choose what both have: {which.strip() or '<layers=>'}.", sort=sort))
    pairs = ",".join(f"{a}={b}" for a, b in _evenly(one, two))
    return UsageError(
        told,
        Wording(
            f"Pair layers, the first model's first: {which}<layers={{last}}>, or a list: {which}<layers={{pairs}}>.",
            sort=sort,
            last=f"{one[-1]}={two[-1]}",
            pairs=pairs,
        ),
    )


def _evenly(one: Sequence[int], two: Sequence[int]) -> list[tuple[int, int]]:
    """Pair every layer of the shallower model with one of the deeper, at even steps, the last with the last.

    Source: Jiao et al. 2020 (TinyBERT), section 3.2: the uniform mapping, layers counted from 1.
    """
    count = min(len(one), len(two))
    return [tuple(side[(at + 1) * len(side) // count - 1] for side in (one, two)) for at in range(count)]  # type: ignore[misc]


def _numbers(sites: Sequence[Site], sort: str | None) -> list[int]:
    """The layers of one sort of attention, or of all."""
    return sorted({s.layer for s in sites if s.layer is not None and (sort is None or sort_of(s) == sort)})


def _layers(sites: Sequence[Site]) -> str:
    """The existing layers, by kind of attention if there are several: "encoder layers 0 to 5, ..."."""
    there = sorts(sites)
    out = []
    for sort in there:
        named = f"{sort} " if len(there) > 1 else ""
        layers = _numbers(sites, sort)
        if not layers:
            count = sum(sort_of(site) == sort for site in sites)
            out.append(f"{count} {named}attentions in layers that are not known")
        elif len(layers) == 1:
            out.append(f"{named}layer {layers[0]}")
        elif layers == list(range(layers[0], layers[-1] + 1)):
            out.append(f"{named}layers {layers[0]} to {layers[-1]}")
        else:
            out.append(f"{named}layers {', '.join(map(str, layers))}")
    return ", ".join(out) or "no attention"


__all__ = ["Pairs", "aligned", "check", "parse_pairs"]
