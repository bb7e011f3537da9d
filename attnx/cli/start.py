"""How a command that runs a model starts: its options, the model that they name, what it is run on, the trace."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnx.cli.option_groups import MODEL, NO_WRITING, ModelChoice, Output, Source, Writing

if TYPE_CHECKING:
    from attnx.cli.inputs import Item, Lines
    from attnx.model import Model
    from attnx.records import Trace
    from attnx.run.prompt import Prompt


@dataclass(frozen=True)
class Start:
    """The options that say what to run, and what follows from them step by step, computed when first needed.

    `attnx.cli.options.starts` gives a command these options; those that it does not have keep their defaults.
    """

    source: Source = field(default_factory=Source)
    writing: Writing = NO_WRITING
    model: ModelChoice = field(default_factory=ModelChoice)
    output: Output = field(default_factory=Output)

    @cached_property
    def items(self) -> list[Item] | Lines:
        """What there is to run on.

        Raises:
            UsageError: Nothing, or two things that exclude each other.
            InputError: A file cannot be read, or has no text.
        """
        from attnx.cli.inputs import take

        return take(self.source, self.writing)

    @property
    def any_given(self) -> bool:
        """Whether there is anything to run on, or an option that goes with it."""
        source = self.source
        beside = source.pair is not None or source.target is not None or self.writing.generate is not None
        return beside or not source.is_empty

    def open(self, name: str | None = None) -> Model:
        """Open a model; where None, the one that the options name.

        Raises:
            ModelError: There is no such model, or it cannot be read.
        """
        from attnx import model

        return model.open(name or self.model.name, device=self.model.device, tokenizer=self.model.tokenizer)

    @cached_property
    def opened(self) -> Model:
        """The model that the options name. What it is to run on is checked first."""
        assert self.items
        return self.open()

    def numbered(self, given: Any, sort: str | None = None, *, head: bool = False) -> Any:
        """Layers and heads as the options give them, with "last" and "-1" replaced by the model's own numbers.

        Args:
            given: A text, several, or None; the model is opened only if one counts from the end.
            sort: The sort of attention that is meant, if one was named.
            head: Heads are named, not layers.
        """
        if given is None:
            return None
        from attnx.study.layer_names import from_end, numbered

        if not isinstance(given, str):
            return [self.numbered(one, sort, head=head) for one in given]
        if not from_end(given, head=head):
            return given
        from attnx.study.inspect_run import all_sites

        return numbered(given, all_sites(self.opened), sort, head=head)

    def prompt_of(self, item: Item, model: Model | None = None) -> Prompt:
        """What a model is run on for one item."""
        return item.prompt(model or self.opened, needs_tokenizer=self.model.tokenizer is not None)

    @cached_property
    def prompt(self) -> Prompt:
        """What the model is run on for the only item."""
        (item,) = self.items
        return self.prompt_of(item)

    def trace(
        self, quantities: Collection[str], *, layers: Collection[int] | None = None, site: str | None = None
    ) -> tuple[Trace, tuple[str, ...]]:
        """Run the model on the only item; see `attnx.study.selection.run_trusted`."""
        from attnx.study.selection import run_trusted

        return run_trusted(self.opened, self.prompt, quantities, layers=layers, site=site)


def start(
    *,
    text: str | None = None,
    pair: str | None = None,
    file: Path | None = None,
    ids: str | None = None,
    inputs: Path | None = None,
    values: Sequence[str] | None = None,
    dims: Sequence[str] | None = None,
    target: str | None = None,
    image: Path | None = None,
    audio: Path | None = None,
    generate: int | None = None,
    temperature: float = 0.0,
    top_k: int | None = None,
    seed: int | None = None,
    chat: bool = False,
    model: str = MODEL,
    tokenizer: Path | None = None,
    device: str = "auto",
    json: bool = False,
) -> Start:
    """Sort options from typer into their groups; a command leaves out those that it does not have."""
    return Start(
        Source(text, pair, file, ids, inputs, tuple(values or ()), tuple(dims or ()), target, image, audio),
        Writing(generate, temperature, top_k, seed, chat),
        ModelChoice(model, tokenizer, device),
        Output(json),
    )
