"""Layers in stretches whose matrices fit beside one another, so that a long text does not fill the memory."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from attnx.records import STAGES, Site, Trace
from attnx.run.dry_run import dry_run
from attnx.run.pipeline import execute
from attnx.run.prompt import Prompt
from attnx.session.protocol import OpenModel, Wanted
from attnx.study.attention_kind import named_sort, sort_of
from attnx.study.selection import doubted, of_sort, untrusted
from attnx.wording import Wording

ROOM = 1 << 29
"""Bytes of matrices that are held at once; one layer's may take more."""
Stretch = tuple[int, ...] | None
"""Layers that are read together; None for all, where sites have no layer."""
_FLOAT = 4


def stretches(sites: Sequence[Site], tokens: int, room: int, stages: int = len(STAGES)) -> tuple[Stretch, ...]:
    """Cut the layers into stretches.

    Args:
        sites: In execution order.
        tokens: Positions on either side of a matrix.
        room: Bytes of matrices in a stretch; a single layer may take more.
        stages: Matrices of each head.

    Returns:
        Layers in ascending order, each in one stretch; (None,) where a site has no layer.
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


class Stretches:
    """The layers of one run that are looked at, a stretch at a time; all at once where that is no single run.

    Args:
        model: The model.
        prompt: The prompt to run it on.
        quantities: What is wanted of each site.
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
        """Notes on sites that were left out so far."""
        self._layers = self.parts
        planned = dry_run(model, prompt)
        sites = [] if planned is None else planned.sites(model, layers)
        if sort is not None and sites:
            named = named_sort(sites, sort)
            sites = [site for site in sites if sort_of(site) == named]
        self.sites = tuple(sites)
        """The sites of a single run; none where it is none."""
        order = [site.layer for site in sites if site.layer is not None]
        if planned is not None and sites and order == sorted(order):  # layers follow one another as sites do
            stages = sum(name in STAGES for name in quantities)
            found = stretches(sites, len(planned.tokens), ROOM, stages)
            self.parts = found if len(found) > 1 else self.parts

    def together(self) -> None:
        """Run all layers at once after all."""
        self.parts = self._layers

    def leave_out(self, trace: Trace, why: str) -> None:
        """Say that the sites of a stretch are not measured."""
        labels = ", ".join(trace.labels)
        self.doubts = (*self.doubts, Wording("{site} is left out: {why}", site=labels, why=why))

    def traces(self) -> Iterator[Trace]:
        """The trace of each stretch that has a site that can be trusted; notes on the others are in `doubts`.

        Raises:
            UnsupportedError: Not one site can be trusted.
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

    def trace(self, part: Stretch) -> Trace:
        """The trace of some layers; the session is closed where others follow."""
        whole = execute(self._model, self._prompt, Wanted(part, self._quantities))
        trace, doubts = doubted(of_sort(whole, self._sort))
        self.doubts = tuple(dict.fromkeys((*self.doubts, *doubts)))
        if len(self.parts) > 1:
            self._model.sessions.clear()  # each holds the weights and its runs' memory
        return trace
