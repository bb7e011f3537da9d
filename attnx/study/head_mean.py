"""Reduce the matrices of all heads of a site to one inside the graph: their mean, or the largest of each cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from attnx.records import Attention, Site, Trace
from attnx.run.dry_run import DryRun, reduce
from attnx.session.protocol import OpenModel
from attnx.study.head_stats import checked_rows, read_stats, rows_sum_to_one, sample
from attnx.taps.reductions import ROWS, fits

MEANS = ("total", "mean", "most_masked", "masked", "weights")
"""What is reduced and gathered for means; for the largest, "most" replaces "mean"."""


def over_heads(
    model: OpenModel, planned: DryRun, sites: Sequence[Site], wanted: Sequence[str] = MEANS
) -> tuple[Trace, dict[int, int]] | None:
    """The mean or the largest over the heads of each site.

    Args:
        model: The model.
        planned: The run.
        sites: The sites.
        wanted: `MEANS`, or the same with "most" for "mean".

    Returns:
        A trace whose sites have weights, and masked scores (the largest over heads), as if of one head, [1,1,Q,K]; and
        by a site's index over how many heads that is. None where the graph or the text does not allow it, or a check
        does not hold.
    """
    total, stat, masked, *_ = wanted
    fit = all(fits(site, one) for site in sites for one in (total, stat, masked))
    if not sites or not planned.single or not fit or any(site.kind != "self" for site in sites):
        return None
    some = sample(len(planned.tokens))
    done = reduce(model, planned, sites, wanted, {ROWS: some})
    if done is None:
        return None
    trace, tapped, values = done
    attentions, counts = [], {}
    for attention in checked_rows(sites, tapped, values, some):
        found = read_stats(attention.site, tapped, values)
        counts[attention.site.index] = len(found[total])
        if not attention.trusted or not rows_sum_to_one(attention, found[total]).holds:
            return None
        one, hidden = (found[name][None, None] for name in (stat, masked))
        attentions.append(Attention(attention.site, masked=hidden, weights=one))
    return replace(trace, attentions=tuple(attentions)), counts
