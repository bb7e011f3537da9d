"""What is asked for: edits of a run, the logit lens, and what each part adds to a logit. numpy only."""

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
"""Quantities of a layer: what attention and MLP add to the residual stream, and the stream behind the layer."""
PATCHED = (*OF_HEADS, *OF_LAYERS)
ORDERS = {"query": "bhqd", "key": "bhkd", "value": "bhkd", "context": "bhqd", "weights": "bhqk", "masked": "bhqk"}
"""Axes of each quantity of heads; those of layers are "bqd"."""
RUN, OTHER = "inputs", "other"
"""Names of the two feeds."""


@dataclass(frozen=True, slots=True, eq=False)
class Edit:
    """One change of a run. `layers`, `heads`, `queries`, `keys`: None is all; several are their product."""

    kind: What
    """ablate: a head's context is replaced; knockout: edges are hidden before the softmax; patch: a quantity is taken
    from another run."""
    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    queries: tuple[int, ...] | None = None
    keys: tuple[int, ...] | None = None
    component: Where | None = None
    """None where the model has one kind of attention."""
    method: Method = "zero"
    """Of ablate: the context is 0, or its mean over query positions of this run; or the weights are uniform."""
    over: Literal["unpadded"] | None = None
    """Of a mean: which positions count; all where None."""
    quantity: str | None = None
    """Of patch, of `PATCHED`."""
    source: str = OTHER
    """Of patch: the feed whose unedited run gives the values."""
    values: Array | None = None
    """Of patch: the values themselves, as attnx writes the quantity ([B,H,Q,D], [B,Hkv,K,D], [B,H,Q,K], [B,Q,E]);
    axes of size 1 stand for all places."""
    keep_self: bool = False
    """Of knockout: each query keeps its own key."""


@dataclass(frozen=True, slots=True, eq=False)
class Intervention:
    """One edited run."""

    id: str
    edits: tuple[Edit, ...]
    run: str = RUN
    """The feed that is run."""


@dataclass(frozen=True, slots=True)
class Lens:
    """The logit lens: what the model would say after each layer."""

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
    """One head ablated (layer, head); every head of the model without one."""
    layers, heads = (None, None) if head is None else ((head[0],), (head[1],))
    name = id or ("ablate" if head is None else f"ablate.{head[0]}.{head[1]}")
    return Intervention(name, (Edit("ablate", layers, heads, component=component, method=method),))
