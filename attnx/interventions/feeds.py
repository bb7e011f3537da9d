"""What a model is fed for a text, two texts, a picture or a sound, before anything is edited."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnx.errors import UnsupportedError
from attnx.records import Array, Tokens, Trace
from attnx.run.runner import Given, follow
from attnx.session.protocol import Run, Wanted
from attnx.wording import Wording

if TYPE_CHECKING:
    from attnx.model import Model


@dataclass(frozen=True, slots=True)
class Fed:
    """One run of a graph, not made yet."""

    feed: Mapping[str, Array]
    trace: Trace
    """Without sites; its tokens name the positions."""

    @property
    def tokens(self) -> Tokens:
        """What stands at the query positions (the decoder's, where there are two sides)."""
        return self.trace.tokens


class _Recorder:
    """A model as `follow` sees it: what its own graph would be run on is kept. An encoder in a file of its own runs."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.feeds: list[Mapping[str, Array]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def run(self, feed: Mapping[str, Array], wanted: Wanted) -> Run:
        self.feeds.append(feed)
        if wanted.outputs:
            raise UnsupportedError(
                "this model reads its text in several runs (a token at a time, or through a cache of fixed size), and "
                "interventions are made in one",
                Wording("Give arrays for one run: <inputs=>."),
            )
        return Run((), feed)


def fed(model: Model, told: Mapping[str, Any]) -> Fed:
    """What a model is fed.

    Args:
        model: The model.
        told: What `Model.trace` would be given: text, pair, target, tokens, inputs, image, audio.

    Raises:
        UnsupportedError: It would take several runs of the graph.
        UsageError: Things that do not go together.
        InputError: What is given does not fill the model's inputs.
    """
    tokens = told.get("tokens")
    if told.get("text") is not None:
        tokens = model.encode(told["text"], told.get("pair"))
    recorder = _Recorder(model)
    given = Given(tokens, told.get("target"), told.get("inputs") or {}, told.get("image"), told.get("audio"))
    trace = follow(recorder, given, None, Wanted((), (), verify=False, required=False))
    return Fed(recorder.feeds[-1], trace)


__all__ = ["Fed", "fed"]
