"""Run the rows of one feed, as many at once as fit, and verify that each gives the same result as alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from attnx.errors import RunError, UnsupportedError
from attnx.interventions.cells import Row, cells_in, merged
from attnx.interventions.changes import Slip
from attnx.interventions.editing import Edited, Hook
from attnx.interventions.plan import Intervention
from attnx.interventions.points import Point
from attnx.interventions.rows import Batch, batch_of, fitting, split
from attnx.interventions.unedited import State, Unedited
from attnx.records import Array
from attnx.run.check import TOLERANCE, difference
from attnx.session.ort import Session


@dataclass(frozen=True, slots=True, eq=False)
class Effect:
    """The result of one edited run."""

    id: str
    outputs: Mapping[str, Array]
    """The model's own outputs."""
    base: Mapping[str, Array] = field(default_factory=dict)
    """The same for a run without changes in the same session."""
    taken: Mapping[str, tuple[Array, ...]] = field(default_factory=dict)
    """Other requested tensors, by the title of their point."""


def repeated(of: State, batch: Batch | None, times: int) -> dict[str, Array]:
    """A feed repeated for several runs at once."""
    return dict(of.feed) if batch is None else batch.repeat(of.feed, times)


def untouched(hook: Hook, rank: int) -> dict[str, Array]:
    """The inputs of a hook that changes nothing."""
    given: dict[str, Array] = {hook.mask: np.zeros((1,) * rank, bool)}
    if hook.values is not None:
        given[hook.values] = np.zeros((1,) * rank, np.float32)
    return given


def filled(of: State, hooks: Sequence[Hook], rows: Sequence[Mapping[Slip, Row]]) -> dict[str, Array]:
    """The inputs of hooks: what each of several runs changes at them."""
    given: dict[str, Array] = {}
    times = len(rows)
    for hook in hooks:
        mine = [row.get((hook.point.key, hook.mode)) for row in rows]
        tensor = of.tensors[hook.point.key]
        if not any(mine):
            given |= untouched(hook, len(tensor.shape))
            continue
        mask, values = merged(mine, tensor)
        given[hook.mask] = mask
        if hook.mode == "mean" and hook.values is not None:
            empty = np.zeros((tensor.sizes["b"], tensor.sizes["q"]), np.float32)
            over = [empty if m is None or m.over is None else m.over for m in mine]
            given[hook.values] = tensor.laid(np.concatenate(over)[:, None, :, None], times)
        elif hook.values is not None:
            given[hook.values] = np.zeros((1,) * len(tensor.shape), np.float32) if values is None else values
    return given


def position_of(array: Array, at: int) -> Array:
    """An output at one position, the last if it has fewer; the whole output if it has no positions ([B,N])."""
    if array.ndim != 3:
        return array
    at = min(at, array.shape[1] - 1)
    return array[:, at : at + 1]


class Batches:
    """Runs the rows of one feed, as many at once as fit in memory."""

    def __init__(
        self,
        all_: Unedited,
        name: str,
        session: Session,
        edited: Edited,
        take: Sequence[Point],
    ) -> None:
        self._all, self._name, self._session = all_, name, session
        self._edited, self._hooks, self._take = edited, edited.hooks, take
        self._of = all_.state(name)
        self._null: dict[str, Array] = {}
        self._names = {slot.name for slot in session.inputs}
        found = batch_of(all_.slots, self._of.feed)
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

    def run(self, interventions: Sequence[Intervention], rows: Sequence[dict[Slip, Row]]) -> Iterator[Effect]:
        """Run interventions, each with what it changes at each hook."""
        plain = self._all.base(self._name)
        size = self._size(plain)
        done = self._proved(rows[: max(1, size - 1)], plain)
        null = self._null
        # A mere difference in rounding must not pass for an intervention's effect.
        self._of.outputs = {name: null[name] for name in self._all.outputs}
        width = len(done) + 1
        at = 0
        while True:
            for values in done:
                yield self._effect(interventions[at], values, null)
                at += 1
            if at >= len(rows):
                return
            if self._batch is None:
                done = self._values(rows[at : at + 1])
            else:
                some = list(rows[at : at + size])
                # The rounding of integer kernels depends on the number of rows.
                filling: list[dict[Slip, Row]] = [] if self._all.exact else [{}] * (width - len(some))
                done = self._values([*some[:width], *filling])[: len(some)]

    def _size(self, base: Mapping[str, Array]) -> int:
        if self._batch is None:
            return 1
        matrices = [cells_in(t) for t in self._of.tensors.values() if "k" in t.point.order]
        lengths = [cells_in(t) for t in self._of.tensors.values()]
        outputs = sum(array.nbytes for array in base.values())
        return fitting(max([*matrices, *lengths], default=1), outputs, self._batch.size)

    def _proved(self, some: Sequence[dict[Slip, Row]], plain: Mapping[str, Array]) -> list[dict[str, Array]]:
        """The first rows, together with an unchanged one, which must reproduce the model's outputs.

        Raises:
            RunError: The hooks change the model by themselves.
        """
        if self._batch is not None:
            try:
                done = self._values([*some, {}])
                gap = self._gap(done[-1], plain)
                reason = f"in a batch, a run in which nothing is changed is off by {gap}"
            except (RunError, UnsupportedError) as error:  # it may run, or be changed, in a batch of one
                reason = f"the model runs no larger batch ({error.message[:120]})"
            else:
                if gap is None:
                    self._null = done[-1]
                    return done[:-1]
            self._one_by_one(reason)
        (self._null,) = self._values([{}])
        if (gap := self._gap(self._null, plain)) is not None:
            raise RunError(
                f"with nothing changed, the edited model's outputs differ by {gap}: nothing is shown",
                "Please report this model.",
            )
        return self._values(some[:1])

    def _gap(self, got: Mapping[str, Array], plain: Mapping[str, Array]) -> str | None:
        """How much outputs differ; None if it is only rounding."""
        close = TOLERANCE["float32" if self._all.exact else "low"]
        for name, want in plain.items():
            if want.dtype.kind != "f":
                continue
            gap = difference(np.asarray(got[name], np.float32), np.asarray(want, np.float32))
            if not gap <= close:
                return f"{gap:.2g}"
        return None

    def _values(self, rows: Sequence[Mapping[Slip, Row]]) -> list[dict[str, Array]]:
        """One batch."""
        times = len(rows)
        given = {**repeated(self._of, self._batch, times), **filled(self._of, self._hooks, rows)}
        got = self._session.run({name: array for name, array in given.items() if name in self._names})
        parts: list[dict[str, Array]] = [{} for _ in rows]
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

    def _effect(self, intervention: Intervention, values: Mapping[str, Array], null: Mapping[str, Array]) -> Effect:
        taken: dict[str, tuple[Array, ...]] = {}
        for point in self._take:
            raw = values[f"attnx/taken/{point.title}/{self._edited.taken[point.key]}"]
            ordered = self._of.tensors[point.key].ordered(raw)
            taken[point.title] = (*taken.get(point.title, ()), ordered)
        outputs, base = ({name: of[name] for name in self._all.outputs} for of in (values, null))
        return Effect(intervention.id, outputs, base, taken)
