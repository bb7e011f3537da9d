"""Edited runs: many interventions on one feed as rows of one batch, in one session."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from attnx import feed as feeding
from attnx import formula
from attnx import trace as tracing
from attnx.errors import RunError, UnsupportedError, UsageError
from attnx.given import lookups
from attnx.given.inputs import own_mask
from attnx.interventions.cells import (
    Row,
    Tensor,
    cells_in,
    given_values,
    mask_of,
    merged,
    own_cells,
    repeated,
)
from attnx.interventions.editing import Edited, Hook, edit
from attnx.interventions.plan import PATCHED, Edit, Intervention
from attnx.interventions.points import Point, Points
from attnx.interventions.rows import Batch, batch_of, fitting, interacting, split
from attnx.interventions.wide import widen
from attnx.records import Array, Attention, Site
from attnx.run.checking import TOLERANCE, difference
from attnx.session import Session, open_session

if TYPE_CHECKING:
    from attnx.pipeline import Model

CHECKED = ("query", "key", "value", "capped", "masked", "weights", "context")
"""Arrays by which a site is trusted, and by which what a query may see is known."""
HELD = 256 << 20
"""Bytes of matrices that are looked at in one run to see that sites can be trusted."""
_CACHES = ("present", "past_key", "past_value", "new_k", "new_v")
Key = tuple[str, str, "tuple[str, ...] | None"]


@dataclass(frozen=True, slots=True, eq=False)
class Effect:
    """What one edited run gave."""

    id: str
    outputs: Mapping[str, Array]
    """The model's own outputs."""
    taken: Mapping[str, tuple[Array, ...]] = field(default_factory=dict)
    """What was asked for besides, by the title of its point."""


@dataclass(slots=True)
class _Feed:
    """One feed and what is known of its unedited run."""

    feed: Mapping[str, Array]
    outputs: dict[str, Array] | None = None
    tensors: dict[Key, Tensor] = field(default_factory=dict)
    raw: dict[Key, Array] = field(default_factory=dict)
    attentions: dict[int, Attention] = field(default_factory=dict)


class Intervening:
    """A model, its feeds, and edited runs of them.

    Args:
        model: The model.
        feeds: By name; all of the graph's inputs.
        outputs: Which of the model's own outputs to give; all but its caches where None.

    Attributes:
        points: What can be changed.
        notes: What is to be said of how it was run.
    """

    def __init__(
        self, model: Model, feeds: Mapping[str, Mapping[str, Array]], outputs: Collection[str] | None = None
    ) -> None:
        self.model = model
        first = next(iter(feeds.values()))
        self._known = model.find(first)
        found = model.opening.graph(self._known.branch)
        self.points = Points(widen(found))
        self._feeds: dict[str, _Feed] = {}
        for name, feed in feeds.items():
            lookups.check(model, self._known, feed)
            self._feeds[name] = _Feed(feeding.check(list(self._known.inputs), feed))
        own = [name for name in found.graph.outputs if not any(word in name.lower() for word in _CACHES)]
        self.outputs: tuple[str, ...] = tuple(own or found.graph.outputs) if outputs is None else tuple(outputs)
        if unknown := [name for name in self.outputs if name not in found.graph.outputs]:
            raise UsageError(f"the model has no output {unknown[0]!r}", f"It has {', '.join(found.graph.outputs)}.")
        self.notes: list[str] = []
        self._plain: Session | None = None
        self._alone: str | None = interacting({node.op_type for node in found.graph.nodes})

    # Unedited runs

    @property
    def feeds(self) -> tuple[str, ...]:
        """Names of the feeds."""
        return tuple(self._feeds)

    @property
    def device(self) -> str:
        """What the unedited model really ran on."""
        return "cpu" if self._plain is None else self._plain.device

    def feed(self, name: str) -> Mapping[str, Array]:
        """A feed by name.

        Raises:
            UsageError: There is none of that name.
        """
        return self._of(name).feed

    def _of(self, name: str) -> _Feed:
        if name not in self._feeds:
            raise UsageError(
                f"an intervention takes the run {name!r}, and there is no such feed",
                f"There {'is' if len(self._feeds) == 1 else 'are'} {', '.join(self._feeds)}.",
            )
        return self._feeds[name]

    def base(self, name: str) -> dict[str, Array]:
        """The model's own outputs on a feed, nothing edited."""
        of = self._of(name)
        if of.outputs is None:
            if self._plain is None:
                self._plain = self.model.opening.plain(self._known)
            of.outputs = self._plain.run(of.feed, self.outputs)
        return of.outputs

    def output(self, name: str, output: str) -> Array:
        """One of the model's own outputs on a feed, be it among those that are given or not."""
        if output in self.outputs:
            return self.base(name)[output]
        if self._plain is None:
            self._plain = self.model.opening.plain(self._known)
        return self._plain.run(self._of(name).feed, [output])[output]

    @property
    def exact(self) -> bool:
        """Whether the model computes in float32 with ONNX's own operators."""
        graph = self.points.wide.found.graph
        kinds = {i.type.tensor_type.elem_type for i in (*graph.proto.graph.input, *graph.proto.graph.output)}
        marks = ("Quant", "QLinear", "Integer", "NBits")
        halves = any(t.data_type in (10, 16) for t in graph.initializers.values())
        return not halves and not kinds & {10, 16} and not any(m in n.op_type for n in graph.nodes for m in marks)

    def tensor(self, name: str, point: Point) -> Tensor:
        """A surveyed point's tensor."""
        return self._of(name).tensors[point.key]

    def batch(self, name: str) -> int:
        """Rows of a feed."""
        found = batch_of(self._known.inputs, self._of(name).feed)
        if isinstance(found, Batch):
            return found.size
        shapes = [a.shape for a in self._of(name).feed.values() if a.ndim > 1]
        return shapes[0][0] if shapes else 1

    def survey(self, name: str, points: Sequence[Point], take: Collection[Key] = ()) -> None:
        """Find the shapes of points in an unedited run, and the tensors of some."""
        of = self._of(name)
        missing = [p for p in points if p.key not in of.tensors]
        wanted = [p for p in points if p.key in take and p.key not in of.raw]
        if not missing and not wanted:
            return
        edited = edit(self.points.wide, [], outputs=(), take=wanted, measure=missing)
        values = self._open(edited, many=False).run(self._fitting(edited, of.feed))
        batch = self.batch(name)
        for point in missing:
            shape = tuple(int(n) for n in values[edited.shapes[point.key]])
            of.tensors[point.key] = Tensor(point, shape, batch)
        for point in wanted:
            of.raw[point.key] = values[edited.taken[point.key]]

    def take(self, name: str, points: Sequence[Point]) -> list[Array]:
        """Tensors of an unedited run in attnx's order, factors left in."""
        self.survey(name, points, {p.key for p in points})
        of = self._of(name)
        return [of.tensors[p.key].ordered(of.raw[p.key]) for p in points]

    def attentions(self, name: str, sites: Sequence[Site]) -> dict[int, Attention]:
        """Sites' arrays in an unedited run, checked against one another."""
        of = self._of(name)
        left = [s for s in sites if s.index not in of.attentions]
        while left:
            length = max((a.shape[-1] for a in of.feed.values() if a.ndim > 1), default=1)
            one = max((s.heads or 1) for s in left) * length * length * 16 * self.batch(name)
            some, left = left[: max(1, HELD // max(one, 1))], left[max(1, HELD // max(one, 1)) :]
            session, tapped = self.model.opening.session(self._known, some, CHECKED, False)
            given = feeding.check(session.inputs, {s.name: of.feed[s.name] for s in session.inputs})
            values = tracing.run(session, tapped, given)
            for attention in tracing.read(some, tapped, values, CHECKED, True):
                of.attentions[attention.site.index] = attention
        return of.attentions

    def check(self, name: str, sites: Sequence[Site]) -> None:
        """Refuse sites that are not what they seem.

        Raises:
            UnsupportedError: A site whose arrays do not follow from one another.
        """
        found = self.attentions(name, sites)
        for site in sites:
            bad = [check for check in found[site.index].checks if not check.holds]
            if bad:
                raise UnsupportedError(
                    f"{self.points.title(site)} ({site.op} {site.node!r}) is not intervened in: {bad[0].name!r} is off "
                    f"by {bad[0].difference:.2g}, so that its tensors may not be what they seem",
                    "`attnx trace MODEL --json` lists the checks of every site.",
                )

    # Edited runs

    def run(self, interventions: Sequence[Intervention], take: Sequence[Point] = ()) -> Iterator[Effect]:
        """Run interventions, those on one feed together.

        Args:
            interventions: In any order.
            take: Points whose tensors are given too, in attnx's order, factors left in.

        Yields:
            An effect for each, those of one feed after another.

        Raises:
            UnsupportedError: Something that cannot be reached in this model; by name, with the reason.
            UsageError: A layer, head or position that is not there.
        """
        for name in dict.fromkeys(i.run for i in interventions):
            mine = [i for i in interventions if i.run == name]
            yield from _Edits(self, name, mine, take).run()

    def _open(self, edited: Edited, many: bool) -> Session:
        opening = self.model.opening
        thorough = many or not edited.tapped.plain
        tapped = edited.tapped
        return open_session(tapped.model, tapped.folder, opening.device, thorough=thorough, threads=opening.threads)

    def _fitting(self, edited: Edited, feed: Mapping[str, Array]) -> dict[str, Array]:
        """What of a feed an edited model still takes."""
        from onnx import ModelProto

        proto = ModelProto.FromString(edited.tapped.model)
        return {i.name: feed[i.name] for i in proto.graph.input if i.name in feed}

    def open(self, edited: Edited, many: bool = True) -> Session:
        """A session on an edited model."""
        return self._open(edited, many)

    def known(self) -> Sequence[object]:
        """The model's inputs."""
        return self._known.inputs

    @property
    def alone(self) -> str | None:
        """Why interventions are run one at a time; None where they share batches."""
        return self._alone


class _Edits:
    """Interventions on one feed."""

    def __init__(
        self, all_: Intervening, name: str, interventions: Sequence[Intervention], take: Sequence[Point]
    ) -> None:
        self._all, self._name, self._take = all_, name, list(take)
        self._interventions = interventions
        self._site_of: dict[int, Site] = {s.index: s for s in all_.points.wide.found.sites}
        self._hooks: dict[tuple[Key, str], Hook] = {}
        self._used: list[list[tuple[Edit, Site, list[Hook]]]] = [
            [(e, site, self._hooks_of(e, site)) for e in i.edits for site in self._sites(e)] for i in interventions
        ]

    def _sites(self, e: Edit) -> list[Site]:
        component = e.component
        if e.kind == "patch" and e.quantity in ("mlp", "residual") and component == "cross":
            raise UsageError(
                f"a patch of {e.quantity} names the component cross, and {e.quantity} belongs to a stack of layers",
                "Name the encoder or the decoder.",
            )
        return self._all.points.sites(component, e.layers)

    def _hooks_of(self, e: Edit, site: Site) -> list[Hook]:
        points = self._all.points
        if e.kind == "knockout":
            hooks = [Hook(point, "hide") for point in points.of(site, "masked")]
            if "weights" in site.places:
                hooks += [Hook(point, "fill") for point in points.of(site, "weights")]
        elif e.kind == "ablate" and e.method == "mean":
            hooks = [Hook(point, "mean") for point in points.of(site, "context")]
        elif e.kind == "ablate":
            quantity = "weights" if e.method == "uniform" else "context"
            hooks = [Hook(point, "set") for point in points.of(site, quantity)]
        else:
            if e.quantity not in PATCHED:
                raise UsageError(f"there is no quantity {e.quantity!r} to patch", f"There are {', '.join(PATCHED)}.")
            hooks = [Hook(point, "set") for point in points.of(site, e.quantity)]
        return [self._hooks.setdefault((hook.point.key, hook.mode), hook) for hook in hooks]

    def run(self) -> Iterator[Effect]:
        everything, name = self._all, self._name
        touched = [
            site
            for used in self._used
            for e, site, _ in used
            if e.kind != "patch" or e.quantity not in ("attention", "mlp", "residual")
        ]
        if touched:
            everything.check(name, list({site.index: site for site in touched}.values()))
        hooks = list(self._hooks.values())
        self._survey(hooks)
        everything.base(name)
        rows = [self._rows(used) for used in self._used]
        edited = edit(everything.points.wide, hooks, outputs=everything.outputs, take=self._take)
        session = everything.open(edited, many=len(rows) > 1)
        yield from _Batches(everything, name, session, edited, hooks, self._take).run(self._interventions, rows)

    def _survey(self, hooks: Sequence[Hook]) -> None:
        """Shapes of all that is changed, and the tensors that are patched in."""
        everything, name = self._all, self._name
        sources: dict[str, list[Point]] = {}
        for used in self._used:
            for e, site, mine in used:
                if e.kind == "patch" and e.values is None:
                    sources.setdefault(e.source, []).extend(hook.point for hook in mine)
        own = [hook.point for hook in hooks]
        grouped = [p for p in own if p.quantity in ("key", "value")]
        take = {p.key for p in grouped if self._kv(p) is not None}
        take |= {p.key for p in sources.get(name, [])}
        everything.survey(name, [*own, *self._take], take)
        of = everything._of(name)
        for point in grouped:
            if point.key in of.raw:
                of.tensors[point.key] = repeated(of.tensors[point.key], self._kv(point), of.raw[point.key])
        for source, points in sources.items():
            if source != name:
                everything.survey(source, points, {p.key for p in points})

    def _kv(self, point: Point) -> int | None:
        site = self._site_of.get(point.site) if point.site is not None else None
        return None if site is None else site.kv_heads

    def _rows(self, used: Sequence[tuple[Edit, Site, list[Hook]]]) -> dict[tuple[Key, str], Row]:
        """What one intervention changes at each hook."""
        rows: dict[tuple[Key, str], Row] = {}
        of = self._all._of(self._name)
        for e, site, hooks in used:
            for hook in hooks:
                key = (hook.point.key, hook.mode)
                row = self._row(e, site, hook, of.tensors[hook.point.key])
                rows[key] = row if key not in rows else _over(rows[key], row)
        return rows

    def _row(self, e: Edit, site: Site, hook: Hook, tensor: Tensor) -> Row:
        if hook.mode == "fill":
            masked = next(h.point for h in self._hooks.values() if h.mode == "hide" and h.point.site == site.index)
            whole = self._all._of(self._name).tensors[masked.key]
            hidden = self._hidden(e, whole, site)
            return Row(hidden.any(axis=-1, keepdims=True))
        if hook.mode == "hide":
            return Row(self._hidden(e, tensor, site))
        mask = mask_of(e, tensor, site)
        if hook.mode == "mean":
            return Row(mask, over=self._over(e, tensor))
        if e.kind == "ablate" and e.method == "uniform":
            return Row(mask, self._uniform(site, tensor))
        if e.kind == "ablate":
            return Row(mask)
        if e.values is not None:
            return Row(mask, given_values(e, tensor, site))
        source = self._all._of(e.source)
        theirs = source.tensors[hook.point.key]
        values = theirs.ordered(source.raw[hook.point.key])
        window = hook.point.place.window
        if window is not None:
            values = values[..., slice(*window)]
        if theirs.sizes != tensor.sizes:
            raise UsageError(
                f"{hook.point.title} is {_sized(tensor)} in the run and {_sized(theirs)} where it is patched from",
                "The two texts must have the same number of tokens.",
            )
        return Row(mask, np.asarray(values, np.float32))

    def _hidden(self, e: Edit, tensor: Tensor, site: Site) -> Array:
        mask = mask_of(e, tensor, site)
        return mask & ~own_cells(tensor) if e.keep_self else mask

    def _uniform(self, site: Site, tensor: Tensor) -> Array:
        """1/n on the n keys that each query may see; 0 in a row that sees none."""
        found = self._all.attentions(self._name, [site])[site.index]
        seen = formula.visible(found.masked, found.capped, found.weights)
        count = seen.sum(axis=-1, keepdims=True)
        whole = np.asarray(seen / np.maximum(count, 1), np.float32)
        return whole[:, :1] if (whole == whole[:, :1]).all() and tensor.sizes["h"] > 1 else whole

    def _over(self, e: Edit, tensor: Tensor) -> Array:
        """The weight of each query in the mean, [B,Q]."""
        queries, batch = tensor.sizes["q"], tensor.sizes["b"]
        if e.over is None:
            return np.full((batch, queries), 1.0 / queries, np.float32)
        feed = self._all.feed(self._name)
        name = own_mask(list(self._all._known.inputs), feed)
        mask = feed[name] if name is not None else None
        if mask is not None and mask.shape[0] == batch and mask.shape[1] > queries:
            mask = mask[:, -queries:]  # what is cached comes first
        if mask is None or mask.shape != (batch, queries):
            raise UnsupportedError(
                f"{tensor.point.title}: which of its {queries} positions are padding is not known",
                "Take the mean over all positions.",
            )
        real = np.asarray(mask != 0, np.float32)
        return np.asarray(real / np.maximum(real.sum(axis=1, keepdims=True), 1))


def _over(one: Row, other: Row) -> Row:
    """Two edits of one tensor in one run; where both name a cell, the later holds."""
    mask = one.mask | other.mask
    if one.over is not None or (one.values is None and other.values is None):
        return Row(mask, None, other.over)
    first = np.zeros((1,) * mask.ndim, np.float32) if one.values is None else one.values
    second = np.zeros((1,) * mask.ndim, np.float32) if other.values is None else other.values
    return Row(mask, np.asarray(np.where(other.mask, second, first)))


def _sized(tensor: Tensor) -> str:
    sizes = tensor.sizes
    return f"[{', '.join(str(sizes[letter]) for letter in tensor.point.order)}]"


class _Batches:
    """Runs the rows of one feed, as many at once as fit."""

    def __init__(
        self,
        all_: Intervening,
        name: str,
        session: Session,
        edited: Edited,
        hooks: Sequence[Hook],
        take: Sequence[Point],
    ) -> None:
        self._all, self._name, self._session = all_, name, session
        self._edited, self._hooks, self._take = edited, hooks, take
        self._of = all_._of(name)
        self._names = {slot.name for slot in session.inputs}
        found = batch_of(list(all_._known.inputs), self._of.feed)
        self._batch = found if isinstance(found, Batch) else None
        if not isinstance(found, Batch):
            self._one_by_one(found)
        elif all_.alone is not None:
            self._one_by_one(all_.alone)

    def _one_by_one(self, why: str) -> None:
        self._batch = None
        note = f"interventions are run one at a time: {why}"
        if note not in self._all.notes:
            self._all.notes.append(note)

    def run(
        self, interventions: Sequence[Intervention], rows: Sequence[dict[tuple[Key, str], Row]]
    ) -> Iterator[Effect]:
        base = self._all.base(self._name)
        size = self._size(base)
        at = 0
        proved = False
        while at < len(rows):
            some = list(rows[at : at + size])
            if not proved:
                found = self._proved(some[: max(1, size - 1)] if self._batch is not None else some[:1], base)
                proved = True
                if found is None:
                    size = 1
                    continue
                done = found
            else:
                done = self._values(some)
            for values in done:
                yield self._effect(interventions[at], values)
                at += 1
            if self._batch is None:
                size = 1

    def _size(self, base: Mapping[str, Array]) -> int:
        if self._batch is None:
            return 1
        matrices = [cells_in(t) for t in self._of.tensors.values() if "k" in t.point.order]
        lengths = [cells_in(t) for t in self._of.tensors.values()]
        outputs = sum(array.nbytes for array in base.values())
        return fitting(max([*matrices, *lengths], default=1), outputs, self._batch.size)

    def _proved(
        self, some: list[dict[tuple[Key, str], Row]], base: Mapping[str, Array]
    ) -> list[dict[str, Array]] | None:
        """The first rows, beside one in which nothing is changed and which must give what the model gives.

        Returns:
            None where they are to be run one at a time.

        Raises:
            RunError: The hooks change the model by themselves.
        """
        alone = self._batch is None
        if not alone:
            try:
                done = self._values([*some, {}])
                if (gap := self._gap(done[-1], base)) is None:
                    return done[:-1]
                reason = f"in a batch, a run in which nothing is changed is off by {gap:.2g}"
            except RunError as error:
                if len(some) == 0:
                    raise
                reason = f"the model runs no larger batch ({error.message[:120]})"
        null = self._values([{}])[0]
        if (gap := self._gap(null, base)) is not None:
            raise RunError(
                f"with nothing changed, the edited model's outputs differ by {gap:.2g}: nothing is shown",
                "Please report this model.",
            )
        if not alone:
            self._one_by_one(reason)
            return None
        return self._values(some[:1])

    def _gap(self, got: Mapping[str, Array], base: Mapping[str, Array]) -> float | None:
        """By how much outputs differ; None where that is rounding."""
        for name, want in base.items():
            if want.dtype.kind != "f":
                continue
            mine = np.asarray(got[name])
            gap = difference(np.asarray(mine, np.float32), np.asarray(want, np.float32))
            plain = self._edited.tapped.plain and want.dtype != np.float16
            if not gap <= TOLERANCE["float32" if plain else "low"]:
                return gap
        return None

    def _values(self, rows: Sequence[Mapping[tuple[Key, str], Row]]) -> list[dict[str, Array]]:
        """One batch."""
        times = len(rows)
        feed = self._of.feed if self._batch is None else self._batch.repeat(self._of.feed, times)
        given = {name: array for name, array in feed.items() if name in self._names}
        for hook in self._hooks:
            tensor = self._of.tensors[hook.point.key]
            mine = [row.get((hook.point.key, hook.mode)) for row in rows]
            rank = len(tensor.shape)
            if not any(mine):
                given[hook.mask] = np.zeros((1,) * rank, bool)
                if hook.values is not None:
                    given[hook.values] = np.zeros((1,) * rank, np.float32)
                continue
            mask, values = merged(mine, tensor)
            given[hook.mask] = mask
            if hook.mode == "mean" and hook.values is not None:
                own = tensor.sizes["b"]
                queries = tensor.sizes["q"]
                over = [np.zeros((own, queries), np.float32) if m is None or m.over is None else m.over for m in mine]
                given[hook.values] = tensor.laid(np.concatenate(over)[:, None, :, None], times)
            elif hook.values is not None:
                given[hook.values] = np.zeros((1,) * rank, np.float32) if values is None else values
        got = self._session.run({name: array for name, array in given.items() if name in self._names})
        parts = [{} for _ in rows]
        base = self._all.base(self._name)
        for name in self._all.outputs:
            for part, value in zip(parts, split(got[name], base[name].shape, times), strict=True):
                part[name] = value
        for point in self._take:
            name = self._edited.taken[point.key]
            shape = self._of.tensors[point.key].shape
            for part, value in zip(parts, split(got[name], shape, times), strict=True):
                part[f"attnx/taken/{point.title}/{name}"] = value
        return parts

    def _effect(self, intervention: Intervention, values: Mapping[str, Array]) -> Effect:
        taken: dict[str, tuple[Array, ...]] = {}
        for point in self._take:
            raw = values[f"attnx/taken/{point.title}/{self._edited.taken[point.key]}"]
            ordered = self._of.tensors[point.key].ordered(raw)
            taken[point.title] = (*taken.get(point.title, ()), ordered)
        return Effect(intervention.id, {name: values[name] for name in self._all.outputs}, taken)
