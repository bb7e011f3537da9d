"""The table of heads, from statistics of their rows instead of matrices: the numbers of attnx.measure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from attnx.formula import average
from attnx.measure.remainder import RowSums, shares
from attnx.measure.rows import head_axes, stack
from attnx.measure.special import is_punctuation
from attnx.records import Array, Attention, Axis, Measurement, Site, Tokens, Trace
from attnx.study.key_masks import WITHIN, Cells, repeats

if TYPE_CHECKING:
    from attnx.measure.heads import HeadTable

REST = "rest: "
"""Prefix of the names of a site's measures without the first token's weight."""
TOGETHER = 1 << 18
"""Up to this many numbers per statistic, sites are measured together: short texts are limited by numpy's call
overhead, long ones by memory."""


def table_of(trace: Trace, stats: Mapping[int, Mapping[str, Array]], cells: Cells) -> HeadTable:
    """The measures of a trace without arrays, from the statistics of its sites (see `reduced.reduced`)."""
    kept = [(a.site, stats[a.site.index]) for a in trace.attentions]
    return table(
        _columns(kept, trace.tokens, cells), head_axes(trace, [len(one["total"]) for _, one in kept]), repeats(cells)
    )


def table(columns: Sequence[Mapping[str, Array]], axes: tuple[Axis, ...], repeats: int) -> HeadTable:
    """The table of heads.

    Args:
        columns: For each site the measures of its heads by name, [H].
        axes: Of layers and heads.
        repeats: How many tokens repeat.
    """
    from attnx.measure import REPEATS, heads, induction, remainder

    left = {name: stack([column[f"{REST}{name}"] for column in columns]) for name in remainder.FORMULAS}
    if repeats < REPEATS:
        left["induction"] = np.full_like(left["induction"], np.nan)
    out = []
    for measure in asked():
        values = stack([column[measure.name] for column in columns])
        notes = measure.notes
        if measure.name == "induction":
            notes = tuple(note for note in notes if note != induction.too_few(0, REPEATS))  # of the text it is asked on
            if repeats < REPEATS:
                values = np.full_like(values, np.nan)
                notes = (*notes, induction.too_few(repeats, REPEATS))
        out.append(replace(measure, axes=axes, values=values, notes=notes))
    return heads.table(out, remainder.measurements(left, axes))


@cache
def asked() -> tuple[Measurement, ...]:
    """Names and meanings of the measures, found by running them on two tokens and one head."""
    from attnx.measure import describe_heads

    two = Tokens(np.arange(2), ("a", "b"), ((0, 0),) * 2, (0, 1), (False,) * 2, (True,) * 2)
    cells = np.full((1, 1, 2, 2), 0.5, np.float32)
    site = Site(0, 0, "encoder", "self", "Softmax", "", 1, 1, None, None)
    one = Attention(site, weights=cells, masked=np.zeros_like(cells))
    return describe_heads(Trace("", "cpu", two, None, (one,)), rest=False).measures


def _columns(kept: Sequence[tuple[Site, Mapping[str, Array]]], tokens: Tokens, cells: Cells) -> list[dict[str, Array]]:
    """The measures of each site; sites of the same shape are computed together."""
    out = []
    for causal, run in groupby(kept, key=lambda one: bool(one[0].causal)):
        found = [stats for _, stats in run]
        most = max(1, TOGETHER // max(1, *(array.size for array in found[0].values())))
        for at in range(0, len(found), most):
            some = found[at : at + most]
            names = set.intersection(*(set(stats) for stats in some)) & _READ
            whole = {name: np.concatenate([stats[name] for stats in some]) for name in names}
            measured = _measure(causal, whole, tokens, cells)
            ends = np.cumsum([len(stats["total"]) for stats in some])[:-1]
            parts = {name: np.split(values, ends) for name, values in measured.items()}
            out += [{name: values[i] for name, values in parts.items()} for i in range(len(some))]
    return out


_READ = {"total", "entropy", "largest", "kept", "marks", "cells", "away", "apart", "visible", "seen"}
"""The statistics that the measures are computed from."""


def _measure(causal: bool, stats: Mapping[str, Array], tokens: Tokens, cells: Cells) -> dict[str, Array]:
    """The measures of heads by name, [H]."""
    total = stats["total"].astype(np.float64)
    count = total.shape[1]
    real = total > 0 if "visible" not in stats else (total > 0) & (stats["visible"] > 0)
    special = np.asarray(tokens.special, bool)
    places = np.arange(count)
    safe = np.where(real, total, 1.0)
    entropy = np.log(safe) - stats["entropy"].astype(np.float64) / safe
    seen = stats.get("visible", np.broadcast_to(places + 1 if causal else np.full(count, count), total.shape))
    sees_first = stats["seen"] > 0 if "seen" in stats else np.ones(total.shape, bool)
    marks = np.moveaxis(stats["marks"], -1, 0).astype(np.float64, order="C")  # the rows of a mark are contiguous
    best = stats["kept" if special.any() else "largest"].astype(np.float64)
    near = [cells.sums(stats["cells"], offset, count) for offset in range(-WITHIN, WITHIN + 1)]
    repeated = cells.sums(stats["cells"], "induction", count)

    def mean(values: Array, where: Array = real) -> Array:
        return average(values, axis=1, where=where)

    weight = np.where(real, total, 0.0).sum(axis=1)
    if "apart" in stats:
        distance = stats["apart"][:, 0].astype(np.float64)
    else:
        away = stats["away"].astype(np.float64) if "away" in stats else places * total - marks[3]
        distance = np.where(real, away, 0.0).sum(axis=1)
    nothing = np.full(len(total), np.nan)
    cells_left = {"previous": near[WITHIN - 1], "next": near[WITHIN + 1], "self": near[WITHIN]}
    cells_left = {name: values.copy() for name, values in cells_left.items()}
    for name, query in (("previous", 1), ("self", 0)):
        cells_left[name][:, query : query + 1] = np.nan  # it is the first token
    dots = marks[1] - marks[2] if is_punctuation(tokens)[0] else marks[1]
    own = marks[2] * np.log(np.where(marks[2] > 0, marks[2], 1.0))
    others = {**cells_left, "punctuation": dots, "induction": repeated}
    sums = RowSums(np.where(real, total, 0.0), total - marks[2], stats["entropy"] - own, seen, sees_first, others)
    left = {f"{REST}{name}": values for name, values in shares(sums).items()}
    return left | {
        "entropy": mean(np.where(real, entropy + 0.0, np.nan)),
        "entropy share": mean(np.where(seen >= 2, entropy / np.log(np.maximum(seen, 2)), np.nan)),
        "mean distance": distance / np.where(weight > 0, weight, np.nan),
        "locality": mean(np.nan_to_num(np.stack(near)).sum(axis=0)),
        "confidence": nothing if special.all() else mean(np.where(special, np.nan, best)),
        "largest weight": mean(stats["largest"]),
        "previous": mean(near[WITHIN - 1]),
        "next": mean(near[WITHIN + 1]),
        "self": mean(near[WITHIN]),
        "first": mean(marks[2]),
        "special": mean(marks[0]),
        "punctuation": mean(marks[1]),
        "sink": mean(marks[2], real & sees_first),
        "duplicate": mean(cells.sums(stats["cells"], "duplicate", count)),
        "induction": mean(repeated),
    }
