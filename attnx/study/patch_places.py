"""What can be patched in a model: its attentions, their heads, and what stands at the positions of a quantity."""

from __future__ import annotations

from collections.abc import Sequence

from attnx.errors import UnsupportedError, UsageError
from attnx.feed.inputs import is_past
from attnx.interventions.plan import RUN, Where
from attnx.interventions.running import Intervening
from attnx.records import Site, Tokens
from attnx.session.protocol import OpenModel
from attnx.tokens.spans import axis_labels
from attnx.wording import Wording

BY_KEY = ("key", "value")
"""Quantities whose positions are those of keys, and whose heads are key/value heads."""


def places_of(running: Intervening, site: Site, quantity: str, tokens: Tokens) -> tuple[tuple[str, ...], int]:
    """What stands at each position of a quantity, and where the tokens begin: behind those that are cached."""
    point = running.points.of(site, quantity)[0]
    running.survey(RUN, [point])
    size = running.tensor(RUN, point).sizes["k" if quantity in BY_KEY else "q"]
    if size == len(tokens):
        return tuple(piece.strip() or piece for piece in tokens.pieces), 0
    if quantity in BY_KEY and site.kind == "self" and caches(running.model):
        query = running.points.of(site, "query")[0]
        running.survey(RUN, [query])
        if running.tensor(RUN, query).sizes["q"] == len(tokens) < size:  # a cache comes first
            return tuple(piece.strip() or piece for piece in axis_labels(tokens, size)), size - len(tokens)
    return tuple(str(place) for place in range(size)), 0  # patches of a picture, frames of a sound


def caches(model: OpenModel) -> bool:
    """Whether keys that are more than the tokens are cached ones, which stand before them."""
    return any(is_past(slot) for slot in model.slots())


def first_keys(running: Intervening, sites: Sequence[Site], looking: Tokens, seen: Tokens | None) -> dict[int, int]:
    """Where the keys of tokens begin in each attention, by the site's index: behind those that are cached.

    Args:
        running: The model with its feed.
        sites: The attentions that are changed at tokens.
        looking: Their query positions.
        seen: Their keys; None where only queries are meant.

    Raises:
        UnsupportedError: The rows or columns of one are not these tokens, so that none of them can be named.
    """
    points = {site.index: running.points.of(site, "context" if seen is None else "masked")[0] for site in sites}
    running.survey(RUN, list(points.values()))
    found: dict[int, int] = {}
    for site in sites:
        sizes, title = running.tensor(RUN, points[site.index]).sizes, running.points.title(site)
        if sizes["q"] != len(looking):
            raise UnsupportedError(
                f"{title} has {sizes['q']} query positions, and the input has {len(looking)} tokens: which is which is "
                "not known",
                "Change heads at all positions.",
            )
        before = 0 if seen is None else sizes["k"] - len(seen)
        if before < 0 or (before and not (site.kind == "self" and caches(running.model))):
            raise UnsupportedError(
                f"{title} has {sizes['k']} keys, and looks at {len(seen or ())} tokens: which is which is not known",
                "Ablate heads instead.",
            )
        found[site.index] = before
    return found


def reachable(
    running: Intervening, sites: Sequence[Site], quantity: str, run: str = RUN
) -> tuple[list[Site], tuple[str, ...]]:
    """The attentions in which a quantity can be changed, and for each of the others a note of why it cannot be.

    Raises:
        UnsupportedError: It can be changed in none of them; why not in the first.
    """
    kept: list[Site] = []
    refused: list[UnsupportedError] = []
    for site in sites:
        try:
            running.points.of(site, quantity)
        except UnsupportedError as error:
            refused.append(error)
        else:
            kept.append(site)
    running.attentions(run, kept)
    trusted: list[Site] = []
    for site in kept:
        try:
            running.check(run, [site])
        except UnsupportedError as error:
            refused.append(error)
        else:
            trusted.append(site)
    if not trusted and refused:
        raise refused[0]
    return trusted, tuple(Wording("left out: {what}", what=error.message) for error in refused)


def count_of(site: Site, keyed: bool) -> int:
    """The heads of a site; the key/value heads of a quantity that belongs to keys."""
    return (keyed and site.kv_heads) or site.heads or 1


def tokens_of(
    running: Intervening, component: Where | None, quantity: str, tokens: Tokens, memory: Tokens | None
) -> Tokens:
    """What stands at the positions of a quantity: of an encoder, and of the keys of a cross-attention, its own side."""
    chosen = component_of(running, component)
    reads = chosen == "encoder" or (chosen == "cross" and quantity in BY_KEY)
    return memory if memory is not None and reads else tokens


def sides_of(
    running: Intervening, component: Where | None, tokens: Tokens, memory: Tokens | None
) -> tuple[Tokens, Tokens]:
    """What looks in an attention, and what it looks at."""
    return (
        tokens_of(running, component, "query", tokens, memory),
        tokens_of(running, component, "key", tokens, memory),
    )


def component_of(running: Intervening, component: Where | None) -> Where:
    """The attention that is meant: the decoder's, of several that are not named.

    Raises:
        UsageError: The model has no such attention.
        UnsupportedError: It has none over tokens.
    """
    there = running.points.components()
    if component is None and "decoder" in there:
        return "decoder"
    return component if component in there else _named(running, component)


def _named(running: Intervening, component: Where | None) -> Where:
    running.points.sites(component, ())
    return next(iter(running.points.components()))


def sites_of(
    running: Intervening, component: Where, layers: Sequence[int] | None, heads: Sequence[int] = ()
) -> list[Site]:
    """The attentions of these layers, of these heads' layers, or of all; by layer.

    Raises:
        UsageError: A layer that is not there, or heads of other layers than those that are named.
    """
    if layers is not None and (outside := [layer for layer in heads if layer not in layers]):
        raise UsageError(f"a head of layer {outside[0]} is named, and that layer is not", "Leave out one of them.")
    wanted = list(heads) or (None if layers is None else list(layers))
    return sorted(running.points.sites(component, wanted), key=lambda site: site.layer or 0)


__all__ = [
    "BY_KEY",
    "caches",
    "component_of",
    "count_of",
    "first_keys",
    "places_of",
    "reachable",
    "sides_of",
    "sites_of",
    "tokens_of",
]
