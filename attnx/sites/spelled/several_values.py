"""One attention that weighs several values, which are joined behind it (differential attention): they are one value."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from attnx.graph.axes.atoms import Atom, Axes, leaves
from attnx.graph.axes.paths import depends
from attnx.graph.load.nodes import attributes
from attnx.layout import axis_of
from attnx.records import Place
from attnx.sites.emit import Emit
from attnx.sites.finding import Finding, Replacement, key_of

if TYPE_CHECKING:
    from onnx import NodeProto

    from attnx.graph.shapes.index import Graph

_WORD = re.compile(r"\([^)]*\)|\S+")
_NODES = 400
"""The most nodes that are compared to tell whether two tensors are computed alike."""


def other_uses(graph: Graph, finding: Finding) -> list[Finding]:
    """The finding once more for each further value that its weights are multiplied with: its value and context are
    these.
    """
    places = finding.places
    if not {"weights", "value", "context"} <= set(places) or finding.replacement is not None:
        return []
    node = graph.producer(places["context"].value)
    if node is None or node.op_type != "MatMul" or node.input[1] != places["value"].value:
        return []
    shape, found = graph.shape(node.input[1]), []
    for other in graph.consumers(node.input[0]):
        if other is node or other.op_type != "MatMul" or other.input[0] != node.input[0]:
            continue
        value = other.input[1]
        if value != node.input[1] and depends(graph, value) and shape is not None and graph.shape(value) == shape:
            own = {
                "value": replace(places["value"], value=value),
                "context": replace(places["context"], value=other.output[0]),
            }
            found.append(replace(finding, places=places | own, value_from=value))
    return found


def one_softmax(graph: Graph, parts: Sequence[Finding]) -> bool:
    """Whether all weights are the same numbers, and the values are not: one tensor, or computed alike of the same."""
    first, *others = (f.places["weights"].value for f in parts)
    left = [_NODES]
    known: dict[tuple[str, str], bool] = {}
    return all(_same(graph, first, other, known, left) for other in others)


def _same(graph: Graph, one: str, other: str, known: dict[tuple[str, str], bool], left: list[int]) -> bool:
    if one == other:
        return True
    if (one, other) not in known:
        known[one, other] = False  # until it is known
        known[one, other] = _computed_alike(graph, one, other, known, left)
    return known[one, other]


def _computed_alike(graph: Graph, one: str, other: str, known: dict[tuple[str, str], bool], left: list[int]) -> bool:
    a, b = graph.producer(one), graph.producer(other)
    if a is None or b is None:
        if not (graph.is_constant(one) and graph.is_constant(other)):
            return False
        first, second = graph.known(one), graph.known(other)
        return first is not None and second is not None and np.array_equal(first, second)
    left[0] -= 1
    alike = (a.op_type, a.domain, len(a.input)) == (b.op_type, b.domain, len(b.input))
    if left[0] < 0 or not alike or list(a.output).index(one) != list(b.output).index(other) or _random(a):
        return False
    if {k: str(v) for k, v in attributes(a).items()} != {k: str(v) for k, v in attributes(b).items()}:
        return False
    return all(_same(graph, x, y, known, left) for x, y in zip(a.input, b.input, strict=True))


def _random(node: NodeProto) -> bool:
    return node.op_type.startswith("Random") or node.op_type in ("Bernoulli", "Multinomial", "Dropout")


def joined_values(graph: Graph, node: NodeProto, layout: str | None, e: Emit, parts: Sequence[Finding]) -> Finding:
    """One finding whose value is all of them side by side.

    Args:
        graph: The graph.
        node: The Concat that joins the contexts along their features.
        layout: The layout of its output; None where heads and features cannot be told apart there.
        e: Where nodes go.
        parts: The attention with each of its values, in the order of the Concat.
    """
    first = parts[0]
    note = f"its weights weigh {len(parts)} values, joined behind it: value and context hold them side by side"
    finding = replace(
        first, places=dict(first.places), also=[], notes=[*first.notes, note], carries=node.output[0],
        beside=tuple(dict.fromkeys([*(f.product for f in parts[1:]), *(n for f in parts for n in f.beside)])),
    )  # fmt: skip
    for quantity in ("value", "context"):
        finding.places.pop(quantity, None)
        places = [f.places[quantity] for f in parts if quantity in f.places]
        if quantity == "context" and layout is not None and not any(p.factors for p in places):
            finding.places[quantity] = Place(node.output[0], layout)
        elif len(places) == len(parts) and (whole := _beside(e, quantity, places)) is not None:
            finding.places[quantity] = whole
    finding.key = e.prefix
    finding.needs = tuple(dict.fromkeys(key_of(f.node) for f in parts if f.replacement is not None))
    finding.replacement = Replacement([node, *e.nodes], e.initializers, at=node.output[0])
    return finding


def _beside(e: Emit, quantity: str, places: Sequence[Place]) -> Place | None:
    """Several tensors side by side along their features; None where these have no axis of their own."""
    first, at = places[0], axis_of(places[0].layout, "d")
    if at is None or len({replace(p, value="") for p in places}) > 1:
        return None
    return replace(first, value=e.concat([p.value for p in places], at, out=e.name(quantity)))


def layout_at(layout: str, began: Axes, now: Axes, at: int) -> str | None:
    """The layout of a tensor after views of it, whose axis `at` holds its features alone; else None.

    Args:
        layout: Its layout before.
        began: Its axes then.
        now: Its axes after the views.
        at: The axis along which it is joined with others.
    """
    names: dict[Atom, str] = {}
    for axis, word in zip(began, _WORD.findall(layout), strict=True):
        atoms = leaves(axis)
        if len(atoms) > 1:
            return None
        if atoms:
            names[atoms[0]] = word
    words = [[names.get(atom, "") for atom in leaves(axis)] for axis in now]
    if any(len(word) > 1 for word in words) or words[at] != ["d"] or not all(map(all, words)):
        return None
    return " ".join(word[0] if word else "1" for word in words)


__all__ = ["joined_values", "layout_at", "one_softmax", "other_uses"]
