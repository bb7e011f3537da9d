"""Inputs beyond one sentence, from the command line: what a decoder says or is to write, pictures, sound, chats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnx.errors import UsageError
from attnx.records import Array

if TYPE_CHECKING:
    from attnx.model import Model


@dataclass(frozen=True, slots=True)
class Beyond:
    """What is given besides a text."""

    target: str | None = None
    generate: int | None = None
    temperature: float = 0.0
    top_k: int | None = None
    seed: int = 0
    image: Path | None = None
    audio: Path | None = None
    chat: bool = False
    values: tuple[str, ...] = ()
    """NAME=VALUE for inputs."""
    dims: tuple[str, ...] = ()
    """NAME=SIZE for dimensions."""

    @property
    def alone(self) -> bool:
        """Whether this can be run on without a text."""
        return self.image is not None or self.audio is not None or bool(self.values)

    def arrays(self, model: Model, given: Mapping[str, Array] | None) -> dict[str, Array]:
        """The arrays of a feed with those that are set over them.

        Raises:
            UsageError: A name, value or size that does not fit the model.
        """
        arrays = dict(given or {})
        if self.values or self.dims:
            from attnx.cli.set_option import parse_dims, read_settings

            files = [m for m in (model, model.encoder) if m is not None]
            slots = list({s.name: s for m in files for s in m.slots()}.values())
            arrays |= read_settings(self.values, slots, parse_dims(self.dims), arrays)
        return arrays

    def feed(self, model: Model, told: Mapping[str, Any]) -> dict[str, Any]:
        """What `Model.trace` is to be given.

        Args:
            model: The model.
            told: What it would be given without these: text, pair, tokens, inputs.

        Raises:
            UsageError: Things that do not go together.
        """
        feed = dict(told)
        if self.chat:
            if feed.get("text") is None or feed.get("pair") is not None:
                raise UsageError("--chat takes one text: what the user says", "Leave out --ids and --pair.")
            from attnx.feed.chat import encode_chat

            feed["tokens"], feed["text"] = encode_chat(model, feed["text"]), None
        if self.generate is not None:
            from attnx.run.generate import plan

            feed["generate"] = plan(
                model, self.generate, temperature=self.temperature, top_k=self.top_k, seed=self.seed
            )
        elif self.temperature or self.top_k is not None:
            raise UsageError("--temperature and --top-k are for writing", "Say how many tokens: --generate 20.")
        named = {"target": self.target, "image": self.image, "audio": self.audio}
        return feed | {name: value for name, value in named.items() if value is not None}


def beyond(values: Sequence[str] | None = None, dims: Sequence[str] | None = None, **told: Any) -> Beyond:
    """Collect options as typer gives them: lists may be None."""
    return Beyond(values=tuple(values or ()), dims=tuple(dims or ()), **told)
