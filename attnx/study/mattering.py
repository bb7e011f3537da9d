"""Does it matter where heads point from a word? Cut that edge of attention, one head at a time, against controls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from attnx.errors import InputError, UnsupportedError
from attnx.interventions.feeds import Planned, plan_run
from attnx.interventions.plan import Edit, Intervention, Where
from attnx.interventions.running import Intervening
from attnx.measure.coref_data import Example
from attnx.measure.mattering import SOURCE, Cut, Mattered, Mattering, matched, mattered, spearman
from attnx.records import Array, Axis, Measurement, Site, Tokens
from attnx.run.prompt import Prompt
from attnx.session.protocol import OpenModel
from attnx.study.ablation import changed
from attnx.study.patch_places import caches, left_out, reachable
from attnx.study.readout import Change, Readout, readout
from attnx.tokens.spans import Mention, mention
from attnx.wording import Wording


class Cutter:
    """One text of a model, with attention from a word to cut.

    Args:
        model: The model.
        running: With the text's feed.
        planned: The text's run.
        name: The feed.
        word: Where attention is cut.
        sites: The attentions that are cut; None for all in which attention from a word can be.

    Attributes:
        sites: The attentions that are cut.
        left: For each of the others a note that says why it is left out.
    """

    def __init__(
        self,
        model: OpenModel,
        running: Intervening,
        planned: Planned,
        word: Mention,
        name: str = "inputs",
        sites: Sequence[Site] | None = None,
    ) -> None:
        self._running, self._name, self.word = running, name, word
        self.component, self._text = _side(running, planned)
        self.left: tuple[str, ...] = ()
        if sites is None:
            sites, self.left = reachable(running, running.points.components()[self.component], "masked", name)
        asked = self._text is planned.tokens
        found = running.attentions(name, sites)
        self._base = running.base(name)
        position = word.pieces[-1] if asked else None
        self.read: Readout = readout(model, self._base, planned.tokens, position=position)
        self.sites: list[Site] = []
        self._rows: list[Array] = []
        self._before: list[int] = []
        refused: list[UnsupportedError] = []
        for site in sites:
            try:
                row, before = self._row(np.asarray(found[site.index].need("weights")), running.points.title(site))
            except UnsupportedError as error:
                refused.append(error)
                continue
            self.sites.append(site)
            self._rows.append(row)
            self._before.append(before)
        if not self.sites:
            raise refused[0]
        self.left += left_out(refused)

    def _row(self, weights: Array, title: str) -> tuple[Array, int]:
        """[H,K of the text]: weight from the word, the mean of its tokens; and the cached keys before the text."""
        queries, keys = weights.shape[2:]
        before = keys - len(self._text)
        if queries != len(self._text) or before < 0 or (before and not caches(self._running.model)):
            raise UnsupportedError(
                f"{title} has {queries} queries and {keys} keys, and the text has {len(self._text)} tokens: which is "
                "which is not known",
                "",
            )
        return np.asarray(weights[0][:, list(self.word.pieces), before:].mean(axis=1), np.float64), before

    def weights(self, to: Sequence[int]) -> Array:
        """[S,H]: the total weight on some keys; NaN for heads that a layer lacks."""
        return _stacked([row[:, list(to)].sum(axis=1) for row in self._rows])

    def others(self, at: tuple[int, int], to: Mention) -> list[int]:
        """Keys of other words with about as much of a head's weight as the word has."""
        row = self._rows[at[0]][at[1]]
        allowed = ~np.asarray(self._text.special, bool)
        allowed[[*to.pieces, *self.word.pieces]] = False
        return matched(row, allowed, float(row[list(to.pieces)].sum()))

    def weight(self, at: tuple[int, int], keys: Sequence[int]) -> float:
        """The weight of a head on some keys."""
        return float(self._rows[at[0]][at[1], list(keys)].sum()) if keys else float("nan")

    def cut(
        self, plan: dict[str, tuple[tuple[int, int], Sequence[int]]], tell: Callable[[int, int], None] | None = None
    ) -> dict[str, Change]:
        """Cut edges, each alone: id -> (layer position, head), keys."""
        steps = []
        for name, ((at, head), keys) in plan.items():
            site, cut = self.sites[at], tuple(key + self._before[at] for key in keys)
            edit = Edit("knockout", (site.layer or 0,), (head,), self.word.pieces, cut, component=self.component)
            steps.append(Intervention(name, (edit,), self._name))
        done: dict[str, Change] = {}
        for name, change in changed(self._running, self.read, steps):
            done[name] = change
            if tell is not None:
                tell(len(done), len(plan))
        return done

    @property
    def heads(self) -> list[tuple[int, int]]:
        """(layer position, head)."""
        return [(at, head) for at, row in enumerate(self._rows) for head in range(len(row))]

    @property
    def axes(self) -> tuple[Axis, Axis]:
        """Layers and heads."""
        most = max(len(row) for row in self._rows)
        return (
            Axis("layer", tuple(f"L{site.layer}" for site in self.sites)),
            Axis("head", tuple(f"H{head}" for head in range(most))),
        )

    def base(self) -> Change:
        """The unedited run's reading."""
        return self.read.change(self._base, self._base)


def matter(cutter: Cutter, to: Mention, tell: Callable[[int, int], None] | None = None) -> Mattering:
    """Cut the attention to a word in one head at a time, and, as a control, as much weight to other words.

    Args:
        cutter: The text, and the word whose attention is cut.
        to: The word to which attention is cut.
        tell: Called with the number of cuts run so far, and of all.
    """
    plan: dict[str, tuple[tuple[int, int], Sequence[int]]] = {}
    for at in cutter.heads:
        plan[f"edge {at}"] = (at, to.pieces)
    instead = {at: cutter.others(at, to) for at in cutter.heads}
    plan |= {f"other {at}": (at, keys) for at, keys in instead.items() if keys}
    done = cutter.cut(plan, tell)
    base = cutter.base()
    second = next((name for name in base.reading.scores if name != cutter.read.heading), None)
    edge = {at: done[f"edge {at}"] for at in cutter.heads}
    other = {at: done[f"other {at}"].moved for at, keys in instead.items() if keys}
    weights = cutter.weights(to.pieces)
    moved = _laid(cutter, {at: change.moved for at, change in edge.items()})
    axes, read = cutter.axes, cutter.read

    def measured(name: str, values: Array, formula: str = "") -> Measurement:
        return Measurement(name, "", axes, values, source=SOURCE, formula=formula)

    scores = None
    if second is not None:
        values = _laid(cutter, {at: change.reading.scores[second] for at, change in edge.items()})
        scores = measured(second, values)
    known = ~np.isnan(moved)
    return Mattering(
        cutter.word,
        to,
        measured("weight", weights, "from the word the mean, to the other the sum of a over pieces"),
        measured(read.heading, moved, read.formula),
        scores,
        base.reading.scores[second] if second is not None and read.kind != "embedding" else None,
        measured("weight to other words", _laid(cutter, {at: cutter.weight(at, keys) for at, keys in instead.items()})),
        measured(f"{read.heading}, other words cut", _laid(cutter, other), read.formula),
        spearman(weights[known], moved[known]),
    )


def matter_over(
    model: OpenModel, examples: Sequence[Example], tell: Callable[[int], None] = lambda _: None
) -> tuple[Mattered, tuple[str, ...]]:
    """Over a dataset: cut the attention from each pronoun to its antecedent in every head.

    Args:
        model: With a tokenizer.
        examples: The examples of the dataset.
        tell: Called with the number of finished examples after each.

    Returns:
        The effects; notes; and the reason for each example that was left out.

    Raises:
        InputError: No example is left.
    """
    cuts: list[Cut] = []
    skipped: list[str] = []
    heading = ""
    layers: tuple[str, ...] = ()
    running: Intervening | None = None
    sites: list[Site] | None = None
    left: tuple[str, ...] = ()
    for number, example in enumerate(examples, start=1):
        planned = plan_run(model, Prompt(example.text))
        if running is None:
            running = Intervening(model, {"inputs": planned.feed})
        else:
            running.put("inputs", planned.feed)
        text = _side(running, planned)[1]
        try:
            word = mention(text, *example.pronoun)
            to = mention(text, *example.candidates[example.answer])
        except InputError as error:
            skipped.append(Wording("example {at} is left out: {why}", at=number, why=error.message))
            continue
        finally:
            tell(number)
        cutter = Cutter(model, running, planned, word, sites=sites)
        sites, left = cutter.sites, left or cutter.left
        weights = cutter.weights(to.pieces)
        at = divmod(int(np.nanargmax(weights)), weights.shape[1])
        keys = cutter.others(at, to)
        plan: dict[str, tuple[tuple[int, int], Sequence[int]]] = {str(one): (one, to.pieces) for one in cutter.heads}
        if keys:
            plan["other"] = (at, keys)
        done = cutter.cut(plan)
        moved = _laid(cutter, {one: done[str(one)].moved for one in cutter.heads})
        other = done["other"].moved if keys else float("nan")
        cuts.append(Cut(weights, moved, cutter.weight(at, keys), other, example.pair))
        layers = cutter.axes[0].labels
        heading = "how far the word's vector moves" if cutter.read.of_token else cutter.read.heading
        heading = f"{heading}: {cutter.read.formula}"
    if not cuts:
        raise InputError("no example of the dataset could be judged", skipped[0] if skipped else "")
    found = mattered(cuts, layers, heading)
    found = replace(found, notes=(*found.notes, *left))
    return found, tuple(dict.fromkeys((*(running.notes if running else ()), *skipped)))


def _side(running: Intervening, planned: Planned) -> tuple[Where, Tokens]:
    """The self-attention over the text that is searched for pronouns, and that text."""
    there = running.points.components()
    if planned.trace.memory is not None and "encoder" in there:
        return "encoder", planned.trace.memory
    own: list[Where] = [name for name in ("decoder", "encoder") if name in there]
    if not own:
        raise UnsupportedError("the model has no self-attention over its text that could be changed", "")
    return own[0], planned.tokens


def _laid(cutter: Cutter, values: dict[tuple[int, int], float]) -> Array:
    axes = cutter.axes
    found = np.full((len(axes[0].labels), len(axes[1].labels)), np.nan)
    for at, value in values.items():
        found[at] = value
    return found


def _stacked(rows: Sequence[Array]) -> Array:
    found = np.full((len(rows), max(len(row) for row in rows)), np.nan)
    for at, row in enumerate(rows):
        found[at, : len(row)] = row
    return found


__all__ = ["Cutter", "matter", "matter_over"]
