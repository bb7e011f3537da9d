"""The numbers reported for an inspection: the overview's findings, a ranking of heads, one query's rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnx.measure import confidence, describe_heads
from attnx.measure.looks import Look, columns_of, gathered_of, looks, mass_of, strongest_pair
from attnx.numerals import counted
from attnx.records import Axis, Measurement
from attnx.study.inspection import Inspection, Pick
from attnx.tokens.spans import axis_labels

TOP = 10
"""How many heads a ranking lists by default."""
WORTH = (("most on one token", 3), ("most confident", 4), ("parked", 3))
"""What the overview points out, and the maximum number of heads for each."""


def findings(shown: Inspection) -> dict[str, Any]:
    """What the overview points out, as numbers.

    Returns:
        `layer` (whose looks are listed), `looks` by query, `worth` (name -> looks), `mass` and `heads` as measurements,
        `kinds` by site and head.
    """
    trace = shown.trace
    last = len(trace.attentions) - 1
    glance = shown.glance
    if glance is None:
        sharp, kinds = confidence.confidence(trace), describe_heads(trace, rest=False).kinds
        columns, looked = columns_of(trace), looks(trace, last)
    else:
        sharp, kinds, columns, looked = (
            glance.table.measure("confidence"), glance.table.kinds, glance.columns, glance.looks,
        )  # fmt: skip
    order = [
        divmod(int(at), sharp.values.shape[1]) for at in np.argsort(-np.nan_to_num(sharp.values, nan=-1.0), axis=None)
    ]
    confident = [Look(s, h, None, -1, float(sharp.values[s, h])) for s, h in order if not np.isnan(sharp.values[s, h])]
    found = {
        "most on one token": list(gathered_of(columns, special=False)),
        "most confident": confident,
        "parked": list(gathered_of(columns, special=True)),
    }
    return {
        "layer": last,
        "looks": looked,
        "worth": {name: found[name][:count] for name, count in WORTH},
        "mass": mass_of(columns),
        "heads": sharp,
        "kinds": kinds,
    }


def pair(shown: Inspection, look: Look) -> Look | None:
    """The largest weight of a head between two different non-special tokens; None if there is none."""
    if shown.glance is not None:
        return shown.glance.pairs[look.site, look.head]
    return strongest_pair(shown.trace, look.site, look.head)


def query_name(shown: Inspection, at: int, site: int | None = None) -> str:
    """The token at a position of a site's query axis; the site is given by its place in the trace, None for `about`."""
    if shown.glance is not None:
        return shown.trace.tokens.pieces[at].strip()
    attention = shown.about if site is None else shown.trace.attentions[site]
    row = at if shown.trace.rows is None else shown.trace.rows.index(at)
    size = attention.need(shown.request.stage).shape[2]
    return axis_labels(shown.trace.queries_of(attention), size)[row].strip()


def key_name(shown: Inspection, at: int, site: int | None = None) -> str:
    """The token at a position of the key axis of a site, likewise."""
    if shown.glance is not None:
        return shown.trace.tokens.pieces[at].strip()
    attention = shown.about if site is None else shown.trace.attentions[site]
    size = attention.need(shown.request.stage).shape[3]
    return axis_labels(shown.trace.keys_of(attention), size)[at].strip()


def ranked(shown: Inspection) -> list[tuple[Pick, int, float]]:
    """The largest of `_ranked`: as many as were asked for."""
    return _ranked(shown)[: shown.request.top or TOP]


def _ranked(shown: Inspection) -> list[tuple[Pick, int, float]]:
    """Each head's largest value for the query, special tokens excluded, the largest first."""
    assert shown.query is not None
    out = []
    for pick in shown.picks:
        values = pick.matrix.shown[pick.matrix.row_of(shown.query)]
        values = np.where(np.asarray(pick.matrix.keys.special, bool), np.nan, values)
        if np.isfinite(values).any():
            key = int(np.nanargmax(values))
            out.append((pick, pick.matrix.keys.at[key], float(values[key])))
    out.sort(key=lambda item: -item[2])
    return out


def ranking_measure(shown: Inspection, *, every: bool = False, rest: str = "") -> Measurement:
    """`ranked` as a measurement of rank 1: of every head, or of the first; `rest`: how the others are seen."""
    assert shown.query is not None
    found = _ranked(shown)
    best = found if every else found[: shown.request.top or TOP]
    left = len(found) - len(best)
    more = f"{counted(left, 'more head')}{rest} · " if left and rest else ""
    wide = max((len(pick.label) for pick, _, _ in best), default=0)
    return Measurement(
        name=f"{shown.request.stage} from {query_name(shown, shown.query)}@{shown.query}",
        unit="share" if shown.request.stage == "weights" else "",
        axes=(Axis("head", tuple(f"{pick.label:<{wide}} → {key_name(shown, key)}" for pick, key, _ in best)),),
        values=np.array([value for _, _, value in best]),
        bounds=(0.0, 1.0) if shown.request.stage == "weights" else (None, None),
        notes=(f"{more}the largest weight of each, special tokens left out",),
    )


def row_table(shown: Inspection) -> Measurement:
    """One query's row in every displayed head: [heads, keys]; with `top`, the keys with the largest values."""
    assert shown.query is not None
    rows = np.stack([pick.matrix.shown[pick.matrix.row_of(shown.query)] for pick in shown.picks])
    first = shown.picks[0].matrix
    best = np.where(np.isnan(rows), -np.inf, rows).max(axis=0)
    keys = [at for at in range(rows.shape[1]) if np.isfinite(best[at])]
    if shown.request.top is not None:
        keys = sorted(sorted(keys, key=lambda at: -best[at])[: shown.request.top])
    notes = tuple(dict.fromkeys(note for pick in shown.picks for note in pick.matrix.notes))
    return Measurement(
        name=f"{shown.request.stage} from {query_name(shown, shown.query)}@{shown.query}",
        unit=first.unit,
        axes=(
            Axis("head", tuple(pick.label + ("" if pick.trusted else " (!)") for pick in shown.picks)),
            Axis("key", tuple(first.keys.labels[at].strip() for at in keys)),
        ),
        values=rows[:, keys],
        bounds=first.bounds,
        notes=notes,
    )
