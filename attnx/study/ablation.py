"""Does a head matter? Ablate heads or knock out attention edges, and see how the model's output changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from attnx.errors import InputError, UnsupportedError, UsageError
from attnx.interventions.plan import Edit, Intervention, Method, Where
from attnx.interventions.running import Intervening
from attnx.records import Array, Site, Tokens, Trace
from attnx.session.protocol import OpenModel
from attnx.study.patch_places import first_keys, reachable, sides_of
from attnx.study.readout import Change, Readout, readout
from attnx.tokens.find import name_of


@dataclass(frozen=True, slots=True)
class Place:
    """What is changed at once: heads of one layer, or several such places."""

    label: str
    layer: int | None
    """None for several layers."""
    head: int | None
    """None for several heads."""
    heads: tuple[tuple[int, int | None], ...]
    """Layer and head; a head of None means all heads of the layer."""


@dataclass(frozen=True, slots=True)
class Effect:
    """A place, and the model's output after it is changed."""

    place: Place
    change: Change


@dataclass(frozen=True, slots=True)
class Ablation:
    """The effect of each change on the model's answer."""

    readout: Readout
    base: Change
    """The reading of the unedited run, compared with itself."""
    effects: tuple[Effect, ...]
    """In the order of the model."""
    component: Where
    layers: tuple[int, ...]
    heads: int
    notes: tuple[str, ...]

    @property
    def ranked(self) -> tuple[Effect, ...]:
        """The effects, those that change the answer most first."""
        return tuple(sorted(self.effects, key=lambda effect: -effect.change.moved))

    def map(self) -> Array:
        """How far each single head moves the answer, [layers, heads]; NaN for heads that were not ablated alone."""
        found = np.full((len(self.layers), self.heads), np.nan)
        for effect in self.effects:
            if effect.place.head is not None and effect.place.layer is not None:
                found[self.layers.index(effect.place.layer), effect.place.head] = effect.change.moved
        return found


def single_heads(sites: Sequence[Site]) -> list[Place]:
    """Every head by itself."""
    return [
        Place(f"L{site.layer} H{head}", site.layer, head, ((site.layer or 0, head),))
        for site in sites
        for head in range(site.heads or 1)
    ]


def places(sites: Sequence[Site], heads: Sequence[tuple[int, int]], layers: Sequence[int] | None) -> list[Place]:
    """What is changed: each named head, each layer, and all of them together; every head if none is named.

    Raises:
        UsageError: A layer or head that does not exist.
    """
    by_layer = {site.layer: site for site in sites}
    for layer, head in [*heads, *((layer, 0) for layer in layers or ())]:
        if layer not in by_layer:
            there = sorted(n for n in by_layer if n is not None)
            raise UsageError(f"there is no layer {layer}", f"The layers are {there[0]} to {there[-1]}.")
        if head >= (by_layer[layer].heads or 1):
            raise UsageError(
                f"there is no head {head} in layer {layer}", f"Its heads are 0 to {(by_layer[layer].heads or 1) - 1}."
            )
    found = [Place(f"L{layer} H{head}", layer, head, ((layer, head),)) for layer, head in dict.fromkeys(heads)]
    found += [Place(f"L{layer}", layer, None, ((layer, None),)) for layer in dict.fromkeys(layers or ())]
    if not found:
        return single_heads(sites)
    if len(found) > 1:
        every = tuple(place for one in found for place in one.heads)
        found.append(Place("together", None, None, every))
    return found


def ablate(
    model: OpenModel,
    running: Intervening,
    tokens: Tokens,
    *,
    memory: Tokens | None = None,
    at_queries: Tokens | None = None,
    component: Where | None = None,
    heads: Sequence[tuple[int, int]] = (),
    layers: Sequence[int] | None = None,
    method: Method = "zero",
    means: Mapping[int, Array] | None = None,
    queries: Sequence[int] | None = None,
    edges: Sequence[tuple[int, int]] = (),
    answer: str | None = None,
    foil: str | None = None,
    position: int | None = None,
    at: int | None = None,
    tell: Callable[[int, int], None] | None = None,
) -> Ablation:
    """Ablate heads, or knock edges out of them, and read the model's output.

    Args:
        model: The model.
        running: The model with its feed, a batch of one.
        tokens: The tokens at the query positions.
        memory: The encoder's tokens, if there is an encoder.
        at_queries: The names of the query positions of a picture or a sound; None for `tokens`.
        component: Which attention: the encoder's, the decoder's, or the cross-attention; None if there is only one.
        heads: Layer and head of the heads to change, each alone and all together; every head if neither heads
            nor layers are given.
        layers: Layers whose heads are all changed together.
        method: What replaces a head's context: zero, its mean over positions, or what uniform weights
            would give.
        means: Layer -> the mean context of its heads over a corpus, [H,D], which then replaces the context.
        queries: Positions at which heads are ablated; None for all.
        edges: Query and key of edges to knock out before the softmax, instead of an ablation: positions of
            tokens (of the encoder's text in cross-attention). Cached keys before them are not counted.
        answer: See `readout`.
        foil: See `readout`.
        position: See `readout`.
        at: See `readout`.
        tell: Called with the number of changes run so far, and of all.

    Raises:
        UsageError: A layer, head or position that does not exist; several components and none named.
        UnsupportedError: A site that cannot be trusted or reached.
    """
    there = running.points.components()
    chosen = _component(there, component)
    quantity = "masked" if edges else "weights" if method == "uniform" and means is None else "context"
    sites: Sequence[Site] = there[chosen]
    left: tuple[str, ...] = ()
    where = places(sites, heads, layers)
    if not heads and not layers:
        sites, left = reachable(running, sites, quantity)
        where = single_heads(sites)
    by_layer = {site.layer: site for site in sites}
    layers_changed = {layer for place in where for layer, _ in place.heads}
    for layer in layers_changed:
        running.points.of(by_layer[layer], quantity)
    base = running.base("inputs")
    read = readout(model, base, tokens, answer=answer, foil=foil, position=position, at=at)
    if at is not None and not read.by_position:
        raise UsageError(f"{model.name} gives no answer for each position", "Leave the position out.")
    before: dict[int | None, int] = {}
    notes: list[str] = []
    if edges or queries is not None:
        touched = [site for site in sites if site.layer in layers_changed]
        looking, seen = sides_of(running, chosen, tokens if at_queries is None else at_queries, memory)
        starts = first_keys(running, touched, looking, seen if edges else None)
        before = {site.layer: starts[site.index] for site in touched}
        if all(site.causal for site in touched):
            notes = [
                f"{name_of(looking, [query])} cannot see {name_of(seen, [key])}, which comes later: nothing is cut"
                for query, key in edges
                if key > query
            ]

    def edits(place: Place) -> Iterator[Edit]:
        for layer, head in place.heads:
            at = {"layers": (layer,), "heads": None if head is None else (head,), "component": chosen}
            if edges:
                for query, key in edges:
                    yield Edit("knockout", queries=(query,), keys=(key + before[layer],), **at)  # type: ignore[arg-type]
                continue
            here = None if queries is None else tuple(queries)
            if means is not None:
                yield Edit("patch", queries=here, quantity="context", values=means[layer][None, :, None], **at)  # type: ignore[arg-type]
            else:
                yield Edit("ablate", queries=here, method=method, **at)  # type: ignore[arg-type]

    plan = [Intervention(str(number), tuple(edits(place))) for number, place in enumerate(where)]
    found: dict[str, Change] = {}
    for name, change in changed(running, read, plan):
        found[name] = change
        if tell is not None:
            tell(len(found), len(plan))
    effects = tuple(Effect(place, found[str(number)]) for number, place in enumerate(where))
    numbers = tuple(site.layer for site in sites if site.layer is not None)
    most = max((site.heads or 1) for site in sites)
    return Ablation(read, read.change(base, base), effects, chosen, numbers, most, (*left, *notes, *running.notes))


def changed(running: Intervening, read: Readout, plan: Sequence[Intervention]) -> Iterator[tuple[str, Change]]:
    """Run interventions; for each, yield its id and how far the model's output is from the unedited run."""
    # Of an output by position, only the position that is read.
    by_position = read.kind in ("next token", "masked token") and plan and _by_position(running, read, plan[0].run)
    at = {read.output: read.position} if by_position else None
    narrow = read if at is None else replace(read, position=0)
    for effect in running.run(plan, at=at):
        yield effect.id, narrow.change(effect.base, effect.outputs)


def _by_position(running: Intervening, read: Readout, name: str) -> bool:
    """Whether an output is [1,Q,V]; the sequence may come before the batch, or only its last position exist."""
    shape = running.base(name)[read.output].shape
    return len(shape) == 3 and shape[0] == 1


def corpus_means(traces: Iterator[Trace], component: Where) -> dict[int, Array]:
    """The mean context of every head over all tokens of a corpus except padding.

    Args:
        traces: With contexts.
        component: Which attention.

    Returns:
        Layer -> [H,D].

    Raises:
        InputError: The corpus has no tokens.
    """
    sums: dict[int, Array] = {}
    count = 0
    for trace in traces:
        read = trace.memory if component == "encoder" and trace.memory is not None else trace.tokens
        real = [at for at, is_real in enumerate(read.mask) if is_real]
        count += len(real)
        for attention in trace.attentions:
            if attention.site.layer is None or component_of(attention.site) != component or attention.context is None:
                continue  # without weights there is no context that a mean could replace
            context = attention.context[0][:, real].sum(1, dtype=np.float64)
            sums[attention.site.layer] = sums.get(attention.site.layer, 0.0) + context
    if not count or not sums:
        raise InputError("the corpus has no text to take means over", "Give a file with one text per line.")
    return {layer: (total / count).astype(np.float32) for layer, total in sums.items()}


def component_of(site: Site) -> Where:
    """Which attention a site belongs to."""
    if site.kind == "cross":
        return "cross"
    return "encoder" if site.component == "encoder" else "decoder"


def _component(there: Mapping[Where, Sequence[Site]], component: Where | None) -> Where:
    if component is not None:
        if component not in there:
            raise UsageError(f"the model has no {component} attention", f"It has {', '.join(there)}.")
        return component
    if not there:
        raise UnsupportedError("the model has no attention over tokens that could be changed", "")
    # Of several, the decoder's self-attention: the side that writes.
    return "decoder" if "decoder" in there else next(iter(there))


__all__ = ["Ablation", "Effect", "Place", "ablate", "changed", "component_of", "corpus_means", "places", "single_heads"]
