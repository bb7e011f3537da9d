"""The passes that a run takes: one for a text, two for an encoder and a decoder, one a token where a decoder writes.

Whoever plans a run writes a generator of passes: it yields each pass and is sent what the pass gave. So the plan stands
apart from what executes it: `pipeline.execute` runs every pass, a dry run takes the first feed and runs nothing.
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
    """Whether the feed is a batch, one of many: the session is opened for that."""
    span: tuple[int, int] | None = None
    """Where a decoder's attention is read: its tokens from one position up to another are new in this pass."""


Steps = Generator[Pass, Run, Result]
"""Yields passes, is sent what each gave, and returns what the run comes to."""


class Passes(Generic[Result]):
    """Passes in order. Each is answered before the next is asked for, for the next may follow from what it gave.

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
        """Say what the last pass gave."""
        self._answer = run

    @property
    def result(self) -> Result:
        """What the run comes to, once every pass is answered."""
        (result,) = self._results
        return result


class Source(Protocol[Result]):
    """What a model is run on."""

    def encode(self, model: OpenModel) -> Sequence[Tokens]:
        """Text -> tokens, one for each text; none where there are arrays alone."""

    def feed(self, model: OpenModel, tokens: Sequence[Tokens], wanted: Wanted) -> Passes[Result]:
        """tokens, pictures, sound, arrays -> the inputs of every pass."""


@dataclass(frozen=True, slots=True)
class Planned(Generic[Result]):
    """A source whose passes are planned already."""

    steps: Steps[Result]

    def encode(self, model: OpenModel) -> Sequence[Tokens]:
        """Nothing: it is done."""
        return ()

    def feed(self, model: OpenModel, tokens: Sequence[Tokens], wanted: Wanted) -> Passes[Result]:
        """The passes as they are planned."""
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
