"""Many texts of a command: run in batches where they are plain texts, else one by one; in the order given."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from attnx.records import Tokens

if TYPE_CHECKING:
    from attnx.intake import Given
    from attnx.measure.heads import HeadTable
    from attnx.pipeline import Model
    from attnx.records import Trace
    from attnx.start import Start

TEXTS = 256
"""How many texts are read ahead, to be sorted by length."""
BYTES = 256 << 20
"""And how many bytes their matrices may have together."""
LARGE = 32 << 20
"""Matrices of a text that take more than this are reduced in the graph, one text at a time, where that can be."""
_CHECKED = ("masked", "weights")
_NONE = Tokens(np.zeros(0, np.int64), (), (), (), (), ())


def traces(run: Start, quantities: Collection[str], layers: Collection[int] | None) -> Iterator[tuple[Given, Trace]]:
    """A trace for each thing that a command was given, in order."""
    from attnx.batch import trace_many

    model = run.opened
    for plain, part in _parts(run, _bytes(model, quantities, layers)):
        if plain:
            found = trace_many(model, [tokens for _, tokens in part], quantities, layers)
            yield from zip((one for one, _ in part), found, strict=True)
        else:
            ((one, _),) = part
            yield one, model.trace(**run.fed(one), layers=layers, quantities=quantities)


def of_texts(model: Model, texts: Iterable[str], quantities: Collection[str]) -> Iterator[Trace]:
    """A trace for each text, in order, as many at once as memory is given for."""
    from attnx.batch import trace_many

    for part in _within(map(model.encode, texts), _bytes(model, quantities, None)):
        yield from trace_many(model, part, quantities)


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
    from attnx import batch as batches
    from attnx.measure import describe_heads
    from attnx.reduced import heads, of_batch
    from attnx.running import Wanted

    model = run.opened
    size, wanted = _bytes(model, _CHECKED, layers), Wanted(layers, _CHECKED)
    for plain, part in _parts(run, lambda tokens: taken if (taken := size(tokens)) <= LARGE else 0):
        if whole or not plain or len(part) == 1 or not batches.together(model):
            for one, _ in part:
                if whole:
                    trace = choose(model.trace(**run.fed(one), layers=layers, quantities=_CHECKED))
                    yield describe_heads(trace), trace
                else:
                    yield heads(model, run.fed(one), layers, choose)
            continue
        found: dict[int, tuple[HeadTable, Trace]] = {}
        small = [at for at, (_, tokens) in enumerate(part) if size(tokens) <= LARGE]
        for batch in batches.run(model, [part[at][1] for at in small], wanted):
            found.update(zip((small[at] for at in batch.places), of_batch(batch, choose), strict=True))
        for at, (_, tokens) in enumerate(part):
            yield found.pop(at) if at in found else heads(model, {"tokens": tokens}, layers, choose)


def _bytes(model: Model, quantities: Collection[str], layers: Collection[int] | None) -> Callable[[Tokens], int]:
    """How many bytes the matrices of a text have."""
    from attnx.records import STAGES

    stages = sum(name in STAGES for name in quantities)
    heads = sum(site.heads or 1 for site in model.sites if layers is None or site.layer in layers)
    return lambda tokens: 4 * heads * stages * len(tokens) ** 2


def _parts(run: Start, size: Callable[[Tokens], int]) -> Iterator[tuple[bool, list[tuple[Given, Tokens]]]]:
    """What was given, in parts that run together: whether a part is of plain texts, and each with its tokens."""
    if isinstance(run.given, list):
        yield from ((False, [(one, _NONE)]) for one in run.given)
        return
    given: deque[Given] = deque()

    def texts() -> Iterator[Tokens]:
        for one in run.given:
            assert one.text is not None
            given.append(one)
            yield run.opened.encode(one.text)

    if not run.given.is_plain:
        yield from ((False, [(one, _NONE)]) for one in run.given)
        return
    for part in _within(texts(), size):
        yield True, [(given.popleft(), tokens) for tokens in part]


def _within(texts: Iterable[Tokens], size: Callable[[Tokens], int]) -> Iterator[list[Tokens]]:
    """Texts in parts of at most `TEXTS`, whose matrices take at most `BYTES` where they are not one."""
    part: list[Tokens] = []
    held = 0
    for tokens in texts:
        takes = size(tokens)
        if part and (len(part) == TEXTS or held + takes > BYTES):
            yield part
            part, held = [], 0
        part.append(tokens)
        held += takes
    if part:
        yield part
