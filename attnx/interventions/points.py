"""Where in a graph each quantity can be changed, and which nodes must read the changed one."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from attnx.errors import UnsupportedError, UsageError
from attnx.graph.axes.paths import above, depends, reaches, scalar
from attnx.graph.axes.product import find_product
from attnx.graph.load.nodes import attributes
from attnx.interventions.plan import COMPONENTS, OF_LAYERS, ORDERS, Where
from attnx.interventions.stream import LostError, Streams
from attnx.records import Place, Site
from attnx.wording import Wording

if TYPE_CHECKING:
    from attnx.interventions.wide import Wide


Key = tuple[str, str, "tuple[str, ...] | None"]
"""Identifies a point: its quantity, its tensor, and the nodes that must read the changed tensor."""


@dataclass(frozen=True, slots=True)
class Point:
    """One tensor of the graph that can be changed."""

    title: str
    """Its name in messages: "decoder L0 query"."""
    quantity: str
    place: Place
    order: str
    """Axes of the quantity in attnx's layout."""
    readers: tuple[str, ...] | None = None
    """First outputs of the nodes that must read the changed tensor; None for all, including the graph's outputs."""
    site: int | None = None
    """Index of the attention that it belongs to."""

    @property
    def key(self) -> Key:
        """Identifies the point."""
        return self.quantity, self.place.value, self.readers


class Points:
    """The points of a model."""

    def __init__(self, wide: Wide) -> None:
        self.wide = wide
        self._known: dict[tuple[int, str], Point] = {}

    @cached_property
    def streams(self) -> Streams:
        """The residual streams."""
        return Streams(self.wide.graph, self.wide.found.sites)

    def components(self) -> dict[Where, list[Site]]:
        """The model's attentions over tokens of each kind, by layer."""
        found: dict[Where, list[Site]] = {}
        for site in self.wide.found.sites:
            if site.kind in ("self", "cross"):
                found.setdefault("cross" if site.kind == "cross" else site.component, []).append(site)
        return {name: found[name] for name in COMPONENTS if name in found}

    def sites(self, component: Where | None, layers: Sequence[int] | None) -> list[Site]:
        """The attentions meant.

        Raises:
            UnsupportedError: There is no attention over tokens.
            UsageError: No such kind or layer, or several kinds and none named.
        """
        there = self.components()
        if not there:
            raise UnsupportedError(
                "the model has no attention over tokens, so there is nothing to intervene in",
                Wording("<model.find()> lists what was looked at and why it was refused."),
            )
        if component is None and len(there) > 1:
            raise UsageError(
                f"the model has {len(there)} kinds of attention, and no component is named",
                f"Name one: {', '.join(there)}.",
            )
        name = component if component is not None else next(iter(there))
        if not isinstance(name, str) or name not in there:
            raise UsageError(f"the model has no component {name!r}", f"It has {', '.join(there)}.")
        sites = there[name]
        if layers is None:
            return sites
        by_layer = {site.layer: site for site in sites}
        bad = [layer for layer in layers if layer not in by_layer]
        if bad:
            raise UsageError(
                f"there is no layer {bad[0]} of the {name if len(there) > 1 else 'model'}",
                f"It has layers 0 to {len(sites) - 1}.",
            )
        return [by_layer[layer] for layer in dict.fromkeys(layers)]

    def title(self, site: Site) -> str:
        """The name of a site in messages."""
        return site.label if len(self.components()) < 2 else f"{_component(site)} {site.label}"

    def of(self, site: Site, quantity: str) -> list[Point]:
        """Where a quantity of a site, or of its layer, can be changed: usually one tensor.

        Raises:
            UnsupportedError: It does not exist or cannot be changed; the message says why.
        """
        if quantity in OF_LAYERS:
            return self._of_layer(site, quantity)
        if (site.index, quantity) not in self._known:
            self._known[site.index, quantity] = self._of_heads(site, quantity)
        return [self._known[site.index, quantity]]

    def _of_layer(self, site: Site, quantity: str) -> list[Point]:
        try:
            if quantity == "attention":
                places = [self.streams.term(site.index).place]
            else:
                stack, number = self.streams.of(site.index)
                layer = stack.layers[number]
                out = [layer.out] if layer.out is not None else []
                places = out if quantity == "residual" else [term.place for term in layer.mlps]
        except LostError as error:
            raise UnsupportedError(
                f"{self.title(site)}: its {_SAID[quantity]} was not found: {error}",
                "Heads can be intervened in all the same: context, weights, query, key, value.",
            ) from None
        if not places:
            raise UnsupportedError(
                f"{self.title(site)} adds nothing besides attention: there is no {quantity} to patch"
            )
        mine = site.index if quantity == "attention" else None
        return [Point(f"{self.title(site)} {quantity}", quantity, place, "bqd", None, mine) for place in places]

    def _of_heads(self, site: Site, quantity: str) -> Point:
        title = f"{self.title(site)} {quantity}"
        place = site.places.get(quantity)
        if place is None:
            why = "; ".join(site.notes) or f"{site.op} {site.node!r} does not hold it as one tensor"
            if quantity in ("value", "context") and self._weighs_nothing(site):
                why = f"no value is weighed with what {site.op} {site.node!r} gives"
            raise UnsupportedError(f"{self.title(site)} has no {quantity} to change: {why}")
        if quantity in ("value", "context") and self._others_weighed(site):
            raise UnsupportedError(
                f"{title} cannot be changed: what {site.op} {site.node!r} gives weighs another tensor too, so that it "
                "is only a part",
                "Weights can be changed all the same, which acts on both.",
            )
        place = self._shared(site, quantity, place) or place
        readers = self._readers(site, quantity, place)
        if not readers:
            raise UnsupportedError(
                f"{title} cannot be changed: nothing that the model computes with reads that tensor "
                "(the numbers go another way: in integers, written into other places, in blocks that padding fills)",
            )
        graph = self.wide.graph
        others = [n for n in graph.consumers(place.value) if n.op_type not in ("Shape", "Size")]
        alone = {next(o for o in n.output if o) for n in others} == set(readers)
        return Point(title, quantity, place, ORDERS[quantity], None if alone else tuple(readers), site.index)

    def _weighs_nothing(self, site: Site) -> bool:
        """Whether a site's weights are multiplied with nothing computed, for example because they are the output."""
        graph, place = self.wide.graph, site.places.get("weights")
        if place is None or (self.wide.found.graph.producer(place.value) is None and not graph.consumers(place.value)):
            return False  # rows of blocks, brought to one matrix: the model weighs with the blocks
        reached, stack = {place.value}, [place.value]
        while stack:
            for node in graph.consumers(stack.pop()):
                made = [find_product(graph, out) for out in node.output if out]
                if any(p is not None and depends(graph, p.left) and depends(graph, p.right) for p in made):
                    return False
                new = [out for out in node.output if out and out not in reached]
                reached.update(new)
                stack += new
        return True

    def _others_weighed(self, site: Site) -> list[str]:
        """Products of a site's weights with other computed tensors, which do not lead to its context."""
        graph, weights, context = self.wide.graph, site.places.get("weights"), site.places.get("context")
        if weights is None or context is None:
            return []
        found: list[str] = []
        own = {*above(graph, [context.value], {weights.value}), context.value}
        reached, stack = {weights.value}, [weights.value]
        while stack:
            for node in graph.consumers(stack.pop()):
                product = find_product(graph, node.output[0])
                if product is not None and product.node is node:
                    sides = [side for side in (product.left, product.right) if side not in reached]
                    if len(sides) == 1 and depends(graph, sides[0]) and own.isdisjoint(node.output):
                        found.append(product.out)
                    continue
                live = [name for name in node.input if name and depends(graph, name)]
                if node.op_type != "Softmax" and reached.issuperset(live):
                    new = [out for out in node.output if out and out not in reached]
                    reached.update(new)
                    stack += new
        return found

    def _readers(self, site: Site, quantity: str, place: Place) -> list[str]:
        """First outputs of the nodes that read a tensor as this quantity of this site."""
        graph, places = self.wide.graph, site.places
        goal = _goal(site, quantity)
        if goal is None:
            return [next(o for o in n.output if o) for n in graph.consumers(place.value)]
        avoid = {"query": ("key",), "key": ("query",), "value": ("masked", "weights")}.get(quantity, ())
        stop = {places[name].value for name in avoid if name in places} - {place.value}
        wanted = above(graph, [goal, *(self._others_weighed(site) if quantity == "weights" else ())], stop)
        return [
            next(o for o in node.output if o)
            for node in graph.consumers(place.value)
            if node.op_type not in ("Shape", "Size") and not wanted.isdisjoint(node.output)
        ]

    def _shared(self, site: Site, quantity: str, place: Place) -> Place | None:
        """Find a query or key before it is rotated or scaled for one of the several products it takes part in.

        DeBERTa multiplies query and key with each other and with positions: a change must apply to all of these.
        """
        graph, goal = self.wide.graph, _goal(site, quantity)
        other = site.places.get({"query": "key", "key": "query"}.get(quantity, ""))
        if goal is None or other is None:
            return None
        wanted = above(graph, [goal], {other.value} - {place.value})
        words, factors, value = re.findall(r"\([^)]*\)|\S+", place.layout), list(place.factors), place.value
        while (node := graph.producer(value)) is not None:
            live = [name for name in node.input if name and depends(graph, name)]
            if node.op_type == "Transpose":
                perm = attributes(node).get("perm") or list(range(len(words)))[::-1]
                words = [words[perm.index(i)] for i in range(len(words))]
            elif node.op_type in ("Mul", "Div") and len(live) == 1:
                by = scalar(graph, next(name for name in node.input if name != live[0]))
                if not by or (node.op_type == "Div" and node.input[0] != live[0]):
                    return None
                factors.append(1 / by if node.op_type == "Mul" else by)
            elif node.op_type != "Identity":
                return None
            value = live[0] if live else node.input[0]
            if value == other.value:
                return None
            uses = [n for n in graph.consumers(value) if n is not node and not wanted.isdisjoint(n.output)]
            if uses:
                return replace(place, value=value, layout=" ".join(words), factors=tuple(factors))
        return None

    def below(self, points: Collection[Point]) -> set[str]:
        """Which of the model's own outputs depend on what is changed at these points."""
        values = {point.place.value for point in points}
        return {out for out in self.wide.found.graph.outputs if reaches(self.wide.graph, out, values)}


def _goal(site: Site, quantity: str) -> str | None:
    """What a quantity must lead to in order to be the one that the site computes with."""
    later = {
        "query": ("masked", "scaled", "scores", "weights"),
        "key": ("masked", "scaled", "scores", "weights"),
        "masked": ("weights", "context"),
        "weights": ("context",),
        "value": ("context",),
    }.get(quantity, ())
    return next((site.places[name].value for name in later if name in site.places), None)


_SAID = {"attention": "attention output", "mlp": "MLP output", "residual": "residual stream"}


def _component(site: Site) -> str:
    return "cross" if site.kind == "cross" else site.component
