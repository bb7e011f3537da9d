"""One run of a model, as the stages see it that run a model several times: what they ask for, and what they get."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from attnx.records import QUANTITIES, Array, Attention, Miss, Site
from attnx.session.ort import Slot


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is wanted of a run."""

    layers: Collection[int] | None = None
    """Only sites of these layers; all where None."""
    quantities: Collection[str] = QUANTITIES
    """Which arrays to keep."""
    outputs: bool = False
    """Whether to give the model's own outputs."""
    verify: bool = True
    """Whether to check the arrays against one another."""
    verify_outputs: bool = False
    """Whether to run the model without taps as well and compare its outputs."""
    required: bool = True
    """Whether a model without attention is an error."""
    kinds: Collection[str] | None = None
    """Only sites of these kinds ("self", "cross", ...); all where None."""
    heads: Mapping[int, Sequence[int]] | None = None
    """Layer -> the only heads of its sites that are kept, in this order; all of a layer that is not named."""

    def takes(self, site: Site) -> bool:
        """Whether a site is one of those that are wanted."""
        return (self.layers is None or site.layer in self.layers) and (self.kinds is None or site.kind in self.kinds)


NOTHING = Wanted(layers=(), quantities=(), outputs=True, verify=False, required=False)
"""The model's own outputs and no attention: no taps at all."""


@dataclass(frozen=True, slots=True)
class Run:
    """What a run gave."""

    attentions: tuple[Attention, ...]
    feed: Mapping[str, Array]
    """What the model was fed."""
    outputs: Mapping[str, Array] = field(default_factory=dict)
    """The model's own outputs, where they were asked for."""
    misses: tuple[Miss, ...] = ()
    notes: tuple[str, ...] = ()
    device: str = "cpu"


class Runs(Protocol):
    """What the stages need of an opened model."""

    name: str
    path: Path

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer."""

    @property
    def encoder(self) -> Runs | None:
        """The encoder, where it is a file of its own."""

    @property
    def with_past(self) -> Runs | None:
        """The decoder that continues from a cache, where that is a file of its own."""

    @property
    def sites(self) -> tuple[Site, ...]:
        """Every attention computation found."""

    def slots(self) -> list[Slot]:
        """The model's inputs."""

    def graph(self, inputs: Mapping[str, Array] | None = None) -> Any:
        """What was found in its file (attnx.sites.recognise.Found), with the graph itself."""

    def run(self, feed: Mapping[str, Array], wanted: Wanted) -> Run:
        """Run once."""
