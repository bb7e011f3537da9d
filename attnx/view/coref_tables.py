"""Where heads point from a pronoun, as tables: verdicts against baselines, heads, layers, a contrast, accuracy."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from attnx.measure.choice import tops
from attnx.numerals import counted
from attnx.view.cells import number
from attnx.view.columns import Columns, column, columns
from attnx.view.reporting import largest, sourced

if TYPE_CHECKING:
    from attnx.measure.coref_accuracy import Accuracy
    from attnx.measure.coref_contrast import Contrast
    from attnx.measure.coreference import Coreference

MOST = 5
"""Candidates that get a column; of more, those with the most weight."""
ASIDE = ("special", "self", "hub")
"""Parts of a pronoun's weight that are set aside before an antecedent is named."""


def name_of(one: Coreference, at: int | None) -> str:
    """A candidate by its word, with its place where the word occurs twice."""
    if at is None:
        return "(level)"
    mention = one.candidates[at]
    twice = [c.text.lower() for c in one.candidates].count(mention.text.lower()) > 1
    return f"{mention.text}@{mention.pieces[0]}" if twice else mention.text


def answer(one: Coreference) -> str:
    """The answer in one sentence: the mean of all heads and the best head, compared with chance and position."""
    named = {v.method: v for v in (*one.verdicts, *one.baselines)}
    mean, best = named.get("mean of all heads"), named.get("best head")
    others = len(one.candidates) - len(one.unseen)
    parts = []
    where = "" if best is None else f", {best.where}"
    for what, found in (("the mean of all heads", mean), (f"the best head{where}", best)):
        if found is not None and found.candidate is not None:
            parts.append(f"{what}: {name_of(one, found.candidate)} {found.shares[found.candidate]:.2f}")
    place = [f"{name} {name_of(one, named[name].candidate)}" for name in ("nearest", "first") if name in named]
    start = f"{one.pronoun.text}@{one.pronoun.pieces[0]} → "
    said = "; ".join(parts) if parts else "no head points at a candidate"
    return f"{start}{said} (chance {1 / others:.2f}; {', '.join(place)})"


def verdicts(one: Coreference, *, explain: bool = False, short: bool = False) -> Columns:
    """Each way of reading the attention, then what position and chance alone would say."""
    places = [
        v for v in one.baselines if not short and (explain or v.candidate is not None)
    ]  # chance names none, and `answer` has it
    rows = [*one.verdicts, *places]
    shares = [np.nan if v.candidate is None else v.shares[v.candidate] for v in rows]
    methods = [*(v.method for v in one.verdicts), *(f"baseline: {v.method}" for v in places)]
    faint = range(len(one.verdicts), len(rows))
    told = ["share: among the candidates; lead: the first share less the second"] if explain and not short else []
    return columns(
        "",
        [
            column("read by", methods, whole=True),
            column("where", [v.where for v in rows]),
            column("points at", [name_of(one, v.candidate) for v in rows]),
            column("share", shares, bar=(0.0, 1.0)),
            column("lead", [v.lead for v in rows]),
        ],
        faint=faint,
        notes=[] if short else one.notes,
        explained=told,
    )


def unseen(one: Coreference) -> Columns:
    """A note for a pronoun that sees none of its candidates, in place of empty tables."""
    return columns(
        f"{one.pronoun.text}@{one.pronoun.pieces[0]} → ?: no candidate can be seen",
        [
            column("candidate", [mention.text for mention in one.candidates]),
            column("position", [str(mention.pieces[0]) for mention in one.candidates]),
        ],
        notes=one.notes[1:],
    )


def heads(one: Coreference, count: int, more: Callable[[int], str], *, explain: bool = False) -> Columns:
    """The heads with the largest margin: each candidate's weight and share; `more` says how the others are seen."""
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
    parts.append(column("set aside", [_set_aside(one, s, h) for s, h in kept], decimals=2, spare=True))
    few = len(one.candidates) - len(chosen)
    notes = [f"{counted(few, 'more candidate has', 'more candidates have')} less weight" if few > 0 else ""]
    told = [
        f"weight and share among the candidates; {sourced(one.weights)}",
        f"margin: {sourced(one.margin)}",
        "set aside: weight on special tokens, the pronoun itself and hubs",
    ]
    notes.append(more(len(one.ranked) - len(kept)))
    title = f"from {one.pronoun.text}@{one.pronoun.pieces[0]}: heads by margin"
    return columns(title, parts, notes=notes, explained=told if explain else [])


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
            column("lead", [v.lead for v in means], decimals=2),
            column("best head", [f"H{h} {name}" if h >= 0 else "-" for (_, h), name in zip(best, names, strict=True)]),
            column("weight", [np.nanmax(one.weights.values[s, h]) if h >= 0 else np.nan for s, h in best]),
            column("margin", [one.margin.values[s, h] if h >= 0 else np.nan for s, h in best]),
        ],
    )


def contrast(
    one: Coreference, two: Coreference, moved: Contrast, text: str, count: int, *, explain: bool = False
) -> Columns:
    """Which heads move with the meaning, and which point at the same noun both times."""
    layers, names = (axis.labels for axis in moved.change.axes)
    kept = moved.moved[:count]
    notes = []
    for at in range(len(one.candidates)):
        fixed = sum(int(tops(one.weights.values[s, h])) == at for s, h in moved.fixed)
        if fixed:
            notes.append(f"{fixed} at {name_of(one, at)}")
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
        notes=[
            f"{counted(len(moved.moved), 'head')} point{'s' * (len(moved.moved) == 1)} elsewhere in the other text, "
            f"{len(moved.fixed)} at the same noun in both" + (f" ({', '.join(notes)})" if notes else ""),
            verdicts,
        ],
        explained=[f"change: {sourced(moved.change)}"] if explain else [],
    )


def accuracy(model: str, name: str, found: Accuracy, *, explain: bool = False) -> Columns:
    """Accuracy by method with its interval."""
    values, layers = found.methods.values, found.heads.axes[0].labels
    best = divmod(int(np.nanargmax(found.heads.values)), found.heads.values.shape[1])
    chosen = ", ".join(f"{layers[s]} H{h}" for s, h in found.chosen)
    notes = [
        f"{found.methods.formula} ({found.methods.source})" if explain else "",
        f"heads chosen on one half, tested on the other: {chosen}",
        f"chosen after the fact, the best head is {layers[best[0]]} H{best[1]} ({found.heads.values[best]:.3f}): "
        "not a fair figure",
        *found.notes,
    ]
    return columns(
        f"{model} on {name}: {counted(found.examples, 'example')} in {counted(found.groups, 'group')}",
        [
            column("method", found.methods.axes[0].labels, whole=True),
            column("accuracy", values[:, 0], bar=(0.0, 1.0)),
            column("95% interval", [f"{low:.3f} to {high:.3f}" for _, low, high, _ in values], whole=True),
            column("groups all right", values[:, 3]),
        ],
        notes=notes,
    )
