"""The steps of a plan: edits of a run, the logit lens, and what each part adds to a logit. numpy only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from attnx.records import Array

What = Literal["ablate", "knockout", "patch"]
Method = Literal["zero", "mean", "uniform"]
METHODS: tuple[Method, ...] = ("zero", "mean", "uniform")
Where = Literal["encoder", "decoder", "cross"]
COMPONENTS: tuple[Where, ...] = ("encoder", "decoder", "cross")
"""Self-attention of the encoder, of the decoder, and the decoder's attention to the encoder."""
OF_HEADS = ("query", "key", "value", "weights", "context")
"""Quantities that a head has."""
OF_LAYERS = ("attention", "mlp", "residual")
"""Quantities of a layer: what attention and MLP add to the residual stream, and the stream after the layer."""
PATCHED = (*OF_HEADS, *OF_LAYERS)
ORDERS = {"query": "bhqd", "key": "bhkd", "value": "bhkd", "context": "bhqd", "weights": "bhqk", "masked": "bhqk"}
"""Axes of each quantity of heads; those of layers are "bqd"."""
RUN, OTHER = "inputs", "other"
"""Names of the two feeds."""


@dataclass(frozen=True, slots=True, eq=False)
class Edit:
    """One change of a run. `layers`, `heads`, `queries`, `keys`: None means all; several mean their product."""

    kind: What
    """ablate: a head's context is replaced; knockout: edges are hidden before the softmax; patch: a quantity is taken
    from another run."""
    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    queries: tuple[int, ...] | None = None
    keys: tuple[int, ...] | None = None
    component: Where | None = None
    """None if the model has only one kind of attention."""
    method: Method = "zero"
    """For ablate: the context is 0, or its mean over query positions of this run; or the weights are uniform."""
    over: Literal["unpadded"] | None = None
    """For a mean: which positions count; None for all."""
    quantity: str | None = None
    """For patch: one of `PATCHED`."""
    source: str = OTHER
    """For patch: the feed whose unedited run gives the values."""
    values: Array | None = None
    """For patch: the values themselves, in attnx's layout of the quantity ([B,H,Q,D], [B,Hkv,K,D], [B,H,Q,K], [B,Q,E]);
    axes of size 1 stand for all positions."""
    keep_self: bool = False
    """For knockout: each query keeps its own key."""


@dataclass(frozen=True, slots=True, eq=False)
class Intervention:
    """One edited run."""

    id: str
    edits: tuple[Edit, ...]
    run: str = RUN
    """The feed to run."""


@dataclass(frozen=True, slots=True)
class Lens:
    """The logit lens: what the model would predict after each layer."""

    id: str = "lens"
    run: str = RUN


@dataclass(frozen=True, slots=True)
class Attribute:
    """Direct logit attribution: what each part adds to a token's logit."""

    targets: tuple[tuple[int, int, int], ...]
    """Row of the batch, position, token."""
    id: str = "attribute"
    run: str = RUN


Step = Intervention | Lens | Attribute


def ablate(
    head: tuple[int, int] | None = None, *, method: Method = "zero", component: Where | None = None, id: str = ""
) -> Intervention:
    """Ablate one head (layer, head); without one, every head of the model."""
    layers, heads = (None, None) if head is None else ((head[0],), (head[1],))
    name = id or ("ablate" if head is None else f"ablate.{head[0]}.{head[1]}")
    return Intervention(name, (Edit("ablate", layers, heads, component=component, method=method),))
