"""What a recogniser returns: a site not yet numbered and, for a fused node, the nodes that replace it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from attnx.records import Kind, Miss, Place

if TYPE_CHECKING:
    from onnx import NodeProto, TensorProto

    from attnx.graph.shapes.index import Graph


@dataclass(slots=True)
class Replacement:
    """Primitive nodes that compute what a fused node computes, with a name for every stage.

    They make every output of the fused node, under the same names, so that the rest of the graph is unaffected.
    """

    nodes: list[NodeProto]
    initializers: list[TensorProto]
    required: bool = False
    """The fused node cannot run on the CPU as it is (or gives wrong results): replace it even if it is not examined."""
    at: str = ""
    """An output of the node that is replaced, where that is not the node that identifies the finding."""


@dataclass(slots=True)
class Finding:
    """A recognised attention. Fields that stay None are worked out from dataflow (numbering.py) or by a probe."""

    node: NodeProto
    """The node that identifies it: the Softmax, or the fused node."""
    places: dict[str, Place]
    """Quantity -> where it is (for a fused node: in the replacement)."""
    query_from: str = ""
    """A value upstream of the query only, from which dataflow tells self from cross; likewise the two below."""
    key_from: str = ""
    value_from: str = ""
    kind: Kind | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_size: int | None = None
    scale: float | tuple[float, ...] | None = None
    scale_place: str = ""
    softcap: float | None = None
    causal: bool | None = None
    """Set here only where an attribute decides it and nothing else can add to the mask; None: probed on the masked
    stage."""
    window: int | None = None
    bias: str | None = None
    sink: bool = False
    gated: bool = False
    """The weights are multiplied by a gate before they weigh the value: weights x value is not the context."""
    rescaled: bool = False
    """Whether the scores also meet a factor that differs between cells or inputs, which no scale can hold."""
    heads_mixed: bool = False
    """See `Site.heads_mixed`."""
    linear: bool = False
    """A fused operator multiplies `query_from` and `key_from` unchanged, or at most moved, rotated, cached, rounded or
    repeated, so that any factor on them is also a factor on its scores."""
    product: str = ""
    """The score tensor that a probe may overwrite with zeros to see the mask alone (a value of the graph, or of the
    replacement)."""
    keys_before: int = 0
    """See `Site.keys_before`."""
    pieces: int = 1
    """How many products share its softmax, each over its own keys."""
    carries: str = ""
    """What the rest of the graph reads of it, where nothing reads its places (they are added next to it)."""
    beside: tuple[str, ...] = ()
    """Products that are added to it, which a probe overwrites too."""
    replacement: Replacement | None = None
    key: str = ""
    """The key of the replacement; the name of its node where empty."""
    needs: tuple[str, ...] = ()
    """Keys of other replacements that its nodes read from."""
    also: list[Finding] = field(default_factory=list)
    """Further sites that the same node makes (Longformer: the global queries)."""
    absent: tuple[str, ...] = ()
    """Quantities that do not exist here and must not be computed."""
    notes: list[str] = field(default_factory=list)


def key_of(node: NodeProto) -> str:
    """The key of a fused node: its first output."""
    return str(next((o for o in node.output if o), node.name))


Recogniser = Callable[["Graph", "NodeProto"], Finding | Miss | None]
"""None: not handled by this file. A Miss: it looked like attention; says why none can be shown."""
