"""Two models on one prompt each: their traces site by site, and how much their own outputs differ."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from attnx.errors import AttnxError
from attnx.measure.combine import over_heads
from attnx.measure.difference import Difference, difference, parts_of, stages_of, together
from attnx.notes import merged, of_all_heads
from attnx.records import Attention, Trace
from attnx.run.pipeline import execute
from attnx.run.prompt import Prompt
from attnx.session.protocol import NOTHING, OpenModel, Wanted
from attnx.study.inspect_run import all_sites
from attnx.study.layer_pairs import Pairs, aligned, check
from attnx.study.output_change import OutputChange, output_change, read_of
from attnx.study.selection import of_sort
from attnx.study.side_by_side import beside, side_by_side
from attnx.study.stretches import Stretches
from attnx.wording import Wording

ARRAYS = ("query", "key", "scores", "scaled", "capped", "masked", "weights")


@dataclass(frozen=True, slots=True)
class Compared:
    """Two runs compared."""

    one: Trace
    two: Trace
    difference: Difference
    outputs: OutputChange | None
    """How much the models' own outputs differ; None if they cannot be compared."""
    notes: tuple[str, ...]

    @property
    def reached(self) -> float:
        """The largest difference of a weight; infinite where only one of them has a number."""
        weights = self.difference.stages.values[:, -1]
        return float(max(np.nanmax(values, initial=0.0) for values in (self.difference.largest.values, weights)))


@dataclass(frozen=True, slots=True)
class Comparing:
    """How two models are compared."""

    models: tuple[OpenModel, OpenModel]
    names: tuple[str, str]
    """Their names."""
    sort: str | None = None
    """Only this kind of attention."""
    pairs: Pairs | None = None
    """The layers to compare; None for all, in execution order."""
    tolerance: float = 1e-3
    over_heads: bool = False
    """Whether the means over the heads of each layer are compared."""

    def compare(self, first: Prompt, second: Prompt) -> Compared:
        """Run both and compare them.

        Raises:
            UsageError: It is not clear how the sites are paired.
            InputError: Different numbers of heads or tokens.
            AttnxError: A run failed; the message says which model's.
        """
        prompts = (first, second)
        sites = []
        for at, (model, prompt) in enumerate(zip(self.models, prompts, strict=True)):
            with of_model(at, self.names[at]):
                sites.append(all_sites(model, prompt.inputs))
        check(self.names, sites, self.sort, self.pairs)
        read = self._stretches(prompts)
        parts = [] if read is None else self._parts(read)
        if read is None or not parts or (len(parts) == 1 and not self._heads(read, parts[0])):
            return self._part(prompts, self.pairs, None)
        changed = self._outputs(prompts)
        following: list[Pairs] = [*parts[1:], ()]
        found = [self._held(prompts, pairs, (read, then)) for pairs, then in zip(parts, following, strict=True)]
        return _together(found, changed)

    def _heads(self, read: Sequence[Stretches], pairs: Pairs) -> list[tuple[int, ...]]:
        """The heads of one pair of layers that are held at once; none if it is not split by heads."""
        one, two = (side.split(tuple({pair[at] for pair in pairs})) for at, side in enumerate(read))
        if self.over_heads or not one or not two or one[-1][-1] != two[-1][-1]:
            return []
        step = max(1, min(len(one[0]), len(two[0])) // 2)
        every = range(one[-1][-1] + 1)
        return [tuple(every[at : at + step]) for at in range(0, len(every), step)]

    def _held(self, prompts: tuple[Prompt, Prompt], pairs: Pairs, read: tuple[Sequence[Stretches], Pairs]) -> Compared:
        """Compare what is held at once: pairs of layers, or some heads of one pair after others."""
        pieces = self._heads(read[0], pairs)
        if not pieces:
            return self._part(prompts, pairs, read)
        ((*layers,),) = pairs
        for at, side in enumerate(read[0]):
            with of_model(at, self.names[at]):
                side.advance(layers[at], min((pair[at] for pair in read[1]), default=None))
        return _of_heads([self._part(prompts, pairs, (read[0], ()), some) for some in pieces], self.tolerance)

    def _stretches(self, prompts: tuple[Prompt, Prompt]) -> list[Stretches] | None:
        """The layers of both models a stretch at a time; None if they are few, or not one site each."""
        both = []
        for at, (model, prompt) in enumerate(zip(self.models, prompts, strict=True)):
            with of_model(at, self.names[at]):
                read = Stretches(model, prompt, ARRAYS, sort=self.sort)
            if len(read.parts) == 1 or len({s.layer for s in read.sites}) < len(read.sites):
                return None
            both.append(read)
        return both

    def _parts(self, both: Sequence[Stretches]) -> list[Pairs]:
        """Pairs of layers to run together so that their matrices fit in memory; one part if they are few."""
        one, two = ([site.layer for site in read.sites if site.layer is not None] for read in both)
        pairs = self.pairs if self.pairs is not None else tuple(zip(one, two, strict=True)) if one == two else ()
        # One pair after another: with one site per layer, that is the order of comparison.
        ordered = sorted(set(pairs))
        together = max(1, min(len(part) for read in both for part in read.parts[:1] if part) // 2)
        cut = [tuple(ordered[at : at + together]) for at in range(0, len(ordered), together)]
        return cut if len(ordered) == len(pairs) else []

    def _outputs(self, prompts: tuple[Prompt, Prompt]) -> OutputChange | None:
        """How far the models' own outputs differ, by runs of their own: outputs may be as large as matrices."""
        traces = []
        for at, (model, prompt) in enumerate(zip(self.models, prompts, strict=True)):
            with of_model(at, self.names[at]):
                traces.append(execute(model, prompt, NOTHING))
            if at == 0:  # what a session gave keeps all of its working memory, beside that of the next; a copy does not
                traces[0] = replace(traces[0], outputs=read_of(model, traces[0]))
            model.sessions.clear()  # each holds the weights and its runs' memory
        return output_change(self.models[0], *traces)

    def _part(
        self,
        prompts: tuple[Prompt, Prompt],
        pairs: Pairs | None,
        read: tuple[Sequence[Stretches], Pairs] | None,
        heads: tuple[int, ...] | None = None,
    ) -> Compared:
        """Compare some pairs of layers, or all.

        Args:
            prompts: What both are run on.
            pairs: The pairs.
            read: Both models' stretches, and the pairs that follow; None if these are all.
            heads: Only these heads, of one pair of layers.
        """
        traces, notes = [], []
        for at, (model, prompt) in enumerate(zip(self.models, prompts, strict=True)):
            layers = None if pairs is None else tuple(sorted({pair[at] for pair in pairs}))
            few = None if heads is None or layers is None else {layers[0]: heads}
            wanted = Wanted(layers, ARRAYS, outputs=read is None, heads=few)
            with of_model(at, self.names[at]):
                if read is None:
                    whole = execute(model, prompt, wanted)
                else:
                    then = min((pair[at] for pair in read[1]), default=None)
                    whole = read[0][at].run(wanted, then)
                trace = of_sort(whole, self.sort)
            failed = [label for label, a in zip(trace.labels, trace.attentions, strict=True) if not a.trusted]
            notes += [f"{self.names[at]}: {label} NOT TRUSTED, a check of its arrays failed" for label in failed]
            traces.append(trace)
        changed = output_change(self.models[0], *traces) if read is None else None
        a, b = aligned(self.names, traces[0], traces[1], pairs)
        if self.over_heads:
            a, b = over_heads(a), over_heads(b)
        found = difference(a, b, self.tolerance, heads=("mean",) if self.over_heads else None)
        said = merged(a.notes, b.notes, notes)
        if read is not None:
            a, b = _bare(a), _bare(b)
        return Compared(a, b, found, changed, said)


def _bare(trace: Trace) -> Trace:
    """The trace without the arrays of its attentions."""
    return replace(trace, attentions=tuple(Attention(a.site, checks=a.checks) for a in trace.attentions))


def _of_heads(pieces: Sequence[Compared], tolerance: float) -> Compared:
    """Merge comparisons of some heads each of one pair of layers, from the first head to the last."""
    first = pieces[0]
    found = [piece.difference for piece in pieces]
    cells = tuple(tuple(map(together, zip(*rows, strict=True))) for rows in zip(*(d.cells for d in found), strict=True))
    parts = parts_of(cells, tolerance)
    whole = replace(
        first.difference,
        largest=beside([one.largest for one in found]),
        mean=beside([one.mean for one in found]),
        divergence=beside([one.divergence for one in found]),
        rank=beside([one.rank for one in found]),
        moved=beside([one.moved for one in found]),
        stages=stages_of(first.difference.stages.axes[0], cells),
        parts=parts,
        first=next(((at, part) for at, part in enumerate(parts) if part), None),
        cells=cells,
    )
    notes = of_all_heads([piece.notes for piece in pieces])
    return replace(first, difference=whole, notes=notes)


def _together(parts: Sequence[Compared], outputs: OutputChange | None) -> Compared:
    """Merge pairs of layers that were run one after another.

    Args:
        parts: At least one.
        outputs: How far the models' own outputs differ.
    """
    first = parts[0]
    one, two = (
        replace(getattr(first, side), attentions=tuple(a for part in parts for a in getattr(part, side).attentions))
        for side in ("one", "two")
    )
    found = [part.difference for part in parts]
    stages = tuple(part for one in found for part in one.parts)
    whole = replace(
        first.difference,
        largest=side_by_side([part.largest for part in found], heads=True),
        mean=side_by_side([part.mean for part in found], heads=True),
        divergence=side_by_side([part.divergence for part in found], heads=True),
        rank=side_by_side([part.rank for part in found], heads=True),
        moved=side_by_side([part.moved for part in found], heads=True),
        stages=side_by_side([part.stages for part in found]),
        parts=stages,
        first=next(((at, part) for at, part in enumerate(stages) if part), None),
        pairs=tuple(pair for part in found for pair in part.pairs),
        cells=tuple(row for part in found for row in part.cells),
        notes=tuple(dict.fromkeys(note for part in found for note in part.notes)),
    )
    notes = merged(*(part.notes for part in parts))
    return Compared(one, two, whole, outputs, notes)


@contextlib.contextmanager
def of_model(at: int, name: str) -> Iterator[None]:
    """Say which of two models an error belongs to.

    Args:
        at: 0 or 1.
        name: The model's name.
    """
    try:
        yield
    except AttnxError as error:
        which = ("first", "second")[at]
        error.message = Wording("the {which} model ({name}): {what}", which=which, name=name, what=error.message)
        raise


__all__ = ["ARRAYS", "Compared", "Comparing", "of_model"]
