"""`attnx coref TEXT`: which noun each head points at from a pronoun."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnx.cli.options import ExplainOption, ForceOption, SaveOption, TopOption, starts
from attnx.cli.start import Start
from attnx.numerals import counted

if TYPE_CHECKING:
    from attnx.measure.coref_contrast import Contrast
    from attnx.measure.coreference import Coreference
    from attnx.model import Model
    from attnx.records import Measurement

_TOLD = 5
"""How many of the examples left out of a dataset are named, each with its reason."""


@starts("json")
def coref(
    run: Start,
    from_: Annotated[
        str | None, typer.Option("--from", metavar="WORD", help="The word to look from; else every pronoun found.")
    ] = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="WORD,WORD", help="The candidates; else the content words it can see.")
    ] = None,
    contrast: Annotated[
        str | None, typer.Option("--contrast", metavar="TEXT", help="The other text of a minimal pair.")
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option(
            "--dataset",
            metavar="FILE",
            help="Accuracy over a dataset: .jsonl, Winograd .xml or .json, GAP .tsv, WinoBias; pairs: our own.",
        ),
    ] = None,
    causal: Annotated[
        bool, typer.Option("--causal", help="Whether it matters: cut that attention, one head at a time.")
    ] = False,
    top: TopOption = None,
    every: Annotated[
        bool, typer.Option("--all", help="List every head, and everything that one screen lacks.")
    ] = False,
    explain: ExplainOption = False,
    save: SaveOption = None,
    force: ForceOption = False,
) -> None:
    """Show which noun every head and layer points at from a pronoun, beside what pure chance and place would say.

    The answer first: what the mean of all heads points at, the best head, and what place alone would say. --all
    adds every layer, --explain the formulas and where they are from.

    With --causal: whether that matters. The attention from the pronoun to the noun is cut before the softmax, one head
    at a time, and what moves is shown: the pronoun's own vector in an encoder, the next token in a decoder. The
    controls are as much weight cut to other words of the same head, and the same edge in the other heads.

    Examples:
        attnx coref "The animal slept because it was tired."
        attnx coref "The dog chased the cat because it ran." --to dog,cat
        attnx coref "The animal slept because it was tired." --to animal --causal
        attnx coref --dataset pairs
    """
    from attnx.cli import output, saving
    from attnx.cli.unused_options import refuse
    from attnx.errors import UsageError

    if dataset is not None:
        if run.source.text is not None or contrast is not None:
            raise UsageError("--dataset stands alone, without a text", "Leave the text out.")
        refuse("with --dataset", {"--from": from_, "--to": to, "--top": top, "--all": every, **run.source.beside})
        saving.check(save, force=force)
        _dataset(run.open(), dataset, run.output.json, causal, save, force, explain)
        return
    if causal:
        refuse("with --causal", {"--contrast": contrast})
    if every:
        refuse("with --all", {"--top": top})
    saving.check(save, force=force)

    from attnx.cli import mattering
    from attnx.cli.inputs import take
    from attnx.cli.option_groups import Source
    from attnx.study.antecedents import resolve
    from attnx.study.coref_rows import point
    from attnx.view.reporting import base, heading, text_of

    if contrast is not None:
        take(Source(contrast))
    opened = run.opened
    pointing = point(opened, run.prompt, from_, to)
    trace = pointing.trace
    found, left = resolve(trace, from_, to, pointing.maps, pointing.received)
    notes = [*trace.notes, *pointing.notes, *left]
    if to is None:
        words = ", ".join(dict.fromkeys(c.text for one in found for c in one.candidates))
        notes.append(f"every content word is a candidate: {words}; --to WORD,WORD names those that are meant")
    alone = dict.fromkeys(one.candidates[0].text for one in found if len(one.candidates) == 1)
    if alone and not causal:
        notes.append(f"{' and '.join(alone)} is the only candidate, so every head points at it: --to takes two or more")
    output.notes(notes)
    matters: list[Any] = [[] for _ in found]
    if causal:
        matters, more = mattering.of_pronouns(opened, run.prompt, found, to is not None)
        output.notes(more)
        notes += more
    pairs = None
    if contrast is not None:
        pairs = _contrasted(opened, contrast, found, run.source.target)
    whole: dict[str, Any] = {}
    if run.output.json or save is not None:
        from attnx.view.json import document

        content: dict[str, Any] = {
            **base(trace),
            "pronouns": [_object(one) for one in found],
            "contrast": None if pairs is None else [_contrast_object(two, moved) for two, moved in pairs],
            "causal": [[mattering.object_of(one) for one in mine] for mine in matters] if causal else None,
            "notes": notes,
        }
        whole = document("attnx/coref", content)
        if save is None:
            output.emit_json(whole)
            return
    from attnx.cli.pointed import Pointed, body
    from attnx.study.worth_opening import opened_for
    from attnx.view.page import line
    from attnx.view.screen import screen

    text_shown = text_of(trace.memory or trace.tokens)
    first = [line(heading(trace)), *([line(text_shown)] if 0 < len(text_shown) < 400 else [])]
    worth = [opened_for(trace, pointing.received, one.pronoun) for one in found]
    pointed = body(Pointed(found, matters, pairs, contrast or "", worth, trace), top, every=every, explain=explain)
    hints = [*([] if causal or every else ["layers: --all"]), *([] if explain else ["formulas: --explain"])]
    shown = [screen(*first, pointed, said=output.lines_of(notes), every=every, hints=hints)]
    if causal:
        rows = [row for mine in matters for one in mine for row in mattering.rows_of(one)]
    else:
        rows = [row for one in found for row in mattering.mention_rows(one)]
    saving.give(shown, saving.columns_of(rows), whole, json=run.output.json, path=save, force=force)


def _contrasted(opened: Model, text: str, found: list[Coreference], target: str | None) -> list[Any]:
    """The same pronouns and candidates in the other text, and which heads changed."""
    from attnx.errors import InputError
    from attnx.measure.coref_contrast import contrast
    from attnx.measure.coreference import coreference
    from attnx.run.prompt import Prompt
    from attnx.study.antecedents import ARRAYS, maps, same_mentions
    from attnx.study.antecedents import text_of as read_from
    from attnx.study.selection import run_trusted

    trace, _ = run_trusted(opened, Prompt(text, target=target), ARRAYS)
    made, _ = maps(opened, trace, None)
    tokens = read_from(trace)
    out = []
    for one in found:
        same = same_mentions(tokens, one)
        if same is None:
            words = ", ".join([one.pronoun.text, *(c.text for c in one.candidates)])
            raise InputError(
                f"the other text lacks one of: {words}", "Name candidates that are in both texts: --to animal,street."
            )
        two = coreference(trace, *same, maps=made, tokens=tokens)
        out.append((two, contrast(one.weights, two.weights)))
    return out


def _object(one: Coreference) -> dict[str, Any]:
    return {
        "pronoun": one.pronoun,
        "candidates": one.candidates,
        "weights": one.weights,
        "shares": one.shares,
        "aside": one.aside,
        "margin": one.margin,
        "layer_means": one.layer_means,
        "layer_best": one.layer_best,
        "ranked": one.ranked,
        "verdicts": one.verdicts,
        "baselines": one.baselines,
        "unseen": one.unseen,
        "notes": one.notes,
    }


def _contrast_object(two: Coreference, moved: Contrast) -> dict[str, Any]:
    return {
        "other": _object(two),
        "change": moved.change,
        "moved": moved.moved,
        "fixed": moved.fixed,
    }


def _dataset(opened: Model, name: str, json: bool, causal: bool, save: Path | None, force: bool, explain: bool) -> None:
    """Accuracy of every head and method over a dataset; or whether heads that point matter."""
    from attnx.cli import output, saving

    if causal:
        _dataset_causal(opened, name, json, save, force)
        return
    from attnx.errors import AttnxError
    from attnx.measure import coref_data
    from attnx.study.judging import judge

    data = coref_data.bundled() if name == "pairs" else coref_data.read(name)
    try:
        with output.progress(len(data.examples), "examples") as tell:
            found, skipped = judge(opened, data.examples, tell)
    except AttnxError:
        _tell_left_out(data.skipped)
        raise
    notes = [*data.skipped, *skipped]
    _tell_left_out(notes)
    whole: dict[str, Any] = {}
    if json or save is not None:
        from attnx.view.json import document

        body: dict[str, Any] = {
            "model": opened.name,
            "dataset": data.name,
            "examples": found.examples,
            "groups": found.groups,
            "methods": found.methods,
            "heads": found.heads,
            "layers": found.layers,
            "chosen": found.chosen,
            "notes": [*found.notes, *notes],
        }
        whole = document("attnx/coref", body)
    if json and save is None:
        output.emit_json(whole)
        return
    from attnx.view import coref_tables as tables

    shown = [tables.accuracy(opened.name, data.name, found, explain=explain)]
    numbers = saving.columns_of(_by_head({"accuracy": found.heads}))
    saving.give(shown, numbers, whole, json=json, path=save, force=force)


def _dataset_causal(opened: Model, name: str, json: bool, save: Path | None, force: bool) -> None:
    """Whether heads that point also matter, over a dataset."""
    from attnx.cli import mattering, output, saving

    found, called, notes = mattering.over_dataset(opened, name)
    _tell_left_out(notes)
    whole: dict[str, Any] = {}
    if json or save is not None:
        from attnx.view.json import document

        body: dict[str, Any] = {
            "model": opened.name,
            "dataset": called,
            "examples": found.examples,
            "groups": found.groups,
            "comparison": found.comparison,
            "effects": found.heads,
            "weights": found.weights,
            "cut": found.cut,
            "notes": [*found.notes, *notes],
        }
        whole = document("attnx/coref", body)
    if json and save is None:
        output.emit_json(whole)
        return
    from attnx.view import mattering_tables as tables
    from attnx.view.page import line

    shown = [line(tables.answer_over(found)), "", tables.over(opened.name, called, found)]
    numbers = saving.columns_of(_by_head({"weight": found.weights, "effect": found.heads}))
    saving.give(shown, numbers, whole, json=json, path=save, force=force)


def _tell_left_out(notes: Sequence[str]) -> None:
    """Say which examples of a dataset were left out, and why: the first few."""
    from attnx.cli import output

    output.notes(notes[:_TOLD])
    if len(notes) > _TOLD:
        output.note(f"{counted(len(notes) - _TOLD, 'more example was', 'more examples were')} left out")


def _by_head(measures: dict[str, Measurement]) -> list[dict[str, Any]]:
    """One row per head."""
    first = next(iter(measures.values()))
    layers, heads = (axis.labels for axis in first.axes)
    return [
        {"layer": layer[1:], "head": head[1:], **{name: float(m.values[s, h]) for name, m in measures.items()}}
        for s, layer in enumerate(layers)
        for h, head in enumerate(heads)
    ]
