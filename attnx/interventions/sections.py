"""Cut a model into sections of layers, so that what comes before a change runs once and edited runs start there."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod, sqrt
from typing import TYPE_CHECKING

from attnx.graph.axes.paths import above, depends, reaches
from attnx.interventions.changes import Changes
from attnx.interventions.editing import Hook
from attnx.interventions.entering import Entry, enter
from attnx.interventions.points import Point
from attnx.interventions.rows import Batch, batch_of
from attnx.interventions.stream import LostError, Stack
from attnx.layout import parse

if TYPE_CHECKING:
    from onnx import ModelProto

    from attnx.graph.shapes.index import Graph
    from attnx.interventions.unedited import Unedited

OPENING = 1e9
"""The number of operations that take about as long as opening one more session."""
MANY = 1 << 30
"""A layer number beyond that of any model."""
MOST = 12
"""The most sections: more would save little."""
AGAIN = 0.1
"""Share of the weights whose products may be recomputed in each section (positions, masks)."""


@dataclass(frozen=True, slots=True)
class Section:
    """Layers that are run together."""

    begin: Point | None
    """The residual stream at which it begins; None at the model's inputs."""
    end: Point | None
    """The stream at which it ends; None at the model's outputs."""
    hooks: tuple[Hook, ...]
    interventions: tuple[int, ...]
    """The interventions whose first change is in this section; they join the others here."""
    entries: tuple[Entry, ...] = ()
    """Where in the section they join; empty means at its beginning."""
    rows: int = 0
    """The symbol for the number of rows in shapes; 0 if there are no entries."""

    @property
    def before(self) -> tuple[Hook, ...]:
        """Hooks before any entry."""
        later = {hook for entry in self.entries for hook in entry.hooks}
        return tuple(hook for hook in self.hooks if hook not in later)

    def enter(self, graph: Graph, proto: ModelProto, outputs: Collection[str]) -> None:
        """Write the entries into a copy of the model; see `attnx.interventions.entering.enter`."""
        ends = outputs if self.end is None else (self.end.place.value,)
        enter(proto, graph, self.entries, ends, self.rows, {hook.point.place.value for hook in self.before})


@dataclass(frozen=True, slots=True)
class _Cut:
    """A place between two layers."""

    layer: int
    """The first layer after it; the number of layers if it is after the last."""
    point: Point


def sections(all_: Unedited, name: str, changes: Changes, tail: bool) -> list[Section]:
    """Where to cut a model so that as little as possible is run twice; empty if cutting saves nothing.

    Args:
        all_: The model and its feeds.
        name: The feed.
        changes: What is changed.
        tail: Whether what follows the last layer is a separate section.
    """
    if not all_.exact or all_.alone is not None:
        return []  # integer rounding depends on which rows are run together
    try:
        stack, layers = _stack_of(all_, changes)
    except LostError:
        return []
    first = [min(found) for found in layers]
    graph = all_.points.wide.graph
    weights = _weights(graph)
    tokens = all_.tokens(name)
    saved = 2.0 * sum(weights.values()) * tokens * sum(first) / len(stack.layers)
    count = min(MOST, round(sqrt(saved / OPENING)), len(set(first)))
    wanted = sorted(set(first) - {0})
    if count < 1 or (count < 2 and not wanted):
        return []
    step = max(1.0, len(wanted) / count)
    chosen = [wanted[int(at * step)] for at in range(count) if int(at * step) < len(wanted)]
    cuts = [_Cut(n, Point("stream", "residual", stack.layers[n].given, "bqd")) for n in chosen]
    out = stack.layers[-1].out
    if tail and out is not None:
        cuts.append(_Cut(len(stack.layers), Point("stream", "residual", out, "bqd")))
    by_layer = changes.hooks_by(lambda site: stack_layer(stack, site))
    rows = _rows_of(all_, name)
    if all_.small and rows is not None:
        # If the whole model is loaded anyway, one session is enough: runs enter it where they differ.
        ends = [cut for cut in cuts if cut.layer == len(stack.layers)]
        hooks = [hook for some in by_layer.values() for hook in some]
        ends = [cut for cut in ends if _cuts(all_, cut.point, hooks, (), weights)]
        whole, *tails = _between(ends, by_layer, first, len(stack.layers))
        entered = _entered(all_, whole, by_layer, first, rows)
        if entered is not None:
            return [entered, *tails]
    holds: list[_Cut] = []
    for cut in cuts:
        before = [h for n, hooks in by_layer.items() if n < cut.layer for h in hooks]
        behind = [h for n, hooks in by_layer.items() if n >= cut.layer for h in hooks]
        if _cuts(all_, cut.point, before, behind, weights):
            holds.append(cut)
    if not holds:
        return []
    return _between(holds, by_layer, first, len(stack.layers))


def _between(
    cuts: Sequence[_Cut], hooks: Mapping[int, Sequence[Hook]], first: Sequence[int], layers: int
) -> list[Section]:
    """The sections between cuts.

    Args:
        cuts: The cuts, in order.
        hooks: The hooks, by layer.
        first: The first layer that each intervention changes.
        layers: The number of layers.
    """
    found: list[Section] = []
    begin: Point | None = None
    low = 0
    for end, high in [*((cut.point, cut.layer) for cut in cuts), (None, layers + 1)]:
        inside = tuple(h for n, some in sorted(hooks.items()) if low <= n < high for h in some)
        mine = tuple(i for i, layer in enumerate(first) if low <= layer < high)
        found.append(Section(begin, end, inside, mine))
        begin, low = end, high
    return found


def _entered(
    all_: Unedited, section: Section, hooks: Mapping[int, Sequence[Hook]], first: Sequence[int], rows: int
) -> Section | None:
    """A section whose runs enter it where they change something; None if they cannot.

    Args:
        all_: The model.
        section: A part of the model.
        hooks: The hooks, by layer.
        first: The first layer that each intervention changes.
        rows: The symbol for the number of rows in shapes.
    """
    layers = sorted({first[i] for i in section.interventions})
    entries = []
    for number, (layer, following) in enumerate(pairwise([*layers, MANY])):
        later = [h for n, some in sorted(hooks.items()) if layer < n < following for h in some if h in section.hooks]
        mine = tuple(i for i in section.interventions if first[i] == layer)
        entries.append(Entry(number, tuple(hooks[layer]), tuple(h for h in later if h not in hooks[layer]), mine))
    made = replace(section, entries=tuple(entries), rows=rows)
    points = [hook.point for hook in section.hooks]
    values = [point.place.value for point in points] + [p.place.value for p in (section.begin, section.end) if p]
    wide = all_.points.wide
    try:
        made.enter(wide.graph, wide.opened(values, [p.site for p in points if p.site is not None]), all_.outputs)
    except LostError:
        return None
    return made


def _rows_of(all_: Unedited, name: str) -> int | None:
    """The symbol for the number of rows in the graph's shapes; None if there is none."""
    batch, graph = batch_of(all_.slots, all_.feed(name)), all_.points.wide.graph
    if not isinstance(batch, Batch):
        return None
    found = {(graph.shape(name) or ())[axis : axis + 1] for name, axis in batch.axes.items()}
    size = found.pop() if len(found) == 1 else ()
    return size[0] if size and isinstance(size[0], int) and size[0] > 1 else None


def stack_layer(stack: Stack, site: int) -> int:
    """The layer of a stack that a site belongs to."""
    return next(n for n, sites in enumerate(stack.sites) if site in sites)


def _stack_of(all_: Unedited, changes: Changes) -> tuple[Stack, list[list[int]]]:
    """The stack in which all changes are made, and the layers of each intervention.

    Raises:
        LostError: The changes are in no stack, or in several.
    """
    streams = all_.points.streams
    placed = [[streams.of(site) for site in sites] for sites in changes.sites]
    stacks = {id(stack): stack for found in placed for stack, _ in found}
    if len(stacks) != 1 or not all(placed):
        raise LostError("what is changed is in no single stack of layers")
    return next(iter(stacks.values())), [[number for _, number in found] for found in placed]


def _cuts(
    all_: Unedited, point: Point, before: Sequence[Hook], behind: Sequence[Hook], weights: Mapping[str, int]
) -> bool:
    """Whether what follows a tensor depends only on it and on tensors unaffected by earlier changes, at little cost."""
    graph, value = all_.points.wide.graph, point.place.value
    if batch_axis(point) is None or value in all_.points.wide.found.graph.outputs or not depends(graph, value):
        return False
    earlier = {h.point.place.value for h in before} - {value}
    if any(reaches(graph, name, earlier, {value}) for name in all_.outputs):
        return False  # a change takes another path too
    if reaches(graph, value, {h.point.place.value for h in behind} - {value}):
        return False  # something changed after it was computed before it
    return _again(graph, all_.outputs, value, weights) <= AGAIN * sum(weights.values())


def _again(graph: Graph, outputs: Collection[str], value: str, weights: Mapping[str, int]) -> int:
    """How many weights not downstream of a tensor must be multiplied again to compute what follows it."""
    needed = above(graph, outputs, {value})
    made = {value}
    for node in graph.nodes:
        if not made.isdisjoint(node.input):
            made.update(name for name in node.output if name)
    again = 0
    for node in graph.nodes:
        if made.isdisjoint(node.output) and not needed.isdisjoint(node.output):
            again += sum(weights.get(name, 0) for name in node.input if any(depends(graph, o) for o in node.output))
    return again


def _weights(graph: Graph) -> dict[str, int]:
    """The size of each weight that data are multiplied with; lookup tables cost nothing."""
    looked_up = {node.input[0] for node in graph.nodes if node.op_type.startswith("Gather")}
    sizes = {t.name: prod(t.dims) for t in graph.proto.graph.initializer if len(t.dims) > 1}
    return {name: size for name, size in sizes.items() if name not in looked_up}


def batch_axis(point: Point) -> int | None:
    """The axis of a stream along which the runs of a batch are stacked; None if there is none."""
    axes = [i for i, axis in enumerate(parse(point.place.layout)) if [name for name, _ in axis][:1] == ["b"]]
    return axes[0] if len(axes) == 1 else None


__all__ = ["Section", "batch_axis", "sections"]
