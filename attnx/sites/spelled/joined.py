"""Heads that a model keeps in a list, each as a module of its own: heads joined by a Concat or Stack are one site.

Such heads are parallel softmaxes over one input. Taken separately, they would count as layers on top of one another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnx.graph.axes.atoms import Axes, fresh, leaves
from attnx.graph.axes.axes import forward
from attnx.graph.axes.moved import origin
from attnx.graph.axes.origins import streams
from attnx.graph.axes.paths import above
from attnx.graph.load.nodes import attributes
from attnx.layout import axis_of, parse
from attnx.records import Place
from attnx.sites.emit import Emit, prefix_of
from attnx.sites.finding import Finding, Replacement, key_of
from attnx.sites.spelled.several_values import joined_values, layout_at, one_softmax, other_uses

if TYPE_CHECKING:
    from onnx import NodeProto

    from attnx.graph.shapes.index import Graph

_VIEWS = ("Identity", "Dropout", "Cast", "CastLike", "Transpose", "Reshape", "Unsqueeze", "Squeeze")
_STEPS = 12
_QUANTITIES = ("query", "key", "value", "scores", "scaled", "capped", "masked", "weights", "context")


@dataclass(frozen=True, slots=True)
class _Ends:
    """Where a head's context goes."""

    node: NodeProto
    """The Concat that joins it with others."""
    at: int
    """Which of its inputs it is."""
    layout: str | None
    """The meaning of the joined tensor's axes, where the heads are concatenated in it unchanged; else None."""
    seen: str | None
    """The meaning of its axes, where what is joined are features alone; else None."""


def join(graph: Graph, findings: Sequence[Finding]) -> list[tuple[Finding, list[Finding]]]:
    """The sites that consist of single heads, each with its heads in order.

    Args:
        graph: The graph, with every fused node replaced.
        findings: The sites found so far.
    """
    groups: dict[str, list[tuple[_Ends, Finding]]] = {}
    for finding in findings:
        others = other_uses(graph, finding)
        for part in (finding, *others):
            ends = _ends(graph, part)
            if ends is not None:
                groups.setdefault(ends.node.output[0], []).append((ends, part))
    out = []
    for group in groups.values():
        group.sort(key=lambda pair: pair[0].at)
        ends = group[0][0]
        parts = [finding for _, finding in group]
        if [e.at for e, _ in group] != list(range(len(ends.node.input))) or len(parts) < 2 or not _alike(graph, parts):
            continue
        if one_softmax(graph, parts):
            e = Emit(graph, f"{prefix_of(graph, ends.node)}/values")
            out.append((joined_values(graph, ends.node, ends.seen, e, parts), parts))
        elif len({f.places["weights"].value for f in parts}) == len(parts):
            out.append((_joined(graph, ends, parts), parts))
    return out


def _ends(graph: Graph, finding: Finding) -> _Ends | None:
    """The Concat that joins a context with others: along features, or along an axis of its own."""
    place = finding.places.get("context")
    shape = None if place is None else graph.shape(place.value)
    words = None if place is None else parse(place.layout)
    if place is None or shape is None or words is None or len(words) != len(shape) or place.factors:
        return None
    if any(len({name[0] for name, _ in word} & set("bq")) and len(word) > 1 for word in words):
        return None  # heads or features share an axis with tokens: the axes could not be told apart after it
    axes = fresh(shape)
    own = [axis for axis, word in zip(axes, words, strict=True) if word and word[0][0][0] in "hd"]
    now: Axes | None = axes
    value, bare = place.value, True
    for _ in range(_STEPS):
        readers = [n for n in graph.consumers(value) if n.op_type not in ("Shape", "Size")]
        if len(readers) != 1 or now is None:
            return None
        node = readers[0]
        if node.op_type == "Concat":
            at = attributes(node).get("axis", 0)
            if list(node.input).count(value) != 1 or not -len(now) <= at < len(now):
                return None
            inside = {id(leaf) for axis in own for leaf in leaves(axis)}
            atoms = leaves(now[at])
            if not all(id(leaf) in inside for leaf in atoms) or (not atoms and _cut(graph, finding)):
                return None
            layout = _side_by_side(place.layout, at % len(now), len(node.input)) if bare and atoms else None
            seen = layout_at(place.layout, axes, now, at)
            return _Ends(node, list(node.input).index(value), layout, seen)
        if node.op_type not in _VIEWS or not node.output or node.input[0] != value:
            return None
        bare = bare and node.op_type in ("Identity", "Dropout")
        now = forward(graph, node, now, value)
        value = node.output[0]
    return None


def _cut(graph: Graph, finding: Finding) -> bool:
    """Whether a site's queries are only some of those made together: a block of a text, and not a head."""
    query = finding.places.get("query")
    at = None if query is None else axis_of(query.layout, "q")
    if query is None or at is None or (made := origin(graph, query.value)) is None:
        return False
    own, whole = graph.shape(query.value), graph.shape(made)
    return own is not None and whole is not None and own[at] not in whole[:-1]


def _side_by_side(layout: str, at: int, count: int) -> str | None:
    """A context's layout, its features joined with those of others along an axis: "b q d" as "b q (h:4 d)"."""
    words = _deeper(layout).split(" ") if "(" not in layout else None
    if words is None or words[at] != "d":
        return None
    return " ".join([*words[:at], f"({_head(layout, count)} d)", *words[at + 1 :]])


def _deeper(layout: str) -> str:
    """A layout whose heads are nested in others: h becomes h1, h0 becomes h1, h1 becomes h2."""
    words = []
    for axis in parse(layout):
        names = [
            (f"h{int(n[1:] or 0) + 1}" if n[0] == "h" else n) + (f":{s}" if s is not None else "") for n, s in axis
        ]
        words.append("1" if not names else names[0] if len(names) == 1 else f"({' '.join(names)})")
    return " ".join(words)


def _head(layout: str, count: int) -> str:
    inner = any(name[0] == "h" for axis in parse(layout) for name, _ in axis)
    return f"h{'0' if inner else ''}:{count}"


def _alike(graph: Graph, parts: Sequence[Finding]) -> bool:
    """Whether findings are heads of one site: over one input, of one form, and none made from another."""
    first = parts[0]
    if any("weights" not in f.places or f.pieces > 1 for f in parts):
        return False
    if len({(f.kind, f.softcap, f.places["weights"].layout, f.heads is None) for f in parts}) > 1:
        return False
    if len({graph.shape(f.places["weights"].value) for f in parts}) > 1:
        return False
    for source in ("query_from", "key_from"):
        common = streams(graph, getattr(first, source))
        for other in parts[1:]:
            name = getattr(other, source)
            if name != getattr(first, source) and not streams(graph, name) & common:
                return False
    contexts = {f.places["context"].value for f in parts}
    return not any(above(graph, [f.query_from, f.key_from, f.value_from]) & contexts for f in parts)


def _joined(graph: Graph, ends: _Ends, parts: Sequence[Finding]) -> Finding:
    """One finding for all heads, with nodes that stack their tensors."""
    first = parts[0]
    e = Emit(graph, f"{prefix_of(graph, ends.node)}/heads")
    finding = Finding(
        first.node, {}, query_from=first.query_from, key_from=first.key_from, value_from=first.value_from,
        kind=first.kind, softcap=first.softcap, product=first.product, carries=ends.node.output[0],
        beside=tuple(dict.fromkeys([*(f.product for f in parts[1:]), *(n for f in parts for n in f.beside)])),
    )  # fmt: skip
    for quantity in _QUANTITIES:
        places = [f.places.get(quantity) for f in parts]
        if quantity == "context" and ends.layout is not None:
            finding.places[quantity] = Place(ends.node.output[0], ends.layout)
        elif (place := _stacked(e, quantity, places, first.heads or 1)) is not None:
            finding.places[quantity] = place
    shared = len({f.places["key"].value if "key" in f.places else "" for f in parts}) == 1 and "key" in first.places
    known = [f.heads for f in parts if f.heads is not None]
    finding.heads = sum(known) if len(known) == len(parts) else None
    own = [f.kv_heads for f in parts if f.kv_heads is not None]
    finding.kv_heads = first.kv_heads if shared else sum(own) if len(own) == len(parts) else None
    finding.head_size = first.head_size if len({f.head_size for f in parts}) == 1 else None
    finding.scale = _scale(parts)
    finding.scale_place = first.scale_place
    finding.causal = first.causal if len({f.causal for f in parts}) == 1 else None
    finding.window = first.window if len({f.window for f in parts}) == 1 else None
    finding.bias = next((f.bias for f in parts if f.bias), None)
    finding.heads_mixed = any(f.heads_mixed for f in parts)
    finding.sink, finding.gated = any(f.sink for f in parts), any(f.gated for f in parts)
    finding.absent = tuple(dict.fromkeys(name for f in parts for name in f.absent))
    finding.notes = [*dict.fromkeys(note for f in parts for note in f.notes), _note(parts)]
    finding.key, finding.needs = e.prefix, tuple(key_of(f.node) for f in parts if f.replacement is not None)
    finding.replacement = Replacement([ends.node, *e.nodes], e.initializers, at=ends.node.output[0])
    return finding


def _note(parts: Sequence[Finding]) -> str:
    if all(f.heads in (None, 1) for f in parts):
        return f"{len(parts)} heads that are computed one by one, and joined behind their softmaxes"
    return f"{len(parts)} groups of heads that are computed one by one, and joined behind their softmaxes"


def _stacked(e: Emit, quantity: str, places: Sequence[Place | None], inner: int) -> Place | None:
    """One tensor stacked from several heads' tensors, heads first; or the one tensor that they share."""
    there = [place for place in places if place is not None]
    if len(there) < len(places) or len({(p.layout, p.window, p.tile, len(p.factors)) for p in there}) > 1:
        return None
    first = there[0]
    if quantity in ("key", "value") and len({p.value for p in there}) == 1 and len({p.factors for p in there}) == 1:
        return first
    factors = _factors(there, inner)
    if factors is None:
        return None
    whole = e.concat([e.unsqueeze(place.value, 0) for place in there], 0, out=e.name(quantity))
    layout = f"{_head(first.layout, len(there))} {_deeper(first.layout)}"
    return Place(whole, layout, factors, first.window, first.tile)


def _factors(places: Sequence[Place], inner: int) -> tuple[float | tuple[float, ...], ...] | None:
    """The factors that all share; or, where each has its own numbers, one for each of its heads."""
    if len({p.factors for p in places}) == 1:
        return places[0].factors
    if any(isinstance(factor, tuple) for p in places for factor in p.factors):
        return None
    own = [[f for f in p.factors if not isinstance(f, tuple)] for p in places]
    return tuple(tuple(f for f in row for _ in range(inner)) for row in zip(*own, strict=True))


def _scale(parts: Sequence[Finding]) -> float | tuple[float, ...] | None:
    scales = [f.scale for f in parts]
    if None in scales or len(set(scales)) == 1:
        return scales[0] if len(set(scales)) == 1 else None
    out: list[float] = []
    for f in parts:
        assert f.scale is not None
        out += list(f.scale) if isinstance(f.scale, tuple) else [f.scale] * (f.heads or 1)
    return tuple(out)
