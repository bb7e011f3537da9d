"""Run the many texts of a command: in batches where they are plain texts, else one by one; in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from attnx.records import Tokens

if TYPE_CHECKING:
    from attnx.cli.inputs import Item
    from attnx.cli.start import Start
    from attnx.measure.heads import HeadTable
    from attnx.records import Trace

_CHECKED = ("masked", "weights")
_NONE = Tokens(np.zeros(0, np.int64), (), (), (), (), ())


def traces(run: Start, quantities: Collection[str], layers: Collection[int] | None) -> Iterator[tuple[Item, Trace]]:
    """A trace for each item, in order."""
    from attnx.cli.inputs import naming_line
    from attnx.run.pipeline import execute
    from attnx.session.protocol import Wanted

    model = run.opened
    if isinstance(run.items, list) or not run.items.is_plain:
        for one in run.items:
            with naming_line(one):
                trace = execute(model, run.prompt_of(one), Wanted(layers, quantities))
            yield one, trace
        return
    queue: deque[Item] = deque()
    for trace in model.trace_many(_texts(run.items, queue), layers=layers, quantities=quantities):
        yield queue.popleft(), trace


def described(
    run: Start, layers: Collection[int] | None, choose: Callable[[Trace], Trace], *, whole: bool = False
) -> Iterator[tuple[HeadTable, Trace]]:
    """The measures of all heads for each item, in order.

    Args:
        run: What the command runs on.
        layers: Only sites of these layers.
        choose: Which sites of a trace are measured.
        whole: Fetch the matrices, and return them with the trace.
    """
    from attnx.measure import describe_heads
    from attnx.run import batch as batches
    from attnx.run.pipeline import execute
    from attnx.run.prompt import Prompt
    from attnx.session import memory
    from attnx.session.protocol import Wanted
    from attnx.study.head_stats import heads, of_batch

    model = run.opened
    size, wanted = batches.matrix_bytes(model, _CHECKED, layers), Wanted(layers, _CHECKED)
    for plain, part in _parts(run, lambda tokens: taken if (taken := size(tokens)) <= memory.LARGE else 0):
        if whole or not plain or len(part) == 1 or not batches.together(model):
            for one, _ in part:
                if whole:
                    trace = choose(execute(model, run.prompt_of(one), wanted))
                    yield describe_heads(trace), trace
                else:
                    yield heads(model, run.prompt_of(one), layers, choose)
            continue
        found: dict[int, tuple[HeadTable, Trace]] = {}
        small = [at for at, (_, tokens) in enumerate(part) if size(tokens) <= memory.LARGE]
        for batch in batches.run(model, [part[at][1] for at in small], wanted):
            found.update(zip((small[at] for at in batch.places), of_batch(batch, choose), strict=True))
        for at, (_, tokens) in enumerate(part):
            yield found.pop(at) if at in found else heads(model, Prompt(tokens=tokens), layers, choose)


def _parts(run: Start, size: Callable[[Tokens], int]) -> Iterator[tuple[bool, list[tuple[Item, Tokens]]]]:
    """The items in parts that run together: whether a part has only plain texts, and each item with its tokens."""
    from attnx.run.batch import within

    if isinstance(run.items, list):
        yield from ((False, [(one, _NONE)]) for one in run.items)
        return
    if not run.items.is_plain:
        yield from ((False, [(one, _NONE)]) for one in run.items)
        return
    queue: deque[Item] = deque()
    for part in within(map(run.opened.encode, _texts(run.items, queue)), size):
        yield True, [(queue.popleft(), tokens) for tokens in part]


def _texts(lines: Iterable[Item], queue: deque[Item]) -> Iterator[str]:
    """The texts; each item is appended to `queue` when it is read."""
    for one in lines:
        assert one.text is not None
        queue.append(one)
        yield one.text
