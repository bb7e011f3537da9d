"""Which keys are visible to which queries, read in the graph: one matrix of cells per site, not one per head."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from attnx.formula import HIDDEN, UNDERFLOW, visible
from attnx.measure.visibility import Cells, visibility, visibility_of_cells
from attnx.records import Array, Attention, Site, Trace
from attnx.run.check import attentions as checked
from attnx.run.dry_run import DryRun, dry_run, reduce
from attnx.run.prompt import Prompt
from attnx.run.read import read
from attnx.session.protocol import OpenModel
from attnx.study.head_stats import read_stats, sample, stages_of
from attnx.study.selection import run_trusted
from attnx.taps.reductions import ADDED, ROWS, before_mask, fits

if TYPE_CHECKING:
    from attnx.measure.visibility import Visibility

ARRAYS = ("capped", "masked", "weights")


def masks(
    model: OpenModel, prompt: Prompt, layers: Collection[int] | None, site: str | None
) -> tuple[Trace, list[Visibility], tuple[str, ...]]:
    """The mask of every site, as it acted on a text.

    Args:
        model: The model.
        prompt: The prompt to run it on.
        layers: Only sites of these layers.
        site: Only sites of this kind.

    Returns:
        The trace (whose sites may have no arrays), the masks of its sites, and notes on sites left out.
    """
    planned = None if site is not None else dry_run(model, prompt)
    found = None if planned is None else _cells(model, planned, planned.sites(model, layers))
    if found is not None:
        return *found, ()
    trace, doubts = run_trusted(model, prompt, ARRAYS, layers=layers, site=site)
    return trace, [visibility(trace, at) for at in range(len(trace.attentions))], doubts


def _cells(model: OpenModel, planned: DryRun, sites: Sequence[Site]) -> tuple[Trace, list[Visibility]] | None:
    """The masks by cells; None if a graph lacks what this takes, heads differ, or a check fails."""
    count = len(planned.tokens)
    good = [s.kind == "self" and before_mask(s) is not None and fits(s, "total") and fits(s, ADDED[0]) for s in sites]
    if not sites or not all(good) or not planned.single:
        return None
    some = sample(count, 4)  # the mask itself is fetched whole
    found = reduce(model, planned, sites, (*ADDED, *ARRAYS), {ROWS: some})
    if found is None:
        return None
    trace, tapped, values = found
    few = checked(read(sites, stages_of(tapped), values, ARRAYS, some.tolist()), ARRAYS)
    shown, attentions = [], []
    masks: dict[tuple[str, ...], tuple[Array, Cells] | None] = {}  # sites that add the same tensor share one
    for attention in few:
        names = tuple(tapped.taps[attention.site.index][name] for name in ADDED)
        if names not in masks:
            seen = _seen(read_stats(attention.site, tapped, values), count)
            masks[names] = None if seen is None else (seen, Cells.of_text(trace, seen))
        mask = masks[names]
        few_seen = None if mask is None else _few_seen(attention, *mask, some)
        if mask is None or few_seen is None:
            return None
        attention = _with_causal(attention, mask[1])
        attentions.append(Attention(attention.site, checks=attention.checks))
        shown.append(visibility_of_cells(mask[1], attention, few_seen))
    return replace(trace, attentions=tuple(attentions)), shown


def _seen(stats: Mapping[str, Array], count: int) -> Array | None:
    """Bool [Q,K] by the same rule as `formula.visible`, or None if the heads differ."""
    most, least = (stats[name] for name in ADDED)
    if most.ndim != 2 or most.shape[0] not in (1, count) or most.shape[1] not in (1, count):
        return None
    most, least = (np.broadcast_to(array, (count, count)) for array in (most, least))
    hidden, seen = most <= HIDDEN, least > UNDERFLOW
    return seen if (hidden ^ seen).all() else None


def _few_seen(attention: Attention, seen: Array, cells: Cells, rows: Array) -> Array | None:
    """What the fetched rows show, bool [H,rows,K]; None unless the checks hold, the rows agree with the mask, and
    they include a hidden cell if there is one.
    """
    if not attention.trusted or attention.masked is None or attention.capped is None or attention.weights is None:
        return None
    of_heads = visible(attention.masked[0], attention.capped[0], attention.weights[0])
    alike = bool((of_heads == seen[rows]).all())
    return of_heads if alike and (not cells.hidden or not seen[rows].all()) else None


def _with_causal(attention: Attention, cells: Cells) -> Attention:
    """The site with `causal` settled by the mask if the graph left it open."""
    site = attention.site
    if site.causal is not None or len(cells.union) < 2:
        return attention
    return replace(
        attention, site=replace(site, causal=not cells.ahead, notes=(*site.notes, "causal: measured on this input"))
    )


__all__ = ["masks"]
