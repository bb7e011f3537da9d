"""`attnx heads TEXT`: what each head does, by measures with a formula."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnx.cli.options import SENSES, ExplainOption, LayerOption, SiteOption, TopOption, starts
from attnx.cli.start import Start

if TYPE_CHECKING:
    from attnx.measure.heads import HeadTable
    from attnx.model import Model
    from attnx.records import Trace
    from attnx.view.columns import Columns

TOP = 4
"""Heads that the table lists where --top and --all do not say."""
SORT = "largest weight"
"""What they are listed by where --sort does not say."""
EFFECT = "effect"
"""The measure that --causal adds."""
SHORT = {
    "previous-token": "prev",
    "next-token": "next",
    "self": "self",
    "sink": "sink",
    "broad": "broad",
    "induction": "induc",
    "punctuation": "punct",
    "mixed": "·",
    "": "",
}
"""Kinds as the map writes them."""


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

    from attnx.cli import output
    from attnx.cli.batch_run import described
    from attnx.cli.inputs import Lines, only, several
    from attnx.cli.measure_names import measure_of
    from attnx.cli.unused_options import refuse
    from attnx.errors import UsageError
    from attnx.measure import heads as measure
    from attnx.measure import similarity as likeness
    from attnx.study.request import parse_layers
    from attnx.study.selection import head_of, of_sort, trusted

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
    # The probe brings tokens of its own: without a text, it is all there is to measure.
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
            table = measure.with_measure(table, probed.measure("induction"))
            said[f"induction: measured on {note}; the other measures on the text"] = None
    if causal:
        from attnx.measure import induction
        from attnx.run.prompt import Prompt
        from attnx.study.head_effects import effects

        like = table.measures[0]
        with output.progress(int((~np.isnan(like.values)).sum()), "heads") as tell:
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
    chosen = table.measure(sort)
    mapped = None if show_map is None else table.measure(show_map)
    if run.output.json:
        from attnx.view.json import document
        from attnx.view.reporting import base

        body: dict[str, Any] = {
            **(base(trace) if not many else {"model": trace.model, "device": trace.device}),
            "texts": table.texts,
            "measures": table.measures,
            "spread": table.spread,
            "kinds": table.kinds,
            "thresholds": table.thresholds,
            "similar": near,
            "notes": notes,
        }
        output.emit_json(document("attnx/heads", body))
        return
    from attnx.view.page import line
    from attnx.view.reporting import heading
    from attnx.view.sparkline import sparklines
    from attnx.view.table import table as numbers

    if many:
        first = f"{trace.model} · {means.texts} texts, means over them · {trace.device}"
    else:
        first = heading(trace)
    shown: list[Any] = [line(first)]
    if near is not None:
        shown.append(_nearest(near, top or TOP))
        notes = list(said)  # those of measures are of what is not shown
    elif mapped is not None:
        shown.append(numbers(mapped, decimals=3 if mapped.name == EFFECT else 2))
        notes = list(said)
        if len(mapped.axes[0].labels) > 1 and not np.isnan(mapped.values).all():
            shown += ["", sparklines(replace(mapped, notes=()), along=mapped.axes[0].name)]
    else:
        count = chosen.values.size if every else top or TOP
        shown += [line(_counted(table), "bold"), _map(table, explain), "", _table(table, sort, count, explain)]
    output.show(*shown)
    output.notes(notes)


def _probed(
    opened: Model, layers: tuple[int, ...] | None, choose: Callable[[Trace], Trace]
) -> tuple[HeadTable, Trace, str]:
    """What heads do on random blocks, repeated; and how these were made."""
    from attnx.measure import induction
    from attnx.run.prompt import Prompt
    from attnx.study.head_stats import heads as reduced

    tokens = induction.probe(opened.tokenizer)
    table, trace = reduced(opened, Prompt(tokens=tokens), layers, choose)
    return table, trace, f"a block of {induction.LENGTH} random tokens, {induction.REPEATS} times, seed 0"


def _counted(table: HeadTable) -> str:
    """How many heads there are of each kind; one or two of a kind by name."""
    layers, names = (axis.labels for axis in table.measures[0].axes)
    places: dict[str, list[str]] = {}
    for s, row in enumerate(table.kinds):
        for h, kind in enumerate(row):
            if kind:
                places.setdefault(kind, []).append(f"{layers[s]} {names[h]}")
    total = sum(map(len, places.values()))
    few = 2
    parts = [
        f"{len(found)} {kind}" + (f" ({', '.join(found)})" if len(found) <= few else "")
        for kind, found in sorted(places.items(), key=lambda item: -len(item[1]))
    ]
    return f"{total} heads: {', '.join(parts)}"


def _map(table: HeadTable, explain: bool) -> Columns:
    """Layers by heads: what each head is."""
    from attnx.view.columns import column, columns

    layers, names = (axis.labels for axis in table.measures[0].axes)
    parts = [column("layer", layers)]
    for at, name in enumerate(names):
        parts.append(column(name, [SHORT[kinds[at]] for kinds in table.kinds], whole=True))
    named = {kind for kinds in table.kinds for kind in kinds} - {"mixed", ""}
    said = [line for line in table.thresholds if line.partition(":")[0] in named] if explain else []
    return columns("what each head does", parts, notes=["· mixed: no threshold is passed", *said], gap=1)


_TABLE = (
    "effect", "largest weight", "entropy", "mean distance", "previous", "next", "self", "first", "induction", "special",
    "punctuation", "sink", "duplicate", "entropy share", "locality", "confidence",
)  # fmt: skip
"""Measures in the order of the table; those from "special" on only where there is room."""
_SPARE = _TABLE[_TABLE.index("special") :]


def _table(table: HeadTable, sort: str, count: int, explain: bool) -> Columns:
    """The heads with the largest of one measure, and all their measures."""
    import re

    import numpy as np

    from attnx.view.cells import number
    from attnx.view.columns import column, columns

    chosen = table.measure(sort)
    layers, names = (axis.labels for axis in chosen.axes)
    order = np.argsort(-np.nan_to_num(chosen.values, nan=-np.inf), axis=None, kind="stable")
    places = [divmod(int(at), chosen.values.shape[1]) for at in order]
    places = [(s, h) for s, h in places if table.kinds[s][h]]
    kept = places[:count]
    parts = [
        column("head", [f"{layers[s]} {names[h]}" for s, h in kept], whole=True),
        column("kind", [table.kinds[s][h].removesuffix("-token") for s, h in kept], whole=True),
    ]
    known = {measure.name for measure in table.measures}
    for name in dict.fromkeys((sort, *_TABLE)):
        if name not in known:
            continue
        values = table.measure(name).values
        if np.isnan(values).all():
            continue
        spare = name in _SPARE and name != sort
        if table.spread:
            deviation = table.spread[[m.name for m in table.measures].index(name)].values
            cells: list[Any] = [f"{number(values[s, h])}±{number(deviation[s, h])}" for s, h in kept]
            parts.append(column(name, cells, whole=True, spare=spare))
        else:
            decimals = 4 if name == EFFECT else 2
            parts.append(column(name, [values[s, h] for s, h in kept], decimals=decimals, spare=spare))
    left = len(places) - len(kept)
    found = (re.findall(r"[A-Z][\w ]*?(?: et al\.| and [A-Z]\w+)? \d{4}", m.source) for m in table.measures)
    papers = dict.fromkeys(paper for papers in found for paper in papers)
    said = [f"by {sort}" + (f"; {left} more heads: --all" if left else "") + "; --explain: formulas, sources"]
    said += [f"effect: {table.measure(EFFECT).formula}"] if EFFECT in known and not explain else []
    if explain:
        said += [f"{m.name}: {m.formula}" for m in table.measures if m.formula]
        said.append(f"Sources: {', '.join(papers)}")
    if table.spread:
        said.insert(1, "±: standard deviation over the texts")
    return columns("", parts, notes=said, gap=1)


def _nearest(near: Any, count: int) -> Columns:
    """The heads nearest to one."""
    import numpy as np

    from attnx.view.columns import column, columns
    from attnx.view.reporting import sourced

    layers, names = (axis.labels for axis in near.axes)
    order = np.argsort(np.nan_to_num(near.values, nan=np.inf), axis=None, kind="stable")
    places = [divmod(int(at), near.values.shape[1]) for at in order]
    places = [(s, h) for s, h in places if not np.isnan(near.values[s, h])][: count + 1]
    return columns(
        near.notes[0],
        [
            column("head", [f"{layers[s]} {names[h]}" for s, h in places], whole=True),
            column("distance", [near.values[s, h] for s, h in places], bar=(0.0, float(np.log(2)))),
        ],
        notes=[f"{sourced(near)}; 0 is the same, ln 2 = 0.693 the most", *near.notes[1:]],
    )
