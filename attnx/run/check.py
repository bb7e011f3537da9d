"""Check the arrays of an attention against one another, and a model's outputs with taps against those without."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from attnx import formula
from attnx.errors import RunError
from attnx.records import QUANTITIES, Array, Attention, Check, Site
from attnx.run.read import Reading
from attnx.session.ort import Session

Index = tuple[Any, ...]
"""Where some rows of an array are."""
TOLERANCE = {"float32": 1e-4, "low": 2e-2}
"""Largest difference that passes a check, relative to the larger of 1 and the reference: for float32, and for half
precision or integer graphs."""
_ROWS = 16
"""How many queries' scores are computed only to be checked."""
_ENOUGH = 4
"""Degrees of freedom needed to recognise a factor: two numbers are proportional to any two others."""
SUMS = "rows sum to 1"
"""The name of that check."""
_HIDDEN = -1000.0
"""A number added to a cell to hide it is below this, where it is not minus infinity."""
_CACHED = 1 << 16
"""Of large matrices, so many cells are compared at once: they stay in a processor's cache."""


def difference(got: Array, want: Array) -> float:
    """Largest absolute difference where `want` is finite, relative to the larger of 1 and the largest of `want`."""
    if got.shape != want.shape:
        return float("inf")
    return _relative(got, want)


def _relative(got: Array | Callable[[Index], Array], want: Array) -> float:
    """As `difference`; `got` may also be computed for some rows of `want` at a time."""
    found = [_gap(got(at) if callable(got) else got[at], want[at]) for at in _indices(want)]
    gap, size = max(one for one, _ in found), max(other for _, other in found)
    return gap / max(1.0, size)


def _indices(array: Array) -> list[Index]:
    """All of an array together, or some rows at a time of a large one: temporary arrays are float64."""
    if array.ndim < 2 or array.size <= formula.AT_ONCE:
        return [(...,)]
    return list(formula.blocks(array.shape, min(_CACHED, formula.AT_ONCE)))


def _gap(got: Array, want: Array) -> tuple[float, float]:
    """Largest difference where `want` is finite, and the largest of `want` there."""
    if not want.size:
        return 0.0, 0.0
    most, least = want.max(), want.min()  # NaN if there is one
    if not np.isfinite(most) or not np.isfinite(least):
        finite = np.isfinite(want)
        if not finite.any():
            return 0.0, 0.0
        got, want = got[finite], want[finite]
        most, least = want.max(), want.min()
    apart = np.subtract(got, want, dtype=np.float64)
    gap = max(float(apart.max()), -float(apart.min()))
    return float("inf") if np.isnan(gap) else gap, max(float(most), -float(least))


def attentions(
    readings: Iterable[Reading], quantities: Collection[str], verify: bool = True, sample: Sequence[int] | None = None
) -> tuple[Attention, ...]:
    """Check what was read of each site, and keep what is wanted of it.

    Args:
        readings: From `read.read`; each is checked and cut down before the next one is read.
        quantities: What to keep.
        verify: Make the checks that the arrays at hand allow.
        sample: Sequences of the batch for which arrays are checked against one another; all where None. One graph
            computes them all, so that what holds for some holds for the others.
    """
    return tuple(_checked(reading, quantities, verify, sample) for reading in readings)


def _checked(reading: Reading, quantities: Collection[str], verify: bool, sample: Sequence[int] | None) -> Attention:
    site, arrays, origin = reading.site, reading.arrays, reading.origin
    checks = check(site, arrays, origin, reading.low, sample) if verify else ()
    kept = {q: arrays.get(q) for q in QUANTITIES if q in quantities}
    return Attention(site, **kept, origin={q: o for q, o in origin.items() if q in kept}, checks=checks)


def compare_outputs(plain: Session, feed: Mapping[str, Array], tapped: Mapping[str, Array]) -> tuple[str, ...]:
    """Run the model without taps, and measure by how much its own outputs differ.

    Raises:
        RunError: They differ by more than rounding: the taps changed the model, so nothing of it may be shown.
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


def check(
    site: Site, arrays: Mapping[str, Array], origin: Mapping[str, str], low: bool, sample: Sequence[int] | None = None
) -> tuple[Check, ...]:
    """Check the tapped arrays against one another: weights = softmax(masked), and the like."""
    with np.errstate(all="ignore"):  # an overflow makes the check fail, as it should
        return _check(site, arrays, origin, low, sample)


def _check(
    site: Site, arrays: Mapping[str, Array], origin: Mapping[str, str], low: bool, sample: Sequence[int] | None
) -> tuple[Check, ...]:
    tolerance = TOLERANCE["low" if low else "float32"]
    checks: list[Check] = []

    def compare(name: str, got: Array, want: Array, within: float = tolerance) -> None:
        checks.append(Check(name, difference(got, want), within))

    weights, masked = arrays.get("weights"), arrays.get("masked")
    if weights is not None and origin.get("weights") == "tapped":
        total = weights.sum(axis=-1)
        # What a query sees none of may be shared with cells that are no keys: padding that fills up a block.
        blind = formula.sees_nothing(masked) if masked is not None and masked.shape == weights.shape else None
        known = masked if origin.get("masked") == "tapped" else None
        allowance = rounded_rows(site, weights, known, total, tolerance) if low else np.zeros(total.shape)
        checks.append(sums_to_one(site, total, tolerance, allowance, blind))
        if sample is not None:
            arrays = {q: array[list(sample)] if len(array) > len(sample) else array for q, array in arrays.items()}
            weights, masked = arrays["weights"], arrays.get("masked")
            total = weights.sum(axis=-1)
        if masked is not None:
            if masked.shape == weights.shape and masked.size > formula.AT_ONCE:
                # Shares are at most 1, so that no size enters.
                off = max(difference(weights[at], _own(site, masked[at], total[at])) for at in _indices(masked))
                checks.append(Check("weights = softmax(masked)", off, tolerance))
            else:
                compare("weights = softmax(masked)", weights, _own(site, masked, total))
    if origin.get("capped") == "tapped" and site.softcap is not None and "scaled" in arrays:
        compare(
            "capped = softcap(scaled)", formula.capped(arrays["scaled"], site.softcap), arrays["capped"], tolerance * 10
        )
    before = arrays.get("scaled" if site.softcap is None else "capped")
    if masked is not None and before is not None and origin.get("masked") == "tapped" and not _changed(site):
        checks.append(Check("masked has the scale of scaled", _factor_missed(masked, before, weights), tolerance * 10))
    elif origin.get("masked") == "tapped":
        checks += [Check(name, off, tolerance * 10) for name, off in _from_query_and_key(site, arrays)]
    value = arrays.get("value")
    alike = weights is not None and value is not None and len(value) == len(weights)
    if origin.get("context") == "tapped" and weights is not None and value is not None and alike and not site.gated:
        compare("weights x value = context", formula.context(weights, value), arrays["context"], tolerance * 10)
    if origin.get("scores") == "tapped" and {"query", "key"} <= arrays.keys() and site.kind in ("self", "cross"):
        off = _product_missed(arrays["query"], arrays["key"], arrays["scores"])
        checks.append(Check("query x key = scores", off, tolerance * 10))
    if origin.get("scaled") == "tapped" and site.scale is not None and "scores" in arrays:
        off = _scale_missed(arrays["scores"], site.scale, arrays["scaled"])
        checks.append(Check("scores x scale = scaled", off, tolerance * 10))
    return tuple(checks)


def _product_missed(query: Array, key: Array, scores: Array) -> float:
    """By how much scores differ from query x key, some rows at a time."""
    if (*query.shape[:3], key.shape[2]) != scores.shape:
        return float("inf")
    if scores.size <= formula.AT_ONCE:
        return difference(formula.scores(query, key), scores)
    wide = formula.repeat_heads(key, query.shape[1])
    gap, size = 0.0, 1.0
    for batch, head in np.ndindex(*scores.shape[:2]):
        want = scores[batch, head]
        for at, product in formula.products(query[batch, head], wide[batch, head]):
            one, other = _gap(product.astype(np.float32), want[at])
            gap, size = max(gap, one), max(size, other)
    return gap / size


def _scale_missed(scores: Array, scale: float | tuple[float, ...], scaled: Array) -> float:
    """By how much scaled scores differ from scores x scale, some rows at a time."""
    if scores.shape != scaled.shape or scores.size <= formula.AT_ONCE:
        return difference(formula.scaled(scores, scale), scaled)
    factors = np.broadcast_to(np.asarray(scale, np.float64), scores.shape[1:2])
    return _relative(lambda at: formula.scaled(scores[at], float(factors[at[1]])), scaled)


def sums_to_one(
    site: Site, total: Array, tolerance: float, allowance: Array, blind: Array | None = None, hides: bool = True
) -> Check:
    """Check that rows sum to 1, or less where a sink takes a share.

    Args:
        site: The site.
        total: Sums of rows, any shape.
        tolerance: How far each may be off.
        allowance: How far each may be off because weights were rounded, same shape.
        blind: Rows that see no key, bool, same shape: these may sum to less.
        hides: Whether a row of 0 is one that sees no key.

    Returns:
        The row that is farthest beyond what it is allowed, and that.
    """
    over = total - 1.0 if site.sink else np.where((total == 0) & hides, 0.0, np.abs(total - 1.0))
    if blind is not None:
        over = np.where(blind, total - 1.0, over)
    off = np.nan_to_num(np.maximum(over, 0), nan=np.inf).ravel()
    within = np.maximum(allowance, tolerance).ravel()
    worst = int(np.argmax(off - within)) if off.size else None
    return Check(SUMS, *((0.0, tolerance) if worst is None else (float(off[worst]), float(within[worst]))))


def rounded_rows(site: Site, weights: Array, masked: Array | None, total: Array, tolerance: float) -> Array:
    """How far the sum of each row may be off 1 because its weights were rounded, [B,H,Q]; 0 where they were not.

    Args:
        site: The site.
        weights: [B,H,Q,K].
        masked: The softmax's input if it is known: rows that are off are then allowed what their own scores explain.
        total: Sums of the rows, [B,H,Q].
        tolerance: How far rows may be off anyway.
    """
    from attnx.run import rounding  # only what is loaded for graphs of low precision

    step = rounding.step_of(weights)
    allowance = rounding.allowed(total, step, weights.shape[-1])
    if step and masked is not None and masked.shape == weights.shape and not site.sink:
        some = (np.abs(total - 1) > tolerance) & ~formula.sees_nothing(masked)
        allowance[some] = rounding.allowed_of_scores(total[some], masked[some], step)
    return allowance


def _own(site: Site, masked: Array, total: Array) -> Array:
    """The weights that the masked scores give; each row's sum is the model's where a sink takes the rest, or where no
    key is seen.
    """
    own = formula.softmax(masked)
    rest = np.ones_like(total, bool) if site.sink else formula.sees_nothing(masked)
    if rest.any():
        own = np.where(rest[..., None], own * total[..., None], own)
    nothing = total == 0
    return np.where(nothing[..., None], np.float32(0.0), own) if nothing.any() else own


def _changed(site: Site) -> bool:
    """Whether the masked scores hold more than the scaled scores and a mask."""
    return site.bias is not None or site.heads_mixed


def _from_query_and_key(site: Site, arrays: Mapping[str, Array]) -> list[tuple[str, float]]:
    """Check the masked scores of a few rows against query, key and scale, where the scores were not traced.

    Returns:
        By how much each check is off, by name; empty where the arrays do not allow checks, or where a bias is added.
    """
    if not {"query", "key", "masked"} <= arrays.keys() or site.scale is None or _changed(site):
        return []
    scale, softcap = site.scale, site.softcap
    query, key, masked, weights = arrays["query"], arrays["key"], arrays["masked"], arrays.get("weights")
    shape = (query.shape[2], key.shape[2], query.shape[3])
    if site.kind not in ("self", "cross") or (*masked.shape[2:], key.shape[3]) != shape or len(query) != len(masked):
        return []
    some = np.linspace(0, shape[0] - 1, min(shape[0], _ROWS)).astype(int)
    masked = masked[:1, :, some]
    seen = weights[:1, :, some] if weights is not None and weights.shape[1:] == arrays["masked"].shape[1:] else None

    def product(one: Array, other: Array) -> Array:
        return formula.capped(formula.scaled(formula.scores(one[:1, :, some], other[:1]), scale), softcap)

    before = product(query, key)
    found = [("masked has the scale of scaled", _factor_missed(masked, before, seen))]
    if query.shape == key.shape:
        other = product(key, query)
        apart = _added(masked, before, seen)
        # A mask may add anything, but not what would turn every score into the one with query and key swapped.
        found.append(("query and key are in their places", apart if _added(masked, other, seen) < apart / 100 else 0.0))
    return found


def _added(masked: Array, before: Array, weights: Array | None) -> float:
    """How much is added to visible cells apart from a constant per row, relative to the larger of 1 and their size."""
    with np.errstate(all="ignore"):
        gap = masked.astype(np.float64) - before
        seen = (gap > _HIDDEN) & np.isfinite(gap)
        if weights is not None:
            seen &= weights > 0
        mean = np.where(seen, gap, 0.0).sum(-1, keepdims=True) / np.maximum(seen.sum(-1, keepdims=True), 1)
        size = np.where(seen, np.abs(masked), 0.0).max(initial=1.0)
        return float(np.abs(np.where(seen, gap - mean, 0.0)).max(initial=0.0) / size)


def _factor_missed(masked: Array, before: Array, weights: Array | None) -> float:
    """By how much visible cells differ from the scaled scores, where the difference is a factor and nothing else.

    A mask or a bias may add anything to the scores, and rounding adds noise; a scale that is wrong by a factor makes
    the difference proportional to the scores themselves. A softmax ignores a constant added to a whole row.

    Returns:
        The largest difference, relative to the larger of 1 and the scores' own size; 0 where it is no factor.
    """
    if masked.shape != before.shape:
        return 0.0
    seen_by = weights if weights is not None and weights.shape == masked.shape else None
    apart = left = rest = power = cross = 0.0
    size, free = 1.0, 0
    with np.errstate(all="ignore"):
        if not any(_adds(*one) for one in _matrices(masked, before, seen_by)):
            return 0.0  # nothing is added to visible cells, as if there were no mask
        for one in _matrices(masked, before, seen_by):
            gaps, seen, count = _added_to(*one)
            scores = _less_mean(one[1].astype(np.float64), seen, count)
            free += int(np.maximum(count - 1, 0).sum())
            size = max(size, float(np.where(seen, np.abs(one[0]), 0.0).max(initial=1.0)))
            apart = max(apart, float(np.abs(gaps).max(initial=0.0)))
            left = max(left, float(np.abs(_less_mean(one[0].astype(np.float64), seen, count)).max(initial=0.0)))
            power += float((scores * scores).sum())
            cross += float((gaps * scores).sum())
        if free < _ENOUGH or power == 0.0:
            return 0.0
        if left <= 0.02 * apart:
            return 0.0  # nothing is left of the scores after quantisation: a finding of its own, and no wrong scale
        for one in _matrices(masked, before, seen_by):
            gaps, seen, count = _added_to(*one)
            scores = _less_mean(one[1].astype(np.float64), seen, count)
            rest = max(rest, float(np.abs(gaps - scores * (cross / power)).max(initial=0.0)))
    return float(apart / size) if rest <= 0.01 * apart else 0.0


def _matrices(masked: Array, before: Array, weights: Array | None) -> Iterator[tuple[Array, Array, Array | None]]:
    """All matrices together, or some rows at a time if they are large."""
    for at in _indices(masked):
        yield masked[at], before[at], None if weights is None else weights[at]


def _adds(masked: Array, before: Array, weights: Array | None) -> bool:
    """Whether anything is added to visible cells, apart from a constant per row."""
    if masked.dtype == before.dtype:
        gap = masked - before
        # Each cell is as it was, or plainly hidden: most often so, and seen with less work.
        if ((masked == before) | (gap < 2 * _HIDDEN)).all():
            return False
    return bool(_added_to(masked, before, weights)[0].any())


def _added_to(masked: Array, before: Array, weights: Array | None) -> tuple[Array, Array, Array]:
    """What is added to visible cells, less each row's mean; which cells are visible; how many of each row."""
    gap = masked.astype(np.float64) - before
    seen = (gap > _HIDDEN) & np.isfinite(gap)
    if weights is not None:
        seen &= weights > 0
    count = seen.sum(-1, keepdims=True)
    return _less_mean(gap, seen, count), seen, count


def _less_mean(array: Array, seen: Array, count: Array) -> Array:
    """Visible cells less the mean of those of their row; 0 elsewhere."""
    mean = np.where(seen, array, 0.0).sum(-1, keepdims=True) / np.maximum(count, 1)
    return np.where(seen, array - mean, 0.0)
