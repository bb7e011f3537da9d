"""A run -> both softmaxes of every head, and the row to show; for a long text, some layers at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attnx.errors import UnsupportedError
from attnx.measure import scaling
from attnx.measure.unscaled import AsIf, Similarity
from attnx.records import Measurement, Site, Trace
from attnx.run.prompt import Prompt
from attnx.session.protocol import OpenModel
from attnx.study.request import parse_head
from attnx.study.scaling_parts import joined, joined_sweeps
from attnx.study.selection import head_of, positions
from attnx.study.stretches import Stretches

ARRAYS = ("query", "key", "scores", "scaled", "capped", "masked", "weights")


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be shown."""

    layers: Sequence[int] | None = None
    sort: str | None = None
    """Only this kind of attention."""
    head: str | None = None
    """The head, L.H; by default the one that scaling changes most."""
    query: str | None = None
    """The token; by default the one that scaling changes most."""
    as_if: AsIf = "site"
    similarity: Similarity = "dot"
    sweep: bool = False


@dataclass(frozen=True, slots=True)
class Scaled:
    """What scaling does to every head, and where to look."""

    table: scaling.ScalingTable
    trace: Trace
    """Contains the displayed site, and others if they fit."""
    at: int
    """The displayed site's position in it."""
    head: int
    queries: tuple[int, ...]
    """The query's positions; several if the token occurs several times."""
    sweep: Measurement | None
    doubts: tuple[str, ...]
    """Notes on sites that were left out."""
    layers: Mapping[str, int | None]
    """Label -> layer, for every measured site."""


def look(model: OpenModel, prompt: Prompt, asked: Asked) -> Scaled:
    """Measure both softmaxes of every head, and find the row to show.

    Args:
        model: The model.
        prompt: The prompt to run it on.
        asked: What to show.

    Raises:
        UsageError: No such head, token or kind of attention.
        UnsupportedError: No site can be measured or trusted, or no row is real.
    """
    read = Stretches(model, prompt, ARRAYS, asked.layers, asked.sort)
    steps = _divisors(read) if asked.sweep else None
    tables, sweeps, counts = [], [], []
    best, chosen = -1.0, (-1, -1)
    failed: UnsupportedError | None = None
    last: Trace | None = None
    layers: dict[str, int | None] = {}
    for trace in read.traces():
        try:
            table = scaling.all_heads(trace, asked.as_if, asked.similarity)
            moved, at, head = _moved(trace, table, asked)
            sweeps += [scaling.sweep(trace, steps)] if asked.sweep else []
        except UnsupportedError as error:
            failed = error
            read.leave_out(trace, error.message)
            continue
        tables.append(table)
        layers |= {label: a.site.layer for label, a in zip(trace.labels, trace.attentions, strict=True)}
        counts.append(len(trace.attentions))
        if moved > best:
            best, chosen = moved, (trace.attentions[at].site.index, head)
        if len(read.parts) == 1:
            last = trace
        del trace, table  # before the next is run
    if failed is not None and not tables:
        raise failed
    if best < 0 and asked.head is None:
        raise scaling.unseen() if asked.query is not None else scaling.nothing_to_show()
    shown = read.trace(_layer(read.sites, asked, chosen[0])) if last is None else last
    at, head, queries = _place(shown, asked, chosen)
    swept = joined_sweeps(sweeps) if asked.sweep else None
    return Scaled(joined(tables, counts), shown, at, head, queries, swept, read.doubts, layers)


def _divisors(read: Stretches) -> list[float] | None:
    """The divisors, the same for all layers; None if the layers are run together."""
    sizes = [site.head_size for site in read.sites if site.kind in ("self", "cross")]
    if None in sizes:  # known only from their queries
        read.together()
    return None if len(read.parts) == 1 else scaling.steps_to([size for size in sizes if size is not None])


def _moved(trace: Trace, table: scaling.ScalingTable, asked: Asked) -> tuple[float, int, int]:
    """How far scaling moves the row that it moves most, and that row's site and head."""
    if asked.head is not None:
        return -1.0, 0, 0  # the head is already chosen
    if asked.query is not None:
        group = positions(trace.queries_of(trace.attentions[-1]), asked.query)
        moved, where = scaling.largest_move_of(trace, group)
        return moved, *where
    if (asked.as_if, asked.similarity) == ("site", "dot") and table.strongest is not None:
        return table.moved, *table.strongest[:2]
    moved, place = scaling.largest_move(trace)
    return moved, *place[:2]


def _layer(sites: Sequence[Site], asked: Asked, index: int) -> tuple[int, ...] | None:
    """The layer of the displayed head."""
    layer = next((s.layer for s in sites if s.index == index), None)
    if asked.head is not None:
        layer = parse_head(asked.head).layer
    return None if layer is None else (layer,)


def _place(trace: Trace, asked: Asked, chosen: tuple[int, int]) -> tuple[int, int, tuple[int, ...]]:
    """Position of the displayed site, head and queries."""
    if asked.head is not None:
        at, head = head_of(trace, asked.head)
    else:
        at, head = next(i for i, a in enumerate(trace.attentions) if a.site.index == chosen[0]), chosen[1]
    if asked.query is not None:
        of = trace.attentions[at if asked.head is not None else -1]
        return at, head, tuple(positions(trace.queries_of(of), asked.query))
    return at, head, (scaling.strongest(trace, [at], head)[2],)
