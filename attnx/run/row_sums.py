"""Rows of weights summed over groups of keys, inside the graph, while a decoder reads and writes: no row leaves it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

import numpy as np

from attnx.errors import RunError, UnsupportedError
from attnx.feed import fill as feeding
from attnx.feed import lookups
from attnx.feed.inputs import fixed_length
from attnx.records import Array, Site
from attnx.run import rounding
from attnx.run.check import TOLERANCE, sums_to_one
from attnx.run.generate import Plan, decoder_steps
from attnx.run.kvcache import room
from attnx.run.passes import Feed, Pass, Passes, Planned
from attnx.run.pipeline import execute
from attnx.run.read import is_quantised
from attnx.session.protocol import NOTHING, OpenModel, Run, Wanted
from attnx.taps.reductions import MARKS, ROWS, fits, read_stat, source

_SOME, _EVERY = "row_marks", "marks"
"""What the weights are reduced to: the sums over key groups of some rows, and of every row."""
Result = TypeVar("Result")


class UnreducedError(Exception):
    """The graph does not allow the reduction, so that whole matrices must be fetched."""


class RowSums:
    """Executes the passes of a decoder, and keeps the sums of the rows that are wanted.

    Attributes:
        sites: The sites that were summed, in execution order.
        device: The device that was used.
        notes: Notes of the runs.
    """

    def __init__(
        self,
        marks: Callable[[int], Array],
        first: int = 0,
        kinds: Collection[str] = ("self",),
        layers: Collection[int] | None = None,
    ) -> None:
        """Prepare; nothing is run yet.

        Args:
            marks: For a number of keys K, float32 [K,M]: how much each counts for each group; the last group is all.
                For cross-attention, K is the number of the encoder's positions.
            first: The position of the first row wanted.
            kinds: Which sites are summed: "self", or those of cross-attention.
            layers: Only these layers.
        """
        self.first, self.marks = first, marks
        self.wanted = Wanted(layers, (), kinds=kinds)
        self.sites: tuple[Site, ...] = ()
        self.device = "cpu"
        self.notes: tuple[str, ...] = ()
        self._parts: list[list[Array]] = []

    def follow(self, passes: Passes[Result]) -> Result:
        """Execute passes, summing the rows of those in which the decoder's attention is read.

        Raises:
            UnreducedError: The rows cannot be summed in its graph.
        """
        for one in passes:
            read = bool(one.wanted.quantities) if one.span is None else one.span[1] > self.first
            passes.answer(self._summed(one) if read else execute(one.model, Feed(one.feed), one.wanted))
        return passes.result

    def _summed(self, one: Pass) -> Run:
        model, feed = one.model, one.feed
        known = model.find(feed)
        sites = [site for site in known.sites if self.wanted.takes(site)]
        stat = _SOME if self.first else _EVERY
        if not sites or not all(fits(site, stat) for site in sites):
            raise UnreducedError
        feed = feeding.check(known.inputs, feed)
        arrays, count = dict(feed), None
        if one.span is None or not all(site.kind == "self" for site in sites):
            arrays[MARKS] = self.marks(0)
        else:
            start, stop = one.span
            slots = model.slots()
            keys = room(slots) or fixed_length(slots) or stop
            arrays[MARKS] = self.marks(stop if keys == 1 else keys)
            arrays[ROWS] = np.arange(max(0, self.first - start), stop - start, dtype=np.int64)
            count = len(arrays[ROWS])
        outputs = one.wanted.outputs
        session, tapped = model.sessions.session(known, sites, (stat,), outputs, rows=stat == _SOME)
        lookups.check(model, known, feed)
        try:
            values = session.run({slot.name: arrays[slot.name] for slot in session.inputs})
        except RunError:
            raise UnreducedError from None
        part = []
        for site in sites:
            name = tapped.taps[site.index][stat]
            part.append(read_stat(values[name], site.places[source(stat)], stat, 1)[0])
        if any(summed.shape[1] != (count or part[0].shape[1]) for summed in part):
            raise UnreducedError
        self.sites, self.device = tuple(sites), session.device
        self.notes = tuple(dict.fromkeys((*self.notes, *known.notes(model.sessions.processor))))
        self._parts.append(part)
        own = {name: values[name] for name in tapped.outputs} if outputs else {}
        return Run((), feed, own, known.misses, (), session.device)

    def sums(self) -> list[Array]:
        """For each site, [H,R,M]: every row wanted, in order."""
        return [np.concatenate([part[at] for part in self._parts], axis=1) for at in range(len(self.sites))]


def sound(
    sums: Sequence[Array], sites: Sequence[Site], keys: int
) -> tuple[list[Array], tuple[Site, ...], tuple[str, ...]]:
    """The sites whose rows sum to 1 (or less, where a sink takes a share), and notes about the others.

    Args:
        sums: For each site, [H,R,M]; the last group is all keys.
        sites: The sites.
        keys: How many keys the longest row has.

    Raises:
        UnsupportedError: No site is left.
    """
    kept, doubts = [], []
    for one, site in zip(sums, sites, strict=True):
        total, step = one[..., -1], rounding.step_of(one[None, ..., :-1]) if is_quantised(site) else 0.0
        found = sums_to_one(site, total, TOLERANCE["low"], rounding.allowed(total, step, keys), hides=False)
        if found.holds:
            kept.append((one, site))
        else:
            doubts.append(f"left out, {site.label} NOT TRUSTED: {found.off}")
    if not kept:
        raise UnsupportedError("no site of this model can be trusted, so nothing is measured", doubts[0])
    return [one for one, _ in kept], tuple(site for _, site in kept), tuple(doubts)


def reads_in_pieces(model: OpenModel, ids: list[int]) -> bool:
    """Whether a decoder with a cache gives the same result for a text that it reads in pieces.

    Some exports have one branch for the first call and one for single tokens after it, whose mask is wrong for several.

    Args:
        model: The decoder.
        ids: The beginning of a text, eight tokens or more.
    """
    if model.with_past is not None or fixed_length(model.slots()) is not None:
        return False
    some = ids[:8]
    try:
        whole, parts = (
            execute(model, Planned(decoder_steps(model, some, Plan(0, piece=piece), NOTHING)), NOTHING)
            for piece in (None, 4)
        )
    except RunError:
        return False
    names = [name for name, array in whole.run.outputs.items() if array.ndim == 3 and array.dtype.kind == "f"]
    for name in names:
        one, two = whole.run.outputs[name][0, -1], parts.run.outputs[name][0, -1]
        scale = max(1.0, float(np.abs(one).max()))
        if one.shape != two.shape or not np.abs(one - two).max() <= 1e-3 * scale:
            return False
    return bool(names) and whole.cached and parts.cached


__all__ = ["RowSums", "UnreducedError", "reads_in_pieces", "sound"]
