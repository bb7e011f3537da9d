"""Many texts of a command: run in batches where they are plain texts, else one by one; in the order given."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from attnx.records import Tokens

if TYPE_CHECKING:
    from attnx.cli.inputs import Given
    from attnx.cli.start import Start
    from attnx.measure.heads import HeadTable
    from attnx.records import Trace

_CHECKED = ("masked", "weights")
_NONE = Tokens(np.zeros(0, np.int64), (), (), (), (), ())


def traces(run: Start, quantities: Collection[str], layers: Collection[int] | None) -> Iterator[tuple[Given, Trace]]:
    """A trace for each thing that a command was given, in order."""
    from attnx.cli.inputs import told_where

    model = run.opened
    if isinstance(run.given, list) or not run.given.is_plain:
        for one in run.given:
            with told_where(one):
                trace = model.trace(**run.fed(one), layers=layers, quantities=quantities)
            yield one, trace
        return
    given: deque[Given] = deque()
    for trace in model.trace_many(_texts(run.given, given), layers=layers, quantities=quantities):
        yield given.popleft(), trace


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
    from attnx.measure import describe_heads
    from attnx.run import batch as batches
    from attnx.session import memory
    from attnx.session.protocol import Wanted
    from attnx.study.head_stats import heads, of_batch

    model = run.opened
    size, wanted = batches.matrix_bytes(model, _CHECKED, layers), Wanted(layers, _CHECKED)
    for plain, part in _parts(run, lambda tokens: taken if (taken := size(tokens)) <= memory.LARGE else 0):
        if whole or not plain or len(part) == 1 or not batches.together(model):
            for one, _ in part:
                if whole:
                    trace = choose(model.trace(**run.fed(one), layers=layers, quantities=_CHECKED))
                    yield describe_heads(trace), trace
                else:
                    yield heads(model, run.fed(one), layers, choose)
            continue
        found: dict[int, tuple[HeadTable, Trace]] = {}
        small = [at for at, (_, tokens) in enumerate(part) if size(tokens) <= memory.LARGE]
        for batch in batches.run(model, [part[at][1] for at in small], wanted):
            found.update(zip((small[at] for at in batch.places), of_batch(batch, choose), strict=True))
        for at, (_, tokens) in enumerate(part):
            yield found.pop(at) if at in found else heads(model, {"tokens": tokens}, layers, choose)


def _parts(run: Start, size: Callable[[Tokens], int]) -> Iterator[tuple[bool, list[tuple[Given, Tokens]]]]:
    """What was given, in parts that run together: whether a part is of plain texts, and each with its tokens."""
    from attnx.run.batch import within

    if isinstance(run.given, list):
        yield from ((False, [(one, _NONE)]) for one in run.given)
        return
    if not run.given.is_plain:
        yield from ((False, [(one, _NONE)]) for one in run.given)
        return
    given: deque[Given] = deque()
    for part in within(map(run.opened.encode, _texts(run.given, given)), size):
        yield True, [(given.popleft(), tokens) for tokens in part]


def _texts(lines: Iterable[Given], given: deque[Given]) -> Iterator[str]:
    """The texts, each noted in `given` when it is read."""
    for one in lines:
        assert one.text is not None
        given.append(one)
        yield one.text
