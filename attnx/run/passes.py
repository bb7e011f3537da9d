"""The passes of a run: one for a text, two for an encoder and a decoder, one for each token that a decoder writes.

A run is planned as a generator of passes: it yields each pass and is sent that pass's result. So the plan is separate
from its execution: `pipeline.execute` runs every pass, while a dry run takes the first feed and runs nothing.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from attnx.records import Array, Tokens
from attnx.session.protocol import OpenModel, Run, Wanted

Result = TypeVar("Result", covariant=True)


@dataclass(frozen=True, slots=True)
class Pass:
    """One run of one graph."""

    model: OpenModel
    """The file that runs: the model, its encoder, or its decoder with past."""
    feed: Mapping[str, Array]
    wanted: Wanted
    many: bool = False
    """Whether the feed is one of many batches: the session is opened for that."""
    span: tuple[int, int] | None = None
    """Where a decoder's attention is read: the range of positions whose tokens are new in this pass."""


Steps = Generator[Pass, Run, Result]
"""Yields passes, is sent the result of each, and returns the result of the whole run."""


class Passes(Generic[Result]):
    """Passes in order. Each is answered before the next is requested, because the next may depend on its result.

    for one in passes:
        passes.answer(...)
    passes.result
    """

    def __init__(self, steps: Steps[Result]) -> None:
        self._steps = steps
        self._answer: Run | None = None
        self._results: list[Result] = []

    def __iter__(self) -> Iterator[Pass]:
        """Each pass, once."""
        try:
            one = next(self._steps)
            while True:
                yield one
                assert self._answer is not None
                answer, self._answer = self._answer, None
                one = self._steps.send(answer)
        except StopIteration as end:
            self._results.append(end.value)

    def answer(self, run: Run) -> None:
        """Hand over the result of the last pass."""
        self._answer = run

    @property
    def result(self) -> Result:
        """The result of the whole run, once every pass is answered."""
        (result,) = self._results
        return result


class Source(Protocol[Result]):
    """What a model is run on."""

    def encode(self, model: OpenModel) -> Sequence[Tokens]:
        """Text -> tokens, one entry for each text; none where there are only arrays."""

    def feed(self, model: OpenModel, tokens: Sequence[Tokens], wanted: Wanted) -> Passes[Result]:
        """tokens, pictures, sound, arrays -> the inputs of every pass."""


@dataclass(frozen=True, slots=True)
class Planned(Generic[Result]):
    """A source whose passes are planned already."""

    steps: Steps[Result]

    def encode(self, model: OpenModel) -> Sequence[Tokens]:
        """Nothing: the tokens are encoded already."""
        return ()

    def feed(self, model: OpenModel, tokens: Sequence[Tokens], wanted: Wanted) -> Passes[Result]:
        """The passes as planned."""
        return Passes(self.steps)


@dataclass(frozen=True, slots=True)
class Feed:
    """A source that is a feed already: one pass over the graph."""

    arrays: Mapping[str, Array]

    def encode(self, model: OpenModel) -> Sequence[Tokens]:
        """Nothing: there is no text."""
        return ()

    def feed(self, model: OpenModel, tokens: Sequence[Tokens], wanted: Wanted) -> Passes[Run]:
        """The one pass."""
        return Passes(self._steps(model, wanted))

    def _steps(self, model: OpenModel, wanted: Wanted) -> Steps[Run]:
        return (yield Pass(model, self.arrays, wanted))
