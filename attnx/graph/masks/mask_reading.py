"""Read an evaluated mask: causal, a band, a bias, or none of these."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from attnx.graph.masks.window_probe import band_width
from attnx.layout import arrange, parse
from attnx.records import Array, Place

if TYPE_CHECKING:
    from attnx.graph.fact import Fact

PADDED = -1e4
"""A cell at or below this is hidden, where it holds nothing but the mask's own number."""


@dataclass(frozen=True, slots=True)
class Probed:
    """A site to examine, by the names of its values."""

    product: str
    """The score product: set to zero."""
    beside: tuple[str, ...]
    """Products that are added to it (disentangled and relative attention): also set to zero."""
    masked: Place | None
    weights: Place


@dataclass(frozen=True, slots=True)
class Hides:
    """What the mask of a site hides when nothing is padded, and what it adds to the visible cells."""

    causal: bool
    """Every later key is hidden, and some key is visible."""
    window: int | None = None
    """The most keys that a query sees, itself included, if they form a band; None otherwise."""
    bias: str | None = None
    """What is added to visible cells, in words; "" where that is unknown; None where nothing is added."""
    share: float = 1.0
    """The share of cells that are visible."""


class Reader:
    """Reads each site's mask as soon as its numbers are known, so that they need not be kept."""

    def __init__(self, sites: list[Probed]) -> None:
        self.found: dict[str, Hides] = {}
        self._masked: dict[str, Array] = {}
        self._by_masked = _by_value(sites, lambda s: s.masked)
        self._by_weights = _by_value(sites, lambda s: s.weights)

    def seen(self, name: str, facts: dict[str, Fact]) -> None:
        for site in self._by_masked.get(name, ()):
            if site.masked is not None and (value := _value(facts, site.masked)) is not None:
                self._masked[site.weights.value] = value
        for site in self._by_weights.get(name, ()):
            weights = _value(facts, site.weights)
            if weights is not None:
                hidden = weights <= weights.max(axis=-1, keepdims=True) * 1e-9
                self._keep(site, hidden)

    def finish(self, facts: dict[str, Fact]) -> None:
        """Read the sites whose weights are unknown, from the input of their softmax."""
        for site in [s for sites in self._by_weights.values() for s in sites]:
            for place in (site.masked, site.weights):  # a mask that is a graph input is no node's output
                if place is not None and place.value in facts and site.weights.value not in self.found:
                    self.seen(place.value, facts)
            if site.weights.value not in self.found and (masked := self._masked.get(site.weights.value)) is not None:
                self._keep(site, hidden_cells(masked))

    def _keep(self, site: Probed, hidden: Array) -> None:
        read = _read(hidden, self._masked.pop(site.weights.value, None))
        if read is not None:
            self.found[site.weights.value] = read


def _by_value(sites: list[Probed], of: Callable[[Probed], Place | None]) -> dict[str, list[Probed]]:
    out: dict[str, list[Probed]] = {}
    for site in sites:
        place = of(site)
        if place is not None:
            out.setdefault(place.value, []).append(site)
    return out


def _value(facts: dict[str, Fact], place: Place) -> Array | None:
    """A stage of a site as [B,H,Q,K] float64; None where its numbers are unknown."""
    fact = facts.get(place.value)
    if fact is None or fact.value is None or not fact.value.size:
        return None
    value = np.asarray(fact.value)
    rank = len(parse(place.layout))
    if value.ndim < rank:
        value = value.reshape((1,) * (rank - value.ndim) + value.shape)
    try:
        out = arrange(value, _without_sizes(place.layout, value.shape), "bhqk")
    except ValueError:
        return None
    if place.window is not None:
        out = out[..., slice(*place.window)]
    return np.asarray(out, dtype=np.float64)


def _without_sizes(layout: str, shape: tuple[int, ...]) -> str:
    """The layout of a tensor whose head axis may have size 1 where all heads share a mask."""
    words = layout.split(" ")
    if len(words) == len(shape):
        words = [w.partition(":")[0] if not w.startswith("(") else w for w in words]
    return " ".join(words)


def hidden_cells(masked: Array) -> Array:
    """Cells that a softmax over the last axis hides: -inf, or far below the row's best. bool, same shape."""
    best = np.max(np.where(np.isfinite(masked), masked, -np.inf), axis=-1, keepdims=True)
    return np.asarray(~(masked > best - 5e3))


def _read(hidden: Array, masked: Array | None) -> Hides | None:
    """Read a mask off [B,H,Q,K]."""
    bias = _bias(hidden, masked)
    hidden = hidden.reshape(-1, *hidden.shape[-2:])
    queries, keys = hidden.shape[-2:]
    if hidden.all() or (masked is not None and masked.size and np.max(masked) <= PADDED):
        return None  # with every cell equally far down, the softmax is that of no mask: this probe pads everything
    if queries < 2 or not hidden.any():
        return Hides(False, None, bias, 1.0 - float(hidden.mean()))
    causal = False
    for offset in dict.fromkeys((max(keys - queries, 0), 0)):
        later = np.arange(keys)[None, :] > np.arange(queries)[:, None] + offset
        present = hidden[:, np.arange(queries), np.minimum(np.arange(queries) + offset, keys - 1)]
        # After a past, each query sees its own key; a band that ends before it is a block's neighbourhood.
        reaches = offset == 0 or not present.all(axis=0).any()
        causal = causal or bool(later.any() and reaches and hidden[:, later].all() and not hidden[:, ~later].all())
    beside = keys - queries
    if not causal and beside > 0 and not hidden[..., queries:].any():
        # Keys that every query sees come after those of the text (torch's add_bias_kv and add_zero_attn).
        own, later = hidden[..., :queries], np.triu(np.ones((queries, queries), dtype=bool), 1)
        causal = bool(own[:, later].all() and not own[:, ~later].all(axis=0).any())
    alike = bool((hidden == hidden[:1]).all())  # a window that only some heads have is not the site's
    return Hides(causal, band_width(~hidden[0]) if alike else None, bias, 1.0 - float(hidden.mean()))


def _bias(hidden: Array, masked: Array | None) -> str | None:
    """What is added to visible cells, in words; "" where the numbers are unknown; None for nothing."""
    if masked is None or masked.shape[-2:] != hidden.shape[-2:]:
        return ""
    shape = np.broadcast_shapes(hidden.shape, masked.shape)
    shown = np.where(np.broadcast_to(hidden, shape), 0.0, np.broadcast_to(masked, shape))
    if not np.isfinite(shown).all() or np.abs(shown).max(initial=0.0) < 1e-6:
        return None
    seen = ~np.broadcast_to(hidden, shape)
    most = np.where(seen, shown, -np.inf).max(axis=-1)
    least = np.where(seen, shown, np.inf).min(axis=-1)
    # Constant along each row: what is looked up for each cell (bonds between atoms) depends on the inputs.
    name = "by position" if (most - least).max(initial=-np.inf) > 1e-6 else "bias"
    by_head = shown.shape[1] > 1 and bool(np.abs(shown - shown[:, :1]).max() > 1e-6)
    return f"{name}, one per head" if by_head else name
