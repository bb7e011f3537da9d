"""Model + inputs -> Trace: what was tapped brought into order, what was not computed from it, and both checked."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from attnx import formula
from attnx.errors import RunError
from attnx.layout import read_place
from attnx.records import QUANTITIES, STAGES, Array, Attention, Origin, Quantity, Site
from attnx.run.check import TOLERANCE, check, difference
from attnx.taps.reductions import GATHERED

if TYPE_CHECKING:
    from attnx.session.ort import Session
    from attnx.taps.tap import Tapped


def run(session: Session, tapped: Tapped, feed: Mapping[str, Array]) -> dict[str, Array]:
    """Run a tapped model once.

    Returns:
        Every output by name, as onnxruntime gives it.
    """
    return session.run(feed)


def read(
    sites: Collection[Site],
    tapped: Tapped,
    values: Mapping[str, Array],
    quantities: Collection[str],
    verify: bool = True,
    rows: Sequence[int] | None = None,
    sample: Sequence[int] | None = None,
    heads: Mapping[int, Sequence[int]] = MappingProxyType({}),
) -> tuple[Attention, ...]:
    """Turn the outputs of a run into attentions.

    Args:
        sites: The sites wanted.
        tapped: The model that was run.
        values: What it gave.
        quantities: What is wanted of each site; the rest is dropped.
        verify: Make the checks that the arrays at hand allow.
        rows: The queries whose rows were gathered in the graph; all where None.
        sample: Sequences of the batch that checks of one array against another are made for; all where None. One graph
            computes them all, so that what holds for some holds for the others.
        heads: By a site's index, the heads that were picked in the graph, or are to be picked here; all of others.
    """
    return tuple(
        _attention(site, tapped, values, quantities, verify, rows, sample, heads.get(site.index)) for site in sites
    )


def _attention(
    site: Site,
    tapped: Tapped,
    values: Mapping[str, Array],
    quantities: Collection[str],
    verify: bool,
    rows: Sequence[int] | None,
    sample: Sequence[int] | None,
    heads: Sequence[int] | None,
) -> Attention:
    arrays: dict[str, Array] = {}
    origin: dict[str, Origin] = {}
    low = False
    batch = _batch(site, tapped, values)
    for quantity, name in tapped.taps.get(site.index, {}).items():
        raw = values[name]
        low = low or raw.dtype == np.float16
        arrays[quantity] = read_place(raw, site.places[quantity], quantity, batch)
        if rows is not None and quantity not in ("key", "value") and not name.startswith(GATHERED):
            arrays[quantity] = arrays[quantity][:, :, list(rows)]
        if heads is not None and quantity in STAGES and not name.startswith(GATHERED):
            arrays[quantity] = arrays[quantity][:, list(heads)]
        origin[quantity] = "tapped"
    _align(arrays)
    compute(site, arrays, origin, quantities)
    if (
        site.causal is None
        and rows is None
        and site.kind in ("self", "cross")
        and (seen := measure_causal(arrays)) is not None
    ):
        site = replace(site, causal=seen, notes=(*site.notes, "causal: measured on this input"))
    checks = check(site, arrays, origin, low or _is_quantised(site), sample) if verify else ()
    kept = {q: arrays.get(q) for q in QUANTITIES if q in quantities}
    return Attention(site, **kept, origin={q: o for q, o in origin.items() if q in kept}, checks=checks)


def measure_causal(arrays: Mapping[str, Array]) -> bool | None:
    """Whether every later key is hidden in this run; None where one query or a short text cannot tell."""
    weights = arrays.get("weights")
    if weights is None or weights.shape[2] < 2 or weights.shape[3] < weights.shape[2]:
        return None
    later = np.triu(np.ones(weights.shape[2:], dtype=bool), 1 + weights.shape[3] - weights.shape[2])
    if weights[..., later].any():
        return False if np.isfinite(weights).all() else None
    return True if weights.any() else None  # where nothing is seen at all, nothing tells


def _batch(site: Site, tapped: Tapped, values: Mapping[str, Array]) -> int | None:
    """The batch size, read off a quantity in which it stands alone."""
    from attnx.layout import parse

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
    """Stretch axes that the graph broadcasts: a mask or a learned query that stands for every batch row or head."""
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
    """Fill in what is wanted and was not tapped, from what was."""

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


def _is_quantised(site: Site) -> bool:
    return "QLinear" in site.op or any(p.value.startswith("attnx/quantised") for p in site.places.values())


def compare_outputs(plain: Session, feed: Mapping[str, Array], tapped: Mapping[str, Array]) -> tuple[str, ...]:
    """Run the model without taps and say by how much its own outputs differ.

    Raises:
        RunError: They differ by more than rounding: the taps changed the model, and nothing of it must be shown.
    """
    notes = []
    for name, value in plain.run(feed).items():
        if name not in tapped or value.dtype.kind not in "fi":
            continue
        gap = difference(np.asarray(tapped[name]), np.asarray(value))
        low = value.dtype == np.float16
        if gap > TOLERANCE["low" if low else "float32"] * 10:
            raise RunError(
                f"with taps, the model's output {name!r} differs by {gap:.2g}: nothing is shown",
                "Please report this model.",
            )
        notes.append(f"output {name!r} with and without taps differs by {gap:.2g}")
    return tuple(notes)
