"""Measures of heads, and rows of single queries, from reductions inside the graph: no matrix leaves the session.

The numbers are those of attnx.measure on the whole matrices, to float32's rounding; where a model or a site does not
allow the reduction, the matrices are fetched and measured there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from attnx import trace as tracing
from attnx.course import Given, follow
from attnx.errors import InputError
from attnx.formula import average
from attnx.records import Array, Attention, Check, Measurement, Site, Tokens, Trace
from attnx.reduce import AWAY, CELLS, FIRST, KEEP, MARKS, ROWS, fits, read_stat
from attnx.running import Run, Wanted

if TYPE_CHECKING:
    from attnx.measure.heads import HeadTable
    from attnx.pipeline import Model
    from attnx.taps import Tapped

WITHIN = 2
"""Distance that `locality` counts as near."""


class _Feeder:
    """A model as `follow` sees it: what it would be run on is kept, and nothing is run."""

    encoder = None
    with_past = None

    def __init__(self, model: Model) -> None:
        self._model = model
        self.feeds: list[Mapping[str, Array]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def run(self, feed: Mapping[str, Array], wanted: Wanted) -> Run:
        self.feeds.append(feed)
        return Run((), feed)


def _feed(model: Model, tokens: Tokens) -> tuple[Trace, Mapping[str, Array]] | None:
    """What the model is fed for a text, and a trace without sites; None where it is not one run on one text."""
    if model.encoder is not None:
        return None
    feeder = _Feeder(model)
    try:
        trace = follow(feeder, Given(tokens), None, Wanted(quantities=("weights",), required=False))
    except InputError:
        return None
    one = len(feeder.feeds) == 1 and trace.memory is None and len(trace.tokens) == len(tokens)
    return (trace, feeder.feeds[0]) if one else None


def rows(
    model: Model,
    tokens: Tokens,
    positions: Sequence[int],
    quantities: Collection[str],
    layers: Collection[int] | None = None,
    verify: bool = True,
) -> Trace:
    """Run a model and keep the rows of some queries only.

    Args:
        model: The model.
        tokens: What to run on.
        positions: The queries, from 0.
        quantities: What is wanted of them. All are [B,H,R,K] (query and context [B,H,R,D]); key and value are whole.
        layers: Only sites of these layers.
        verify: Make the checks that the arrays at hand allow.

    Returns:
        A trace whose query side is those tokens, in the order of `positions`; `rows` says where they stand.

    Raises:
        InputError: A position that is not there.
    """
    bad = [at for at in positions if not 0 <= at < len(tokens)]
    if bad or not positions:
        raise InputError(f"there is no token {bad[0] if bad else ''}: the text has {len(tokens)} tokens, from 0")
    made = _feed(model, tokens)
    sites = _sites(model, made[1] if made is not None else None, layers)
    if made is None or any(site.kind != "self" for site in sites):
        whole = model.trace(tokens=tokens, layers=layers, quantities=quantities, verify=verify)
        if any(len(whole.queries_of(a)) != len(tokens) for a in whole.attentions):
            raise InputError("the queries of this model are not the tokens of the text", "Trace it whole.")
        return _cut(whole, tokens, positions)
    trace, feed = made
    known = model.find(feed)
    session, tapped = model.opening.session(known, sites, quantities, False, rows=True)
    given = {**feed, ROWS: np.asarray(positions, np.int64)}
    values = session.run({slot.name: given[slot.name] for slot in session.inputs})
    attentions = tracing.read(sites, tapped, values, quantities, verify, rows=positions)
    return _named(replace(trace, attentions=attentions, device=session.device), tokens, positions)


def _cut(trace: Trace, tokens: Tokens, positions: Sequence[int]) -> Trace:
    at = list(positions)

    def cut(attention: Attention) -> Attention:
        names = ("query", "scores", "scaled", "capped", "masked", "weights", "context")
        arrays = {n: array[:, :, at] for n in names if (array := getattr(attention, n)) is not None}
        return replace(attention, **arrays)

    return _named(replace(trace, attentions=tuple(cut(a) for a in trace.attentions)), tokens, positions)


def _named(trace: Trace, tokens: Tokens, positions: Sequence[int]) -> Trace:
    picked = pick(tokens, positions)
    sides = {a.site.index: (picked, trace.keys_of(a)) for a in trace.attentions}
    return replace(trace, sides=sides, rows=tuple(positions))


def pick(tokens: Tokens, positions: Sequence[int]) -> Tokens:
    """Some tokens of a text, in the order of `positions`."""
    at = list(positions)

    def take(values: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(values[i] for i in at) if values else ()

    return replace(
        tokens,
        ids=np.asarray(tokens.ids)[at],
        pieces=take(tokens.pieces),
        offsets=take(tokens.offsets),
        words=take(tokens.words),
        special=take(tokens.special),
        mask=take(tokens.mask),
        type_ids=take(tokens.type_ids),
    )


def _sites(model: Model, feed: Mapping[str, Array] | None, layers: Collection[int] | None) -> list[Site]:
    return [s for s in model.find(feed).sites if layers is None or s.layer in layers]


@dataclass(frozen=True, slots=True)
class _Cells:
    """Cells of a matrix that are picked out, by what they are picked for."""

    flat: Array
    """int64 [P]: i x K + j."""
    row: Array
    """int64 [P]: i."""
    parts: Mapping[object, slice]
    """Offset -2 to 2, "duplicate", "induction" -> its part of them."""

    def sums(self, values: Array, part: object, count: int) -> Array:
        """Sum over the cells of each row, float64 [H,Q]; NaN for rows without any."""
        at = self.parts[part]
        rows = self.row[at]
        out = np.zeros((len(values), count))
        for head, of_head in enumerate(values[:, at].astype(np.float64)):
            out[head] = np.bincount(rows, of_head, count)
        return np.where(np.isin(np.arange(count), rows), out, np.nan)


def _cells(tokens: Tokens) -> _Cells:
    count = len(tokens)
    ids = np.asarray(tokens.ids).reshape(-1)
    plain = ~np.asarray(tokens.special, bool)
    same = (ids[:, None] == ids[None, :]) & plain[:, None] & plain[None, :]
    after = np.zeros_like(same)
    after[:, 1:] = (same & np.tri(count, k=-2, dtype=bool))[:, :-1]
    found: dict[object, tuple[Array, Array]] = {}
    for offset in range(-WITHIN, WITHIN + 1):
        rows = np.arange(max(0, -offset), min(count, count - offset))
        found[offset] = (rows, rows + offset)
    for name, mask in (("duplicate", same & np.tri(count, k=-1, dtype=bool)), ("induction", after)):
        row, column = np.nonzero(mask)
        found[name] = (row, column)
    parts: dict[object, slice] = {}
    start = 0
    for part, (rows, _) in found.items():
        parts[part] = slice(start, start + len(rows))
        start += len(rows)
    at = np.concatenate([rows for rows, _ in found.values()]).astype(np.int64)
    keys = np.concatenate([columns for _, columns in found.values()]).astype(np.int64)
    return _Cells(at * count + keys, at, parts)


def heads(model: Model, tokens: Tokens, layers: Collection[int] | None = None) -> tuple[HeadTable, Trace]:
    """Every measure of every head, without a matrix leaving the session.

    Args:
        model: The model.
        tokens: What to run on.
        layers: Only sites of these layers.

    Returns:
        What `measure.describe_heads` gives of the whole matrices, and the trace, whose sites have no arrays but the
        check that their rows sum to 1.
    """
    from attnx.measure import describe_heads

    made = _feed(model, tokens)
    sites = _sites(model, made[1] if made is not None else None, layers)
    plan = _plan(sites, tokens) if made is not None else None
    if made is None or plan is None:
        return _whole(model, tokens, layers)
    trace, feed = made
    session, tapped = model.opening.session(model.find(feed), sites, plan, False)
    cells = _cells(tokens)
    given = {**feed, **_inputs(tokens, cells)}
    values = session.run({slot.name: given[slot.name] for slot in session.inputs})
    stats = [_read(site, tapped, values) for site in sites]
    if any(s["total"].shape[1] != len(tokens) or np.isnan(s["total"]).any() for s in stats):
        return _whole(model, tokens, layers)
    attentions = tuple(Attention(s, checks=(_check(s, one["total"]),)) for s, one in zip(sites, stats, strict=True))
    trace = replace(trace, attentions=attentions, device=session.device, misses=model.find(feed).misses)
    measures = describe_heads(_small(trace, [len(s["total"]) for s in stats])).measures
    columns = [_measure(site, one, tokens, cells) for site, one in zip(sites, stats, strict=True)]
    return _table(measures, columns, cells), trace


def _whole(model: Model, tokens: Tokens, layers: Collection[int] | None) -> tuple[HeadTable, Trace]:
    from attnx.measure import describe_heads

    trace = model.trace(tokens=tokens, layers=layers, quantities=("masked", "weights"))
    bare = tuple(Attention(a.site, checks=a.checks) for a in trace.attentions)
    return describe_heads(trace), replace(trace, attentions=bare)


def _plan(sites: Sequence[Site], tokens: Tokens) -> list[str] | None:
    """The statistics that are needed; None where a site cannot be reduced in the graph."""
    plan = ["total", "entropy", "largest", "marks", "cells"]
    if any(tokens.special):
        plan.append("kept")
    if any(site.causal is not True for site in sites):
        plan.append("away")
    if any(site.causal is None or site.window is not None for site in sites):
        plan += ["visible", "seen"]
    good = sites and all(tokens.mask) and all(s.kind == "self" and fits(s, stat) for s in sites for stat in plan)
    return plan if good else None


def _inputs(tokens: Tokens, cells: _Cells) -> dict[str, Array]:
    from attnx.measure.special import is_punctuation

    places = np.arange(len(tokens))
    special = np.asarray(tokens.special, bool)
    marks = np.stack([special, np.asarray(is_punctuation(tokens), bool), places == 0, places], axis=1)
    return {
        KEEP: (~special).astype(np.float32),
        MARKS: marks.astype(np.float32),
        CELLS: cells.flat,
        AWAY: np.abs(places[:, None] - places[None, :]).astype(np.float32),
        FIRST: np.zeros(1, np.int64),
    }


def _read(site: Site, tapped: Tapped, values: Mapping[str, Array]) -> dict[str, Array]:
    """Statistics of one site for the first sequence: [H,Q], marks [H,Q,M], cells [H,P]."""
    from attnx.reduce import source

    names = tapped.taps[site.index]
    return {stat: read_stat(values[name], site.places[source(stat)], stat, 1)[0] for stat, name in names.items()}


def _check(site: Site, total: Array) -> Check:
    over = total - 1.0 if site.sink else np.where(total == 0, 0.0, np.abs(total - 1.0))
    return Check("rows sum to 1", float(np.maximum(over, 0).max(initial=0.0)), tracing.TOLERANCE["low"])


def _small(trace: Trace, counts: Sequence[int]) -> Trace:
    """The same sites over two tokens: what the measures are called and what they mean is asked of the measures."""
    two = Tokens(np.arange(2), ("a", "b"), ((0, 0),) * 2, (0, 1), (False,) * 2, (True,) * 2)

    def small(attention: Attention, count: int) -> Attention:
        cells = np.full((1, count, 2, 2), 0.5, np.float32)
        return replace(attention, weights=cells, masked=np.zeros_like(cells))

    attentions = tuple(small(a, count) for a, count in zip(trace.attentions, counts, strict=True))
    return replace(trace, tokens=two, attentions=attentions, sides={})


def _measure(site: Site, stats: Mapping[str, Array], tokens: Tokens, cells: _Cells) -> dict[str, Array]:
    """The measures of one site's heads by name, [H]."""
    total = stats["total"].astype(np.float64)
    count = total.shape[1]
    real = total > 0
    special = np.asarray(tokens.special, bool)
    places = np.arange(count)
    safe = np.where(real, total, 1.0)
    entropy = np.log(safe) - stats["entropy"].astype(np.float64) / safe
    seen = stats.get("visible", np.broadcast_to(places + 1 if site.causal else np.full(count, count), total.shape))
    sees_first = stats["seen"] > 0 if "seen" in stats else np.ones(total.shape, bool)
    marks = stats["marks"].astype(np.float64)
    away = places * total - marks[..., 3] if site.causal else stats["away"].astype(np.float64)
    best = stats["kept" if special.any() else "largest"].astype(np.float64)
    near = [cells.sums(stats["cells"], offset, count) for offset in range(-WITHIN, WITHIN + 1)]
    repeated = cells.sums(stats["cells"], "induction", count)

    def mean(values: Array, where: Array = real) -> Array:
        return average(values, axis=1, where=where)

    weight = np.where(real, total, 0.0).sum(axis=1)
    nothing = np.full(len(total), np.nan)
    return {
        "entropy": mean(np.where(real, entropy + 0.0, np.nan)),
        "entropy share": mean(np.where(seen >= 2, entropy / np.log(np.maximum(seen, 2)), np.nan)),
        "mean distance": np.where(real, away, 0.0).sum(axis=1) / np.where(weight > 0, weight, np.nan),
        "locality": mean(np.nan_to_num(np.stack(near)).sum(axis=0)),
        "confidence": nothing if special.all() else mean(np.where(special, np.nan, best)),
        "largest weight": mean(stats["largest"]),
        "previous": mean(near[WITHIN - 1]),
        "next": mean(near[WITHIN + 1]),
        "self": mean(near[WITHIN]),
        "first": mean(marks[..., 2]),
        "special": mean(marks[..., 0]),
        "punctuation": mean(marks[..., 1]),
        "sink": mean(marks[..., 2], real & sees_first),
        "duplicate": mean(cells.sums(stats["cells"], "duplicate", count)),
        "induction": mean(repeated),
    }


def _table(measures: Sequence[Measurement], columns: Sequence[Mapping[str, Array]], cells: _Cells) -> HeadTable:
    from attnx.measure import REPEATS
    from attnx.measure.heads import table
    from attnx.rows import stack

    repeats = len(np.unique(cells.row[cells.parts["induction"]]))
    out = []
    for measure in measures:
        values = stack([column[measure.name] for column in columns])
        notes = measure.notes
        if measure.name == "induction":
            if repeats < REPEATS:
                values = np.full_like(values, np.nan)
                said = f"{repeats} tokens repeat" if repeats != 1 else "1 token repeats"
                notes = tuple(note.replace("0 tokens repeat", said) for note in notes)
            else:
                notes = tuple(note for note in notes if "tokens repeat" not in note)
        out.append(replace(measure, values=values, notes=notes))
    return table(out)
