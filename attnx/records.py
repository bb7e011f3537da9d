"""The data types of attnx: frozen records that every stage passes on. numpy and the standard library only.

A record that holds arrays equals only itself and is hashable: == on arrays has no single answer.

Letters for shapes, here and in every docstring: B batch, H query heads, Hkv key/value heads, Q query positions,
K key positions (past included), D head size, Dv value head size, S sites.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from attnx.errors import UnsupportedError, UsageError
from attnx.formatters import formatted
from attnx.numerals import counted

Array = NDArray[Any]
Quantity = Literal["query", "key", "value", "scores", "scaled", "capped", "masked", "weights", "context"]
QUANTITIES: tuple[Quantity, ...] = (
    "query", "key", "value", "scores", "scaled", "capped", "masked", "weights", "context",
)  # fmt: skip
"""Every quantity of an attention computation, in the order in which it is computed."""
STAGES: tuple[Quantity, ...] = ("scores", "scaled", "capped", "masked", "weights")
"""The quantities of shape [B,H,Q,K], in the order in which they are computed."""
Stage = Quantity | Literal["bias"]
SHOWN: tuple[Stage, ...] = ("scores", "scaled", "capped", "bias", "masked", "weights")
"""What can be shown for a head: the stages, and the bias added between two of them (see `Attention.bias`)."""
EITHER = "whether it is an encoder's or a decoder's is not known before a run: its mask could not be evaluated"
"""The note of a site whose component is not known: see `Site.component_known`."""
HIDES = -9000.0
"""A mask adds at most this to a cell that it hides; exporters add -10000 or less."""
Component = Literal["encoder", "decoder"]
Kind = Literal["self", "cross", "additive", "pooling"]
Origin = Literal["tapped", "computed"]
Order = tuple[tuple[int, int, int, int, int], ...]
"""Which token stands at each position, as runs (a, b, step, c, d): of a text of n tokens, c * n + d positions that hold
token a * n + b and then every step-th; -1 for positions of no token. Empty: the text decides, or nothing known does."""


@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """One sequence as the model sees it. Everything has length Q."""

    ids: Array
    """int64 [Q]."""
    pieces: tuple[str, ...]
    """The text of each token, ready to show ("animal", "##ed", "Ġthe" as " the"); never parse it."""
    offsets: tuple[tuple[int, int], ...]
    """Start and end of each token in `text`, in characters; (0, 0) for special tokens."""
    words: tuple[int | None, ...]
    """Index of the word that each token belongs to; None for special tokens. Equal index = same word."""
    special: tuple[bool, ...]
    """True for [CLS], [SEP], <s>, padding and the like."""
    mask: tuple[bool, ...]
    """True for a real token, False for padding."""
    type_ids: tuple[int, ...] = ()
    """Segment of each token (0 first text, 1 pair)."""
    text: str = ""
    """The text that was tokenized ("" when ids were given)."""
    notes: tuple[str, ...] = ()
    """What the user should know: unknown tokens, truncation."""

    def __len__(self) -> int:
        return len(self.pieces)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a quantity lives in the graph: a tensor, how its axes are laid out, and the factor it carries."""

    value: str
    """Name of the tensor."""
    layout: str
    """Its axes, by letter, einops style: "b h q k", "(b h) d k", "q (b h) d". b batch, h head, q query, k key,
    d feature. A letter that occurs twice ("b h h q k": grouped heads) is merged in order."""
    factors: tuple[float | tuple[float, ...], ...] = ()
    """The tensor is the quantity times each of these: a number, or one per head."""
    window: tuple[int | None, int | None] | None = None
    """Only [start, stop) of the last axis belongs to the quantity (a sink column is cut off; stop may be negative)."""
    tile: int = 1
    """The heads as a whole serve this many consecutive groups of query heads (query head h reads head
    h mod Hkv, not h div group): arrays repeat them that many times, so that heads pair in attnx's usual order."""


@dataclass(frozen=True, slots=True)
class Site:
    """One attention computation found in a graph."""

    index: int
    """Position in execution order, from 0."""
    layer: int | None
    """Layer, from 0, counted within its component and kind."""
    component: Component
    kind: Kind
    op: str
    """What was recognised: "Softmax", "com.microsoft.GroupQueryAttention", ..."""
    node: str
    """Name of the node (the Softmax, the fused node)."""
    heads: int | None
    kv_heads: int | None
    head_size: int | None
    scale: float | tuple[float, ...] | None
    """The factor from `scores` to `scaled`; one per head where the model has that; None if it cannot be known."""
    scale_place: str = ""
    """Where the graph applies it, in words: "Div after QK^T", "sqrt on query and key", "none in the graph"."""
    softcap: float | None = None
    causal: bool | None = None
    """True if the site hides the future whatever the mask input says; None if that cannot be known."""
    window: int | None = None
    """The most keys a query can see, itself included; None without a sliding window."""
    bias: str | None = None
    """What changes the scaled scores besides a mask, if anything: what is added ("ALiBi", "relative position", "bias"),
    or a "varying factor", which differs between cells or inputs."""
    sink: bool = False
    """Whether the softmax has a sink, so that rows sum to less than 1."""
    heads_mixed: bool = False
    """Whether each head's masked scores are a mix of all heads' (talking heads): masked - capped is then no bias."""
    places: Mapping[str, Place] = field(default_factory=dict)
    """Where each quantity is in the graph; those that are absent are computed from the others."""
    gated: bool = False
    """Whether a gate multiplies the weights before they meet the value, so that context is not weights x value."""
    absent: tuple[str, ...] = ()
    """Quantities that this site does not have and that must not be computed from others (see `notes` for why)."""
    notes: tuple[str, ...] = ()
    keys_before: int = 0
    """How many global keys come before those of the text: they are not tokens, and all queries see them."""
    over_channels: bool = False
    """Whether its queries and keys are channels (features of a projection), not tokens; channels are numbered."""
    component_known: bool = True
    """False if only a mask distinguishes encoder from decoder and it could not be evaluated: `component` is a guess
    until a run shows what the mask hides."""

    query_order: Order | None = None
    """Which tokens its queries are, where the graph moves the text's positions; None where it leaves them in place."""
    key_order: Order | None = None
    """The same of its keys."""

    @property
    def moved(self) -> bool:
        """Whether its queries or keys are the text's tokens in another order."""
        return self.query_order is not None or self.key_order is not None

    @property
    def aligned(self) -> bool:
        """Whether query i and key i are the same token where it attends from a text to itself."""
        return self.query_order == self.key_order and self.query_order != ()

    @property
    def label(self) -> str:
        """The layer as "L5" (the site's index if no layer is known); `Trace.labels` distinguishes components."""
        return f"L{self.layer if self.layer is not None else self.index}"


@dataclass(frozen=True, slots=True)
class Miss:
    """A node that looked like attention but was refused: data, not an exception."""

    node: str
    op: str
    reason: str


@dataclass(frozen=True, slots=True)
class Kernels:
    """Which of a model's numbers depend on the processor that runs it."""

    products: Mapping[str, int] = field(default_factory=dict)
    """Operator -> how many multiply uint8 with int8 so that a pair of products may not fit in 16 bits."""
    fused: Mapping[str, int] = field(default_factory=dict)
    """The same for float operators that onnxruntime converts to such ones unless this is disabled."""
    blocked: int = 0
    """Nodes whose weights onnxruntime laid out in blocks of channels for the processor it ran on."""
    blocks: tuple[int, ...] = ()
    """How many channels those blocks may have."""


@dataclass(frozen=True, slots=True)
class Check:
    """One identity that must hold at a site, and its error."""

    name: str
    """ "weights = softmax(masked)", "weights x value = context", "rows sum to 1", "outputs unchanged"."""
    difference: float
    """Largest absolute difference, relative to the larger of 1 and the reference's own size."""
    tolerance: float

    @property
    def holds(self) -> bool:
        """Whether the difference is within the tolerance (a NaN is not)."""
        return bool(self.difference <= self.tolerance)

    @property
    def off(self) -> str:
        """What a check that does not hold has found, for people."""
        if not math.isfinite(self.difference):
            return f"{self.name} cannot hold: there are numbers that are NaN or infinite"
        return f"{self.name} is off by {self.difference:.2g}"


@dataclass(frozen=True, slots=True, eq=False)
class Attention:
    """A site with its arrays, all float32. An array that was not requested or does not exist is None."""

    site: Site
    query: Array | None = None
    """[B,H,Q,D], after rotary embedding and norms, before any scale."""
    key: Array | None = None
    """[B,Hkv,K,D] (or [B,H,K,D] where the graph repeats keys first), at the same stage as `query`."""
    value: Array | None = None
    """[B,Hkv,K,Dv]."""
    scores: Array | None = None
    """[B,H,Q,K]: query x key^T, unscaled."""
    scaled: Array | None = None
    """[B,H,Q,K]: scores x scale, before softcap, bias and mask."""
    capped: Array | None = None
    """[B,H,Q,K]: after the softcap; equal to scaled if there is none."""
    masked: Array | None = None
    """[B,H,Q,K]: the softmax's input, bias and mask added. Hidden cells are -inf or very negative."""
    weights: Array | None = None
    """[B,H,Q,K]: after the softmax; rows sum to 1, less a sink's share. Hidden cells are exactly 0."""
    context: Array | None = None
    """[B,H,Q,Dv]: weights x value, per head, before the output projection."""
    origin: Mapping[str, Origin] = field(default_factory=dict)
    """For each array, whether it was tapped in the graph or computed from tapped ones."""
    checks: tuple[Check, ...] = ()

    @property
    def trusted(self) -> bool:
        """False if one of the checks failed: the site's numbers must not be shown as good."""
        return all(check.holds for check in self.checks)

    @property
    def bias(self) -> Array | None:
        """[B,H,Q,K]: what is added to the scores besides a mask (relative positions, ALiBi); -inf where a mask hides.

        It is masked - capped; None if the site has no bias, or if either of the two is missing.
        """
        if self.site.bias is None or self.masked is None or self.capped is None:
            return None
        with np.errstate(all="ignore"):
            added = np.asarray(self.masked - self.capped, dtype=np.float32)
        return np.where(added > HIDES, added, np.float32(-np.inf))

    def __repr__(self) -> str:
        there = ", ".join(name for name in QUANTITIES if getattr(self, name) is not None) or "no arrays"
        doubt = "" if self.trusted else ", NOT TRUSTED"
        return f"<Attention {self.site.label}, {self.site.heads or '?'} heads: {there}{doubt}>"

    def need(self, quantity: Stage) -> Array:
        """The array of that name.

        Raises:
            UsageError: There is no quantity of that name.
            UnsupportedError: It was not traced, or does not exist at this site.
        """
        if quantity not in (*QUANTITIES, "bias"):
            raise UsageError(f"there is no quantity {quantity!r}", f"Choose from {', '.join(QUANTITIES)}, bias.")
        array: Array | None = getattr(self, quantity)
        if array is None and quantity == "bias" and self.site.heads_mixed:
            raise UnsupportedError(
                f"{self.site.label} has no bias that could be told: its heads are mixed before the softmax",
                "The masked scores are the mix; scores and scaled are of single heads.",
            )
        if array is None:
            there = [name for name in QUANTITIES if getattr(self, name) is not None]
            raise UnsupportedError(
                f"{self.site.label} ({self.site.op} {self.site.node!r}) has no {quantity}; "
                f"it has {', '.join(there) or 'no arrays at all'}",
                f"Trace it with {quantity} included; where the graph does not hold it, this cannot be shown.",
            )
        return array


class Shown:
    """A record that a notebook shows with the terminal's views."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return self._repr_mimebundle_()["text/html"]

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        found: dict[str, str] = formatted("mimebundle", self)
        return found


class Sites(tuple[Site, ...], Shown):
    """Sites in execution order; a tuple that a notebook draws as a table."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, eq=False)
class Trace(Shown):
    """One run of a model: what every site attended to."""

    model: str
    """Name or path of the model."""
    device: str
    """The device that really ran: "cpu", "cuda:0"."""
    tokens: Tokens
    """The query side (decoder side of an encoder-decoder), first batch row."""
    memory: Tokens | None
    """The encoder side of a cross-attention; None without one."""
    attentions: tuple[Attention, ...]
    outputs: Mapping[str, Array] = field(default_factory=dict)
    """The model's own outputs, if they were requested."""
    misses: tuple[Miss, ...] = ()
    notes: tuple[str, ...] = ()
    sides: Mapping[int, tuple[Tokens, Tokens]] = field(default_factory=dict)
    """Site index -> its query and key tokens, if these are neither `tokens` nor `memory`: patches beside a text,
    windows, a sequence that the graph made shorter."""
    generated: int = 0
    """How many of the last tokens the model itself wrote."""
    rows: tuple[int, ...] | None = None
    """Positions of the queries in the text, if only some of them were kept; None for all."""

    def keys_of(self, attention: Attention) -> Tokens:
        """The tokens that index the key axis of a site: the memory for cross-attention, otherwise the query side's.

        For encoder sites of an encoder-decoder both axes are the memory's; see `queries_of`.
        """
        if attention.site.index in self.sides:
            return self.sides[attention.site.index][1]
        memory_side = attention.site.kind == "cross" or attention.site.component == "encoder"
        return self.memory if memory_side and self.memory is not None else self.tokens

    @property
    def labels(self) -> tuple[str, ...]:
        """A distinct label for each attention: "L0" if all are of one kind, otherwise "encoder L0", "cross L0"."""
        sorts = [
            "cross" if a.site.kind == "cross" else a.site.component if a.site.kind == "self" else a.site.kind
            for a in self.attentions
        ]
        alone = len(set(sorts)) <= 1
        names = [
            a.site.label if alone else f"{sort} {a.site.label}" for a, sort in zip(self.attentions, sorts, strict=True)
        ]
        return tuple(
            name if names.count(name) == 1 else f"{name} #{a.site.index}"
            for name, a in zip(names, self.attentions, strict=True)
        )

    def queries_of(self, attention: Attention) -> Tokens:
        """The tokens that index the query axis of a site."""
        if attention.site.index in self.sides:
            return self.sides[attention.site.index][0]
        if attention.site.component == "encoder" and self.memory is not None:
            return self.memory
        return self.tokens

    def __repr__(self) -> str:
        count = len(self.attentions)
        beside = "" if self.memory is None else f" beside {len(self.memory)}"
        sites = counted(count, "attention")
        return f"<Trace of {self.model}: {counted(len(self.tokens), 'token')}{beside}, {sites}, {self.device}>"

    def to_frame(self, quantity: str = "weights") -> Any:
        """A pandas DataFrame with a row for each number of a quantity in the first sequence, without hidden cells.

        Its columns are site, layer, head, query_position, query, key_position, key, and the quantity.

        Args:
            quantity: "weights", "masked", "capped", "scaled" or "scores".

        Raises:
            UsageError: An unknown quantity, or pandas is not installed.
            UnsupportedError: A site was traced without it.
        """
        return formatted("frame", self, quantity)

    def to_bertviz(self, tensor: Callable[[Array], Any] | None = None) -> dict[str, Any]:
        """The arguments of `bertviz.head_view` and `bertviz.model_view`.

        Args:
            tensor: Converts an array to what bertviz takes (`torch.as_tensor`); without it the arrays stay numpy's.
        """
        found: dict[str, Any] = formatted("bertviz", self, tensor)
        return found

    def to_circuitsvis(self, layer: int = 0) -> dict[str, Any]:
        """The arguments of `circuitsvis.attention.attention_heads` for one layer, counted from 0 among those traced."""
        found: dict[str, Any] = formatted("circuitsvis", self, layer)
        return found


@dataclass(frozen=True, slots=True)
class Axis:
    """One named axis of a measurement."""

    name: str
    """ "layer", "head", "query", "key", "measure", ..."""
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Measurement(Shown):
    """A named array of numbers and their meaning. Any view can show any measurement of its rank."""

    name: str
    """ "entropy", "coreference share", ..."""
    unit: str
    """ "nats", "share", "tokens", or "" if there is no unit."""
    axes: tuple[Axis, ...]
    """One for each dimension of `values`."""
    values: Array
    """Float; NaN where a value does not exist."""
    bounds: tuple[float | None, float | None] = (None, None)
    """The smallest and largest possible values (not those that occur)."""
    source: str = ""
    """Paper and equation, or "attnx"."""
    formula: str = ""
    """One line, as shown under the table."""
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.values.shape != tuple(len(axis.labels) for axis in self.axes):
            raise ValueError(
                f"{self.name}: values {self.values.shape} do not fit axes {[len(a.labels) for a in self.axes]}"
            )
