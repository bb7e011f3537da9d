"""A model and its feeds: what it gives unedited, and what of that edited runs are made from."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from attnx.errors import UnsupportedError, UsageError
from attnx.feed import fill as feeding
from attnx.feed import lookups
from attnx.interventions.cells import Tensor
from attnx.interventions.editing import Edited, edit
from attnx.interventions.points import Key, Point, Points
from attnx.interventions.rows import Batch, batch_of, interacting
from attnx.interventions.wide import widen
from attnx.records import Array, Attention, Site
from attnx.run.check import attentions as checked
from attnx.run.read import read
from attnx.session.ort import Session, Slot, open_session
from attnx.session.protocol import OpenModel
from attnx.wording import Wording

CHECKED = ("query", "key", "value", "capped", "masked", "weights", "context")
"""Arrays by which a site is trusted, and by which what a query may see is known."""
HELD = 256 << 20
"""Bytes of matrices that are looked at in one run to see that sites can be trusted."""
_CACHES = ("present", "past_key", "past_value", "new_k", "new_v")


@dataclass(slots=True)
class State:
    """One feed and what is known of its unedited run."""

    feed: Mapping[str, Array]
    outputs: dict[str, Array] | None = None
    tensors: dict[Key, Tensor] = field(default_factory=dict)
    raw: dict[Key, Array] = field(default_factory=dict)
    attentions: dict[int, Attention] = field(default_factory=dict)


class Unedited:
    """A model, its feeds, and its unedited runs on them.

    Args:
        model: The model.
        feeds: By name; all of the graph's inputs.
        outputs: Which of the model's own outputs to give; all but its caches where None.

    Attributes:
        points: What can be changed.
        notes: What is to be said of how it was run.
    """

    def __init__(
        self, model: OpenModel, feeds: Mapping[str, Mapping[str, Array]], outputs: Collection[str] | None = None
    ) -> None:
        self.model = model
        first = next(iter(feeds.values()))
        self._known = model.find(first)
        found = model.sessions.graph(self._known.branch)
        self.points = Points(widen(found))
        self._feeds: dict[str, State] = {}
        for name, feed in feeds.items():
            lookups.check(model, self._known, feed)
            self._feeds[name] = State(feeding.check(list(self._known.inputs), feed))
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
        """A feed by name."""
        return self.state(name).feed

    def state(self, name: str) -> State:
        """What is known of a feed and its unedited run.

        Raises:
            UsageError: There is no feed of that name.
        """
        if name not in self._feeds:
            raise UsageError(
                f"an intervention takes the run {name!r}, and there is no such feed",
                f"There {'is' if len(self._feeds) == 1 else 'are'} {', '.join(self._feeds)}.",
            )
        return self._feeds[name]

    def base(self, name: str) -> dict[str, Array]:
        """The model's own outputs on a feed, nothing edited; after edited runs, as the same session gives them."""
        of = self.state(name)
        if of.outputs is None:
            if self._plain is None:
                self._plain = self.model.sessions.plain(self._known)
            of.outputs = self._plain.run(of.feed, self.outputs)
        return of.outputs

    def output(self, name: str, output: str) -> Array:
        """One of the model's own outputs on a feed, be it among those that are given or not."""
        if output in self.outputs:
            return self.base(name)[output]
        if self._plain is None:
            self._plain = self.model.sessions.plain(self._known)
        return self._plain.run(self.state(name).feed, [output])[output]

    @cached_property
    def exact(self) -> bool:
        """Whether the model computes in float32 with ONNX's own operators."""
        graph = self.points.wide.graph
        marks = ("Quant", "QLinear", "Integer", "NBits")
        halves = any(fact.dtype in (10, 16) for fact in graph.facts.values())
        return not halves and not any(mark in node.op_type for node in graph.nodes for mark in marks)

    def tensor(self, name: str, point: Point) -> Tensor:
        """A surveyed point's tensor."""
        return self.state(name).tensors[point.key]

    def batch(self, name: str) -> int:
        """Rows of a feed."""
        found = batch_of(self.slots, self.state(name).feed)
        if isinstance(found, Batch):
            return found.size
        shapes = [a.shape for a in self.state(name).feed.values() if a.ndim > 1]
        return shapes[0][0] if shapes else 1

    def survey(self, name: str, points: Sequence[Point], take: Collection[Key] = ()) -> None:
        """Find the shapes of points in an unedited run, and the tensors of some."""
        of = self.state(name)
        missing = [p for p in points if p.key not in of.tensors]
        wanted = [p for p in points if p.key in take and p.key not in of.raw]
        if not missing and not wanted:
            return
        edited = edit(self.points.wide, [], outputs=(), take=wanted, measure=missing)
        session = self.open(edited, many=False)
        values = session.run({slot.name: of.feed[slot.name] for slot in session.inputs})
        batch = self.batch(name)
        for point in missing:
            shape = tuple(int(n) for n in values[edited.shapes[point.key]])
            of.tensors[point.key] = Tensor(point, shape, batch)
        for point in wanted:
            of.raw[point.key] = values[edited.taken[point.key]]

    def take(self, name: str, points: Sequence[Point]) -> list[Array]:
        """Tensors of an unedited run in attnx's order, factors left in."""
        self.survey(name, points, {p.key for p in points})
        of = self.state(name)
        return [of.tensors[p.key].ordered(of.raw[p.key]) for p in points]

    def attentions(self, name: str, sites: Sequence[Site]) -> dict[int, Attention]:
        """Sites' arrays in an unedited run, checked against one another."""
        of = self.state(name)
        left = [s for s in sites if s.index not in of.attentions]
        while left:
            length = max((a.shape[-1] for a in of.feed.values() if a.ndim > 1), default=1)
            one = max((s.heads or 1) for s in left) * length * length * 16 * self.batch(name)
            some, left = left[: max(1, HELD // max(one, 1))], left[max(1, HELD // max(one, 1)) :]
            session, tapped = self.model.sessions.session(self._known, some, CHECKED, False)
            feed = feeding.check(session.inputs, {s.name: of.feed[s.name] for s in session.inputs})
            readings = read(some, tapped, session.run(feed), CHECKED)
            for attention in checked(readings, CHECKED):
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
                    Wording("<model.trace()> lists the checks of every site."),
                )

    # Edited models

    def open(self, edited: Edited, many: bool = True) -> Session:
        """A session on an edited model; `many`: for more than a run or two."""
        sessions, tapped = self.model.sessions, edited.tapped
        return open_session(
            tapped.model, tapped.folder, sessions.device, thorough=many or not tapped.plain, exact=tapped.rounded,
            threads=sessions.threads,
        )  # fmt: skip

    @property
    def slots(self) -> Sequence[Slot]:
        """The model's inputs."""
        return self._known.inputs

    @property
    def alone(self) -> str | None:
        """Why rows of one batch would not be what they are alone; None where nothing says so."""
        return self._alone
