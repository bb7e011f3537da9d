"""`attnx ablate TEXT`: what the model says without a head, or an edge of attention."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnx.cli.options import (
    ExplainOption,
    ForceOption,
    HeadOption,
    LayerOption,
    SaveOption,
    SiteOption,
    TopOption,
    starts,
)
from attnx.cli.start import Start
from attnx.interventions.plan import COMPONENTS, METHODS, Where
from attnx.numerals import counted

if TYPE_CHECKING:
    from attnx.records import Measurement, Tokens
    from attnx.study.ablation import Ablation, Effect

TOP = 5
"""How many heads are listed without --top."""


@starts("json", "image", "audio")
def ablate(
    run: Start,
    head: HeadOption = None,
    layer: LayerOption = None,
    method: Annotated[
        str, typer.Option("--with", metavar="WHAT", help="What stands in place of a head: zero, mean or uniform.")
    ] = "zero",
    reference: Annotated[
        Path | None,
        typer.Option(
            "--reference", metavar="FILE", help="Instead: each head's mean over the texts of a file, one per line."
        ),
    ] = None,
    at: Annotated[
        list[str] | None,
        typer.Option("--at", metavar="TOKEN", help="Ablate at this token alone; may be given several times."),
    ] = None,
    edge: Annotated[
        list[str] | None,
        typer.Option(
            "--edge", metavar="FROM:TO", help="Knock out this edge before the softmax, instead; several times."
        ),
    ] = None,
    answer: Annotated[
        str | None, typer.Option("--answer", metavar="WORD", help="The token or label to watch; else the first choice.")
    ] = None,
    foil: Annotated[
        str | None, typer.Option("--foil", metavar="WORD", help="Compare the answer's logit with this one's.")
    ] = None,
    site: SiteOption = None,
    top: TopOption = None,
    every: Annotated[bool, typer.Option("--all", help="List every head, and the map in numbers.")] = False,
    explain: ExplainOption = False,
    save: SaveOption = None,
    force: ForceOption = False,
) -> None:
    """Show what ablating a head, or cutting one edge of attention, does to what the model says.

    Without --head or --layer, every head is ablated by itself, and they are ranked.

    Examples:
        attnx ablate "The cat sat on the mat. The cat" -m tiny-gpt
        attnx ablate "The animal was tired." --head 5.11 --with mean
        attnx ablate "The animal slept because it was tired." --edge it:animal
    """
    from attnx.cli import output, saving
    from attnx.cli.unused_options import refuse
    from attnx.errors import UsageError
    from attnx.interventions.feeds import named as named_run
    from attnx.interventions.feeds import plan_run, positions_of
    from attnx.interventions.running import Intervening
    from attnx.study.ablation import ablate as study
    from attnx.study.patch_places import sides_of
    from attnx.study.request import parse_head, parse_layers
    from attnx.study.selection import position

    how = next((known for known in METHODS if known == method), None)
    if how is None:
        raise UsageError(f"there is no --with {method!r}", f"Choose from {', '.join(METHODS)}.")
    component = next((known for known in COMPONENTS if known == site), None)
    if site is not None and component is None:
        raise UsageError(f"there is no --site {site!r}", "Choose from encoder, decoder and cross.")
    if edge and (at or reference is not None or method != "zero"):
        raise UsageError("--edge is knocked out, and ablates nothing", "Leave out --with, --reference and --at.")
    heads = []
    for text in head or ():
        one = parse_head(text)
        if one.layer is None:
            raise UsageError(f"--head {text} names no layer", f"Give layer and head: 0.{one.head}.")
        heads.append((one.layer, one.head))
    layers = None if layer is None else parse_layers(layer)
    if every:
        refuse("with --all", {"--top": top})
    saving.check(save, force=force)
    opened = run.opened
    planned = plan_run(opened, run.prompt)
    running = Intervening(opened, {"inputs": planned.feed})
    memory = planned.trace.memory
    queries: list[int] = []
    edges: list[tuple[int, int]] = []
    here = named = None
    if at or edge:
        named = positions_of(opened, run.prompt, planned)
        looking, seen = sides_of(running, component, named, memory)
        queries = [position(looking, text, argument="at") for text in at or ()]
        edges = [_edge(text, looking, seen) for text in edge or ()]
        if looking is planned.tokens:
            here = queries[0] if queries else edges[0][0]
    means = None
    if reference is not None:
        if memory is not None:
            raise UsageError(
                f"--reference takes texts by themselves, and {opened.name} takes two at once", "Choose --with mean."
            )
        means = _means(opened, reference, component, running)
    with output.progress(None, "changes") as tell:
        found = study(
            opened, running, planned.tokens, memory=memory, at_queries=named, component=component, heads=heads,
            layers=layers, method=how, means=means, queries=queries or None, edges=edges, answer=answer, foil=foil,
            position=here, tell=tell,
        )  # fmt: skip
    what = _what(method, reference, edge, at)
    notes = [*planned.trace.notes, *found.notes]
    output.notes(notes)
    from attnx.view.json import document
    from attnx.view.reporting import base, opening
    from attnx.view.screen import choice, screen

    trace = replace(planned.trace, tokens=named) if named is not None else named_run(opened, run.prompt, planned).trace
    body: dict[str, Any] = {
        **base(trace),
        "device": running.device,
        "change": what,
        "component": found.component,
        "reads": found.readout.kind,
        "output": found.readout.output,
        "measure": found.readout.heading,
        "formula": found.readout.formula,
        "unedited": {"scores": found.base.reading.scores, "first": found.base.reading.first},
        "effects": [_object(effect) for effect in found.effects],
        "map": _map(found),
        "notes": notes,
    }

    shown: list[Any] = [*opening(trace, what=what, device=running.device)]
    count = len(found.effects) if every else top or TOP
    shown += ["", _table(found, what, count, explain)]
    made, left = _map(found), max(0, len(found.effects) - count)
    if made is not None:
        from attnx.view.headmap import headmap
        from attnx.view.table import table

        numbers = table(made if explain else replace(made, formula=""), decimals=3)
        shown.append(choice(["", numbers], ["", headmap(made, decimals=2)], [], instead="the map in numbers: --all"))
    hints = [f"{counted(left, 'more head')}: --all" if left else ""]
    hints += [] if explain else ["formulas: --explain"]
    shown = [screen(*shown, said=output.lines_of(notes), every=every, hints=hints)]
    columns = saving.columns_of(_rows(found, what))
    saving.give(shown, columns, document("attnx/ablate", body), json=run.output.json, path=save, force=force)


def _edge(text: str, queries: Tokens, keys: Tokens) -> tuple[int, int]:
    """The positions of an edge, "it:animal"."""
    from attnx.errors import UsageError
    from attnx.study.selection import position

    query, colon, key = text.rpartition(":")
    if not colon or not query or not key:
        raise UsageError(
            f"--edge {text!r} is not an edge", "Give two tokens, the one that looks first: --edge it:animal."
        )
    return position(queries, query, argument="edge"), position(keys, key, argument="edge")


def _means(opened: Any, path: Path, site: Where | None, running: Any) -> Any:
    """Each head's mean context over the texts of a file."""
    from attnx.study.ablation import corpus_means
    from attnx.tokens.text_file import read_text

    content = read_text(path, "Give a text file, one text per line.")
    texts = [text for text in content.split("\n") if text.strip()]
    there = running.points.components()
    which: Where = site if site is not None else ("decoder" if "decoder" in there else next(iter(there), "decoder"))
    traces = opened.trace_many(texts, quantities=("masked", "weights", "value", "context"))
    return corpus_means(traces, which)


def _what(method: str, reference: Path | None, edge: list[str] | None, at: list[str] | None) -> str:
    if edge:
        return f"knocked out: {', '.join(text.replace(':', ' → ') for text in edge)}"
    where = f" at {', '.join(at)}" if at else ""
    if reference is not None:
        return f"ablated to the mean over {reference.name}{where}"
    return f"ablated to {'uniform weights' if method == 'uniform' else method}{where}"


def _table(found: Ablation, what: str, top: int, explain: bool) -> Any:
    """What each change does; those that move the answer most come first."""
    from attnx.tokens.pieces import quoted
    from attnx.view.columns import column, columns

    ranked = found.ranked[:top]
    most = max((e.change.moved for e in ranked), default=0.0) or 1.0
    read = found.readout
    names = list(found.base.reading.scores)
    chooses = bool(found.base.reading.first)
    rows: list[Effect | None] = [None, *ranked] if chooses else [*ranked]
    parts = [column("", ["unedited" if e is None else e.place.label for e in rows], whole=True)]
    moved = [None if e is None else e.change.moved for e in rows]
    parts.append(column(read.heading, moved, decimals=4, bar=(0.0, most)))
    for name in names if chooses else [n for n in names if n != read.heading]:
        scores = [(found.base if e is None else e.change).reading.scores[name] for e in rows]
        parts.append(column(name, scores, decimals=4))
    if found.base.reading.first:
        first = [(found.base if e is None else e.change).reading.first for e in rows]
        parts.append(column("first choice", first, whole=True))
    notes = [f"{read.heading}: {read.formula}"] if explain else []
    if found.base.kept is not None and len(found.effects) > 1:
        kept = sum(bool(e.change.kept) for e in found.effects)
        notes.append(f"the first choice stays {quoted(found.base.reading.first)} in {kept} of {len(found.effects)}")
    does = "says" if chooses else "gives"  # an embedding says nothing
    title = f"what the model {does} ({read.kind}), {'edges knocked out' if 'knocked' in what else 'heads ablated'}"
    return columns(title, parts, notes=notes)


def _map(found: Ablation) -> Measurement | None:
    """How far each head moves the answer; None where several heads were changed together."""
    import numpy as np

    from attnx.records import Axis, Measurement

    values = found.map()
    if np.isnan(values).all() or values.size < 2 or len(found.effects) < values.size:
        return None
    axes = (
        Axis("layer", tuple(f"L{layer}" for layer in found.layers)),
        Axis("head", tuple(f"H{head}" for head in range(found.heads))),
    )
    return Measurement(found.readout.heading, "", axes, values, formula=found.readout.formula)


def _rows(found: Ablation, what: str) -> list[dict[str, Any]]:
    """One row per change: layer and head (empty for several), how far it moves the answer, what the model then says."""
    return [
        {
            "label": effect.place.label,
            "component": found.component,
            "layer": effect.place.layer,
            "head": effect.place.head,
            "effect": effect.change.moved,
            "measure": found.readout.heading,
            "first": effect.change.reading.first or None,
            "kept": effect.change.kept,
            **effect.change.reading.scores,
            "change": what,
        }
        for effect in found.effects
    ]


def _object(effect: Effect) -> dict[str, Any]:
    return {
        "label": effect.place.label,
        "heads": [{"layer": layer, "head": head} for layer, head in effect.place.heads],
        "moved": effect.change.moved,
        "scores": effect.change.reading.scores,
        "first": effect.change.reading.first,
        "kept": effect.change.kept,
    }
