"""An opened model as the packages below the facade see it; what they want of one run, and what the run returns."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from attnx.records import QUANTITIES, Array, Attention, Miss, Site
from attnx.session.model_summary import ModelSummary
from attnx.session.ort import Session, Slot
from attnx.session.session_pool import SessionPool

if TYPE_CHECKING:
    from attnx.sites.recognise import Found
    from attnx.tokens import Tokenizer


@dataclass(frozen=True, slots=True, eq=False)
class Section:
    """Layers that are run apart from those before and behind them."""

    begin: str | None = None
    """The tensor that is fed instead of being computed; None where they are run from the model's inputs."""
    given: Array | None = None
    """Its numbers."""
    end: str | None = None
    """A tensor that is returned among the outputs, for the layers behind."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is wanted of a run."""

    layers: Collection[int] | None = None
    """Only sites of these layers; all where None."""
    quantities: Collection[str] = QUANTITIES
    """The arrays to keep."""
    outputs: bool = False
    """Whether to return the model's own outputs."""
    verify: bool = True
    """Whether to check the arrays against one another."""
    verify_outputs: bool = False
    """Whether to run the model without taps as well and compare its outputs."""
    required: bool = True
    """Whether a model without attention is an error."""
    kinds: Collection[str] | None = None
    """Only sites of these kinds ("self", "cross", ...); all where None."""
    heads: Mapping[int, Sequence[int]] | None = None
    """Layer -> the heads of its sites to keep, in this order; all heads of layers that are not listed."""
    section: Section = Section()
    """Where the run begins and ends, for a model of which only some layers are run."""

    def takes(self, site: Site) -> bool:
        """Whether a site is one of those that are wanted."""
        return (self.layers is None or site.layer in self.layers) and (self.kinds is None or site.kind in self.kinds)


NOTHING = Wanted(layers=(), quantities=(), outputs=True, verify=False, required=False)
"""The model's own outputs and no attention: no taps at all."""


@dataclass(frozen=True, slots=True)
class Run:
    """The result of a run."""

    attentions: tuple[Attention, ...]
    feed: Mapping[str, Array]
    """The feed, in the types of the model's inputs."""
    outputs: Mapping[str, Array] = field(default_factory=dict)
    """The model's own outputs, where they are wanted."""
    misses: tuple[Miss, ...] = ()
    notes: tuple[str, ...] = ()
    device: str = "cpu"


class OpenModel(Protocol):
    """What the packages below the facade need of an opened model: its files, its graph, and sessions on them."""

    name: str
    path: Path
    device: str
    sessions: SessionPool

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""

    @property
    def encoder(self) -> OpenModel | None:
        """The encoder, if it is a file of its own."""

    @property
    def with_past(self) -> OpenModel | None:
        """The decoder that continues from a cache, if that is a file of its own."""

    @property
    def sites(self) -> tuple[Site, ...]:
        """Every attention computation found."""

    def find(self, inputs: Mapping[str, Array] | None = None) -> ModelSummary:
        """Its sites, inputs and outputs; `inputs` decides which branch of an If runs."""

    def graph(self, inputs: Mapping[str, Array] | None = None) -> Found:
        """Its graph and sites, read from the file."""

    def slots(self) -> list[Slot]:
        """Its inputs."""

    def again(self) -> OpenModel:
        """The same files, opened again."""

    def plain(self, inputs: Mapping[str, Array] | None = None) -> Session:
        """A session without taps."""
