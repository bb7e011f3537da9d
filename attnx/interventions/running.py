"""Edited runs: many interventions on one feed as rows of one batch, in one session."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attnx.interventions.batches import Batches, Effect
from attnx.interventions.changes import Changes
from attnx.interventions.editing import edit
from attnx.interventions.plan import Intervention
from attnx.interventions.points import Point
from attnx.interventions.unedited import Unedited


class Intervening(Unedited):
    """A model, its feeds, and edited runs of them."""

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
            yield from self._on(name, [i for i in interventions if i.run == name], take)

    def _on(self, name: str, interventions: Sequence[Intervention], take: Sequence[Point]) -> Iterator[Effect]:
        changes = Changes(self, name, interventions)
        if changes.touched:
            self.check(name, changes.touched)
        rows = changes.rows(take)
        self.base(name)
        edited = edit(self.points.wide, changes.hooks, outputs=self.outputs, take=take)
        session = self.open(edited, many=len(rows) > 1)
        yield from Batches(self, name, session, edited, take).run(interventions, rows)


__all__ = ["Effect", "Intervening"]
