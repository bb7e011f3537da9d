"""`attnx heads TEXT`: what each head does, by measures with a formula."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnx.cli.options import (
    SENSES,
    ExplainOption,
    ForceOption,
    LayerOption,
    SaveOption,
    SiteOption,
    TopOption,
    starts,
)
from attnx.cli.start import Start
from attnx.numerals import counted

if TYPE_CHECKING:
    from attnx.measure.heads import HeadTable
    from attnx.model import Model
    from attnx.records import Measurement, Trace

TOP = 4
"""How many heads the table lists without --top and --all."""
SORT = "largest weight"
"""The measure by which heads are listed without --sort."""


@starts("file", "generate", *SENSES, "json")
def heads(
    run: Start,
    sort: Annotated[
        str | None, typer.Option("--sort", metavar="MEASURE", help="List heads by this measure; else largest weight.")
    ] = None,
    show_map: Annotated[
        str | None, typer.Option("--map", metavar="MEASURE", help="One measure as a map of layers and heads.")
    ] = None,
    similar: Annotated[
        str | None,
        typer.Option("--similar", metavar="L.H", help="List the heads that look at the same tokens as this one."),
    ] = None,
    probe: Annotated[
        str | None,
        typer.Option("--probe", metavar="induction", help="Measure induction on repeated random blocks."),
    ] = None,
    layer: LayerOption = None,
    site: SiteOption = None,
    top: TopOption = None,
    every: Annotated[bool, typer.Option("--all", help="List every head.")] = False,
    causal: Annotated[
        bool, typer.Option("--causal", help="Whether it matters: ablate each head, and show how far the answer moves.")
    ] = False,
    explain: ExplainOption = False,
    save: SaveOption = None,
    force: ForceOption = False,
) -> None:
    """Say what every head does, by measures with a stated formula, and name it where a threshold is passed.

    How many heads of each kind there are, a map of them, and the heads with the largest of one measure. --explain adds
    the thresholds, the formulas and where they are from.

    Over one text, or over every line of a file (means and their spread). The measures are largest weight, entropy,
    entropy share, mean distance, locality, confidence, previous, next, self, first, special, punctuation, sink,
    duplicate and induction; attnx scan takes them by the same names. With --causal there is one more, effect: every
    head is set to 0 by itself, and the heads that the model needs most come first.

    Examples:
        attnx heads "The animal slept because it was tired."
        attnx heads -m tiny-gpt --probe induction
        attnx heads "The animal slept because it was tired." --map entropy
    """
    import numpy as np

    from attnx.cli import output, saving
    from attnx.cli.batch_run import described
    from attnx.cli.inputs import Lines, only, several
    from attnx.cli.measure_names import measure_of
    from attnx.cli.unused_options import refuse
    from attnx.errors import UsageError
    from attnx.measure import heads as measure
    from attnx.measure import similarity as likeness
    from attnx.study.request import parse_layers
    from attnx.study.selection import head_of, of_sort, trusted
    from attnx.view.head_tables import EFFECT

    if probe not in (None, "induction"):
        raise UsageError(f"there is no probe {probe!r}", "Give --probe induction.")
    if similar is not None:
        refuse(
            "with --similar",
            {"--sort": sort, "--map": show_map, "--probe": probe, "--all": every, "--causal": causal},
        )
    if show_map is not None:
        refuse("with --map", {"--sort": sort, "--top": top})
    if every:
        refuse("with --all", {"--top": top})
    saving.check(save, force=force)
    # The probe has tokens of its own: without a text, it is all there is to measure.
    alone = probe is not None and not run.any_given
    usual = EFFECT if causal else "induction" if alone else SORT

    def named(option: str, name: str) -> str:
        return EFFECT if causal and name.strip().lower() == EFFECT else measure_of(option, name)

    sort = usual if sort is None else named("--sort", sort)
    show_map = None if show_map is None else named("--map", show_map)
    items = [] if alone else run.items
    if similar is not None:
        only(items, "--similar")
    if causal and not alone:
        only(items, "--causal")
    layers = None if layer is None else parse_layers(layer)
    opened = run.open() if alone else run.opened
    means, said = measure.Means(), dict[str, None]()

    def choose(one: Trace) -> Trace:
        kept, doubts = trusted(of_sort(one, site))
        said.update(dict.fromkeys((*one.notes, *doubts)))
        return kept

    many = several(items)
    if alone:
        table, trace, note = _probed(opened, layers, choose)
        said[f"measured on {note}"] = None
    else:
        with output.progress(items.count if isinstance(items, Lines) else 1, "texts", quiet=not many) as tell:
            for last in described(run, layers, choose, whole=similar is not None):
                means.add(last[0])
                tell(means.texts)
        table, trace = last
        if many:
            table = means.table()
        if probe is not None:
            probed, _, note = _probed(opened, layers, lambda one: of_sort(one, site))
            left = next((one for one in probed.rest if one.name == "induction"), None)
            table = measure.with_measure(table, probed.measure("induction"), left)
            said[f"induction: measured on {note}; the other measures on the text"] = None
    if causal:
        from attnx.measure import induction
        from attnx.run.prompt import Prompt
        from attnx.study.head_effects import effects

        like = table.measures[0]
        with output.progress(None, "heads") as tell:
            prompt = Prompt(tokens=induction.probe(opened.tokenizer)) if alone else run.prompt
            effect, doubts = effects(opened, prompt, trace, like, tell)
        table = replace(
            table,
            measures=(*table.measures, effect),
            spread=(*table.spread, replace(effect, values=np.full_like(effect.values, np.nan))) if table.spread else (),
        )
        said.update(dict.fromkeys(doubts))
    near = likeness.similar(trace, *head_of(trace, similar, argument="similar")) if similar is not None else None
    notes = list(dict.fromkeys([*said, *(note for m in table.measures for note in m.notes)]))
    table.measure(sort)  # there is one
    mapped = None if show_map is None else table.measure(show_map)
    whole: dict[str, Any] = {}
    if run.output.json or save is not None:
        from attnx.view.json import document
        from attnx.view.reporting import base

        body: dict[str, Any] = {
            **(base(trace) if not many else {"model": trace.model, "device": trace.device}),
            "texts": table.texts,
            "measures": table.measures,
            "spread": table.spread,
            "kinds": table.kinds,
            "thresholds": table.thresholds,
            "rest": {"measures": table.rest, "kinds": table.rest_kinds},
            "similar": near,
            "notes": notes,
        }
        whole = document("attnx/heads", body)
        if save is None:
            output.emit_json(whole)
            return
    from attnx.view import head_tables as tables
    from attnx.view.headmap import headmap
    from attnx.view.page import line
    from attnx.view.reporting import heading
    from attnx.view.screen import choice, screen
    from attnx.view.sparkline import sparklines
    from attnx.view.table import table as numbers

    if many:
        first = f"{trace.model} · {counted(means.texts, 'text')}, means over them · {trace.device}"
    else:
        first = heading(trace)
    shown: list[Any] = [line(first)]
    hints = [] if explain or near is not None else ["formulas, sources: --explain"]
    if near is not None:
        shown.append(tables.nearest(near, top or TOP))
        notes = list(said)  # notes of measures are about what is not shown
    elif mapped is not None:
        decimals = 3 if mapped.name == EFFECT else 2
        bare = mapped if explain else replace(mapped, formula="", source="")
        ways: list[list[Any]] = [[numbers(bare, decimals=decimals)], [headmap(mapped, decimals=2)]]
        shown.append(choice(*ways, instead="the numbers: --all"))
        notes = list(said)
        if len(mapped.axes[0].labels) > 1 and not np.isnan(mapped.values).all():
            lines = sparklines(replace(mapped, notes=()), along=mapped.axes[0].name)
            shown.append(choice(["", lines], [], instead="from layer to layer: --all"))
    else:

        def more(left: int) -> str:
            others = f" · {counted(left, 'more head')}: --all" if left else ""
            return f"by {sort}{others}{'' if explain else ' · formulas, sources: --explain'}"

        hints = []
        count = sum(bool(kind) for row in table.kinds for kind in row)
        fewer = (count,) if every else (top,) if top is not None else range(min(TOP, count), 0, -1)
        shown += [line(text, "bold") for text in tables.counts(table)]
        shown.append(choice([tables.kinds(table, explain)], [], instead="the map of kinds: --all"))
        lists: list[list[Any]] = [["", tables.measures(table, sort, one, more, explain=explain)] for one in fewer]
        lacks = [""] * len(lists)
        if top is None and not every:
            lists.append([])
            lacks.append(f"heads by {sort}: --all")
        shown.append(choice(*lists, instead=lacks))
    shown = [screen(*shown, said=output.lines_of(notes), every=every, hints=hints)]
    saving.give(
        shown, saving.columns_of(_rows(table, near, trace)), whole, json=run.output.json, path=save, force=force
    )
    if not run.output.json:
        output.notes(notes)


def _rows(table: HeadTable, near: Measurement | None, trace: Trace) -> list[dict[str, Any]]:
    """A line for each value: of a head, a measure, on its whole pattern or on what the first token leaves."""
    import numpy as np

    layers, names = (axis.labels for axis in table.measures[0].axes)
    groups = [("whole", table.measures, table.spread), ("rest", table.rest, ())]
    if near is not None:
        groups = [("whole", (near,), ())]
    out = []
    for s, layer in enumerate(layers):
        for h, name in enumerate(names):
            if not table.kinds[s][h]:
                continue
            place = {
                "layer": trace.attentions[s].site.layer, "layer_label": layer, "head": h, "head_label": name,
                "kind": table.kinds[s][h], "rest_kind": table.rest_kinds[s][h] if table.rest_kinds else "",
            }  # fmt: skip
            for pattern, measures, spread in groups:
                for at, one in enumerate(measures):
                    if np.isnan(one.values[s, h]):
                        continue
                    row = {**place, "pattern": pattern, "measure": one.name, "value": float(one.values[s, h])}
                    out.append(row | ({"spread": float(spread[at].values[s, h])} if spread else {}))
    return out


def _probed(
    opened: Model, layers: tuple[int, ...] | None, choose: Callable[[Trace], Trace]
) -> tuple[HeadTable, Trace, str]:
    """What heads do on repeated random blocks, and how these were made."""
    from attnx.measure import induction
    from attnx.run.prompt import Prompt
    from attnx.study.head_stats import heads as reduced

    tokens = induction.probe(opened.tokenizer)
    table, trace = reduced(opened, Prompt(tokens=tokens), layers, choose)
    return table, trace, f"a block of {induction.LENGTH} random tokens, {induction.REPEATS} times, seed 0"
