"""Scaling: the softmax of the unscaled and of the scaled scores, with mask and bias in both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from attnx.errors import UnsupportedError, UsageError
from attnx.formula import average
from attnx.measure.blockwise import Means, Spreads
from attnx.measure.rows import head_axes, head_labels, stack
from attnx.measure.softmax_rows import SoftmaxRows
from attnx.measure.unscaled import AsIf, Sides, Similarity, Ways, in_blocks, scale_in_words, scale_notes
from attnx.records import Array, Axis, Measurement, Trace
from attnx.tokens.spans import axis_labels
from attnx.wording import Wording

WAYS = ("unscaled", "scaled")
SATURATED = 0.99
"""A row is saturated if its largest weight is above this."""
SOURCE = "Vaswani et al. 2017, section 3.2.1"


@dataclass(frozen=True, slots=True)
class ScalingTable:
    """The effect of scaling on every head."""

    size: Measurement
    """[S]: d_k."""
    spread: Measurement
    """[S,H,2]: standard deviation of the visible scores, unscaled and scaled. Theory: sqrt(d_k) and 1."""
    entropy: Measurement
    """[S,H,2]: nats, unscaled and scaled."""
    largest: Measurement
    """[S,H,2]: mean largest weight."""
    saturated: Measurement
    """[S,H,2]: share of rows whose largest weight passes 0.99."""
    gradient: Measurement
    """[S,H,2]: mean of sum a (1 - a), which is 1 - sum a^2 where a row sums to 1."""
    divergence: Measurement
    """[S,H]: mean KL(scaled || unscaled), nats."""
    layers: Measurement
    """[S,11]: the mean of each of these over the heads of a layer."""
    notes: tuple[str, ...] = ()
    """Notes on the scale of these sites."""
    strongest: tuple[int, int, int] | None = None
    """Where scaling changes most, as from `strongest`; None if no row is real."""
    moved: float = -1.0
    """How far, as from `strongest`; -1 if no row is real."""


def row(
    trace: Trace, site: int, head: int, query: int, as_if: AsIf = "site", similarity: Similarity = "dot"
) -> Measurement:
    """One query's row: q.k | scaled | softmax of the unscaled | softmax of the scaled | difference.

    Args:
        trace: As for `both_ways`.
        site: Position in `trace.attentions`.
        head: Head number.
        query: Query position.
        as_if: See `both_ways`.
        similarity: See `both_ways`.

    Returns:
        [K,5]. A hidden key keeps its scores and has weight 0 both ways. Notes give d_k, the scale and what is hidden.

    Raises:
        UsageError: No such site, head or query.
        UnsupportedError: See `both_ways`.

    Source: Vaswani et al. 2017, equation 1.
    """
    heads, queries, keys = Sides(trace, site, as_if, similarity).shape
    if not (0 <= head < heads and 0 <= query < queries):
        raise UsageError(
            f"there is no head {head}, query {query} at {trace.labels[site]}",
            f"Heads run from 0 to {heads - 1}, queries from 0 to {queries - 1}.",
        )
    a = trace.attentions[site]
    ways = Sides(trace, site, as_if, similarity, slice(head, head + 1)).ways(slice(query, query + 1))
    at = (0, 0)
    before, after = np.exp(ways.unscaled[at]), np.exp(ways.scaled[at])
    hidden = int((~ways.seen[at]).sum())
    notes = [*scale_notes(trace, site, ways.size), *((f"{hidden} of {keys} keys are hidden",) if hidden else ())]
    score = "q·k" if similarity == "dot" else "cosine"
    return Measurement(
        name="scaling row",
        unit="",
        axes=(
            Axis("key", axis_labels(trace.keys_of(a), keys)),
            Axis("column", (score, "scaled", "softmax of unscaled", "softmax of scaled", "difference")),
        ),
        values=np.stack([ways.product[at], ways.divided[at], before, after, after - before], axis=-1),
        source=SOURCE,
        formula=f"softmax({score}) against softmax({score} × {scale_in_words(a, ways.size, as_if)}), mask on in both",
        notes=tuple(notes),
    )


def mean_row(rows: Sequence[Measurement]) -> Measurement:
    """Merge the rows of several queries: the mean of their scores, and of their softmaxes.

    Args:
        rows: Rows of one head from `row`; at least one.
    """
    if len(rows) == 1:
        return rows[0]
    notes = (f"the mean of {len(rows)} rows: of their scores, and of what each one's softmax gives", *rows[0].notes)
    return replace(rows[0], values=np.mean([one.values for one in rows], axis=0), notes=notes)


def strongest(trace: Trace, sites: Sequence[int] | None = None, head: int | None = None) -> tuple[int, int, int]:
    """Where scaling changes most: site, head and query with the largest sum_j |scaled - unscaled| / 2.

    Args:
        trace: As for `both_ways`.
        sites: Positions to search; all by default.
        head: Only this head.

    Returns:
        Position of the site, head, query.

    Raises:
        UnsupportedError: No row is real, or see `both_ways`.

    Source: attnx (total variation).
    """
    best, where = largest_move(trace, sites, head)
    if best < 0:
        raise nothing_to_show()
    return where


def nothing_to_show() -> UnsupportedError:
    """The error to raise if no row is real."""
    return UnsupportedError(
        "no row has a weight to show: every query is hidden, padding or NaN",
        Wording("<attnx.measure.visibility.visibility()> shows what is hidden."),
    )


def largest_move(
    trace: Trace, sites: Sequence[int] | None = None, head: int | None = None
) -> tuple[float, tuple[int, int, int]]:
    """Like `strongest`: how far that is, and where; -1 if no row is real."""
    best, where = -1.0, (-1, -1, -1)
    skipped = _Skipped(trace)
    for site in range(len(trace.attentions)) if sites is None else sites:
        for first, row, ways in skipped.blocks(site, head):
            gap = _moved(ways, *_softmaxes(ways))
            if gap.size and gap.max() > best:
                best, where = float(gap.max()), _place(site, first, row, gap)
    skipped.check()
    return best, where


def strongest_head(trace: Trace, query: int | Sequence[int]) -> tuple[int, int]:
    """Which head's row of one query scaling changes most: the largest sum_j |scaled - unscaled| / 2.

    Args:
        trace: As for `both_ways`.
        query: Query position, or several, whose mean is taken; sites without such a query are skipped.

    Returns:
        Position of the site, head.

    Raises:
        UnsupportedError: That query is hidden, padding or NaN everywhere, or see `both_ways`.

    Source: attnx (total variation).
    """
    best, where = largest_move_of(trace, query)
    if best < 0:
        raise unseen()
    return where


def unseen() -> UnsupportedError:
    """The error to raise if a token has no row."""
    return UnsupportedError(
        "that token has no weights to show: it is padding, or sees nothing", "Look from another token (-q)."
    )


def largest_move_of(trace: Trace, query: int | Sequence[int]) -> tuple[float, tuple[int, int]]:
    """Like `strongest_head`: how far that is, and where; -1 if the query is hidden everywhere."""
    best, where = -1.0, (-1, -1)
    skipped = _Skipped(trace)
    for site in range(len(trace.attentions)):
        asked = [query] if isinstance(query, int) else list(query)
        for first, gaps in skipped.rows(site, asked):
            gap = np.mean(gaps, axis=0)
            if gap.size and gap.max() > best:
                best, where = float(gap.max()), (site, first + int(np.argmax(gap)))
    skipped.check()
    return best, where


def all_heads(trace: Trace, as_if: AsIf = "site", similarity: Similarity = "dot") -> ScalingTable:
    """Every head with and without the scale: spread of scores, entropy, largest weight, saturation, gradient, KL.

    Args:
        trace: As for `both_ways`.
        as_if: See `both_ways`.
        similarity: See `both_ways`.

    Returns:
        See `ScalingTable`. Means over real rows; spread over all visible cells of real rows. Sites without scores
        (additive attention) are left out, and a note says so.

    Raises:
        UnsupportedError: No site can be measured; see `both_ways`.

    Source: Vaswani et al. 2017, section 3.2.1 (the reason for the scale); entropy Clark et al. 2019.
    """
    sizes: list[float] = []
    columns: dict[str, list[Array]] = {name: [] for name in ("spread", "entropy", "largest", "saturated", "gradient")}
    divergence, notes_of_scale, measured = [], [], []
    best, where = -1.0, None
    skipped = _Skipped(trace, as_if, similarity)
    for site in range(len(trace.attentions)):
        means, spreads = Means(), Spreads()
        size = None
        for first, row, ways in skipped.blocks(site):
            size = ways.size
            cells = ways.seen & ways.real[..., None]
            spreads.add(first, (ways.product, ways.divided), cells)
            before, after = _softmaxes(ways)
            for name, values in _summaries((before, after)).items():
                means.add(name, first, values, ways.real)
            means.add("kl", first, after.divergence(before)[None], ways.real)
            gap = _moved(ways, before, after)
            if gap.size and gap.max() > best:
                best, where = float(gap.max()), _place(site, first, row, gap)
        if not means.known:
            continue
        measured.append(site)
        sizes.append(np.nan if size is None else float(size))
        notes_of_scale += scale_notes(trace, site, size)
        for name, column in columns.items():
            column.append(spreads.of() if name == "spread" else means.of(name))
        divergence.append(means.of("kl")[:, 0])
    skipped.check()
    notes = [*skipped.notes, *notes_of_scale]
    _, heads = head_axes(trace, [len(one) for one in divergence])
    layer = Axis("layer", tuple(trace.labels[site] for site in measured))

    def both(name: str, unit: str, formula: str, upper: float | None) -> Measurement:
        parts = columns[name]
        values = stack(parts) if parts else np.zeros((0, 0, 2))
        return Measurement(_NAMES[name], unit, (layer, heads, Axis("way", WAYS)), values, (0.0, upper), SOURCE, formula)

    table = [
        both("spread", "", "standard deviation of the visible scores (theory: sqrt(d_k), then 1)", None),
        both("entropy", "nats", "mean over queries of -sum a ln a, a row scaled to sum to 1", None),
        both("largest", "share", "mean over queries of max a", 1.0),
        both("saturated", "share of rows", f"share of queries with max a > {SATURATED}", 1.0),
        both("gradient", "", "mean over queries of sum a (1 - a), which is 1 - sum a^2 if a row sums to 1", 1.0),
    ]
    kl = Measurement(
        "KL(scaled || unscaled)", "nats", (layer, heads), stack(divergence), (0.0, None), SOURCE,
        "mean over queries of sum a ln(a / a°), a° unscaled; a sink's share is one of them",
    )  # fmt: skip
    spread, row_entropy, largest, saturated, gradient = table
    return ScalingTable(
        size=Measurement("d_k", "", (layer,), np.array(sizes, np.float64), (1.0, None), SOURCE, "head size"),
        spread=spread,
        entropy=row_entropy,
        largest=largest,
        saturated=saturated,
        gradient=gradient,
        divergence=kl,
        layers=layer_means(table, kl),
        notes=tuple(dict.fromkeys(notes)),
        strongest=where,
        moved=best,
    )


def layer_means(both: Sequence[Measurement], kl: Measurement) -> Measurement:
    """The mean of each measure of `ScalingTable` over the heads of a layer, [S,11].

    Args:
        both: Spread, entropy, largest, saturated, gradient; [S,H,2] each.
        kl: The divergence, [S,H].
    """
    means = [average(m.values[..., way], axis=1) for m in both for way in (0, 1)] + [average(kl.values, axis=1)]
    return Measurement(
        name="layer means",
        unit="",
        axes=(kl.axes[0], Axis("column", (*(f"{m.name} {way}" for m in both for way in WAYS), kl.name))),
        values=np.stack(means, axis=-1),
        source=SOURCE,
        formula="mean over the heads of a layer",
    )


def sweep(trace: Trace, divisors: Sequence[float] | None = None) -> Measurement:
    """Entropy, largest weight and saturation as the divisor goes from 1 to d_k.

    Args:
        trace: As for `both_ways`.
        divisors: What scores are divided by; by default powers of two up to the largest d_k, and sqrt(d_k).

    Returns:
        [divisors,S+1,3]: mean over heads of a layer and over all layers ("all"), of entropy in nats, largest weight
        and share of saturated rows.

    Raises:
        UsageError: A divisor is not positive and finite.
        UnsupportedError: See `both_ways`.

    Source: attnx, after Vaswani et al. 2017, section 3.2.1.
    """
    return mean_sweep(sweep_heads(trace, divisors))


def sweep_heads(trace: Trace, divisors: Sequence[float] | None = None) -> Measurement:
    """Like `sweep`, for every head, [S,H,divisors,3]."""
    given = None if divisors is None else [float(d) for d in divisors]
    if given is not None and any(not (np.isfinite(d) and d > 0) for d in given):
        raise UsageError("a divisor has to be a positive number", Wording("For example: <divisors=[8]>."))
    skipped = _Skipped(trace)
    steps = given if given is not None else steps_to(_sizes(trace))
    found: list[Array] = []
    sites = []
    for site in range(len(trace.attentions)):
        means = Means()
        for first, _, ways in skipped.blocks(site):
            for d in steps:
                for name, values in _summaries((_of_scores(ways, ways.product / d),)).items():
                    means.add((name, d), first, values, ways.real)
        if means.known:
            sites.append(site)
            each = [np.stack([means.of((name, d))[:, 0] for name in _SWEPT], axis=-1) for d in steps]
            found.append(np.stack(each, axis=1))
    skipped.check()
    return Measurement(
        name="scaling sweep",
        unit="",
        axes=(
            Axis("layer", tuple(trace.labels[site] for site in sites)),
            Axis("head", head_labels(max(map(len, found), default=0))),
            Axis("divisor", tuple(f"{d:g}" for d in steps)),
            Axis("measure", ("entropy", "largest weight", "saturated rows")),
        ),
        values=stack(found),
        source=SOURCE,
        formula="softmax(q·k / divisor), mask on; means over queries and heads",
        notes=tuple(skipped.notes),
    )


def mean_sweep(heads: Measurement) -> Measurement:
    """The means over heads of each layer and over all layers, as `sweep` gives them, of what `sweep_heads` gives."""
    layer, _, divisor, measure = heads.axes
    rows = np.moveaxis(average(heads.values, axis=1), 1, 0)
    values = np.concatenate([rows, average(rows, axis=1)[:, None]], axis=1)
    return replace(heads, axes=(divisor, replace(layer, labels=(*layer.labels, "all")), measure), values=values)


_NAMES = {
    "spread": "score spread",
    "entropy": "entropy",
    "largest": "largest weight",
    "saturated": "saturated rows",
    "gradient": "gradient size",
}


_SWEPT = ("entropy", "largest", "saturated")


class _Skipped:
    """The sites of a trace both ways, a few heads at a time; sites where that is impossible are skipped."""

    def __init__(self, trace: Trace, as_if: AsIf = "site", similarity: Similarity = "dot") -> None:
        self._trace, self._as_if, self._similarity = trace, as_if, similarity
        self._failed: UnsupportedError | None = None
        self._done = False
        self.notes: list[str] = []
        """Notes on the skipped sites."""

    def blocks(self, site: int, head: int | None = None) -> Iterator[tuple[int, int, Ways]]:
        """One site in blocks, each with the numbers of its first head and its first row; see `in_blocks`."""
        try:
            for block in in_blocks(self._trace, site, self._as_if, self._similarity, head):
                self._done = True
                yield block
        except UnsupportedError as error:
            self._leave_out(site, error)

    def rows(self, site: int, queries: Sequence[int]) -> Iterator[tuple[int, list[Array]]]:
        """How far scaling moves some rows of each head of a site, [1] each; none if it has no such row."""
        try:
            count = Sides(self._trace, site, self._as_if, self._similarity).shape
            self._done = True
            for head in range(count[0] if max(queries) < count[1] else 0):
                sides = Sides(self._trace, site, self._as_if, self._similarity, slice(head, head + 1))
                some = [sides.ways(slice(one, one + 1)) for one in queries]
                yield head, [_moved(ways, *_softmaxes(ways))[:, 0] for ways in some]
        except UnsupportedError as error:
            self._leave_out(site, error)

    def _leave_out(self, site: int, error: UnsupportedError) -> None:
        self._failed = error
        said = Wording("{site} is left out: {why}", site=self._trace.labels[site], why=error.message)
        self.notes.append(said)

    def check(self) -> None:
        """Fail if no site can be shown.

        Raises:
            UnsupportedError: The last site's reason.
        """
        if not self._done and self._failed is not None:
            raise self._failed


def _softmaxes(ways: Ways) -> tuple[SoftmaxRows, SoftmaxRows]:
    """Both softmaxes, unscaled and scaled."""
    return _of_scores(ways, ways.product), SoftmaxRows(ways.scaled_logits(), ways.sink)


def _of_scores(ways: Ways, scores: Array) -> SoftmaxRows:
    """The softmax of other scores [H,Q,K]."""
    return SoftmaxRows(ways.logits(scores), ways.sink)


def _moved(ways: Ways, before: SoftmaxRows, after: SoftmaxRows) -> Array:
    """How far scaling moves each row, sum_j |scaled - unscaled| / 2, [H,Q]; -1 if not real."""
    return np.where(ways.real, after.distance(before), -1.0)


def _place(site: int, first: int, row: int, gap: Array) -> tuple[int, int, int]:
    """Site, head and query of the largest value in a block that begins at a head and a row."""
    head, query = np.unravel_index(int(np.argmax(gap)), gap.shape)
    return site, first + int(head), row + int(query)


def _sizes(trace: Trace) -> list[int]:
    """d_k of every site that has a product, if it is known."""
    own = [a for a in trace.attentions if a.site.kind in ("self", "cross")]
    return [a.site.head_size or (a.query.shape[-1] if a.query is not None else 1) for a in own]


def _summaries(each: Sequence[SoftmaxRows]) -> dict[str, Array]:
    """What is measured of rows: name -> [len(each),H,Q]."""
    top = np.stack([rows.largest() for rows in each])
    return {
        "entropy": np.stack([rows.entropy() for rows in each]),
        "largest": top,
        "saturated": np.where(np.isnan(top), np.nan, top > SATURATED),
        "gradient": np.stack([rows.gradient() for rows in each]),
    }


def steps_to(sizes: Sequence[int]) -> list[float]:
    """Divisors from 1 to d_k: powers of two, sqrt(d_k) and d_k of every size."""
    top = max(sizes, default=1)
    powers = [2.0**power for power in range(int(np.log2(top)) + 1)]
    return sorted({*powers, *(float(size) for size in sizes), *(float(size) ** 0.5 for size in sizes)})
