"""The weights around an attention (W_Q, W_K, W_V and W_O) and the hidden state its block reads. Only where certain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from attnx.graph.axes.atoms import Atom, Axes, fresh, leaves, split_alike
from attnx.graph.axes.axes import forward
from attnx.graph.axes.dequantise import floats, scale_of
from attnx.graph.axes.nbits import OP, packed_numbers, packed_product
from attnx.graph.axes.origins import rotary_source
from attnx.graph.axes.paths import depends
from attnx.graph.axes.product import Product, find_product, float_source
from attnx.graph.axes.stored import numbers, root
from attnx.graph.load.nodes import ROUNDS
from attnx.layout import parse

if TYPE_CHECKING:
    from onnx import NodeProto

    from attnx.graph.shapes.index import Graph
    from attnx.records import Array, Site

_VIEWS = (
    frozenset(
        "Transpose Reshape Cast CastLike Identity Unsqueeze Squeeze Expand Tile Flatten Dropout Slice "
        "Split Gather".split()
    )
    | ROUNDS
)
_NORMS = frozenset(
    "LayerNormalization SimplifiedLayerNormalization RMSNormalization LpNormalization RotaryEmbedding".split()
)
_CHANGED = frozenset("Mul Div Add LayerNormalization SimplifiedLayerNormalization RMSNormalization".split())
"""What may lie between the context and W_O when only the output of W_O is wanted: a gate, or a norm."""
_STEPS = 60


@dataclass(frozen=True, slots=True)
class Projection:
    """One matrix that the hidden states are multiplied by."""

    weight: str
    """Name of the initializer that holds it."""
    rows: int
    """Its input width: the width of X (of the concatenated heads, for W_O)."""
    columns: int
    """Its output width; where query, key and value share one matrix, the width of all three."""
    source: str
    """Name of the tensor that is multiplied by it."""
    out: str
    """Name of the product."""
    packed: bool = False
    """Whether query, key and value share this matrix."""


@dataclass(frozen=True, slots=True)
class Projections:
    """The weights around one site; None for any that was not found with certainty."""

    query: Projection | None
    key: Projection | None
    value: Projection | None
    output: Projection | None


def projections(graph: Graph, site: Site) -> Projections:
    """Find the weights around a site.

    Args:
        graph: The graph that holds the site's places (`Found.opened`).
        site: With places.

    Returns:
        Query, key and value projections are found upstream of the operands, through views, biases, norms and rotary
        embeddings; the output projection is found downstream of the context, and only where the graph's own axes show
        that the heads were concatenated in order.
    """
    found = {}
    for name in ("query", "key", "value"):
        place = site.places.get(name)
        found[name] = None if place is None else _upstream(graph, place.value)
    shared = [p.weight for p in found.values() if p is not None]
    for name, made in found.items():
        if made is not None and shared.count(made.weight) > 1:
            found[name] = Projection(made.weight, made.rows, made.columns, made.source, made.out, packed=True)
    return Projections(found["query"], found["key"], found["value"], _output(graph, site)[0])


def output_axes(graph: Graph, site: Site) -> tuple[str, Axes, list[tuple[str, Atom]]] | None:
    """The output of W_O, with the meaning of its axes; None where W_O was not found with certainty.

    Unlike when the numbers of W_O are wanted, the context may be gated or normed before W_O multiplies it.

    Returns:
        The product's name, its axes, and the atoms that stand for batch, queries ("b", "q"); all others are features.
    """
    for through in (False, True):
        made, product, side, axes = _followed(graph, site, through)
        place = site.places.get("context")
        if made is None or product is None or place is None:
            continue
        split_alike(product.left_axes if side == 0 else product.right_axes, axes[1])
        known = [
            (name[0], atom)
            for axis, names in zip(axes[0], parse(place.layout), strict=True)
            for (name, _), atom in zip(names, axis[0].parts if len(names) > 1 else axis, strict=False)
        ]
        return made.out, product.out_axes, [(letter, atom) for letter, atom in known if letter in "bq"]
    return None


@dataclass(frozen=True, slots=True)
class Operand:
    """The tensor of the graph that holds W_O."""

    name: str
    order: tuple[int, ...]
    """Its axes: those that read the heads, then the others."""
    shape: tuple[int, int, int]
    """The sizes after that reordering: H, Dv, E."""
    factor: float
    """A factor on its product."""
    scale: str = ""
    zero: str = ""
    """Names of the scale and zero point, along its last axis, where the tensor holds integers."""
    packed: NodeProto | None = None
    """The product's node, where a byte of the tensor holds several numbers; `order` then orders [rows, columns]."""


def output_operand(graph: Graph, site: Site) -> Operand | None:
    """Where the graph holds W_O; None where that is not certain."""
    made, product, side = _output(graph, site)
    if made is None or product is None or site.heads is None or made.rows % site.heads:
        return None
    name = product.left if side == 1 else product.right
    shape = (site.heads, made.rows // site.heads, made.columns)
    if product.node.op_type == OP:
        return Operand(name, (0, 1), shape, product.factor, packed=product.node)
    axes = product.left_axes if side == 1 else product.right_axes
    inner = set(product.contracted)
    at = [i for i, axis in enumerate(axes) if not inner.isdisjoint(axis)]
    order = (*at, *(i for i in range(len(axes)) if i not in at))
    scale, zero = (scale_of(graph, product) if side == 0 else None) or ("", "")
    return Operand(name, order, shape, product.factor, scale, zero)


def output_weights(graph: Graph, site: Site) -> Array | None:
    """W_O as [H,Dv,E], the slice of the output projection that reads each head; None where it is not certain.

    The whole matrix is read, so call this only when its numbers are wanted; quantised weights are returned as floats.
    """
    operand = output_operand(graph, site)
    found = None if operand is None else _held(graph, operand)
    if operand is not None and found is not None and operand.scale:
        scale, zero = numbers(graph, operand.scale), numbers(graph, operand.zero) if operand.zero else None
        whole = scale is not None and (zero is not None or not operand.zero)
        found = floats(found, scale, zero, -1) if whole and scale is not None else None
    if operand is None or found is None or found.dtype.kind != "f":
        return None
    return np.asarray(np.transpose(found, operand.order), np.float32).reshape(operand.shape) * operand.factor


def _held(graph: Graph, operand: Operand) -> Array | None:
    return numbers(graph, operand.name) if operand.packed is None else packed_numbers(graph, operand.packed)


def _upstream(graph: Graph, value: str) -> Projection | None:
    """The projection that made a query, key or value."""
    for _ in range(_STEPS):
        node = graph.producer(value)
        if node is None:
            return None
        product = _product_of(graph, node) if node.op_type == OP else find_product(graph, value)
        if product is not None:
            return _of_product(graph, product)
        before = _before(graph, node, value)
        if before is None:
            return None
        value = before
    return None


def _before(graph: Graph, node: NodeProto, value: str) -> str | None:
    """The input that carries the content through a step between a projection and the attention."""
    if node.op_type in _VIEWS or node.op_type in _NORMS:
        return str(node.input[0])
    live = [name for name in node.input if name and depends(graph, name)]
    if node.op_type in ("Add", "Mul", "Div", "Sub") and len(live) == 1:
        return str(live[0])
    turned = rotary_source(graph, value)
    if turned is not None:
        return str(turned)
    if node.op_type == "Mul" and len(live) == 2:  # a norm written out: x times 1 / its size
        shape = graph.shape(value)
        wide = [name for name in live if graph.shape(name) == shape]
        return str(wide[0]) if len(wide) == 1 else None
    if node.op_type in ("Where", "ScatterND", "ScatterElements"):  # a cache that is written to
        written = node.input[1] if node.op_type == "Where" else node.input[2]
        return str(written) if depends(graph, written) else None
    if node.op_type == "Concat":  # cached rows, then new ones
        made = [name for name in live if name not in graph.inputs]
        return str(made[0]) if len(made) == 1 else None
    return None


def _of_product(graph: Graph, product: Product) -> Projection | None:
    sides = [depends(graph, product.left), depends(graph, product.right)]
    if sides.count(True) != 1:
        return None
    constant, data = (product.right, product.left) if sides[0] else (product.left, product.right)
    axes = product.right_axes if sides[0] else product.left_axes
    held, shape = root(graph, constant), graph.shape(constant)
    if held is None or shape is None or None in shape or len(axes) != len(shape):
        return None
    if product.node.op_type == OP:
        rows, columns = product.contracted[0].size or 0, product.out_axes[-1][0].size or 0
        return Projection(held, rows, columns, product.left, product.out)
    inner = set(product.contracted)
    summed = [not inner.isdisjoint(axis) for axis in axes]
    rows, columns = (
        int(np.prod([size for size, flag in zip(shape, summed, strict=True) if size is not None and flag is wanted]))
        for wanted in (True, False)
    )
    return Projection(held, rows, columns, float_source(graph, data), product.out) if any(summed) else None


def _output(graph: Graph, site: Site) -> tuple[Projection | None, Product | None, int]:
    """W_O, its product, and the side on which the context stands (0 left, 1 right)."""
    return _followed(graph, site)[:3]


def _followed(
    graph: Graph, site: Site, through: bool = False
) -> tuple[Projection | None, Product | None, int, tuple[Axes, Axes]]:
    """As `_output`, with the axes of the context and of the product's input; `through`: past gates and norms."""
    nothing: tuple[None, None, int, tuple[Axes, Axes]] = (None, None, 0, ([], []))
    place = site.places.get("context")
    shape = None if place is None else graph.shape(place.value)
    if place is None or shape is None:
        return nothing
    axes = fresh(shape)
    inside = _heads_then_features(axes, place.layout, shape)
    if inside is None:
        return nothing
    whole = axes
    found: list[tuple[Projection, Product, int, tuple[Axes, Axes]]] = []
    stack = [(place.value, axes)]
    seen: set[str] = set()
    while stack and len(found) < 2:
        value, axes = stack.pop()
        if value in seen:
            continue
        seen.add(value)
        for node in graph.consumers(value):
            product = _product_of(graph, node)
            if product is not None and value in (product.left, product.right):
                side = 0 if value == product.left else 1
                made = _of_product(graph, product)
                mine = product.left_axes if side == 0 else product.right_axes
                if made is not None and _reads(mine, axes, product, inside):
                    found.append((made, product, side, (whole, axes)))
            elif node.op_type in ("Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Cast", "Identity"):
                moved = forward(graph, node, axes, value)
                if moved is not None:
                    stack.append((node.output[0], moved))
            elif (node.op_type in ROUNDS and node.input[0] == value) or (
                through and node.op_type in _CHANGED and graph.shape(node.output[0]) == graph.shape(value)
            ):
                stack.append((node.output[0], axes))
    return found[0] if len(found) == 1 else nothing


def _product_of(graph: Graph, node: NodeProto) -> Product | None:
    """The product that a node makes, or begins: after MatMulInteger it is the Mul that dequantises it."""
    if node.op_type == OP:
        return packed_product(graph, node)
    if node.op_type != "MatMulInteger":
        return find_product(graph, node.output[0])
    made = [inner for cast in graph.consumers(node.output[0]) for inner in graph.consumers(cast.output[0])]
    found = [product for inner in made if (product := find_product(graph, inner.output[0])) is not None]
    return found[0] if len(found) == 1 else None


def _heads_then_features(axes: Axes, layout: str, shape: tuple[int | None, ...]) -> list[Atom] | None:
    """The atoms of heads, then of features, in the order in which W_O must read them; splits merged axes."""
    words = parse(layout)
    if len(words) != len(axes):
        return None
    heads: list[Atom] = []
    features: list[Atom] = []
    for axis, names, size in zip(axes, words, shape, strict=True):
        if len(names) > 1:
            known = [n for _, n in names]
            if size is None or known.count(None) > 1 or not axis:
                return None
            rest = size // int(np.prod([n for n in known if n is not None]))
            axis[0].split(*[rest if n is None else n for n in known])
            parts = list(axis[0].parts)
        else:
            parts = list(axis) if names else []  # an axis of size 1 may have an atom if shapes leave its size unknown
            if not parts:
                continue
        for (name, _), atom in zip(names, parts, strict=True):
            if name[0] == "h":
                heads.append(atom)
            elif name[0] == "d":
                features.append(atom)
    return [*heads, *features] if features else None


def _reads(mine: Axes, axes: Axes, product: Product, inside: list[Atom]) -> bool:
    """Whether the product sums over the heads and features, in that order, and over nothing else."""
    if len(mine) != len(axes):
        return False
    inner = set(product.contracted)
    read = [
        leaf for own, traced in zip(mine, axes, strict=True) if not inner.isdisjoint(own) for leaf in leaves(traced)
    ]
    return list(read) == leaves(inside)
