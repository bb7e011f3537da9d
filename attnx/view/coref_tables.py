"""What heads say of a pronoun, as tables: verdicts against baselines, heads, layers, a contrast, accuracy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attnx.measure.choice import tops
from attnx.view.cells import number
from attnx.view.columns import Columns, column, columns
from attnx.view.page import counted
from attnx.view.reporting import largest, sourced

if TYPE_CHECKING:
    from attnx.measure.coref_accuracy import Accuracy
    from attnx.measure.coref_contrast import Contrast
    from attnx.measure.coreference import Coreference

MOST = 5
"""Candidates that get a column; of more, those with the most weight."""
ASIDE = ("special", "self", "sink")
"""Parts of a pronoun's weight that are set aside before an antecedent is named."""


def name_of(one: Coreference, at: int | None) -> str:
    """A candidate by its word, with its place where the word occurs twice."""
    if at is None:
        return "(level)"
    mention = one.candidates[at]
    twice = [c.text.lower() for c in one.candidates].count(mention.text.lower()) > 1
    return f"{mention.text}@{mention.pieces[0]}" if twice else mention.text


def verdicts(one: Coreference) -> Columns:
    """Each way of reading the attention, then what place and chance alone would say."""
    rows = [*one.verdicts, *one.baselines]
    shares = [np.nan if v.candidate is None else v.shares[v.candidate] for v in rows]
    others = len(one.candidates) - len(one.unseen)
    methods = [*(v.method for v in one.verdicts), *(f"baseline: {v.method}" for v in one.baselines)]
    faint = range(len(one.verdicts), len(rows))
    chance = f"chance: 1 of {others} candidates, {1 / others:.2f}" if others else "no candidate can be seen"
    return columns(
        f"{one.pronoun.text}@{one.pronoun.pieces[0]} → ?",
        [
            column("read by", methods, whole=True),
            column("where", [v.where for v in rows]),
            column("points at", [name_of(one, v.candidate) for v in rows]),
            column("share", shares, bar=(0.0, 1.0)),
            column("margin", [v.margin for v in rows]),
        ],
        faint=faint,
        said=["share among the candidates; margin: first share less second", chance, *one.notes],
    )


def unseen(one: Coreference) -> Columns:
    """Of a pronoun that sees none of its candidates: that, in place of tables without a number in them."""
    return columns(
        f"{one.pronoun.text}@{one.pronoun.pieces[0]} → ?: no candidate can be seen",
        [
            column("candidate", [mention.text for mention in one.candidates]),
            column("position", [str(mention.pieces[0]) for mention in one.candidates]),
        ],
        said=one.notes[1:],
    )


def heads(one: Coreference, count: int) -> Columns:
    """The heads with the largest margin: each candidate's weight and share."""
    layers, names = (axis.labels for axis in one.margin.axes)
    kept = one.ranked[:count]
    weights, shares = one.weights.values, one.shares.values
    totals = np.nan_to_num(weights).sum(axis=(0, 1))
    chosen = largest(totals, MOST)
    parts = [column("head", [f"{layers[s]} {names[h]}" for s, h in kept], whole=True)]
    for at in chosen:
        cells = [f"{number(weights[s, h, at], 3)} {_percent(shares[s, h, at])}" for s, h in kept]
        parts.append(column(name_of(one, at), cells, whole=True))
    parts.append(column("margin", [one.margin.values[s, h] for s, h in kept]))
    parts.append(column("set aside", [_set_aside(one, s, h) for s, h in kept], decimals=2))
    more = len(one.candidates) - len(chosen)
    said = [
        f"weight and share among the candidates; {sourced(one.weights)}",
        f"{more} more candidates have less weight" if more > 0 else "",
        "set aside: weight on special tokens, the pronoun itself and sinks",
    ]
    title = f"from {one.pronoun.text}@{one.pronoun.pieces[0]}: heads by margin"
    return columns(title, parts, said=said)


def _percent(share: float) -> str:
    return f"{100 * share:3.0f}%" if share == share else "  - "


def _set_aside(one: Coreference, site: int, head: int) -> float:
    parts = one.aside.axes[2].labels
    return float(sum(one.aside.values[site, head, parts.index(name)] for name in ASIDE))


def layers(one: Coreference) -> Columns:
    """Every layer: the mean of its heads, and its best head."""
    layers = one.margin.axes[0].labels
    best = list(enumerate(one.layer_best))
    names = [name_of(one, int(tops(one.weights.values[s, h]))) if h >= 0 else "-" for s, h in best]
    means = one.layer_means
    shares = [np.nan if v.candidate is None else v.shares[v.candidate] for v in means]
    return columns(
        "by layer",
        [
            column("layer", layers),
            column("mean of heads", [name_of(one, v.candidate) for v in means]),
            column("share", shares, decimals=2),
            column("margin", [v.margin for v in means], decimals=2),
            column("best head", [f"H{h} {name}" if h >= 0 else "-" for (_, h), name in zip(best, names, strict=True)]),
            column("weight", [np.nanmax(one.weights.values[s, h]) if h >= 0 else np.nan for s, h in best]),
            column("margin", [one.margin.values[s, h] if h >= 0 else np.nan for s, h in best]),
        ],
        said=[f"{one.margin.formula} ({one.margin.source})"],
    )


def contrast(one: Coreference, two: Coreference, moved: Contrast, text: str, count: int) -> Columns:
    """Which heads move with the meaning, and which point at the same noun both times."""
    layers, names = (axis.labels for axis in moved.change.axes)
    kept = moved.moved[:count]
    said = []
    for at in range(len(one.candidates)):
        fixed = sum(int(tops(one.weights.values[s, h])) == at for s, h in moved.fixed)
        if fixed:
            said.append(f"{fixed} at {name_of(one, at)}")
    verdicts = "; ".join(
        f"{a.method}: {name_of(one, a.candidate)} → {name_of(two, b.candidate)}"
        for a, b in zip(one.verdicts[1:], two.verdicts[1:], strict=True)
    )
    return columns(
        f"against: {' '.join(text.split())}",
        [
            column("head", [f"{layers[s]} {names[h]}" for s, h in kept], whole=True),
            column("here", [name_of(one, int(tops(one.weights.values[s, h]))) for s, h in kept]),
            column("there", [name_of(two, int(tops(two.weights.values[s, h]))) for s, h in kept]),
            column("change", [moved.change.values[s, h] for s, h in kept], bar=(0.0, 1.0)),
        ],
        said=[
            f"{counted(len(moved.moved), 'head')} point{'s' * (len(moved.moved) == 1)} elsewhere in the other text, "
            f"{len(moved.fixed)} at the same noun in both" + (f" ({', '.join(said)})" if said else ""),
            verdicts,
            f"{moved.change.formula} ({moved.change.source})",
        ],
    )


def accuracy(model: str, name: str, found: Accuracy) -> Columns:
    """Accuracy by method with its interval."""
    values, layers = found.methods.values, found.heads.axes[0].labels
    best = divmod(int(np.nanargmax(found.heads.values)), found.heads.values.shape[1])
    chosen = ", ".join(f"{layers[s]} H{h}" for s, h in found.chosen)
    said = [
        f"{found.methods.formula} ({found.methods.source})",
        f"heads chosen on one half, tested on the other: {chosen}",
        f"after the fact the best head is {layers[best[0]]} H{best[1]}, {found.heads.values[best]:.3f}: no fair figure",
        *found.notes,
    ]
    return columns(
        f"{model} on {name}: {found.examples} examples in {found.groups} groups",
        [
            column("method", found.methods.axes[0].labels, whole=True),
            column("accuracy", values[:, 0], bar=(0.0, 1.0)),
            column("95% interval", [f"{low:.3f} to {high:.3f}" for _, low, high, _ in values], whole=True),
            column("groups all right", values[:, 3]),
        ],
        said=said,
    )
