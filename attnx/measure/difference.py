"""Difference: two traces head by head. Did int8 or fp16 change the heads, and at which stage do they diverge?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from attnx.errors import InputError
from attnx.formula import average, blocks, jensen_shannon
from attnx.measure.rows import Rows, head_labels, read, stack
from attnx.records import STAGES, Array, Axis, Measurement, Trace
from attnx.wording import Wording

SOURCE = "attnx; Jensen-Shannon Lin 1991"


@dataclass(frozen=True, slots=True)
class Difference:
    """How far apart two traces of one model, or of two exports of it, are."""

    largest: Measurement
    """[S,H]: largest absolute difference of weights."""
    mean: Measurement
    """[S,H]: mean absolute difference of weights over the cells of real rows."""
    divergence: Measurement
    """[S,H]: mean Jensen-Shannon divergence of the rows, nats."""
    rank: Measurement
    """[S,H]: mean rank, in the second trace, of the first trace's strongest key; 0 if it stays strongest."""
    moved: Measurement
    """[S,H]: share of rows whose strongest key changes."""
    stages: Measurement
    """[S,5]: largest absolute difference of scores, scaled, capped, masked, weights, over visible cells; NaN where a
    trace lacks the stage."""
    parts: tuple[str | None, ...]
    """[S]: the first stage at which they differ by more than the tolerance; None if none does."""
    tolerance: float
    first: tuple[int, str] | None
    """Site and stage, in execution order, where the traces first diverge; None if they do not."""
    pairs: tuple[tuple[str, str], ...]
    """[S]: the site's name in the first and in the second trace. If they differ, axes say "L3=L7"."""
    notes: tuple[str, ...]
    cells: tuple[tuple[Stage | None, ...], ...] = ()
    """[S,5]: what `stages` and `parts` follow from; None where a trace lacks the stage, or has no visible cell."""


class Stage(NamedTuple):
    """How far a stage differs over some cells."""

    size: float
    """Largest absolute difference; not finite where a cell is not."""
    first: float
    """The first trace's largest absolute value."""
    same: bool
    """Whether they are equal, NaN for NaN."""


def difference(one: Trace, two: Trace, tolerance: float = 1e-3, *, heads: Sequence[str] | None = None) -> Difference:
    """Compare two traces site by site, in their order.

    Args:
        one: With weights at every site; also scores, scaled, capped, masked if the stages are to be compared.
        two: A trace with as many sites, heads, queries and keys.
        tolerance: A stage differs if a cell differs by more than this, relative to the larger of 1 and the largest
            visible cell of the first trace.
        heads: Names of the heads, if they are not single heads.

    Returns:
        See `Difference`. Only the first sequence of each batch, and rows that are real in both, are compared.

    Raises:
        InputError: The traces have different sites or shapes.
        UnsupportedError: A site has no weights.

    Source: attnx; divergence Lin 1991, over heads Clark et al. 2019, section 6.
    """
    if len(one.attentions) != len(two.attentions):
        raise InputError(
            f"{one.model} has {len(one.attentions)} attentions and {two.model} has {len(two.attentions)}",
            "Compare two exports of the same model, or bring their attentions into pairs first.",
        )
    pairs = tuple(zip(_labels(one), _labels(two), strict=True))
    labels = tuple(left if left == right else f"{left}={_short(left, right)}" for left, right in pairs)
    columns: dict[str, list[Array]] = {name: [] for name in ("largest", "mean", "divergence", "rank", "moved")}
    cells: list[tuple[Stage | None, ...]] = []
    for at, (a, b) in enumerate(zip(one.attentions, two.attentions, strict=True)):
        first, second = read(one, a), read(two, b)
        if first.weights.shape != second.weights.shape:
            raise _unlike(labels[at], first.weights.shape, second.weights.shape)
        real = first.real & second.real
        by_head = _by_head(first, second, real)
        for name, values in by_head.items():
            columns[name].append(values)
        cells.append(_stages(first, second, real))
    axes = (Axis("layer", labels), Axis("head", tuple(heads or head_labels(max(map(len, columns["mean"]), default=0)))))

    def measured(key: str, name: str, unit: str, formula: str, upper: float | None) -> Measurement:
        return Measurement(name, unit, axes, stack(columns[key]), (0.0, upper), SOURCE, formula)

    parts = parts_of(cells, tolerance)
    return Difference(
        largest=measured("largest", "largest difference", "share", "max |a - b|", 1.0),
        mean=measured("mean", "mean difference", "share", "mean |a - b|", 1.0),
        divergence=measured(
            "divergence",
            "divergence",
            "nats",
            "mean over queries of JS(a || b), rows made to sum to 1",
            float(np.log(2)),
        ),
        rank=measured(
            "rank", "rank of the first key", "places", "rank in the second of the first's strongest key", None
        ),
        moved=measured("moved", "rows whose first key changes", "share", "share of rows", 1.0),
        stages=stages_of(axes[0], cells),
        parts=parts,
        tolerance=tolerance,
        first=next(((at, part) for at, part in enumerate(parts) if part), None),
        pairs=pairs,
        notes=_notes(one, two),
        cells=tuple(cells),
    )


def stages_of(layer: Axis, cells: Sequence[Sequence[Stage | None]]) -> Measurement:
    """`Difference.stages`, of what its cells differ by."""
    return Measurement(
        name="difference by stage",
        unit="",
        axes=(layer, Axis("stage", STAGES)),
        values=np.array([[_sizes(one)[0] for one in row] for row in cells], np.float64).reshape(-1, len(STAGES)),
        bounds=(0.0, None),
        source="attnx",
        formula="max |a - b| over visible cells",
    )


def parts_of(cells: Sequence[Sequence[Stage | None]], tolerance: float) -> tuple[str | None, ...]:
    """`Difference.parts`, of what its cells differ by."""
    off = [[_sizes(one)[1] > tolerance for one in row] for row in cells]
    return tuple(next((stage for stage, is_off in zip(STAGES, row, strict=True) if is_off), None) for row in off)


def together(found: Sequence[Stage | None]) -> Stage | None:
    """One stage of several parts of a site; not finite where one is not."""
    there = [one for one in found if one is not None]
    if not there:
        return None
    sizes, firsts = [one.size for one in there], [one.first for one in there]
    return Stage(float(np.max(sizes)), float(np.max(firsts)), all(one.same for one in there))


def _sizes(one: Stage | None) -> tuple[float, float]:
    """The largest difference, and the same relative to the larger of 1 and the first's size; NaN without cells."""
    if one is None:
        return float("nan"), float("nan")
    if np.isfinite(one.size):
        return one.size, one.size / max(1.0, one.first)
    size = 0.0 if one.same else float("inf")  # a NaN or infinity on only one side exceeds any tolerance
    return size, size


def merged(found: Sequence[Difference]) -> Difference:
    """Merge differences of the same two models over several texts: the largest of the largest, the means of the rest.

    Args:
        found: At least one, all with the same sites and heads.
    """
    first = found[0]
    if len(found) == 1:
        return first
    order = (None, *reversed(STAGES))
    parts = tuple(max((one.parts[at] for one in found), key=order.index) for at in range(len(first.parts)))

    def over(name: str, *, largest: bool = False) -> Measurement:
        values = np.stack([getattr(one, name).values for one in found])
        filled = np.where(np.isnan(values), -1.0, values).max(axis=0)
        merged = np.where(filled < 0, np.nan, filled) if largest else average(values, axis=0)
        measure: Measurement = getattr(first, name)
        return replace(measure, values=merged)

    return replace(
        first,
        largest=over("largest", largest=True),
        mean=over("mean"),
        divergence=over("divergence"),
        rank=over("rank"),
        moved=over("moved"),
        stages=over("stages", largest=True),
        parts=parts,
        first=next(((at, part) for at, part in enumerate(parts) if part), None),
        notes=tuple(dict.fromkeys(note for one in found for note in one.notes)),
    )


def _labels(trace: Trace) -> list[str]:
    """The name of each site, also if a site occurs twice."""
    once = {attention.site.index: attention for attention in trace.attentions}
    names = dict(zip(once, replace(trace, attentions=tuple(once.values())).labels, strict=True))
    return [names[attention.site.index] for attention in trace.attentions]


def _short(left: str, right: str) -> str:
    """The second of two labels, "encoder L0" and "encoder L3", without the kind that both share."""
    sort, space, layer = right.rpartition(" ")
    return layer if space and left.startswith(f"{sort} ") else right


def _unlike(label: str, one: tuple[int, ...], two: tuple[int, ...]) -> InputError:
    """Two sites that cannot be compared cell by cell: what differs, and what to do about it."""
    if one[0] != two[0]:
        return InputError(
            f"{label} has {one[0]} heads in the first model and {two[0]} in the second, so none is like another",
            Wording("Compare the means over all heads of a layer[: <mean='heads'>]."),
        )
    sizes = [f"{rows} queries and {keys} keys" for _, rows, keys in (one, two)]
    return InputError(
        f"{label} has {sizes[0]} in the first and {sizes[1]} in the second",
        "Give both the same tokens; two texts need the same number of tokens.",
    )


def _by_head(first: Rows, second: Rows, real: Array) -> dict[str, Array]:
    """What is measured of every head, [H] each; one head at a time, since a long text's matrices are large.

    Args:
        first, second: One site in both traces.
        real: [H,Q]: the rows that count in both.
    """
    out: dict[str, list[Array]] = {name: [] for name in ("largest", "mean", "divergence", "rank", "moved")}
    for one, two, rows in zip(first.weights, second.weights, real, strict=True):
        parts = [_rows(one[at], two[at], rows[at[0]]) for at in blocks(one.shape)]
        rank, apart, largest, total, count = (np.concatenate(part) for part in zip(*parts, strict=True))
        out["largest"].append(_largest(largest))
        out["mean"].append(total.sum() / count.sum() if count.any() else np.array(np.nan))
        out["divergence"].append(average(apart, where=rows))
        out["rank"].append(average(rank, where=rows))
        out["moved"].append(average((rank > 0).astype(np.float64), where=rows))
    return {name: np.array(values, np.float64) for name, values in out.items()}


def _rows(one: Array, two: Array, real: Array) -> tuple[Array, ...]:
    """Of some rows [Q,K] of one head: their ranks and divergences; the largest and the sum of their cells' differences,
    and how many cells have one; [Q] each.
    """
    gap = np.where(real[:, None], np.abs(one.astype(np.float64) - two), np.nan)
    known = ~np.isnan(gap)
    filled = np.where(known, gap, 0.0)
    count = known.sum(axis=-1)
    largest = np.where(count > 0, filled.max(axis=-1, initial=0.0), np.nan)
    return _ranks(one, two), jensen_shannon(one, two), largest, filled.sum(axis=-1), count


def _largest(gap: Array) -> Array:
    """Largest of a head's rows; NaN if every one is NaN."""
    top = np.where(np.isnan(gap), -1.0, gap).max(initial=-1.0)
    return np.where(top < 0, np.nan, top)


def _ranks(one: Array, two: Array) -> Array:
    """For each row, how many keys weigh more in the second than the first's strongest key does there, [Q]."""
    if not one.shape[-1]:
        return np.zeros(one.shape[:-1])
    top = np.argmax(one, axis=-1)[..., None]
    return np.asarray((two > np.take_along_axis(two, top, axis=-1)).sum(axis=-1), np.float64)


def _stages(first: Rows, second: Rows, real: Array) -> tuple[Stage | None, ...]:
    """How far each of `STAGES` differs over visible cells, some rows of one head at a time.

    Args:
        first, second: One site in both traces.
        real: [H,Q]: the rows that count in both.
    """
    cells = first.visible
    cells = cells & second.visible & real[..., None]
    out: list[Stage | None] = []
    for stage in STAGES:
        a, b = getattr(first.attention, stage), getattr(second.attention, stage)
        if a is None or b is None:
            out.append(None)
        else:
            out.append(together([_stage(*both) for both in zip(a[0], b[0], cells, strict=True)]))
    return tuple(out)


def _stage(one: Array, two: Array, cells: Array) -> Stage | None:
    found: list[Stage | None] = []
    for at in blocks(one.shape):
        left, right = one[at][cells[at]].astype(np.float64), two[at][cells[at]].astype(np.float64)
        if not left.size:
            continue
        with np.errstate(invalid="ignore"):
            size = float(np.max(np.abs(left - right)))
        same = size == 0 if np.isfinite(size) else bool(np.array_equal(left, right, equal_nan=True))
        found.append(Stage(size, float(np.max(np.abs(left))), same))
    return together(found)


def _notes(one: Trace, two: Trace) -> tuple[str, ...]:
    notes = []
    if one.tokens.pieces != two.tokens.pieces:
        same = one.model != two.model and one.tokens.text == two.tokens.text
        what = "the two models cut the text into different tokens" if same else "the two texts differ"
        notes.append(f"{what}: tokens are compared position by position")
    sorts = [[(a.site.component, a.site.kind) for a in trace.attentions] for trace in (one, two)]
    if sorts[0] != sorts[1]:
        notes.append("the sites are of different kinds; they are compared one by one")
    return tuple(notes)
