"""Edited runs: many interventions on one feed as rows of one batch, in one session."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from attnx.interventions.batches import Batches, Effect, position_of
from attnx.interventions.changes import Changes
from attnx.interventions.editing import Edited, Hook, edit
from attnx.interventions.plan import Intervention
from attnx.interventions.points import Point
from attnx.interventions.relay import DiffersError, Parts, Relay
from attnx.interventions.sections import Section, sections
from attnx.interventions.unedited import Unedited
from attnx.records import Array
from attnx.session.ort import Session
from attnx.session.protocol import OpenModel


class Intervening(Unedited):
    """A model, its feeds, and edited runs of them."""

    def __init__(
        self, model: OpenModel, feeds: Mapping[str, Mapping[str, Array]], outputs: Collection[str] | None = None
    ) -> None:
        super().__init__(model, feeds, outputs)
        self._parts = Parts()
        self._whole: tuple[object, Edited, Session] | None = None
        self._cut: tuple[object, Sequence[Section]] | None = None

    def run(
        self,
        interventions: Sequence[Intervention],
        take: Sequence[Point] = (),
        at: Mapping[str, int] | None = None,
    ) -> Iterator[Effect]:
        """Run interventions; those on the same feed run together.

        Args:
            interventions: In any order.
            take: Points whose tensors are also returned, in attnx's order, without dividing out factors.
            at: Output -> a position: effects have only these outputs, those by position only at this one ([B,1,...]).

        Yields:
            An effect for each, those of one feed after another.

        Raises:
            UnsupportedError: Something that cannot be reached in this model; the message names it and the reason.
            UsageError: A layer, head or position that does not exist.
        """
        for name in dict.fromkeys(i.run for i in interventions):
            yield from self._on(name, [i for i in interventions if i.run == name], take, at)

    def _on(
        self,
        name: str,
        interventions: Sequence[Intervention],
        take: Sequence[Point],
        at: Mapping[str, int] | None,
    ) -> Iterator[Effect]:
        changes = Changes(self, name, interventions)
        if changes.touched:
            self.check(name, changes.touched)
        self.base(name)
        if not take and (cut := self._sections(name, changes, at)):
            if changes.taking:
                changes.survey(())
            self.close()
            try:
                yield from Relay(self, name, changes, cut, self._parts, at).run(interventions)
                return
            except DiffersError:
                self._parts = Parts()
        rows = changes.rows(take)
        edited, session = self._edited(changes.hooks, take, len(rows) > 1)
        for effect in Batches(self, name, session, edited, take).run(interventions, rows):
            yield effect if at is None else _at(effect, at)

    def _sections(self, name: str, changes: Changes, at: Mapping[str, int] | None) -> Sequence[Section]:
        """Where the model is cut; the same cuts are used for the same changes to other feeds."""
        key = (tuple(hook.name for hook in changes.hooks), tuple(map(tuple, changes.sites)), at is not None)
        if self._cut is None or self._cut[0] != key:
            self._cut = (key, sections(self, name, changes, at is not None))
        return self._cut[1]

    def close(self) -> None:
        """Release the sessions on the whole model, and their weights."""
        self.close_plain()
        self._whole = None

    def release(self) -> None:
        """Before another session is opened: release all that hold the weights of a model that is not small."""
        super().release()
        if not self.small:
            self._whole = None
            self._parts.keep(())

    def _edited(self, hooks: Sequence[Hook], take: Sequence[Point], many: bool) -> tuple[Edited, Session]:
        """The model with hooks, and a session on it; the last one stays open."""
        key = (tuple(hook.name for hook in hooks), tuple(point.key for point in take), many)
        if self._whole is None or self._whole[0] != key:
            self._whole = None
            edited = edit(self.points.wide, hooks, outputs=self.outputs, take=take)
            self._whole = (key, edited, self.open(edited, many=many))
        return self._whole[1], self._whole[2]


def _at(effect: Effect, at: Mapping[str, int]) -> Effect:
    """An effect with outputs at only one position."""
    outputs, base = ({name: position_of(of[name], p) for name, p in at.items()} for of in (effect.outputs, effect.base))
    return Effect(effect.id, outputs, base, effect.taken)


__all__ = ["Effect", "Intervening"]
