"""Groups of layers whose matrices fit in memory together, so that a long text does not exhaust it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from attnx.records import STAGES, Site, Trace
from attnx.run.dry_run import dry_run
from attnx.run.pipeline import execute
from attnx.run.prompt import Prompt
from attnx.session.protocol import OpenModel, Wanted
from attnx.study.attention_kind import named_sort, sort_of
from attnx.study.onward import Onward
from attnx.study.selection import doubted, of_sort, untrusted
from attnx.taps.some_heads import apart
from attnx.wording import Wording

ROOM = 1 << 29
"""Bytes of matrices held at once; a single layer may take more."""
Stretch = tuple[int, ...] | None
"""Layers that are read together; None for all, if sites have no layer."""
_FLOAT = 4
Taken = TypeVar("Taken")


def stretches(sites: Sequence[Site], tokens: int, room: int, stages: int = len(STAGES)) -> tuple[Stretch, ...]:
    """Divide the layers into groups ("stretches").

    Args:
        sites: In execution order.
        tokens: The number of positions on each axis of a matrix.
        room: Bytes of matrices per stretch; a single layer may take more.
        stages: How many matrices per head.

    Returns:
        Layers in ascending order, each in one stretch; (None,) if a site has no layer.
    """
    if any(site.layer is None for site in sites):
        return (None,)
    out: list[tuple[int, ...]] = []
    left = 0
    for layer in sorted({site.layer for site in sites if site.layer is not None}):
        heads = sum(site.heads or 1 for site in sites if site.layer == layer)
        takes = heads * tokens * tokens * stages * _FLOAT
        if out and takes <= left:
            out[-1] = (*out[-1], layer)
            left -= takes
        else:
            out.append((layer,))
            left = room - takes
    return tuple(out)


@dataclass(frozen=True, slots=True)
class Piece:
    """What is held at once: some layers, or some heads of one."""

    trace: Trace
    heads: tuple[int, ...] | None = None
    """The heads of its one site that it has; None for all heads of all sites."""

    def head(self, at: int) -> int:
        """The number of a head that stands at this place."""
        return at if self.heads is None else self.heads[at]


class Stretches:
    """The layers of a run, a stretch at a time; all at once if it does not amount to a single run of the graph.

    Args:
        model: The model.
        prompt: The prompt to run it on.
        quantities: The quantities wanted from each site.
        layers: Only these layers.
        sort: Only this sort of attention.
    """

    def __init__(
        self,
        model: OpenModel,
        prompt: Prompt,
        quantities: Collection[str],
        layers: Collection[int] | None = None,
        sort: str | None = None,
    ) -> None:
        self._model, self._prompt, self._quantities, self._sort = model, prompt, tuple(quantities), sort
        self.parts: tuple[Stretch, ...] = (None if layers is None else tuple(layers),)
        """Layers that are run together."""
        self.doubts: tuple[str, ...] = ()
        """Notes on the sites left out so far."""
        self._layers = self.parts
        self._onward: Onward | None = None
        self._length = self._stages = 0
        self._of_model: Sequence[Site] = ()
        planned = dry_run(model, prompt)
        sites = [] if planned is None else planned.sites(model, layers)
        if sort is not None and sites:
            named = named_sort(sites, sort)
            sites = [site for site in sites if sort_of(site) == named]
        self.sites = tuple(sites)
        """The sites of a single run; empty if there are several runs."""
        order = [site.layer for site in sites if site.layer is not None]
        if planned is not None and sites and order == sorted(order):  # layers and sites are in the same order
            stages = sum(name in STAGES for name in quantities)
            self._length, self._stages = len(planned.tokens), stages
            self._of_model = planned.sites(model)
            found = stretches(sites, self._length, ROOM, stages)
            if len(found) > 1 or self._takes(sites) > ROOM:
                self.parts = found
                self._onward = Onward(model, prompt, sites, planned.feed)

    def together(self) -> None:
        """Switch to running all layers at once."""
        self.parts, self._onward = self._layers, None

    def leave_out(self, trace: Trace, why: str) -> None:
        """Record that the sites of a stretch are not measured."""
        labels = ", ".join(trace.labels)
        self.doubts = (*self.doubts, Wording("{site} is left out: {why}", site=labels, why=why))

    def traces(self) -> Iterator[Trace]:
        """The trace of each stretch that has a trusted site; notes on the others are in `doubts`.

        Raises:
            UnsupportedError: No site can be trusted.
        """
        given = False
        for part in self.parts:
            trace = self.trace(part)
            if trace.attentions:
                given = True
                yield trace
            del trace  # before the next is run
        if self.doubts and not given:
            raise untrusted(self.doubts)

    def _takes(self, sites: Sequence[Site]) -> int:
        """Bytes of the matrices of some sites."""
        return sum(site.heads or 1 for site in sites) * self._length**2 * self._stages * _FLOAT

    def split(self, part: Stretch) -> tuple[tuple[int, ...], ...]:
        """The heads of a layer that are held at once; empty where all are, or where it cannot be told apart by heads.

        A layer is split if it has one site, its matrices take more than there is room for, and the graph can begin in
        front of it: else every part would be run from the model's inputs. Its heads must be an axis of their own in the
        graph. A site of which only a run shows whether it is causal is not split: all its heads are needed to see that.
        """
        sites = [site for site in self._of_model if part is not None and site.layer in part]
        if self._onward is None or part is None or len(sites) != 1 or len(part) != 1:
            return ()
        (site,) = sites
        count, known = site.heads or 0, site.causal is not None and site.kind == "self"
        known = known and all(apart(place) for name, place in site.places.items() if name in STAGES)
        if count < 2 or not known or self._takes(sites) <= ROOM or not self._onward.begins(part[0]):
            return ()
        step = max(1, ROOM * count // self._takes(sites))
        return tuple(tuple(range(at, min(at + step, count))) for at in range(0, count, step))

    def each(self, take: Callable[[Piece], Taken]) -> Iterator[list[Taken]]:
        """What is made of every part: of all its layers at once, or of some heads of one layer after others.

        Args:
            take: Makes something of a piece; its matrices are let go before the next is run.

        Yields:
            For each part that can be trusted, what is made of its pieces; notes on the others are in `doubts`.

        Raises:
            UnsupportedError: No site can be trusted.
        """
        given = False
        for part in self.parts:
            found = self._made(part, take)
            if found:
                given = True
                yield found
        if self.doubts and not given:
            raise untrusted(self.doubts)

    def _made(self, part: Stretch, take: Callable[[Piece], Taken]) -> list[Taken]:
        """What is made of the pieces of a part; nothing if it cannot be trusted."""
        heads = self.split(part)
        if not heads or part is None or self._onward is None:
            trace = self.trace(part)
            return [take(Piece(trace))] if trace.attentions else []
        self.advance(part[0], self.after(part))
        found = []
        for some in heads:
            piece = self.piece(part, some)
            if not piece.trace.attentions:
                return []
            found.append(take(piece))
            del piece  # before the next is run
        return found

    def advance(self, layer: int, then: int | None) -> None:
        """Run a layer that is split for the stream behind it, with which the next run begins."""
        self.reach(layer)
        if self._onward is not None:
            self._onward.advance(layer, then)
            self._model.sessions.clear()

    def reach(self, layer: int) -> None:
        """Run what is in front of a layer that is split, unless an earlier run left its stream."""
        if self._onward is not None:
            self._onward.reach(layer)
            self._model.sessions.clear()

    def piece(self, part: Stretch, heads: tuple[int, ...]) -> Piece:
        """Some heads of a layer that is split."""
        assert part is not None
        return Piece(self._trusted(self.run(Wanted(part, self._quantities, heads={part[0]: heads}))), heads)

    def trace(self, part: Stretch) -> Trace:
        """The trace of some layers; the session is closed if others follow."""
        return self._trusted(self.run(Wanted(part, self._quantities), self.after(part)))

    def _trusted(self, whole: Trace) -> Trace:
        """The trusted sites of a run; notes on the others are added to `doubts`."""
        trace, doubts = doubted(of_sort(whole, self._sort))
        self.doubts = tuple(dict.fromkeys((*self.doubts, *doubts)))
        return trace

    def after(self, part: Stretch) -> int | None:
        """The layer with which the part behind one of `parts` begins; None if it is the last, or none of them."""
        following = self.parts[self.parts.index(part) + 1 :] if part in self.parts else ()
        return following[0][0] if following and following[0] is not None else None

    def run(self, wanted: Wanted, then: int | None = None) -> Trace:
        """Run some layers; the session is closed if others follow.

        Args:
            wanted: What is wanted of them, and which they are.
            then: The layer with which the next run begins.
        """
        if self._onward is None:
            return execute(self._model, self._prompt, wanted)
        trace = self._onward.run(wanted, then)
        self._model.sessions.clear()  # each holds the weights and its runs' memory
        return trace
