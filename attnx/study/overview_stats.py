"""The overview of a long text, reduced in the graph: its findings without the matrices of every head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from attnx.measure import looks
from attnx.measure.looks import Look
from attnx.records import Array, Site, Trace
from attnx.run.dry_run import DryRun
from attnx.session.protocol import OpenModel
from attnx.study.head_stats import reduced
from attnx.study.head_table import table_of
from attnx.taps.reductions import PAIRS, fits, outer_words

if TYPE_CHECKING:
    from attnx.measure.heads import HeadTable
    from attnx.study.request import Request

ALL = ("received", "pair", "pair_at")
LAST = ("pairs", "pairs_head")


@dataclass(frozen=True, slots=True)
class Glance:
    """What the overview needs, in the form that `findings.findings` takes."""

    trace: Trace
    """Without arrays."""
    table: HeadTable
    columns: tuple[looks.Column, ...]
    """By site, what its keys receive."""
    looks: tuple[tuple[Look, ...], ...]
    """Of the last site."""
    pairs: Mapping[tuple[int, int], Look | None]
    """Site's position and head -> the largest weight between two different tokens that are not special."""


def glance(model: OpenModel, planned: DryRun, request: Request) -> Glance | None:
    """Make a run for the overview of a long text.

    Returns:
        None if the graph or the text does not allow it, or a check fails.
    """
    sites = planned.sites(model, request.traced_layers)
    if not sites or not planned.single or not all(_fits(site) for site in sites):
        return None
    more = {site.index: ALL for site in sites} | {sites[-1].index: (*ALL, *LAST)}
    found = reduced(model, planned, sites, more, {PAIRS: looks.pairs_of(planned.tokens).astype(np.float32)})
    if found is None:
        return None
    trace, stats, cells = found
    counted = [(s["total"] > 0) & (s.get("visible", s["total"]) > 0) for s in stats.values()]
    if not all(rows.all() for rows in counted) or not all(a.trusted for a in trace.attentions):
        return None
    last, count = stats[sites[-1].index], len(planned.tokens)
    best, heads = (last[name].reshape(count, count) for name in LAST)
    return Glance(
        trace,
        table_of(trace, stats, cells),
        tuple(looks.column_of(planned.tokens, stats[site.index]["received"]) for site in sites),
        looks.looks_of(len(sites) - 1, best, heads),
        {
            (at, head): _pair(at, head, stats[site.index], count)
            for at, site in enumerate(sites)
            for head in range(len(stats[site.index]["pair"]))
        },
    )


def _fits(site: Site) -> bool:
    """Whether the heads are one axis of a site's matrix, so that the position of the largest weight names a head."""
    place = site.places.get("weights")
    words = () if place is None else outer_words(place.layout)
    return site.kind == "self" and fits(site, "pair") and sum("h" in word for word in words) == 1 and len(words) <= 2


def _pair(site: int, head: int, stats: Mapping[str, Array], count: int) -> Look | None:
    value = float(stats["pair"][head])
    query, key = divmod(int(stats["pair_at"][head]), count)
    return Look(site, head, query, key, value) if value > 0 else None
