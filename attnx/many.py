"""Many texts of a command: run in batches where they are plain texts, else one by one; in the order given."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING

from attnx.beyond import Beyond

if TYPE_CHECKING:
    from attnx.intake import Given
    from attnx.measure.heads import HeadTable
    from attnx.pipeline import Model
    from attnx.records import Tokens, Trace
    from attnx.start import Start

TEXTS = 256
"""How many texts are read ahead, to be sorted by length."""
BYTES = 256 << 20
"""And how many bytes their matrices may have together."""
LARGE = 32 << 20
"""Matrices of a text that take more than this are reduced in the graph, one text at a time, where that can be."""
_CHECKED = ("masked", "weights")


def is_plain(one: Given) -> bool:
    """Whether there is a text and nothing else."""
    return one.text is not None and one.pair is None and one.inputs is None and one.beyond == Beyond()


def traces(run: Start, quantities: Collection[str], layers: Collection[int] | None) -> Iterator[tuple[Given, Trace]]:
    """A trace for each thing that a command was given, in order."""
    from attnx.batch import trace_many

    model = run.opened
    for plain, part in _parts(run, _bytes(model, quantities, layers)):
        if plain:
            found = trace_many(model, [tokens for _, tokens in part if tokens is not None], quantities, layers)
            yield from zip((one for one, _ in part), found, strict=True)
        else:
            ((one, _),) = part
            yield one, model.trace(**run.fed(one), layers=layers, quantities=quantities)


def described(
    run: Start, layers: Collection[int] | None, choose: Callable[[Trace], Trace], *, whole: bool = False
) -> Iterator[tuple[HeadTable, Trace]]:
    """The measures of all heads for each thing that a command was given, in order.

    Args:
        run: What was given.
        layers: Only sites of these layers.
        choose: Which sites of a trace are measured.
        whole: Fetch the matrices, and give them with the trace.
    """
    from attnx.batch import trace_many
    from attnx.measure import describe_heads
    from attnx.reduced import heads

    model = run.opened
    size = _bytes(model, _CHECKED, layers)
    for plain, part in _parts(run, size):
        if whole or not plain or len(part) == 1:
            for one, _ in part:
                if whole:
                    trace = choose(model.trace(**run.fed(one), layers=layers, quantities=_CHECKED))
                    yield describe_heads(trace), trace
                else:
                    yield heads(model, run.fed(one), layers, choose)
            continue
        small = [tokens for _, tokens in part if tokens is not None and size(tokens) <= LARGE]
        found = trace_many(model, small, _CHECKED, layers)
        for _, tokens in part:
            if tokens is not None and size(tokens) <= LARGE:
                trace = choose(next(found))
                yield describe_heads(trace), trace
            else:
                yield heads(model, {"tokens": tokens}, layers, choose)


def _bytes(model: Model, quantities: Collection[str], layers: Collection[int] | None) -> Callable[[Tokens], int]:
    """How many bytes the matrices of a text have."""
    from attnx.records import STAGES

    stages = sum(name in STAGES for name in quantities)
    heads = sum(site.heads or 1 for site in model.sites if layers is None or site.layer in layers)
    return lambda tokens: 4 * heads * stages * len(tokens) ** 2


def _parts(run: Start, size: Callable[[Tokens], int]) -> Iterator[tuple[bool, list[tuple[Given, Tokens | None]]]]:
    """What was given, in parts that run together: whether a part is of plain texts, and each with its tokens."""
    part: list[tuple[Given, Tokens | None]] = []
    held = 0
    several = not isinstance(run.given, list)
    for one in _each(run.given):
        if not several or not is_plain(one):
            yield False, [(one, None)]
            continue
        assert one.text is not None
        tokens = run.opened.encode(one.text)
        takes = size(tokens)
        if part and (len(part) == TEXTS or (takes <= LARGE and held + takes > BYTES)):
            yield True, part
            part, held = [], 0
        part.append((one, tokens))
        held += takes if takes <= LARGE else 0
    if part:
        yield True, part


def _each(given: Iterable[Given]) -> Iterator[Given]:
    yield from given
