"""Two models on one prompt each: their traces site by site, and how far their own outputs moved."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from attnx.errors import AttnxError
from attnx.measure.combine import over_heads
from attnx.measure.difference import Difference, difference
from attnx.records import Trace
from attnx.run.pipeline import execute
from attnx.run.prompt import Prompt
from attnx.session.protocol import OpenModel, Wanted
from attnx.study.inspect_run import all_sites
from attnx.study.layer_pairs import Pairs, aligned, check
from attnx.study.output_change import OutputChange, output_change
from attnx.study.selection import of_sort
from attnx.wording import Wording

ARRAYS = ("query", "key", "scores", "scaled", "capped", "masked", "weights")


@dataclass(frozen=True, slots=True)
class Compared:
    """Two runs held against each other."""

    one: Trace
    two: Trace
    difference: Difference
    outputs: OutputChange | None
    """How far the model's own outputs moved; None where they cannot be compared."""
    notes: tuple[str, ...]

    @property
    def reached(self) -> float:
        """The largest difference of a weight; infinite where one has a number and the other has none."""
        weights = self.difference.stages.values[:, -1]
        return float(max(np.nanmax(values, initial=0.0) for values in (self.difference.largest.values, weights)))


@dataclass(frozen=True, slots=True)
class Comparing:
    """How two models are compared."""

    models: tuple[OpenModel, OpenModel]
    names: tuple[str, str]
    """What they are called."""
    sort: str | None = None
    """Only this sort of attention."""
    pairs: Pairs | None = None
    """Layers that are compared; None for all, in execution order."""
    tolerance: float = 1e-3
    over_heads: bool = False
    """Whether the means over the heads of each layer are compared."""

    def compare(self, first: Prompt, second: Prompt) -> Compared:
        """Run both, and hold them against each other.

        Raises:
            UsageError: Sites of which nothing says how they are paired.
            InputError: Different numbers of heads or tokens.
            AttnxError: A run failed; the message says which model's.
        """
        prompts = (first, second)
        sites = []
        for at, (model, prompt) in enumerate(zip(self.models, prompts, strict=True)):
            with of_model(at, self.names[at]):
                sites.append(all_sites(model, prompt.inputs))
        check(self.names, sites, self.sort, self.pairs)
        traces, notes = [], []
        for at, (model, prompt) in enumerate(zip(self.models, prompts, strict=True)):
            layers = None if self.pairs is None else sorted({pair[at] for pair in self.pairs})
            with of_model(at, self.names[at]):
                trace = of_sort(execute(model, prompt, Wanted(layers, ARRAYS, outputs=True)), self.sort)
            failed = [label for label, a in zip(trace.labels, trace.attentions, strict=True) if not a.trusted]
            notes += [f"{self.names[at]}: {label} NOT TRUSTED, a check of its arrays failed" for label in failed]
            traces.append(trace)
        changed = output_change(self.models[0], *traces)
        a, b = aligned(self.names, traces[0], traces[1], self.pairs)
        if self.over_heads:
            a, b = over_heads(a), over_heads(b)
        found = difference(a, b, self.tolerance, heads=("mean",) if self.over_heads else None)
        return Compared(a, b, found, changed, tuple(dict.fromkeys((*a.notes, *b.notes, *notes))))


@contextlib.contextmanager
def of_model(at: int, name: str) -> Iterator[None]:
    """Say of which of two models an error is.

    Args:
        at: 0 or 1.
        name: What the model is called.
    """
    try:
        yield
    except AttnxError as error:
        which = ("first", "second")[at]
        error.message = Wording("the {which} model ({name}): {what}", which=which, name=name, what=error.message)
        raise


__all__ = ["ARRAYS", "Compared", "Comparing", "of_model"]
