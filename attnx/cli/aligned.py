"""`attnx align` for translations: what is run, and how links and error rates are shown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attnx.cli import output
from attnx.errors import InputError, UsageError
from attnx.measure import links
from attnx.measure.links import How, Link
from attnx.numerals import counted
from attnx.study import translation
from attnx.study.request import Head
from attnx.study.translation import Chosen, Pair, When
from attnx.tokens.spaced import readers, spaced
from attnx.tokens.text_file import read_text

if TYPE_CHECKING:
    from attnx.cli.start import Start
    from attnx.model import Model
    from attnx.run.prompt import Prompt

VIEWS = ("table", "lines", "heatmap", "pharaoh")
WRITES = 128
"""The most tokens to write without --generate."""
BEST = 8
"""How many heads are listed without --top."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of an alignment."""

    heads: tuple[Head, ...] = ()
    layers: tuple[int, ...] | None = None
    every: bool = False
    when: When = "read"
    back: str | None = None
    """The model of the other direction."""
    how: How = "grow-diag"
    view: str = "table"
    between_spaces: bool = False
    """Whether words are whatever stands between spaces, as gold links and Pharaoh's format count them."""
    top: int | None = None
    explain: bool = False

    @property
    def read(self) -> tuple[int, ...] | None:
        """The layers to read; None for all."""
        named = {head.layer for head in self.heads}
        if self.layers is not None or not self.heads or None in named:
            return self.layers
        return tuple(sorted(layer for layer in named if layer is not None))


@dataclass(frozen=True)
class Aligned:
    """A sentence and its translation, with their links."""

    pair: Pair
    chosen: Chosen
    linked: tuple[Link, ...]
    back: tuple[Pair, Chosen] | None = None

    @cached_property
    def words(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Source and target."""
        return tuple(word for word, _ in self.pair.source), tuple(word for word, _ in self.pair.target)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know."""
        trace = self.pair.trace
        back = () if self.back is None else (*self.back[0].notes, *self.back[0].trace.notes)
        return tuple(dict.fromkeys((*trace.notes, *self.pair.notes, *self.chosen.notes, *back)))


def prompts_of(run: Start, model: Model, targets: Path | None) -> Iterator[Prompt]:
    """What the model is run on for each item: a text, and its translation or a plan for writing one.

    Raises:
        InputError: The file of translations has another number of lines.
    """
    from attnx.run.generate import plan

    lines, items = None, run.items
    if targets is not None:
        items = list(items)
        lines = _lines(targets, len(items))  # counted before the first is run
    for number, one in enumerate(items):
        prompt = run.prompt_of(one, model)
        if lines is not None:
            prompt = replace(prompt, target=lines[number])
        elif prompt.target is None and prompt.generate is None:
            prompt = replace(prompt, generate=plan(model, WRITES))
        yield prompt


_SAME = "Give a translation for each text, one per line; neither file may have empty lines."


def _lines(path: Path, count: int) -> list[str]:
    """The translations, one line for each of `count` texts."""
    lines = read_text(path, "--targets takes a text file, one line per text.").splitlines()
    if len(lines) != count:
        raise InputError(f"{path} has {counted(len(lines), 'line')} for {counted(count, 'text')}", _SAME)
    if empty := [number for number, one in enumerate(lines, 1) if not one.strip()]:
        raise InputError(f"line {empty[0]} of {path} is empty", _SAME)
    return lines


def align(model: Model, prompt: Prompt, asked: Asked, other: Model | None = None) -> Aligned:
    """Run a translator, and the one of the other direction where there is one, and link the words."""
    cut = spaced if asked.between_spaces else readers
    one = translation.pair(model, prompt, cut, asked.when, asked.read)
    chosen = translation.choose(one, asked.heads, asked.layers, asked.every)
    if other is None:
        return Aligned(one, chosen, links.listed(links.strongest(chosen.weights)))
    from attnx.run.prompt import Prompt

    memory, tokens = one.trace.memory, one.trace.tokens
    if memory is None or not memory.text.strip() or not tokens.text.strip():
        raise UsageError("--back needs both texts, and ids have none", "Give the texts themselves.")
    two = translation.pair(other, Prompt(tokens.text.strip(), target=memory.text.strip()), cut, asked.when)
    # Heads of two models do not correspond: for the second model, the layer that agrees best is read.
    second = translation.choose(two, every=asked.every)
    linked = links.listed(translation.both_ways(chosen.weights, second.weights, asked.how))
    return Aligned(one, chosen, linked, (two, second))


def rendered(found: Aligned, asked: Asked) -> list[Any]:
    """What is shown for one sentence."""
    from attnx.view import align_tables as tables
    from attnx.view.page import line
    from attnx.view.reporting import heading

    title = f"{found.chosen.where} · {counted(len(found.linked), 'link')}"
    if asked.view in ("lines", "heatmap"):
        only = found.linked if asked.view == "lines" else None
        matrix = tables.linked_matrix(found.words, found.chosen.weights, only, title)
        if asked.view == "heatmap":
            from attnx.view.heatmap import heatmap

            return [heatmap(matrix)]
        from attnx.view.lines import lines

        return [lines([matrix], least=-np.inf)]
    weights = [("weight", found.chosen.weights)]
    formula = f"{found.pair.weights.formula} ({found.pair.weights.source})"
    said = [formula if asked.explain else "", *found.chosen.notes]
    if found.back is not None:
        title += f", {asked.how} of two directions"
        weights = [("there", found.chosen.weights), ("back", found.back[1].weights.T)]
        said.append(f"there: {found.chosen.where} of {found.pair.trace.model}; back: {found.back[1].where} of "
                    f"{found.back[0].trace.model}")  # fmt: skip
    return [
        line(heading(found.pair.trace)),
        "",
        tables.links(found.words, found.linked, weights, title=title, said=said),
        *_hint(asked),
    ]


def _hint(asked: Asked) -> list[Any]:
    from attnx.view.page import line

    return [] if asked.explain else [line("formula, source: --explain", "dim")]


def document(found: Aligned, asked: Asked) -> dict[str, Any]:
    """What --json prints for one sentence."""
    from attnx.view.json import document as as_document
    from attnx.view.reporting import base

    back = found.back
    body: dict[str, Any] = {
        **base(found.pair.trace),
        "kind": "translation",
        "source": found.words[0],
        "target": found.words[1],
        "when": asked.when,
        "where": found.chosen.where,
        "weights": found.chosen.weights,
        "links": [
            {"source": s, "target": t, "weight": found.chosen.weights[t, s],
             "back": None if back is None else back[1].weights[s, t]}
            for s, t in found.linked
        ],
        "pharaoh": links.pharaoh(found.linked),
        "back": None
        if back is None
        else {"model": back[0].trace.model, "where": back[1].where, "weights": back[1].weights, "how": asked.how},
        "notes": found.notes,
    }  # fmt: skip
    return as_document("attnx/align", body)


def against_gold(run: Start, model: Model, targets: Path | None, gold: Path, start: int, asked: Asked) -> None:
    """The view of the error rates over all sentences."""
    from attnx.measure.alignment_error import read_gold
    from attnx.view import align_tables as tables
    from attnx.view.json import document as as_document

    want = read_gold(gold, start)
    prompts = list(prompts_of(run, model, targets))
    if any(one.target is None for one in prompts):
        raise UsageError("gold links are of two texts, and there is one", "Give --target TEXT, or --targets FILE.")
    if len(prompts) != len(want):
        raise InputError(
            f"{gold} has links of {counted(len(want), 'sentence')} for {counted(len(prompts), 'text')}",
            "Give one line for each.",
        )
    pairs = (translation.pair(model, one, spaced, asked.when) for one in prompts)
    with output.progress(len(prompts), "sentences") as tell:
        found, said = translation.judge(pairs, want, tell)
    output.notes(said)
    if run.output.json:
        body: dict[str, Any] = {
            "model": model.name,
            "kind": "gold",
            "gold": str(gold),
            "when": asked.when,
            "sentences": found.sentences,
            "methods": found.methods,
            "heads": found.heads,
            "layers": found.layers,
            "chosen": found.chosen,
            "chosen_layers": found.chosen_layers,
            "notes": [*found.notes, *said],
        }
        output.emit_json(as_document("attnx/align", body))
        return
    from attnx.view.screen import choice, screen

    def more(left: int) -> str:
        return f"{counted(left, 'more head')}: --top K" if left else ""

    counts = range(BEST, 0, -1) if asked.top is None else (asked.top,)
    heads = choice(*(["", tables.best_heads(found, count, more)] for count in counts))
    hints = [] if asked.explain else ["formula, source: --explain"]
    methods = tables.errors(model.name, gold.name, found, explain=asked.explain)
    output.show(screen(methods, heads, said=output.lines_of(said), hints=hints))


def translate(run: Start, model: Model, targets: Path | None, asked: Asked, *, jsonl: bool) -> None:
    """Align every sentence, and show it."""
    from attnx import model as pipeline

    other = None
    if asked.back is not None:
        other = pipeline.open(asked.back, device=run.model.device)
    for at, one in enumerate(prompts_of(run, model, targets)):
        found = align(model, one, asked, other)
        output.notes(note for note in found.notes if note not in found.chosen.notes or asked.view != "table")
        if run.output.json or jsonl:
            output.emit_json(document(found, asked), pretty=False if jsonl else None)
        elif asked.view == "pharaoh":
            output.write(links.pharaoh(found.linked))
        else:
            output.show(*([""] if at else []), *rendered(found, asked))


__all__ = ["VIEWS", "Asked", "against_gold", "translate"]
