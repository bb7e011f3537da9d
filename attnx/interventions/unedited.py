"""A model and its feeds: its unedited results, and what edited runs need from them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

from attnx.errors import UnsupportedError, UsageError
from attnx.feed import fill as feeding
from attnx.feed import lookups
from attnx.interventions.cells import Tensor
from attnx.interventions.editing import Edited, edit
from attnx.interventions.exact import exact
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
"""Arrays that show whether a site can be trusted and what a query can see."""
HELD = 256 << 20
"""Bytes of matrices checked in one run to verify that sites can be trusted."""
SMALL = 64 << 20
"""Several sessions stay open for models whose weights are no more numbers than this."""
_CACHES = ("present", "past_key", "past_value", "new_k", "new_v")


@dataclass(slots=True)
class State:
    """One feed and what is known about its unedited run."""

    feed: Mapping[str, Array]
    outputs: dict[str, Array] | None = None
    tensors: dict[Key, Tensor] = field(default_factory=dict)
    raw: dict[Key, Array] = field(default_factory=dict)
    attentions: dict[int, Attention] = field(default_factory=dict)


class Unedited:
    """A model, its feeds, and its unedited runs on them.

    Args:
        model: The model.
        feeds: The feeds by name, each with all of the graph's inputs.
        outputs: Which of the model's own outputs to return; None for all except its caches.

    Attributes:
        points: What can be changed.
        notes: Notes on how it was run.
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
            self.put(name, feed)
        own = [name for name in found.graph.outputs if not any(word in name.lower() for word in _CACHES)]
        self.outputs: tuple[str, ...] = tuple(own or found.graph.outputs) if outputs is None else tuple(outputs)
        if unknown := [name for name in self.outputs if name not in found.graph.outputs]:
            raise UsageError(f"the model has no output {unknown[0]!r}", f"It has {', '.join(found.graph.outputs)}.")
        self.notes: list[str] = []
        self._plain: Session | None = None
        self._device = "cpu"
        self._alone: str | None = interacting({node.op_type for node in found.graph.nodes})

    # Unedited runs

    @property
    def feeds(self) -> tuple[str, ...]:
        """Names of the feeds."""
        return tuple(self._feeds)

    @property
    def device(self) -> str:
        """The device on which the unedited model really ran."""
        return self._device

    def feed(self, name: str) -> Mapping[str, Array]:
        """A feed by name."""
        return self.state(name).feed

    def put(self, name: str, feed: Mapping[str, Array]) -> None:
        """Replace the feed of a name; sessions stay open."""
        lookups.check(self.model, self._known, feed)
        self._feeds[name] = State(feeding.check(list(self._known.inputs), feed))

    def state(self, name: str) -> State:
        """What is known about a feed and its unedited run.

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
        """The model's own unedited outputs on a feed; after edited runs, those of the same session."""
        of = self.state(name)
        if of.outputs is None:
            of.outputs = self._opened().run(of.feed, self.outputs)
        return of.outputs

    def _opened(self) -> Session:
        """A session on the unchanged model."""
        if self._plain is None:
            self.release()
            self._plain = self.model.sessions.plain(self._known)
            self._device = self._plain.device
        return self._plain

    def close_plain(self) -> None:
        """Release the weights of the session on the unchanged model; it is reopened when needed."""
        self._plain = None

    def release(self) -> None:
        """Before another session is opened: release all that hold the weights of a model that is not small."""
        if not self.small:
            self.close_plain()
            self.model.sessions.clear()

    def output(self, name: str, output: str) -> Array:
        """One of the model's own outputs on a feed, whether or not it is among the returned ones."""
        if output in self.outputs:
            return self.base(name)[output]
        return self._opened().run(self.state(name).feed, [output])[output]

    @cached_property
    def small(self) -> bool:
        """Whether several sessions may keep the weights at once."""
        weights: int = sum(prod(t.dims) for t in self.points.wide.graph.proto.graph.initializer)
        return weights <= SMALL

    @cached_property
    def exact(self) -> bool:
        """Whether the model computes in float32 with ONNX's own operators."""
        return exact(self.points.wide.graph)

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

    def tokens(self, name: str) -> int:
        """About how many tokens a run of a feed reads: the largest of its inputs of rows and positions."""
        return max((array.size for array in self.feed(name).values() if array.ndim < 3), default=1)

    def survey(self, name: str, points: Sequence[Point], take: Collection[Key] = ()) -> None:
        """Find the shapes of points in an unedited run, and the tensors of some of them."""
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
        """Tensors of an unedited run in attnx's order, without dividing out factors."""
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
            # Nothing is opened, so that the graph's other outputs are those of the file.
            whole = of.outputs is None and not any(self.points.wide.found.fused_of.get(s.index) for s in some)
            self.release()
            session, tapped = self.model.sessions.session(self._known, some, CHECKED, whole)
            feed = feeding.check(session.inputs, {s.name: of.feed[s.name] for s in session.inputs})
            names = {name for taps in tapped.taps.values() for name in taps.values()} | set(
                self.outputs if whole else ()
            )
            values = session.run(feed, [name for name in session.outputs if name in names])
            if whole:
                of.outputs = {name: values[name] for name in self.outputs}
                self._device = session.device
            for attention in checked(read(some, tapped, values, CHECKED), CHECKED):
                of.attentions[attention.site.index] = attention
            if not self.small:
                self.model.sessions.close(session)
        return of.attentions

    def check(self, name: str, sites: Sequence[Site]) -> None:
        """Refuse sites that fail their checks.

        Raises:
            UnsupportedError: A site whose arrays do not follow from one another.
        """
        found = self.attentions(name, sites)
        for site in sites:
            bad = [check for check in found[site.index].checks if not check.holds]
            if bad:
                raise UnsupportedError(
                    f"{self.points.title(site)} ({site.op} {site.node!r}) is not intervened in: {bad[0].name!r} is off "
                    f"by {bad[0].difference:.2g}, so its tensors may not be what they seem",
                    Wording("<model.trace()> lists the checks of every site."),
                )

    # Edited models

    def open(self, edited: Edited, many: bool = True) -> Session:
        """A session on an edited model; `many`: it will be used for more than a run or two."""
        self.release()
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
        """Why rows of one batch could differ from the same rows alone; None if there is no such reason."""
        return self._alone
