"""The value in a mask input that marks a visible key, found by evaluating the masks of the sites that it reaches."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from attnx.graph.axes.paths import above, depends
from attnx.graph.fact import Fact
from attnx.graph.masks.mask_probe import LIMIT, keeping, small_sizes
from attnx.graph.masks.mask_reading import Probed, Reader
from attnx.graph.shapes.infer import Part, infer
from attnx.records import Site

if TYPE_CHECKING:
    from attnx.graph.shapes.index import Graph

_LENGTH = 6
"""Tokens in the text for which masks are evaluated."""
_PROJECTS = (
    "MatMul",
    "Gemm",
    "Conv",
    "ConvTranspose",
    "Einsum",
    "FusedMatMul",
    "MatMulNBits",
    "QLinearMatMul",
    "QLinearConv",
)
_FAR_BELOW = -1e4
_BOOL, _WHOLE, _FRACTIONS = (9,), (6, 7), (1, 10)
"""Element types of ONNX."""


def kept_by(graph: Graph, sites: Sequence[Site]) -> dict[str, float]:
    """For each mask input whose numbers tell visible keys from hidden ones: the number that marks a visible key.

    Args:
        graph: The flat graph, fused nodes replaced.
        sites: Its sites.

    Returns:
        Input -> 1 where ones keep and zeros hide; 0 where ones hide (padding is true), or where numbers far below zero
        hide (the mask is added). Inputs to which neither applies are absent.
    """
    found: dict[str, float] = {}
    looked = [name for name, info in graph.inputs.items() if _may_mask(graph, name, info)]
    probed = [one for site in sites if (one := _probed(site)) is not None]
    for one in probed:
        left = [name for name in looked if name not in found]
        if not left:
            break
        left = [name for name in left if name in _unprojected(graph, one)]
        if not left:
            continue
        probe = _Probe(graph, one)
        found |= {name: kept for name in left if (kept := probe.kept(name)) is not None}
    return found


def _unprojected(graph: Graph, site: Probed) -> set[str]:
    """The values that reach a site's masked scores by no projection, as masks do and hidden states do not.

    The whole model would have to be evaluated to follow the numbers of hidden states (relative positions make scores of
    them), and none of them hides anything.
    """
    found: set[str] = set()
    stack = [name for name in _targets(site) if name != site.product]
    while stack:
        value = stack.pop()
        if value in found:
            continue
        found.add(value)
        node = graph.producer(value)
        if node is None or node.op_type in ("Shape", "Size"):
            continue
        if node.op_type not in _PROJECTS or not any(_weighs(graph, name) for name in node.input[:2]):
            stack += [name for name in node.input if name and name != site.product]
    return found


def _weighs(graph: Graph, value: str) -> bool:
    """Whether a value holds a projection's weights; a table of ones and zeros only selects or counts."""
    if depends(graph, value):
        return False
    held = graph.stable(value)
    return held is None or not np.isin(held, (0, 1)).all()


def _may_mask(graph: Graph, name: str, info: object) -> bool:
    tensor = info.type.tensor_type  # type: ignore[attr-defined]
    looked_up = any(node.op_type in ("Gather", "EmbedLayerNormalization") for node in graph.consumers(name))
    return tensor.elem_type in (*_BOOL, *_WHOLE, *_FRACTIONS) and len(tensor.shape.dim) >= 2 and not looked_up


def _probed(site: Site) -> Probed | None:
    product = site.places.get("scores") or site.places.get("scaled")
    weights = site.places.get("weights")
    if product is None or weights is None:
        return None
    return Probed(product.value, (), site.places.get("masked"), weights)


def _targets(site: Probed) -> list[str]:
    return [site.weights.value, *([site.masked.value] if site.masked is not None else [])]


def _behind(graph: Graph, values: Sequence[str]) -> set[str]:
    """These values and everything from which they or their sizes are made."""
    found, waiting = set(values), list(values)
    while waiting:
        node = graph.producer(waiting.pop())
        new = set(graph.reads(node)) - found if node is not None else set()
        found |= new
        waiting += new
    return found


class _Probe:
    """One site's mask, evaluated with the numbers of one input changed."""

    def __init__(self, graph: Graph, site: Probed) -> None:
        self.graph, self.site = graph, site
        self.cone = above(graph, _targets(site), {site.product})
        self._sizes = small_sizes(graph, _LENGTH)
        self._inputs = keeping(graph, self._sizes, self.cone)
        whole = _behind(graph, [*self.cone, site.product])
        self._shapes = infer(
            graph,
            self._sizes,
            self._inputs,
            part=Part([n for n in graph.nodes if not whole.isdisjoint(graph.outline(n).outputs)]),
        )
        self._nodes = [n for n in graph.nodes if not self.cone.isdisjoint(graph.outline(n).outputs)]
        self._product = self._zero(self._shapes.get(site.product))

    def kept(self, name: str) -> float | None:
        """The number in an input that marks a visible key: see `kept_by`."""
        own = self._inputs.get(name)
        if name not in self.cone or own is None or own.value is None or self._product is None:
            return None
        if not self._sees(name, own, 1.0):
            return 0.0 if self._sees(name, own, 0.0) and own.dtype not in _FRACTIONS else None
        if not self._sees(name, own, 0.0):
            return 1.0
        return 0.0 if own.dtype in _FRACTIONS and not self._sees(name, own, _FAR_BELOW) else None

    def _sees(self, name: str, own: Fact, value: float) -> bool:
        """Whether any key is visible where every number of the input is `value` and all other masks keep everything."""
        assert own.value is not None and self._product is not None  # noqa: PT018
        given = Fact(own.shape, own.dtype, np.full(own.value.shape, value).astype(own.value.dtype))
        inputs = {**self._inputs, name: given, self.site.product: self._product}
        reader, part = Reader([self.site]), Part(self._nodes, self._shapes)
        reader.finish(infer(self.graph, self._sizes, inputs, LIMIT, self.cone, reader.seen, part))
        return self.site.weights.value in reader.found

    @staticmethod
    def _zero(product: Fact | None) -> Fact | None:
        if product is None or product.shape is None or None in product.shape:
            return None
        whole = tuple(int(size) for size in product.shape if size is not None)
        zero = np.zeros((), np.float16 if product.dtype == 10 else np.float32)
        return Fact(whole, product.dtype, np.broadcast_to(zero, whole)) if 0 < prod(whole) <= LIMIT else None
