"""What coreference needs from a run: the pronouns' own rows, and the total that each key receives from all rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from attnx.measure.rows import Received
from attnx.records import Array, Site, Trace
from attnx.run.check import attentions as checked
from attnx.run.dry_run import DryRun, dry_run, reduce
from attnx.run.pipeline import execute
from attnx.run.prompt import Prompt
from attnx.run.query_rows import named
from attnx.run.read import read, shown
from attnx.session.protocol import OpenModel, Wanted
from attnx.study.antecedents import ARRAYS, maps
from attnx.study.head_stats import read_stats, stages_of
from attnx.study.mentioned import candidates, pronouns
from attnx.study.selection import trusted
from attnx.taps.reductions import ENDS, NORMS, ROLLOUTS, ROWS, START, fits
from attnx.tokens.spans import Mention

SEEN = tuple(name for name in ARRAYS if name != "value")
"""What is fetched for the pronouns' rows; instead of the value, its contribution."""
ROOM = 1 << 29
"""Up to this many bytes of all layers' means are held for whole rows of the rollout."""


@dataclass(frozen=True, slots=True)
class Pointing:
    """A run in the form that `antecedents.resolve` takes."""

    trace: Trace
    """The whole trace, or only the pronouns' rows."""
    maps: Mapping[str, Array]
    notes: tuple[str, ...]
    """Notes besides the trace's own."""
    received: Mapping[int, Received] = field(default_factory=dict)
    """By a site's index; empty if the trace is whole."""


def point(model: OpenModel, prompt: Prompt, from_: str | None, to: str | None = None) -> Pointing:
    """Run a model for the pronouns of a text.

    Args:
        model: The model.
        prompt: The prompt to run it on.
        from_: The word to look from; None for every pronoun in the text.
        to: The candidates, as for `antecedents.resolve`.

    Returns:
        The pronouns' rows if the graph and the text allow it: then no matrix leaves the session, and the rollout is
        computed inside it: for a long text, only where it ends at a candidate, the rest is NaN. Otherwise whole
        matrices.

    Raises:
        InputError: There is no such word, or no pronoun.
        UnsupportedError: No site can be trusted.
    """
    planned = dry_run(model, prompt)
    found = None if planned is None else _rows(model, planned, from_, to)
    trace, rollout, received, sizes = found or (None, {}, {}, {})
    doubts: tuple[str, ...] = ()
    if trace is None or not all(a.trusted for a in trace.attentions):
        trace, doubts = trusted(execute(model, prompt, Wanted(quantities=ARRAYS)))
        rollout, received, sizes = {}, {}, {}
    by_name, about = maps(model, trace, prompt.inputs, rollout, sizes)
    return Pointing(trace, by_name, (*doubts, *about), received)


def _rows(
    model: OpenModel, planned: DryRun, from_: str | None, to: str | None
) -> tuple[Trace, Mapping[str, Array], Mapping[int, Received], Mapping[int, Array]] | None:
    """The rows of the pronouns, the rollout's rows, what the keys receive, and by site ||v W_O|| [H,K] where the graph
    gives it; None if that is not possible.
    """
    tokens, sites = planned.tokens, planned.sites(model)
    if not sites or not all(tokens.mask) or not planned.single or any(site.kind != "self" for site in sites):
        return None
    count, words = len(tokens), pronouns(tokens, from_)
    held = len({(site.component, site.layer) for site in sites}) * count * count * 4
    ends = _pieces(one for word in words for one in candidates(tokens, to, word)) if held > ROOM else None
    stats = ["total", "received", "rollout" if ends is None else "arrived"]
    if planned.own or any(site.causal is None or site.window is not None for site in sites):
        stats += ["visible", "seers"]
    if not all(fits(site, stat) for site in sites for stat in stats):
        return None
    rows = _pieces(words)
    start: dict[str, Array] = {ROWS: np.asarray(rows, np.int64)}
    start |= {START: _marks(rows, count)} if ends is None else {ENDS: _marks(ends, count).T}
    found = reduce(model, planned, sites, (*stats, *NORMS, *SEEN), start)
    if found is None:
        return None
    trace, tapped, values = found
    by_site = {site.index: read_stats(site, tapped, values) for site in sites}
    # A row without weight is a special case of the rollout, and a row with NaN cannot be used.
    if any(s["total"].shape[1] != count or not (s["total"] > 0).all() for s in by_site.values()):
        return None
    seen = [_seen(site, by_site[site.index], count) for site in sites]
    sizes = {i: s["norms"] for i, s in by_site.items() if "norms" in s and (s["norms_left"] >= 0).all()}
    if any("norms" in s and i not in sizes for i, s in by_site.items()):
        return None  # W_O cancels too much of a vector for the graph's float32
    attentions = checked(read([site for site, _ in seen], stages_of(tapped), values, ARRAYS, rows), ARRAYS)
    (rollout,) = (s[name] for s in by_site.values() for name in ROLLOUTS if name in s)
    if ends is not None:
        there = np.full((len(rows), count), np.nan)
        there[:, ends] = rollout
        rollout = there
    received = {site.index: Received(by_site[site.index]["received"].astype(np.float64), seers) for site, seers in seen}
    named_rows = named(replace(trace, attentions=attentions), rows)
    return named_rows, {"rollout": rollout.astype(np.float64)}, received, sizes


def _pieces(mentions: Iterable[Mention]) -> list[int]:
    """The positions of words, in ascending order."""
    return sorted({piece for one in mentions for piece in one.pieces})


def _marks(positions: Sequence[int], count: int) -> Array:
    """For each position a row of zeros with a one there: float32 [positions,count]."""
    marks = np.zeros((len(positions), count), np.float32)
    marks[np.arange(len(positions)), positions] = 1
    return marks


def _seen(site: Site, stats: Mapping[str, Array], count: int) -> tuple[Site, Array]:
    """How many rows see each key, [H,K]; and the site, its mask settled by these counts if the graph left it open."""
    heads = len(stats["total"])
    after = np.arange(count, 0, -1.0)
    if "seers" not in stats:
        return site, np.broadcast_to(after if site.causal else np.full(count, float(count)), (heads, count))
    seers = stats["seers"].astype(np.float64)
    if site.causal is None and count > 1:
        # Of all matrices of zeros and ones, only the triangle has these sums.
        triangle = bool((seers == after).all() and (stats["visible"] == np.arange(1, count + 1)).all())
        site = shown(site, triangle, "causal: measured on this input")
    return site, seers


__all__: Sequence[str] = ("Pointing", "point")
