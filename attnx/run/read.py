"""The outputs of a tapped model -> arrays by site and quantity: what was tapped, and what is computed from it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from attnx import formula
from attnx.layout import parse, read_place
from attnx.records import EITHER, Array, Component, Origin, Quantity, Site
from attnx.taps.reductions import GATHERED
from attnx.taps.some_heads import PICKED
from attnx.taps.tap import Tapped


@dataclass(frozen=True, slots=True)
class Reading:
    """What was read for one site, before it is checked."""

    site: Site
    arrays: dict[str, Array]
    """Quantity -> its array, including those needed only for checks."""
    origin: dict[str, Origin]
    low: bool
    """Whether the graph computes in half precision or in integers."""


def read(
    sites: Collection[Site],
    tapped: Tapped,
    values: Mapping[str, Array],
    quantities: Collection[str],
    rows: Sequence[int] | None = None,
    heads: Mapping[int, Sequence[int]] = MappingProxyType({}),
) -> Iterator[Reading]:
    """Sort the outputs of a run by site, one site at a time, and compute what was not tapped.

    Args:
        sites: The sites wanted.
        tapped: The model that was run.
        values: Its outputs by name.
        quantities: What is wanted of each site.
        rows: The queries whose rows were gathered in the graph; all where None.
        heads: Site index -> the heads picked in the graph, or to be picked here; all heads of other sites.
    """
    return (_read_site(site, tapped, values, quantities, rows, heads.get(site.index)) for site in sites)


def idle(sites: Collection[Site], tapped: Tapped, values: Mapping[str, Array]) -> set[int]:
    """Indices of sites without queries or without keys: a loop that ran no step."""
    taps = {site.index: tapped.taps.get(site.index, {}).values() for site in sites}
    return {index for index, names in taps.items() if any(values[name].size == 0 for name in names)}


def _read_site(
    site: Site,
    tapped: Tapped,
    values: Mapping[str, Array],
    quantities: Collection[str],
    rows: Sequence[int] | None,
    heads: Sequence[int] | None,
) -> Reading:
    arrays: dict[str, Array] = {}
    origin: dict[str, Origin] = {}
    low = is_quantised(site)
    batch = _batch(site, tapped, values)
    for quantity, name in tapped.taps.get(site.index, {}).items():
        raw = values[name]
        low = low or raw.dtype == np.float16
        arrays[quantity] = read_place(raw, site.places[quantity], quantity, batch)
        if rows is not None and quantity not in ("key", "value") and not name.startswith(GATHERED):
            arrays[quantity] = arrays[quantity][:, :, list(rows)]
        if heads is not None and not name.startswith((GATHERED, PICKED)):
            arrays[quantity] = _picked(site, arrays[quantity], heads)
        origin[quantity] = "tapped"
    site = of_heads(site, heads)
    _align(arrays)
    compute(site, arrays, origin, quantities)
    if (
        site.causal is None
        and rows is None
        and site.kind in ("self", "cross")
        and (seen := measure_causal(arrays)) is not None
    ):
        site = shown(site, seen, "causal: measured on this input")
    return Reading(site, arrays, origin, low)


def of_heads(site: Site, heads: Sequence[int] | None) -> Site:
    """A site as if it had some of its heads only; the site itself for None."""
    if heads is None:
        return site
    scale = tuple(site.scale[head] for head in heads) if isinstance(site.scale, tuple) else site.scale
    return replace(site, heads=len(heads), kv_heads=len(heads), scale=scale)


def _picked(site: Site, array: Array, heads: Sequence[int]) -> Array:
    """Some heads of an array, each with the key and value that it reads."""
    count = site.heads or array.shape[1]
    return formula.repeat_heads(array, count)[:, list(heads)]


def shown(site: Site, causal: bool | None, *notes: str) -> Site:
    """A site whose mask a run has shown; whether it is a decoder's hangs on that where nothing else tells.

    Args:
        site: The site.
        causal: What was seen of its mask; None where that run cannot tell.
        notes: What is said of it besides.
    """
    if causal is None or site.component_known:
        return replace(site, causal=causal, notes=(*site.notes, *notes))
    component: Component = "decoder" if causal else site.component
    kept = (note for note in site.notes if note != EITHER)
    return replace(site, causal=causal, component=component, component_known=True, notes=(*kept, *notes))


def measure_causal(arrays: Mapping[str, Array]) -> bool | None:
    """Whether every later key is hidden in this run; None where one query or a short text does not show it."""
    weights = arrays.get("weights")
    if weights is None or weights.shape[2] < 2 or weights.shape[3] < weights.shape[2]:
        return None
    later = np.triu(np.ones(weights.shape[2:], dtype=bool), 1 + weights.shape[3] - weights.shape[2])
    if np.any(weights, where=later):
        return False if np.isfinite(weights).all() else None
    return True if weights.any() else None  # where nothing is visible, nothing can be concluded


def _batch(site: Site, tapped: Tapped, values: Mapping[str, Array]) -> int | None:
    """The batch size, taken from a quantity in which it is an axis of its own."""
    for quantity, name in tapped.taps.get(site.index, {}).items():
        sizes = [
            size
            for size, axis in zip(values[name].shape, parse(site.places[quantity].layout), strict=False)
            if len(axis) == 1 and axis[0][0][0] == "b"
        ]
        if sizes:
            return int(np.prod(sizes))
    return None


def _align(arrays: dict[str, Array]) -> None:
    """Expand axes that the graph broadcasts: a mask or a learned query shared by all sequences or heads."""
    full = arrays.get("weights")
    if full is None:
        full = arrays.get("masked")
    if full is None:
        return
    for quantity in ("scores", "scaled", "capped", "masked"):
        array = arrays.get(quantity)
        if array is not None and array.shape != full.shape:
            try:
                arrays[quantity] = np.ascontiguousarray(np.broadcast_to(array, full.shape))
            except ValueError:
                continue
    for quantity in ("query", "key", "value"):
        array = arrays.get(quantity)
        if array is not None and array.shape[0] != full.shape[0] and array.shape[0] == 1:
            arrays[quantity] = np.ascontiguousarray(np.broadcast_to(array, (full.shape[0], *array.shape[1:])))


def compute(site: Site, arrays: dict[str, Array], origin: dict[str, Origin], quantities: Collection[str]) -> None:
    """Compute what is wanted but was not tapped, from what was."""

    def put(quantity: Quantity, array: Array) -> None:
        arrays[quantity], origin[quantity] = array, "computed"

    def lacks(quantity: Quantity, *sources: Quantity) -> bool:
        return quantity not in arrays and quantity not in site.absent and all(s in arrays for s in sources)

    plain = site.kind in ("self", "cross") and not {"scores", "scaled", "capped"}.isdisjoint(quantities)
    if plain and lacks("scores", "query", "key"):
        put("scores", formula.scores(arrays["query"], arrays["key"]))
    if plain and site.scale is not None and lacks("scaled", "scores"):
        put("scaled", formula.scaled(arrays["scores"], site.scale))
    if plain and lacks("capped", "scaled"):
        put("capped", formula.capped(arrays["scaled"], site.softcap))
    if not site.sink and lacks("weights", "masked"):
        put("weights", formula.softmax(arrays["masked"]))
    if "context" in quantities and lacks("context", "weights", "value"):
        put("context", formula.context(arrays["weights"], arrays["value"]))


def is_quantised(site: Site) -> bool:
    """Whether what a site gives was rounded to integers' steps."""
    return "QLinear" in site.op or any(p.value.startswith("attnx/quantised") for p in site.places.values())
