"""A run -> both softmaxes of every head, and the row to show; for a long text, some layers at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from attnx.errors import UnsupportedError
from attnx.measure import scaling
from attnx.measure.unscaled import AsIf, Similarity
from attnx.notes import merged, of_all_heads
from attnx.records import Attention, Measurement, Trace
from attnx.run.prompt import Prompt
from attnx.session.protocol import OpenModel
from attnx.study.scaling_parts import joined, joined_heads, joined_sweeps
from attnx.study.selection import head_of, positions
from attnx.study.stretches import Piece, Stretches

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
    """Contains the displayed site: all of its heads and other sites if they fit, else that head."""
    at: int
    """The displayed site's position in it."""
    head: int
    queries: tuple[int, ...]
    """The query's positions; several if the token occurs several times."""
    row: Measurement
    """Its row, as from `scaling.row`; the mean of several."""
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
    measured: list[list[_Measured]] = []
    failed: UnsupportedError | None = None

    def take(piece: Piece) -> _Measured | UnsupportedError:
        try:
            return _measured(piece, asked, steps, keep=len(read.parts) == 1 and piece.heads is None)
        except UnsupportedError as error:
            read.leave_out(piece.trace, error.message)
            return error

    for pieces in read.each(take):
        errors = [one for one in pieces if isinstance(one, UnsupportedError)]
        failed = errors[-1] if errors else failed
        measured += [] if errors else [[one for one in pieces if isinstance(one, _Measured)]]
    if failed is not None and not measured:
        raise failed
    best = max((one for pieces in measured for one in pieces), key=lambda one: one.moved)
    if best.moved < 0 and asked.head is None:
        raise scaling.unseen() if asked.query is not None else scaling.nothing_to_show()
    shown = measured[0][0].trace
    piece = Piece(shown) if shown is not None else _shown(read, asked, best)
    at, head, queries = _place(piece, asked, best)
    notes = merged(*(of_all_heads([one.bare.notes for one in pieces]) for pieces in measured))
    rows = [scaling.row(piece.trace, at, head, one, asked.as_if, asked.similarity) for one in queries]
    return Scaled(
        table=joined(
            [joined_heads([one.table for one in pieces]) for pieces in measured], [p[0].sites for p in measured]
        ),
        trace=replace(piece.trace, notes=notes),
        at=at,
        head=piece.head(head),
        queries=queries,
        row=scaling.mean_row(rows),
        sweep=joined_sweeps([[one.sweep for one in p if one.sweep is not None] for p in measured])
        if asked.sweep
        else None,
        doubts=read.doubts,
        layers={label: layer for pieces in measured for label, layer in pieces[0].layers.items()},
    )


@dataclass(frozen=True, slots=True)
class _Measured:
    """What is kept of a piece."""

    table: scaling.ScalingTable
    sweep: Measurement | None
    moved: float
    """How far scaling moves the row that it moves most; -1 if none is asked for or real."""
    site: int
    """That row's site, by index."""
    head: int
    """That row's head."""
    sites: int
    layers: Mapping[str, int | None]
    bare: Trace
    """The trace without arrays."""
    trace: Trace | None
    """The trace, if it has all that is looked at."""


def _measured(piece: Piece, asked: Asked, steps: list[float] | None, keep: bool) -> _Measured:
    trace = piece.trace
    table = scaling.all_heads(trace, asked.as_if, asked.similarity)
    moved, at, head = _moved(trace, table, asked)
    swept = scaling.sweep_heads(trace, steps) if asked.sweep else None
    layers = {label: a.site.layer for label, a in zip(trace.labels, trace.attentions, strict=True)}
    index = trace.attentions[at].site.index
    bare = replace(trace, attentions=())
    return _Measured(table, swept, moved, index, piece.head(head), len(layers), layers, bare, trace if keep else None)


def _shown(read: Stretches, asked: Asked, best: _Measured) -> Piece:
    """The displayed head's layer, run again; of a layer that is split, that head alone."""
    if asked.head is not None:
        site, head = head_of(replace(best.bare, attentions=tuple(map(Attention, read.sites))), asked.head)
        layer = read.sites[site].layer
    else:
        head = best.head
        layer = next((site.layer for site in read.sites if site.index == best.site), None)
    part = None if layer is None else (layer,)
    return read.piece(part, (head,)) if read.split(part) else Piece(read.trace(part))


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


def _place(piece: Piece, asked: Asked, best: _Measured) -> tuple[int, int, tuple[int, ...]]:
    """Position of the displayed site, head and queries in a trace."""
    trace = piece.trace
    if piece.heads is not None:
        at, head = 0, 0
    elif asked.head is not None:
        at, head = head_of(trace, asked.head)
    else:
        at, head = next(i for i, a in enumerate(trace.attentions) if a.site.index == best.site), best.head
    if asked.query is not None:
        of = trace.attentions[at if asked.head is not None else -1]
        return at, head, tuple(positions(trace.queries_of(of), asked.query))
    return at, head, (scaling.strongest(trace, [at], head)[2],)
