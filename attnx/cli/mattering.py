"""`attnx coref --causal`: not only where heads point, but whether it matters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnx.measure.coreference import Coreference
    from attnx.measure.mattering import Mattered, Mattering
    from attnx.model import Model
    from attnx.run.prompt import Prompt


def of_pronouns(
    opened: Model, prompt: Prompt, found: Sequence[Coreference], every: bool
) -> tuple[list[list[Mattering]], list[str]]:
    """Cut the attention from each pronoun to its candidates, a head at a time; and notes.

    Args:
        opened: The model.
        prompt: The text.
        found: Where heads point from each pronoun.
        every: Cut the attention to every candidate; otherwise to the one with the most weight.
    """
    from attnx.cli import output
    from attnx.interventions.feeds import plan_run
    from attnx.interventions.running import Intervening
    from attnx.study.mattering import Cutter, matter

    planned = plan_run(opened, prompt)
    running = Intervening(opened, {"inputs": planned.feed})
    out: list[list[Mattering]] = []
    notes: list[str] = []
    for one in found:
        cutter = Cutter(opened, running, planned, one.pronoun)
        notes += [note for note in cutter.left if note not in notes]
        seen = [c for at, c in enumerate(one.candidates) if at not in one.unseen]
        if not every and len(seen) > 1:
            most = max(seen, key=lambda c: float(_total(cutter.weights(c.pieces))))
            notes.append(f"cut to {most.text}, which has most weight from {one.pronoun.text}; --to names others")
            seen = [most]
        mine: list[Mattering] = []
        for candidate in seen:
            with output.progress(None, f"cuts to {candidate.text}") as tell:
                mine.append(matter(cutter, candidate, tell))
        out.append(mine)
    return out, [*running.notes, *notes]


def _total(weights: Any) -> float:
    import numpy as np

    return float(np.nansum(weights))


def object_of(one: Mattering) -> dict[str, Any]:
    """The JSON value."""
    return {
        "word": one.word,
        "to": one.to,
        "weights": one.weights,
        "moved": one.moved,
        "second": one.second,
        "unedited": one.unedited,
        "other_weights": one.other_weights,
        "other_moved": one.other_moved,
        "ranked": one.ranked,
        "correlation": one.correlation,
    }


def rows_of(one: Mattering) -> list[dict[str, Any]]:
    """One row per head."""
    layers, names = (axis.labels for axis in one.moved.axes)
    return [
        {
            "word": one.word.text,
            "word_at": one.word.pieces[0],
            "to": one.to.text,
            "to_at": one.to.pieces[0],
            "layer": int(layers[s][1:]),
            "head": h,
            "weight": float(one.weights.values[s, h]),
            "effect": float(one.moved.values[s, h]),
            "other_weight": float(one.other_weights.values[s, h]),
            "other_effect": float(one.other_moved.values[s, h]),
            "measure": one.moved.name,
        }
        for s in range(len(layers))
        for h in range(len(names))
        if one.weights.values[s, h] == one.weights.values[s, h]
    ]


def over_dataset(opened: Model, name: str) -> tuple[Mattered, str, list[str]]:
    """Whether heads that point also matter, over a dataset; the dataset's name; notes."""
    from attnx.cli import output
    from attnx.errors import AttnxError
    from attnx.measure import coref_data
    from attnx.study.mattering import matter_over

    data = coref_data.bundled() if name == "pairs" else coref_data.read(name)
    try:
        with output.progress(len(data.examples), "examples") as tell:
            found, left = matter_over(opened, data.examples, tell)
    except AttnxError:
        output.notes(data.skipped)
        raise
    return found, data.name, [*data.skipped, *left]


def mention_rows(one: Coreference) -> list[dict[str, Any]]:
    """One row per head and candidate: where heads point."""
    layers = one.weights.axes[0].labels
    return [
        {
            "word": one.pronoun.text,
            "word_at": one.pronoun.pieces[0],
            "to": candidate.text,
            "to_at": candidate.pieces[0],
            "layer": int(layer[1:]) if layer[1:].isdigit() else layer,
            "head": h,
            "weight": float(one.weights.values[s, h, at]),
            "share": float(one.shares.values[s, h, at]),
        }
        for s, layer in enumerate(layers)
        for h in range(one.weights.values.shape[1])
        for at, candidate in enumerate(one.candidates)
    ]


__all__ = ["mention_rows", "object_of", "of_pronouns", "over_dataset", "rows_of"]
