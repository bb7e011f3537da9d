"""How a command that runs a model begins: its options, the model they name, what it is fed, the trace."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnx.cli.inputs import Given, Lines
    from attnx.model import Model
    from attnx.records import Trace

_TAKEN = ("text", "pair", "file", "ids", "inputs")
_BEYOND = ("target", "generate", "temperature", "top_k", "seed", "chat", "image", "audio")


@dataclass(frozen=True)
class Start:
    """What was asked of a command by the options that say what to run; each step is made when it is first needed.

    `attnx.cli.options.starts` gives a command these options.
    """

    options: Mapping[str, Any]
    """By parameter: text, model, pair, ids, ...; those that the command does not have are not there."""

    def __getattr__(self, name: str) -> Any:
        """An option as it was given."""
        if isinstance(made := type(self).__dict__.get(name), cached_property):
            return made.func(self)  # it met an AttributeError of its own, which is the one to see
        if name.startswith("_") or name not in self.options:
            raise AttributeError(name)
        return self.options[name]

    def but(self, **options: Any) -> Start:
        """The same with other options."""
        return Start({**self.options, **options})

    @cached_property
    def given(self) -> list[Given] | Lines:
        """What there is to run on.

        Raises:
            UsageError: Nothing, or two things that exclude each other.
            InputError: A file that cannot be read, or has no text.
        """
        from attnx.cli.extra_inputs import beyond
        from attnx.cli.inputs import take

        told = self.options
        more = beyond(told["values"], told["dims"], **{name: told[name] for name in _BEYOND if name in told})
        return take(**{name: told[name] for name in _TAKEN if name in told}, beyond=more)

    @property
    def any_given(self) -> bool:
        """Whether there is anything to run on, or anything that belongs to such."""
        names = ("text", "pair", "file", "ids", "inputs", "image", "audio", "target", "generate")
        return any(self.options.get(name) is not None for name in names) or bool(self.options.get("values"))

    def open(self, name: str | None = None) -> Model:
        """Open a model; the one that the options name where None.

        Raises:
            ModelError: There is no such model, or it cannot be read.
        """
        from attnx import model as pipeline

        told = self.options
        return pipeline.open(name or told["model"], device=told["device"], tokenizer=told["tokenizer"])

    @cached_property
    def opened(self) -> Model:
        """The model that the options name. What it is to run on is looked at first."""
        assert self.given
        return self.open()

    def fed(self, one: Given, opened: Model | None = None) -> dict[str, Any]:
        """What `Model.trace` is to be given for one thing to run on."""
        return one.feed(opened or self.opened, needs_tokenizer=self.options["tokenizer"] is not None)

    @cached_property
    def feed(self) -> dict[str, Any]:
        """What `Model.trace` is to be given for the only thing to run on."""
        (one,) = self.given
        return self.fed(one)

    def trace(
        self, quantities: Collection[str], *, layers: Collection[int] | None = None, site: str | None = None
    ) -> tuple[Trace, tuple[str, ...]]:
        """Run the model on the only thing to run on.

        Args:
            quantities: Which arrays to keep.
            layers: Only sites of these layers.
            site: Only sites of this sort.

        Returns:
            The trace without sites that cannot be trusted, and what is to be said of those.
        """
        from attnx.study.selection import of_sort, trusted

        return trusted(of_sort(self.opened.trace(**self.feed, layers=layers, quantities=quantities), site))
