"""Model + inputs -> Trace: what was tapped brought into order, what was not computed from it, and both checked."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from attnx import formula
from attnx.errors import RunError
from attnx.layout import read_place
from attnx.records import QUANTITIES, Array, Attention, Check, Origin, Quantity, Site
from attnx.reduce import GATHERED

if TYPE_CHECKING:
    from attnx.session import Session
    from attnx.taps import Tapped

TOLERANCE = {"float32": 1e-4, "low": 2e-2}
"""Largest difference, relative to the larger of 1 and the reference, that a check lets pass: float32, and half
precision or integer graphs."""


_ENOUGH = 4
"""Cells free to differ that show a factor; two numbers are proportional to any two others."""
_HIDDEN = -1000.0
"""What is added to a cell to hide it is less than this, where it is not minus infinity."""


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
    """
    return tuple(_attention(site, tapped, values, quantities, verify, rows, sample) for site in sites)


def _attention(
    site: Site,
    tapped: Tapped,
    values: Mapping[str, Array],
    quantities: Collection[str],
    verify: bool,
    rows: Sequence[int] | None,
    sample: Sequence[int] | None,
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
    return bool(not weights[..., later].any())


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
    return any(site.places[q].value.startswith("attnx/quantised") for q in site.places)


def difference(got: Array, want: Array) -> float:
    """Largest absolute difference where `want` is finite, relative to the larger of 1 and the largest of `want`."""
    if got.shape != want.shape:
        return float("inf")
    finite = np.isfinite(want)
    if not finite.any():
        return 0.0
    gap = np.abs(got[finite].astype(np.float64) - want[finite])
    return float(np.nan_to_num(gap, nan=np.inf).max() / max(1.0, float(np.abs(want[finite]).max())))


def check(
    site: Site, arrays: Mapping[str, Array], origin: Mapping[str, str], low: bool, sample: Sequence[int] | None = None
) -> tuple[Check, ...]:
    """Hold the tapped arrays against one another: what the graph says must follow from what it holds."""
    tolerance = TOLERANCE["low" if low else "float32"]
    checks: list[Check] = []

    def compare(name: str, got: Array, want: Array, within: float = tolerance) -> None:
        checks.append(Check(name, difference(got, want), within))

    weights, masked = arrays.get("weights"), arrays.get("masked")
    if weights is not None and origin.get("weights") == "tapped":
        total = weights.sum(axis=-1)
        over = total - 1.0 if site.sink else np.where(total == 0, 0.0, np.abs(total - 1.0))  # a fully hidden row is 0
        checks.append(
            Check("rows sum to 1", float(np.nan_to_num(np.maximum(over, 0), nan=np.inf).max(initial=0.0)), tolerance)
        )
        if sample is not None:
            arrays = {q: array[list(sample)] if len(array) > len(sample) else array for q, array in arrays.items()}
            weights, masked = arrays["weights"], arrays.get("masked")
            total = weights.sum(axis=-1)
        if masked is not None:
            own = formula.softmax(masked)
            if site.sink:
                own = own * total[..., None]
            own = np.where(total[..., None] == 0, 0.0, own)
            compare("weights = softmax(masked)", weights, own)
    if origin.get("capped") == "tapped" and site.softcap is not None and "scaled" in arrays:
        compare(
            "capped = softcap(scaled)", formula.capped(arrays["scaled"], site.softcap), arrays["capped"], tolerance * 10
        )
    before = arrays.get("scaled" if site.softcap is None else "capped")
    if masked is not None and before is not None and origin.get("masked") == "tapped" and site.bias is None:
        checks.append(Check("masked has the scale of scaled", _factor_missed(masked, before, weights), tolerance * 10))
    value = arrays.get("value")
    alike = weights is not None and value is not None and len(value) == len(weights)
    if origin.get("context") == "tapped" and weights is not None and value is not None and alike and not site.gated:
        compare("weights x value = context", formula.context(weights, value), arrays["context"], tolerance * 10)
    if origin.get("scores") == "tapped" and {"query", "key"} <= arrays.keys() and site.kind in ("self", "cross"):
        own = formula.scores(arrays["query"], arrays["key"])
        compare("query x key = scores", own, arrays["scores"], tolerance * 10)
    return tuple(checks)


def _factor_missed(masked: Array, before: Array, weights: Array | None) -> float:
    """By how much visible cells differ from the scores that they were, where that is a factor and nothing else.

    A mask or a bias adds to the scores what it likes, and rounding adds noise; a scale missed by a factor makes the
    difference proportional to the scores themselves. What is added to a whole row, a softmax does not see.

    Returns:
        The largest difference, relative to the larger of 1 and the scores' own size; 0 where it is no factor.
    """
    if masked.shape != before.shape:
        return 0.0
    with np.errstate(all="ignore"):
        gap = masked.astype(np.float64) - before
        seen = (gap > _HIDDEN) & np.isfinite(gap)
        if weights is not None and weights.shape == masked.shape:
            seen &= weights > 0
        count = seen.sum(-1, keepdims=True)

        def centred(array: Array) -> Array:
            mean = np.where(seen, array, 0.0).sum(-1, keepdims=True) / np.maximum(count, 1)
            return np.where(seen, array - mean, 0.0)

        gaps, scores = centred(gap), centred(before.astype(np.float64))
        size = np.where(seen, np.abs(masked), 0.0).max(initial=1.0)
        power = float((scores * scores).sum())
        if np.maximum(count - 1, 0).sum() < _ENOUGH or power == 0.0:
            return 0.0
        apart = float(np.abs(gaps).max(initial=0.0))
        left = float(np.abs(centred(masked.astype(np.float64))).max(initial=0.0))
        rest = float(np.abs(gaps - scores * ((gaps * scores).sum() / power)).max(initial=0.0))
    if left <= 0.02 * apart:
        return 0.0  # nothing is left of the scores: quantised to death, which is a finding and no scale
    return float(apart / size) if rest <= 0.01 * apart else 0.0


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
