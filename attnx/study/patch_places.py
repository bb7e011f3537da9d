"""What can be patched in a model: its attentions, their heads, and the positions of a quantity."""

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
"""Quantities whose positions are key positions and whose heads are key/value heads."""


def places_of(running: Intervening, site: Site, quantity: str, tokens: Tokens) -> tuple[tuple[str, ...], int]:
    """The name of each position of a quantity, and where the tokens begin: after the cached ones."""
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
    """Whether keys in excess of the tokens are cached ones, which come before them."""
    return any(is_past(slot) for slot in model.slots())


def first_keys(running: Intervening, sites: Sequence[Site], looking: Tokens, seen: Tokens | None) -> dict[int, int]:
    """Where the keys of tokens begin in each attention, by the site's index: after the cached ones.

    Args:
        running: The model with its feed.
        sites: The attentions to change at tokens.
        looking: The tokens at their query positions.
        seen: The tokens at their key positions; None if only queries are meant.

    Raises:
        UnsupportedError: The rows or columns of a site are not these tokens, so they cannot be named.
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
    """The attentions in which a quantity can be changed, and for each of the others a note that says why it cannot.

    Raises:
        UnsupportedError: It cannot be changed in any of them; the message gives the reason for the first.
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
    return trusted, left_out(refused)


def left_out(refused: Sequence[UnsupportedError]) -> tuple[str, ...]:
    """A note for each attention that is left out, with the reason."""
    return tuple(Wording("left out: {what}", what=error.message) for error in refused)


def count_of(site: Site, keyed: bool) -> int:
    """The number of a site's heads; of its key/value heads for a quantity that belongs to keys."""
    return (keyed and site.kv_heads) or site.heads or 1


def tokens_of(
    running: Intervening, component: Where | None, quantity: str, tokens: Tokens, memory: Tokens | None
) -> Tokens:
    """The tokens at a quantity's positions: the encoder's for an encoder and for the keys of a cross-attention."""
    chosen = component_of(running, component)
    reads = chosen == "encoder" or (chosen == "cross" and quantity in BY_KEY)
    return memory if memory is not None and reads else tokens


def sides_of(
    running: Intervening, component: Where | None, tokens: Tokens, memory: Tokens | None
) -> tuple[Tokens, Tokens]:
    """The tokens on the query axis of an attention, and those on its key axis."""
    return (
        tokens_of(running, component, "query", tokens, memory),
        tokens_of(running, component, "key", tokens, memory),
    )


def component_of(running: Intervening, component: Where | None) -> Where:
    """The attention that is meant: the decoder's if there are several and none is named.

    Raises:
        UsageError: The model has no such attention.
        UnsupportedError: The model has no attention over tokens.
    """
    there = running.points.components()
    if component is None and "decoder" in there:
        return "decoder"
    return component if isinstance(component, str) and component in there else _named(running, component)


def _named(running: Intervening, component: Where | None) -> Where:
    running.points.sites(component, ())
    return next(iter(running.points.components()))


def sites_of(
    running: Intervening, component: Where, layers: Sequence[int] | None, heads: Sequence[int] = ()
) -> list[Site]:
    """The attentions of these layers, of these heads' layers, or of all; by layer.

    Raises:
        UsageError: A layer that does not exist, or heads outside the named layers.
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
    "left_out",
    "places_of",
    "reachable",
    "sides_of",
    "sites_of",
    "tokens_of",
]
