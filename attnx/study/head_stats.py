"""Measures of heads from reductions inside the graph: no matrix leaves the session.

The numbers equal those of attnx.measure on whole matrices up to float32 rounding; if a model or a site does not
allow the reduction, its matrices are fetched and measured instead.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from attnx.formula import sees_nothing, visible
from attnx.measure.rows import head_axes
from attnx.records import Array, Attention, Check, Site, Tokens, Trace
from attnx.run.check import TOLERANCE, sums_to_one
from attnx.run.check import attentions as checked
from attnx.run.dry_run import DryRun, dry_run, reduce
from attnx.run.pipeline import execute
from attnx.run.prompt import Prompt
from attnx.run.read import is_quantised, read
from attnx.run.rounding import allowed, step_of
from attnx.run.unseen import blind_rows
from attnx.session.protocol import OpenModel, Wanted
from attnx.study.head_table import asked, table, table_of
from attnx.study.key_masks import Cells, cells_of, repeats
from attnx.taps.reductions import (
    AWAY,
    CELLS,
    ENTROPIES,
    FIRST,
    KEEP,
    MARKS,
    OVER_HEADS,
    ROWS,
    STATS,
    UP_TO,
    fits,
    read_stat,
)
from attnx.taps.tap import Tapped

if TYPE_CHECKING:
    from attnx.measure.heads import HeadTable
    from attnx.run.batch import Batch  # threads and their logging: for a corpus

CHECKED = ("masked", "weights")
"""The quantities of which a few rows are gathered and checked against one another."""
SAMPLED = 16
"""How many rows are gathered for the checks."""
TOGETHER = 512
"""Up to this many tokens, distances are summed over all cells of a head at once: float32 was off by 5e-5 of the sum at
512 tokens and by 2e-6 at 128. Longer texts, where the error would be larger, are summed row by row; and of their heads,
what entropy takes beside scores and weights is held for one at a time, which costs more than it saves in short ones."""


def heads(
    model: OpenModel,
    prompt: Prompt,
    layers: Collection[int] | None = None,
    choose: Callable[[Trace], Trace] = lambda trace: trace,
) -> tuple[HeadTable, Trace]:
    """Every measure of every head; no matrix leaves the session.

    Args:
        model: The model.
        prompt: The prompt to run it on.
        layers: Only sites of these layers.
        choose: Selects which sites of the trace are measured, such as those whose checks hold.

    Returns:
        What `measure.describe_heads` returns for the whole matrices, and the trace, whose sites have no arrays, only
        checks: that all rows sum to 1 and, for a few rows, that weights = softmax(masked).
    """
    from attnx.measure import describe_heads

    planned = dry_run(model, prompt)
    found = None if planned is None else reduced(model, planned, planned.sites(model, layers))
    if found is None:
        whole = choose(execute(model, prompt, Wanted(layers, ("masked", "weights"))))
        return describe_heads(whole), _bare(whole)
    trace, stats, cells = found
    trace = choose(trace)
    return table_of(trace, stats, cells), trace


def _bare(trace: Trace) -> Trace:
    """A trace without arrays."""
    return replace(trace, attentions=tuple(Attention(a.site, checks=a.checks) for a in trace.attentions))


def reduced(
    model: OpenModel,
    planned: DryRun,
    sites: Sequence[Site],
    more: Mapping[int, Collection[str]] = MappingProxyType({}),
    extra: Mapping[str, Array] = MappingProxyType({}),
) -> tuple[Trace, Mapping[int, Mapping[str, Array]], Cells] | None:
    """The trace without arrays, and statistics by site; None if the graph or the text does not allow it.

    Args:
        model: The model.
        planned: The run.
        sites: The sites.
        more: By a site's index, statistics in addition to those that the measures need.
        extra: The arrays that these need.
    """
    tokens = planned.tokens
    plan = _plan(sites, tokens, planned.own) if planned.single else None
    if plan is None:
        return None
    cells, some = cells_of(tokens), sample(len(tokens))
    unlike = {site.index: () if "visible" in plan else (_unlike(site),) for site in sites}
    wanted = {i: (*plan, *one, *more.get(i, ()), *CHECKED) for i, one in unlike.items()}
    done = reduce(model, planned, sites, wanted, {**_inputs(tokens, cells), **extra, ROWS: some})
    if done is None:
        return None
    trace, tapped, values = done
    stats = {site.index: read_stats(site, tapped, values) for site in sites}
    if any(s["total"].shape[1] != len(tokens) or np.isnan(s["total"]).any() for s in stats.values()):
        return None
    gathered = checked_rows(sites, tapped, values, some)
    as_declared = all(not stats[i][name] for i, names in unlike.items() for name in names)
    if "visible" not in plan and not (as_declared and all(_see_all(one, some) for one in gathered)):
        return reduced(model, replace(planned, own=True), sites, more, extra)
    attentions = tuple(
        Attention(a.site, checks=(rows_sum_to_one(a, stats[a.site.index]["total"]), *a.checks[1:])) for a in gathered
    )
    trace = replace(trace, attentions=attentions)
    counts = {label: stats[a.site.index].get("visible") for label, a in zip(trace.labels, attentions, strict=True)}
    notes = blind_rows({label: (seen == 0).all(axis=0) for label, seen in counts.items() if seen is not None})
    return replace(trace, notes=(*trace.notes, *notes)), stats, cells


def _unlike(site: Site) -> str:
    """The statistic that says whether any cell of a site's mask is other than the site declares."""
    return "not_causal" if site.causal else "not_full"


def sample(count: int, most: int = SAMPLED) -> Array:
    """A few row numbers of a matrix, from the first to the last, int64: the rows that are checked."""
    return np.unique(np.linspace(0, count - 1, most).astype(np.int64))


def _see_all(some: Attention, rows: Array) -> bool:
    """Whether each of some rows sees the whole text; or, of a causal site, all of it up to itself.

    A mask inside the graph may hide more: a token from itself, and so every key from the first.
    """
    if some.masked is None:
        return True
    seen = visible(some.masked[0]) & ~sees_nothing(some.masked[0])[..., None]
    places = np.arange(seen.shape[-1])
    return bool((seen == ((places <= rows[:, None]) | (some.site.causal is not True))).all())


def checked_rows(
    sites: Sequence[Site], tapped: Tapped, values: Mapping[str, Array], rows: Array
) -> tuple[Attention, ...]:
    """Check the gathered rows of the quantities `CHECKED` against one another."""
    return checked(read(sites, stages_of(tapped), values, CHECKED, rows.tolist()), CHECKED)


def stages_of(tapped: Tapped) -> Tapped:
    """The taps without statistics."""
    taps = {i: {q: name for q, name in names.items() if q not in STATS} for i, names in tapped.taps.items()}
    return replace(tapped, taps=taps)


def _plan(sites: Sequence[Site], tokens: Tokens, own: bool) -> list[str] | None:
    """The statistics that are needed; None if a site cannot be reduced in the graph."""
    plan = ["total", "entropy" if len(tokens) <= TOGETHER else "entropy_single", "largest", "marks", "cells"]
    if any(tokens.special):
        plan.append("kept")
    if own or any(site.causal is not True for site in sites):
        plan.append("apart" if len(tokens) <= TOGETHER and not own else "away")  # by row, where rows may not count
    if own or any(site.causal is None or site.window is not None for site in sites):
        plan += ["visible", "seen"]
    good = sites and all(tokens.mask) and all(s.kind == "self" and fits(s, stat) for s in sites for stat in plan)
    return plan if good else None


def _inputs(tokens: Tokens, cells: Cells) -> dict[str, Array]:
    from attnx.measure.special import is_punctuation

    places = np.arange(len(tokens))
    special = np.asarray(tokens.special, bool)
    each = (special, np.asarray(is_punctuation(tokens), bool), places == 0, places, np.ones(len(tokens)))
    marks = np.stack(each, axis=1)
    return {
        KEEP: (~special).astype(np.float32),
        MARKS: marks.astype(np.float32),
        CELLS: cells.flat,
        AWAY: _apart(len(tokens)),
        FIRST: np.zeros(1, np.int64),
        UP_TO: np.tri(len(tokens), dtype=bool),
    }


def _apart(count: int) -> Array:
    """|i - j| of each cell, float32 [Q,K]."""
    places = np.arange(count, dtype=np.float32)
    gap = np.subtract.outer(places, places)
    return np.asarray(np.abs(gap, out=gap))


def read_stats(site: Site, tapped: Tapped, values: Mapping[str, Array]) -> dict[str, Array]:
    """Statistics of one site for the first sequence: of rows [H,Q], marks [H,Q,M], cells [H,P], columns [H,K]; what is
    over heads as it is.
    """
    from attnx.taps.reductions import source

    out = {}
    for stat, name in tapped.taps[site.index].items():
        if stat in STATS:
            found = read_stat(values[name], site.places[source(stat)], stat, 1)
            out["entropy" if stat in ENTROPIES else stat] = found if stat in OVER_HEADS else found[0]
    return out


def rows_sum_to_one(some: Attention, total: Array) -> Check:
    """Check that all rows sum to 1: the gathered ones by their scores, all by their sums alone.

    Args:
        some: The gathered rows, checked.
        total: The sums of all rows [H,Q].
    """
    weights, first = some.need("weights"), some.checks[0]
    step = step_of(weights) if is_quantised(some.site) else 0.0
    tolerance = min(first.tolerance, TOLERANCE["low"])
    every = sums_to_one(some.site, total, tolerance, allowed(total, step, weights.shape[-1]))
    return every if first.holds else first


def of_batch(batch: Batch, choose: Callable[[Trace], Trace]) -> list[tuple[HeadTable, Trace]]:
    """Like `heads` for each text of a batch whose matrices were fetched; measured together if possible."""
    from attnx.measure import describe_heads
    from attnx.study.batch_head_stats import REST_NAMES, measure

    traces = list(batch.traces())
    names = [*(one.name for one in asked()), *REST_NAMES]
    values = measure(batch, names) if all(a.trusted for a in batch.attentions) else None
    if values is None:
        kept = [choose(trace) for trace in traces]
        return [(describe_heads(one), _bare(one)) for one in kept]
    sites = {a.site.index: (at, a.need("weights").shape[1]) for at, a in enumerate(batch.attentions)}
    out = []
    for at, trace in enumerate(traces):
        trace = choose(_bare(trace))
        places = [sites[a.site.index] for a in trace.attentions]
        columns = [{name: values[name][at, site, :heads] for name in names} for site, heads in places]
        axes = head_axes(trace, [heads for _, heads in places])
        out.append((table(columns, axes, repeats(cells_of(trace.tokens))), trace))
    return out
