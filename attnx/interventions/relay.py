"""Pass edited runs from one section of layers to the next: a run joins at the section of its first change."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from attnx.errors import RunError
from attnx.interventions.batches import Effect, filled, position_of, repeated, untouched
from attnx.interventions.cells import Row, Tensor, cells_in
from attnx.interventions.changes import Changes, Slip
from attnx.interventions.editing import Edited, edit
from attnx.interventions.plan import Intervention
from attnx.interventions.rows import Batch, batch_of, fitting, split
from attnx.interventions.sections import Section, batch_axis
from attnx.interventions.unedited import Unedited
from attnx.layout import axis_of
from attnx.records import Array
from attnx.run.check import TOLERANCE, difference
from attnx.session.ort import Session

HELD = 256 << 20
"""Bytes of residual streams held between two sections."""


class DiffersError(Exception):
    """The sections of a model do not reproduce its outputs."""


@dataclass(slots=True)
class Part:
    """An opened section."""

    edited: Edited
    session: Session

    def run(self, given: Mapping[str, Array], names: Sequence[str]) -> list[Array]:
        """Compute some of its outputs; feeds that it has no input for are ignored."""
        got = self.session.run({s.name: given[s.name] for s in self.session.inputs}, names)
        return [got[name] for name in names]


@dataclass(slots=True)
class Parts:
    """Sections that stay open: for small models, they are reused by later runs with the same hooks."""

    opened: dict[object, Part] = field(default_factory=dict)

    def keep(self, keys: Collection[object]) -> None:
        """Close all others."""
        for key in [key for key in self.opened if key not in keys]:
            del self.opened[key]


class Relay:
    """Runs interventions on one feed through sections.

    Args:
        all_: The model and its feeds.
        name: The feed.
        changes: What is changed.
        sections: The sections of the model.
        parts: The open sections.
        at: Output -> the one position at which it is wanted; None for all outputs at all positions.
    """

    def __init__(
        self,
        all_: Unedited,
        name: str,
        changes: Changes,
        sections: Sequence[Section],
        parts: Parts,
        at: Mapping[str, int] | None,
    ) -> None:
        self._all, self._name, self._changes, self._sections, self._parts = all_, name, changes, sections, parts
        self._of, self._at = all_.state(name), at
        self._base = all_.base(name)
        self.outputs = tuple(all_.outputs if at is None else at)
        found = batch_of(all_.slots, self._of.feed)
        self._batch = found if isinstance(found, Batch) else None
        self._keys = [self._key(section) for section in sections]
        self._narrow = at is not None
        parts.keep(self._keys)

    def _key(self, section: Section) -> object:
        ends = tuple(None if p is None else p.place.value for p in (section.begin, section.end))
        return ends, tuple(hook.name for hook in section.hooks), self.outputs if section.end is None else ()

    def run(self, interventions: Sequence[Intervention]) -> Iterator[Effect]:
        """Run interventions, in the order given.

        Raises:
            DiffersError: The sections do not reproduce the model's outputs; raised before any effect.
        """
        at = 0
        while at < len(interventions):
            count = self._held(len(interventions))
            for i, values, base in self._some(range(at, min(at + count, len(interventions)))):
                yield Effect(interventions[i].id, values, base)
            at += count

    def _held(self, count: int) -> int:
        """How many runs are in progress at once."""
        sizes = [self._of.tensors[s.begin.key] for s in self._sections if s.begin and s.begin.key in self._of.tensors]
        if not sizes:
            return count  # not known before the first runs
        return max(1, HELD // (8 * max(cells_in(tensor) for tensor in sizes)))

    def _some(self, runs: range) -> Iterator[tuple[int, dict[str, Array], dict[str, Array]]]:
        """The outputs of some runs, and those of one without changes."""
        streams: dict[int | None, Array] = {}
        joined: list[int] = []
        for number, section in enumerate(self._sections):
            joined = sorted([*joined, *(i for i in section.interventions if i in runs)])
            part = self._opened(number)
            self._learn(section, part, streams.get(None))
            order: list[int | None] = [None, *joined]
            if section.end is not None:
                names = (part.edited.taken[section.end.key],)
                streams = {i: values[0] for i, values in self._through(section, part, order, streams, names)}
                del part  # or its session would stay open while the next one is opened
                continue
            if self._narrow and section.begin is not None and not section.hooks:
                try:
                    yield from self._last(section, part, order, self._positions(section, streams), True)
                    return
                except (DiffersError, RunError):
                    self._narrow = False
            yield from self._last(section, part, order, streams, False)

    def _last(
        self,
        section: Section,
        part: Part,
        order: Sequence[int | None],
        streams: Mapping[int | None, Array],
        narrow: bool,
    ) -> Iterator[tuple[int, dict[str, Array], dict[str, Array]]]:
        """The outputs of the last section.

        Raises:
            DiffersError: They differ from the model's outputs.
        """
        base: dict[str, Array] = {}
        for i, values in self._through(section, part, order, streams, self.outputs, narrow=narrow):
            outputs = {n: self._cut(n, array) for n, array in zip(self.outputs, values, strict=True)}
            if i is not None:
                yield i, outputs, base
                continue
            base = outputs
            for name, array in outputs.items():
                want = self._cut(name, self._base[name])
                if array.dtype.kind == "f" and not difference(array, want) <= TOLERANCE["float32"]:
                    raise DiffersError

    def _cut(self, name: str, array: Array) -> Array:
        """An output at its wanted position."""
        return array if self._at is None else np.ascontiguousarray(position_of(array, self._at[name]))

    def _positions(self, section: Section, streams: Mapping[int | None, Array]) -> dict[int | None, Array]:
        """The streams at the one position at which outputs are wanted.

        Raises:
            DiffersError: They or the outputs have no position axis.
        """
        assert section.begin is not None
        axis = axis_of(section.begin.place.layout, "q")
        positions = set((self._at or {}).values())
        if axis is None or len(positions) != 1 or any(self._base[name].ndim != 3 for name in self.outputs):
            raise DiffersError
        if any(self._base[name].shape[1] != streams[None].shape[axis] for name in self.outputs):
            raise DiffersError
        return {i: np.take(stream, [*positions], axis) for i, stream in streams.items()}

    def _feed(self, times: int, narrow: bool) -> dict[str, Array]:
        """The model's own inputs; `narrow`: at one position, for nodes that read sizes from them."""
        given = repeated(self._of, self._batch, times)
        if not narrow:
            return given
        length = next(self._base[name].shape[1] for name in self.outputs)
        return {n: a[:, :1] if a.ndim > 1 and a.shape[1] == length else a for n, a in given.items()}

    def _through(
        self,
        section: Section,
        part: Part,
        order: Sequence[int | None],
        streams: Mapping[int | None, Array],
        names: Sequence[str],
        narrow: bool = False,
    ) -> Iterator[tuple[int | None, tuple[Array, ...]]]:
        """Pass some runs through one section; those that join in it start as copies of the unchanged run."""
        among = {(hook.point.key, hook.mode) for hook in section.hooks}
        size = 1 if self._batch is None else self._size(section, narrow)
        size = -(-len(order) // -(-len(order) // size))  # the same number of batches, evenly filled
        entering = {i: entry.number for entry in section.entries for i in entry.interventions}
        for start in range(0, len(order), size):
            wanted = order[start : start + size]
            some = sorted(wanted, key=lambda i: -1 if i is None else entering.get(i, -1))
            if start and not entering.keys().isdisjoint(some):
                some.insert(0, None)  # runs that enter continue from it
            rows: list[dict[Slip, Row]] = [{} if i is None else self._changes.row(i, among) for i in some]
            begun = [i for i in some if i not in entering]
            given = {
                **self._feed(len(begun), narrow),
                **filled(self._of, section.before, rows[: len(begun)]),
                **self._entering(section, some, rows, len(begun)),
            }
            if section.begin is not None:
                axis = batch_axis(section.begin)
                assert axis is not None
                given[section.begin.place.value] = np.concatenate([streams.get(i, streams[None]) for i in begun], axis)
            try:
                got = part.run(given, names)
            except RunError:
                if start or not section.entries:
                    raise
                raise DiffersError from None  # running the whole model shows whether it runs at all
            pieces = [self._apart(section, *both, len(some), narrow) for both in zip(names, got, strict=True)]
            found = dict(zip(some, zip(*pieces, strict=True), strict=True))
            yield from ((i, found[i]) for i in wanted)

    def _entering(
        self, section: Section, some: Sequence[int | None], rows: Sequence[Mapping[Slip, Row]], count: int
    ) -> dict[str, Array]:
        """The inputs of a section's entries: which row each continues from, and what is changed after that."""
        given: dict[str, Array] = {}
        block = np.arange(self._all.batch(self._name))
        for entry in section.entries:
            new = sum(i in entry.interventions for i in some)
            where = np.concatenate([np.arange(count), np.zeros(new, np.int64)])
            given[entry.rows] = (where[:, None] * len(block) + block).ravel()
            count += new
            given |= filled(self._of, entry.hooks, rows[:count])
        return given

    def _apart(self, section: Section, name: str, array: Array, times: int, narrow: bool) -> list[Array]:
        """Split a batch into the results of each run."""
        if section.end is not None:
            axis = batch_axis(section.end)
            assert axis is not None
            return np.split(array, times, axis)
        shape = self._base[name].shape
        return split(array, (shape[0], 1, *shape[2:]) if narrow else shape, times)

    def _size(self, section: Section, narrow: bool) -> int:
        assert self._batch is not None
        tensors = [self._of.tensors[hook.point.key] for hook in section.hooks]
        cells = max([*self._matrices, *(cells_in(tensor) for tensor in tensors)], default=1)
        out = sum(0 if narrow else self._base[name].nbytes for name in self.outputs) if section.end is None else 0
        return fitting(cells, out, self._batch.size, self._all.tokens(self._name))

    @cached_property
    def _matrices(self) -> list[int]:
        """Number of cells of the weights of the attentions that were examined."""
        weights = [a.weights for a in self._of.attentions.values() if a.weights is not None]
        return [array.size for array in weights]

    def _opened(self, number: int) -> Part:
        """A section's session."""
        key, section = self._keys[number], self._sections[number]
        if key not in self._parts.opened:
            edited = edit(
                self._all.points.wide,
                section.hooks,
                outputs=self.outputs if section.end is None else (),
                take=() if section.end is None else (section.end,),
                measure=[hook.point for hook in section.hooks],
                begin=None if section.begin is None else section.begin.place.value,
                enter=lambda proto: section.enter(self._all.points.wide.graph, proto, self.outputs),
            )
            self._parts.opened[key] = Part(edited, self._all.open(edited))
        return self._parts.opened[key]

    def _learn(self, section: Section, part: Part, stream: Array | None) -> None:
        """Learn the shapes of what is changed in a section from a run without changes."""
        begin = section.begin
        if begin is not None and stream is not None and begin.key not in self._of.tensors:
            self._of.tensors[begin.key] = Tensor(begin, stream.shape, self._all.batch(self._name))
        missing = [hook for hook in section.hooks if hook.point.key not in self._of.tensors]
        if not missing:
            return
        given: dict[str, Array] = dict(self._of.feed)
        ranks = {slot.name: len(slot.shape) for slot in part.session.inputs}
        for hook in section.hooks:
            if hook.mask in ranks:
                given |= untouched(hook, ranks[hook.mask])
        given |= {entry.rows: np.arange(self._all.batch(self._name)) for entry in section.entries}
        if begin is not None and stream is not None:
            given[begin.place.value] = stream
        names = [part.edited.shapes[hook.point.key] for hook in missing]
        for hook, found in zip(missing, part.run(given, names), strict=True):
            shape = tuple(int(n) for n in found)
            self._of.tensors[hook.point.key] = Tensor(hook.point, shape, self._all.batch(self._name))


__all__ = ["DiffersError", "Parts", "Relay"]
