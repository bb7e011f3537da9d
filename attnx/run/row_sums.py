"""Rows of weights summed over groups of keys, inside the graph, while a decoder reads and writes: no row leaves it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from attnx.errors import RunError
from attnx.feed import fill as feeding
from attnx.feed import lookups
from attnx.feed.inputs import fixed_length
from attnx.records import Array, Site
from attnx.run.kvcache import room
from attnx.session.protocol import NOTHING, Run, Runs
from attnx.taps.reductions import MARKS, ROWS, fits, read_stat, source

if TYPE_CHECKING:
    from attnx.model import Model

_STAT = "row_marks"


class UnreducedError(Exception):
    """The graph does not allow the reduction, so that whole matrices must be fetched."""


class RowSums:
    """Looks on while a decoder runs (`generate.Look`), and keeps the sums of the rows that matter.

    Attributes:
        sites: The sites that were summed, in execution order.
        device: What really ran.
        notes: What the runs had to say.
    """

    def __init__(self, first: int, marks: Callable[[int], Array]) -> None:
        """Nothing is run yet.

        Args:
            first: The position of the first row that matters.
            marks: For a number of keys K, float32 [K,M]: how much each counts for each group; the last group is all.
        """
        self.first, self.marks = first, marks
        self.sites: tuple[Site, ...] = ()
        self.device = "cpu"
        self.notes: tuple[str, ...] = ()
        self._parts: list[list[Array]] = []

    def __call__(self, runner: Runs, feed: Mapping[str, Array], start: int, stop: int) -> Run:
        """Run a file of the decoder on its tokens from `start` up to `stop`.

        Raises:
            UnreducedError: The rows cannot be summed in its graph.
        """
        if stop <= self.first:
            return runner.run(feed, NOTHING)
        model: Model = runner  # type: ignore[assignment]
        known = model.find(feed)
        sites = [site for site in known.sites if site.kind == "self"]
        if not sites or not all(fits(site, _STAT) for site in sites):
            raise UnreducedError
        slots = model.slots()
        keys = room(slots) or fixed_length(slots) or stop
        keys = stop if keys == 1 else keys
        rows = np.arange(max(0, self.first - start), stop - start, dtype=np.int64)
        feed = feeding.check(known.inputs, feed)
        session, tapped = model.opening.session(known, sites, (_STAT,), True, rows=True)
        lookups.check(model, known, feed)
        given: dict[str, Any] = {**feed, ROWS: rows, MARKS: self.marks(keys)}
        try:
            values = session.run({slot.name: given[slot.name] for slot in session.inputs})
        except RunError:
            raise UnreducedError from None
        part = []
        for site in sites:
            name = tapped.taps[site.index][_STAT]
            part.append(read_stat(values[name], site.places[source(_STAT)], _STAT, 1)[0])
        if any(one.shape[1] != len(rows) for one in part):
            raise UnreducedError
        self.sites, self.device = tuple(sites), session.device
        self.notes = tuple(dict.fromkeys((*self.notes, *known.notes(model.opening.processor))))
        self._parts.append(part)
        return Run((), feed, {name: values[name] for name in tapped.outputs}, known.misses, (), session.device)

    def sums(self) -> list[Array]:
        """Of each site, [H,R,M]: every row that matters, in order."""
        return [np.concatenate([part[at] for part in self._parts], axis=1) for at in range(len(self.sites))]


def reads_in_pieces(model: Model, ids: list[int], decode: Callable[..., Any], plan: Any) -> bool:
    """Whether a decoder with a cache says the same of a text that it reads in pieces.

    Some exports have one form for a first call and one for single tokens behind it, whose mask is wrong for several.

    Args:
        model: The decoder.
        ids: The beginning of a text, eight tokens or more.
        decode: `generate.decode`.
        plan: A plan that only reads.
    """
    if model.with_past is not None or fixed_length(model.slots()) is not None:
        return False
    some = ids[:8]
    try:
        whole, parts = (decode(model, some, replace(plan, piece=piece), NOTHING) for piece in (None, 4))
    except RunError:
        return False
    names = [name for name, array in whole.run.outputs.items() if array.ndim == 3 and array.dtype.kind == "f"]
    for name in names:
        one, two = whole.run.outputs[name][0, -1], parts.run.outputs[name][0, -1]
        scale = max(1.0, float(np.abs(one).max()))
        if one.shape != two.shape or not np.abs(one - two).max() <= 1e-3 * scale:
            return False
    return bool(names) and whole.cached and parts.cached


__all__ = ["RowSums", "UnreducedError", "reads_in_pieces"]
