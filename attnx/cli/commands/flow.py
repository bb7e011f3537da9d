"""`attnx flow TEXT`: rollout and flow through the layers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnx.cli.options import SENSES, ExplainOption, ForceOption, QueryOption, SaveOption, TopOption, starts
from attnx.cli.start import Start
from attnx.numerals import counted

if TYPE_CHECKING:
    from attnx.records import Trace
    from attnx.study.residual_flow import Streams
    from attnx.view.columns import Columns


MOST = 18
"""The most tokens that each have a line of their own."""
TOP, SOURCES = 6, 3
"""How many keys are listed without --top; how many sources are named beside a token."""


@starts("generate", *SENSES, "json")
def flow(
    run: Start,
    query: QueryOption = None,
    side: Annotated[
        str | None,
        typer.Option("--side", metavar="SIDE", help="Of an encoder-decoder: encoder, decoder or cross (the default)."),
    ] = None,
    relative: Annotated[
        bool, typer.Option("--relative", help="Divide by what uniform attention gives; for causal models.")
    ] = False,
    top: TopOption = None,
    every: Annotated[bool, typer.Option("--all", help="The whole matrix, or every key, in numbers.")] = False,
    explain: ExplainOption = False,
    save: SaveOption = None,
    force: ForceOption = False,
) -> None:
    """Follow attention through the layers: what of each input token is in each position, layer by layer.

    Rollout for the whole text; with --query also exact flow, and attention weighted by the size of what it carries.

    Examples:
        attnx flow "The animal slept because it was tired."
        attnx flow "The animal slept because it was tired." --query it
        attnx flow "The cat slept; it was tired." --query it --top 5 --json
    """
    from attnx.cli import output, saving
    from attnx.cli.unused_options import refuse
    from attnx.study.residual_flow import ARRAYS, follow, long
    from attnx.view.reporting import base

    saving.check(save, force=force)
    if query is None:
        refuse("without --query", {"--top": top})
    if every:
        refuse("with --all", {"--top": top})
    arrays = ARRAYS if query is not None else ARRAYS[:2]
    reduced = None if relative else long(run.opened, run.prompt, query)
    if reduced is None:
        (trace, doubts), row = run.trace(arrays), None
    else:
        (trace, row), doubts = reduced, ()
    found = follow(run.opened, trace, query, side, relative=relative, inputs=run.prompt.inputs, row=row)
    notes = [*trace.notes, *doubts, *found.notes]
    output.notes(notes)
    if run.output.json or save is not None:
        from attnx.view.json import document

        where = found.query
        body: dict[str, Any] = {
            **base(trace),
            "side": found.side,
            "query": None
            if where is None
            else {"position": where, "piece": found.queries[where].strip(), "positions": found.group},
            "rollout": found.rollout,
            "flow": found.flow,
            "norms": found.norms,
            "attention": found.attention,
            "notes": [*notes, *found.rollout.notes],
        }
        whole = document("attnx/flow", body)
        views = _views(found, trace, Shown(top, every, explain))
        saving.give(views, found.rollout, whole, json=run.output.json, path=save, force=force)
        return
    output.show(*_views(found, trace, Shown(top, every, explain, output.lines_of(notes))))


@dataclass(frozen=True, slots=True)
class Shown:
    """How much is shown."""

    top: int | None
    every: bool
    explain: bool
    said: int = 0
    """Lines that stderr has said."""


def _views(found: Streams, trace: Trace, shown: Shown) -> list[Any]:
    """What is shown: of each token what it holds, or one token's row."""
    from attnx.view.page import SCREEN, line
    from attnx.view.reporting import heading
    from attnx.view.screen import choice, screen

    said = [] if shown.explain else ["formulas, sources: --explain"]
    if found.query is not None:
        left = len(found.keys) - len(_kept(found, shown))
        hints = [f"{counted(left, 'more key')}: --all" if left else "", *said]
        parts = [*_map(found, trace), _one(found, shown), "", _layers(found, shown)]
        return [screen(line(heading(trace)), *parts, said=shown.said, every=shown.every, hints=hints)]
    from attnx.view.heatmap import heatmap
    from attnx.view.matrix import of_measurement
    from attnx.view.table import table

    last = found.last if shown.explain else replace(found.last, formula="", source="")
    numbers = [table(last)]
    if len(found.keys) <= MOST or shown.every:
        ways = choice(numbers, [_sources(found, shown.explain)], instead="the whole matrix in numbers: --all")
    else:
        ways = choice(
            [heatmap(of_measurement(last), kind="log")],
            [heatmap(of_measurement(last), kind="log", height=SCREEN - 3 - shown.said)],
            instead="numbers: --all",
        )
    return [screen(line(heading(trace)), ways, said=shown.said, every=shown.every, hints=said)]


def _sources(found: Streams, explain: bool) -> Columns:
    """Of each token at the top: how much of it is itself, and whose the rest is, the largest first."""
    import numpy as np

    from attnx.view.cells import number
    from attnx.view.columns import column, columns
    from attnx.view.reporting import place, sourced

    values, names = found.last.values, found.keys
    own = np.eye(len(names), dtype=bool) if len(found.queries) == len(names) else np.zeros(values.shape, bool)
    order = np.argsort(-np.where(own, -np.inf, values), axis=1, kind="stable")[:, : min(SOURCES, len(names) - 1)]
    parts = [column("token", [place(at, len(found.queries), one) for at, one in enumerate(found.queries)])]
    if own.any():
        parts.append(column("itself", np.diagonal(values), decimals=2))
    for at in range(order.shape[1]):
        keys = order[:, at]
        cells = [f"{number(values[q, k])} {names[k].strip()}" for q, k in enumerate(keys)]
        parts.append(column("most of" if at == 0 else "then", cells))
    told = [sourced(found.rollout)] if explain else []
    layer, unit = found.rollout.axes[0].labels[-1], f" ({found.last.unit})" if found.last.unit else ""
    title = f"{found.last.name}{unit}: what each token holds after {layer}"
    return columns(title, parts, notes=found.rollout.notes, explained=told)


def _map(found: Streams, trace: Trace) -> list[Any]:
    """Rollout from one patch to the patches of a picture, as a map; empty where the keys are not patches."""
    from attnx.feed.patches import grid_of
    from attnx.study.patchmap import patch_matrix
    from attnx.view.heatmap import heatmap
    from attnx.view.matrix import of_measurement

    sides = [tokens for tokens in (trace.tokens, trace.memory) if tokens is not None]
    grid = next((grid_of(tokens) for tokens in sides if tokens.pieces == found.keys), None)  # not a window's positions
    if grid is None or found.query is None:
        return []
    matrix = replace(of_measurement(found.last), title="")
    return [heatmap(patch_matrix(matrix, found.query, grid), kind="log"), ""]


def _kept(found: Streams, shown: Shown) -> list[int]:
    from attnx.view.reporting import largest

    return largest(found.largest, len(found.keys) if shown.every else shown.top or TOP)


def _one(found: Streams, shown: Shown) -> Columns:
    """How much of each token is in one position of the last layer, by each method."""
    from attnx.view.columns import column, columns
    from attnx.view.reporting import place, sourced

    assert found.query is not None
    kept, labels = _kept(found, shown), found.keys
    parts = [column("key", [place(at, len(labels), labels[at]) for at in kept], whole=True)]
    parts.append(column("attention", found.attention.values[kept], bar=(0.0, 1.0)))
    if found.norms is not None:
        parts.append(column("norms", found.norms.values[kept], bar=(0.0, 1.0)))
    parts.append(column("rollout", found.rollout.values[-1, found.query][kept], bar=(0.0, 1.0)))
    if found.flow is not None:
        parts.append(column("flow", found.flow.values[0][kept], bar=(0.0, 1.0)))
    ways = [("attention", found.attention), ("norms", found.norms), ("rollout", found.rollout), ("flow", found.flow)]
    said = [f"{name}: {sourced(measure)}" for name, measure in ways if measure is not None]
    piece = found.queries[found.query].strip()
    return columns(
        f"what {piece}@{found.query} holds of each token",
        parts,
        notes=found.rollout.notes,
        explained=said if shown.explain else [],
    )


def _layers(found: Streams, shown: Shown) -> Columns:
    """Rollout after every layer."""
    from attnx.view.columns import column, columns
    from attnx.view.reporting import place

    kept, labels = _kept(found, shown), found.keys
    parts = [column("key", [place(at, len(labels), labels[at]) for at in kept], whole=True)]
    for layer, values in zip(found.rollout.axes[0].labels, found.rollout.values, strict=True):
        parts.append(column(layer, values[found.query][kept], decimals=2))
    return columns("rollout after each layer", parts)
