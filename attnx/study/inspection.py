"""A trace and a request -> what is shown: matrices by head, a ranking of heads, or the findings of the overview."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from attnx.errors import UnsupportedError
from attnx.measure.combine import combine
from attnx.numerals import counted
from attnx.records import Attention, Site, Tokens, Trace
from attnx.study.attention_kind import choose_sort, fits, sort_of
from attnx.study.grouping import rows_averaged
from attnx.study.request import Request
from attnx.study.same_axes import together
from attnx.study.selection import positions_of
from attnx.view.matrix import Matrix, of_attention
from attnx.wording import Wording

if TYPE_CHECKING:
    from attnx.study.overview_stats import Glance

WHOLE = ("overview", "grid", "ranking")
"""Views of many sites at once. They leave out a site that cannot be trusted; other views mark it."""


@dataclass(frozen=True, slots=True)
class Pick:
    """One matrix that is shown."""

    label: str
    """ "L5 H11", "L5 mean of 12 heads"."""
    site: Site | None
    """None if it is combined from several."""
    head: int | None
    """None if it is combined from several."""
    trusted: bool
    matrix: Matrix


@dataclass(frozen=True, slots=True)
class Inspection:
    """What is shown."""

    request: Request
    trace: Trace
    """The displayed sites, of one kind; by words, and muted, if the request says so."""
    sort: str
    """ "encoder", "decoder", "cross", ..."""
    others: tuple[str, ...]
    """The other kinds that the model has."""
    picks: tuple[Pick, ...]
    query: int | None
    muted: tuple[int, ...]
    """Key positions to leave out."""
    notes: tuple[str, ...]
    """What the reader must know to read it correctly."""
    glance: Glance | None = None
    """What an overview shows if it was reduced in the graph; the trace then has no arrays."""
    group: tuple[int, ...] = ()
    """The query's positions: its own, or those of several tokens whose mean is at the first."""

    @property
    def about(self) -> Attention:
        """The site whose tokens are meant if only one can be: the last, as in the overview, or the first of those
        that lie over the same tokens.
        """
        return self.trace.attentions[-1 if self.request.view == "overview" else 0]

    @property
    def queries(self) -> Tokens:
        """The tokens on the query axis."""
        return self.trace.queries_of(self.about)

    @property
    def keys(self) -> Tokens:
        """The tokens on the key axis."""
        return self.trace.keys_of(self.about)


def inspect(
    trace: Trace,
    request: Request,
    sort: str,
    others: tuple[str, ...] = (),
    *,
    matrices: bool = False,
    combined: Mapping[int, int] = MappingProxyType({}),
) -> Inspection:
    """Assemble what is shown.

    Args:
        trace: With `request.quantities` of the displayed layers, checked.
        request: What to show.
        sort: From `choose_sort`.
        others: From `choose_sort`.
        matrices: Return the matrices of all heads even if the view is drawn without them, for JSON and files.
        combined: By a site's index, how many heads its single matrix already is the mean or maximum of.

    Raises:
        UsageError: No such token or head.
        UnsupportedError: No site has the stage, or no site can be trusted.
    """
    if not {sort_of(a.site) for a in trace.attentions} <= {sort, *others}:
        # That a site is a decoder's may show only in a run, after the choice.
        sort, others = choose_sort([a.site for a in trace.attentions], request)
    trace = replace(trace, attentions=tuple(a for a in trace.attentions if sort_of(a.site) == sort))
    doubts = {
        a.site.index: _doubt(label, a) for label, a in zip(trace.labels, trace.attentions, strict=True) if not a.trusted
    }
    notes: list[str] = []
    if others:
        told = "{sort} attention; <site> shows the others: {others}"
        notes.append(Wording(told, sort=sort, others=", ".join(others)))
    notes += _everywhere(trace, request)
    if request.view in WHOLE:
        if doubts and len(doubts) == len(trace.attentions):
            raise UnsupportedError(
                f"no site of this model can be trusted, so none is shown: {next(iter(doubts.values()))}",
                Wording("Choose a head (<heads=>) to see its numbers all the same, marked."),
            )
        trace = replace(trace, attentions=tuple(a for a in trace.attentions if a.site.index not in doubts))
        notes += [f"left out, {text}" for text in doubts.values()]
    hidden_at = {a.site.index: a.masked is not None for a in trace.attentions}
    shown, muted = _reshaped(together(trace, request, notes), request, notes)
    group = _group(shown, request)
    if len(group) > 1:
        shown = rows_averaged(shown, group, request.query or "")
        notes.append(f"from {len(group)} tokens together: the mean of their rows")
    picks: tuple[Pick, ...] = ()
    if request.view not in ("overview", "grid") or (matrices and request.view == "grid"):
        picks = _picks(shown, request, doubts, hidden_at, muted, combined)
    return Inspection(
        request, shown, sort, others, picks, group[0] if group else None, muted, tuple(notes), group=group
    )


def _everywhere(trace: Trace, request: Request) -> list[str]:
    """What a head without a layer refers to, if that is more than one head."""
    bare = list(dict.fromkeys(str(head.head) for head in request.heads if head.layer is None))
    count = len(trace.attentions)
    if not bare or request.layers is not None or request.how or count < 2:  # a mean names what it combines
        return []
    named = ", ".join(f"H{head}" for head in bare)
    every = "layers" if len({a.site.layer for a in trace.attentions}) == count else "sites"
    said = Wording(
        "<heads=[{head}]> names no layer: {named} of all {count} {every}; one of them is <heads=[{one}]>",
        head=bare[0], named=named, count=count, every=every, one=f"L.{bare[0]}",
    )  # fmt: skip
    return [said]


def _doubt(label: str, attention: Attention) -> str:
    failed = [check for check in attention.checks if not check.holds]
    problems = "; ".join(f"{c.off} (tolerance {c.tolerance:.2g})" for c in failed)
    return f"{label} NOT TRUSTED: {problems}"


def _reshaped(trace: Trace, request: Request, notes: list[str]) -> tuple[Trace, tuple[int, ...]]:
    """By words, then without special tokens, as requested; and the key positions that are left out."""
    from attnx.measure import words

    if request.words:
        trace = words.merge_trace(trace)
        notes.append("pieces merged into words: to a split word the sum, from it the mean")
    if not request.mute:
        return trace, ()
    first = trace.attentions[0]
    keys = trace.keys_of(first)
    size = next(
        (array.shape[3] for q in ("weights", "masked", "scores") if (array := getattr(first, q)) is not None), 0
    )
    past = max(0, size - len(keys))
    muted = tuple(past + at for at, special in enumerate(keys.special) if special)
    if request.stage == "weights" and muted:
        trace = words.mute_trace(trace)
        notes.append("special tokens left out; what is left of each row is scaled to sum to 1")
    elif not muted:
        notes.append(Wording("<mute>: there is no special token to leave out"))
    return trace, muted


def _group(trace: Trace, request: Request) -> tuple[int, ...]:
    """The query's position on the query axis, or those of several tokens; empty if there is no query."""
    if request.query is None:
        return ()
    return positions_of(trace.queries_of(trace.attentions[0]) if trace.rows is None else trace.tokens, request)


def _picks(
    trace: Trace,
    request: Request,
    doubts: dict[int, str],
    hidden_at: dict[int, bool],
    muted: tuple[int, ...],
    combined: Mapping[int, int],
) -> tuple[Pick, ...]:
    picks = []
    for label, attention in zip(trace.labels, trace.attentions, strict=True):
        count = attention.need(request.stage).shape[1]
        wanted = [head.head for head in request.heads if fits(head, attention.site, request)]
        for head in dict.fromkeys(wanted) if request.heads else range(count):
            matrix = of_attention(trace, attention, head, request.stage)
            if attention.masked is None and hidden_at[attention.site.index]:
                matrix = replace(matrix, hidden=np.asarray(matrix.values == 0))
            if muted:
                matrix = _without(matrix, muted)
            if attention.site.index in doubts:
                matrix = replace(
                    matrix, title=f"{matrix.title} NOT TRUSTED", notes=(*matrix.notes, doubts[attention.site.index])
                )
            picks.append(Pick(f"{label} H{head}", attention.site, head, attention.site.index not in doubts, matrix))
    if request.how is None or not picks:
        return tuple(picks)
    return _combined(picks, request, trace, combined)


def _without(matrix: Matrix, muted: tuple[int, ...]) -> Matrix:
    """The matrix without some of its keys; the others keep their positions."""
    side = matrix.keys
    kept = [column for column, at in enumerate(side.at) if at not in muted]
    keys = replace(
        side,
        labels=tuple(side.labels[column] for column in kept),
        at=tuple(side.at[column] for column in kept),
        special=tuple(side.special[column] for column in kept),
    )
    return replace(matrix, values=matrix.values[:, kept], hidden=matrix.hidden[:, kept], keys=keys)


def _combined(picks: Sequence[Pick], request: Request, trace: Trace, combined: Mapping[int, int]) -> tuple[Pick, ...]:
    """Means or maxima over heads of a layer, over layers of a head, or over all; named after what they combine."""
    groups: dict[int | str, list[Pick]] = {}
    for pick in picks:
        assert pick.site is not None
        assert pick.head is not None
        key = pick.site.index if request.over == "heads" else pick.head if request.over == "layers" else "all"
        groups.setdefault(key, []).append(pick)
    names = {a.site.index: label for label, a in zip(trace.labels, trace.attentions, strict=True)}
    how = request.how
    assert how is not None
    out = []
    for key, group in groups.items():
        first = group[0]
        if request.over == "heads":
            label = f"{names[int(key)]} {how} of {counted(combined.get(int(key), len(group)), 'head')}"
        elif request.over == "layers":
            label = f"H{key} {how} of {counted(len(group), 'layer')}"
        else:
            layers = len({pick.site.index for pick in group if pick.site is not None})
            label = f"{how} of {counted(len(group), 'head')} in {counted(layers, 'layer')}"
        trusted = all(pick.trusted for pick in group)
        matrix = replace(
            first.matrix,
            values=combine([pick.matrix.values for pick in group], how),
            hidden=np.all([pick.matrix.hidden for pick in group], axis=0),
            title=label if trusted else f"{label} NOT TRUSTED",
            notes=tuple(dict.fromkeys(note for pick in group for note in pick.matrix.notes)),
        )
        out.append(
            Pick(
                label,
                first.site if request.over == "heads" else None,
                first.head if request.over == "layers" else None,
                trusted,
                matrix,
            )
        )
    return tuple(out)
