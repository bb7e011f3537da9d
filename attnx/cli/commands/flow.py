"""`attnx flow TEXT`: rollout and flow through the layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnx.cli.options import SENSES, ForceOption, QueryOption, SaveOption, TopOption, starts
from attnx.cli.start import Start

if TYPE_CHECKING:
    from attnx.records import Measurement, Trace
    from attnx.study.residual_flow import Streams
    from attnx.view.columns import Columns


MOST = 20
"""The most tokens for which the whole matrix is written in numbers."""


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
    save: SaveOption = None,
    force: ForceOption = False,
) -> None:
    """Follow attention through the layers: what of each input token is in each position, layer by layer.

    Rollout for the whole text; with --query also exact flow, and attention weighted by the size of what it carries.

    Examples:
        attnx flow "The animal slept because it was tired."
        attnx flow "The animal slept because it was tired." --query it
        attnx flow "The animal slept because it was tired." --query it --top 5 --json
    """
    from attnx.cli import output, saving
    from attnx.cli.unused_options import refuse
    from attnx.study.residual_flow import ARRAYS, follow, long
    from attnx.view.reporting import base

    saving.check(save, force=force)
    if query is None:
        refuse("without --query", {"--top": top})
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
        saving.give(_views(found, trace, top), found.rollout, whole, json=run.output.json, path=save, force=force)
        return
    output.show(*_views(found, trace, top))


def _views(found: Streams, trace: Trace, top: int | None) -> list[Any]:
    """What is shown: the whole matrix, or one token's row."""
    from attnx.view.page import line
    from attnx.view.reporting import heading

    if found.query is None:
        from attnx.view.heatmap import heatmap
        from attnx.view.matrix import of_measurement
        from attnx.view.table import table

        last = found.last
        if len(found.keys) <= MOST:
            return [line(heading(trace)), table(last)]
        return [line(heading(trace)), heatmap(of_measurement(last), kind="log"), *_said(found.rollout)]
    return [line(heading(trace)), _one(found, top), "", *_map(found, trace), _layers(found, top)]


def _map(found: Streams, trace: Trace) -> list[Any]:
    """Rollout from one patch to the patches of a picture, as a map; empty where the keys are not patches."""
    from dataclasses import replace

    from attnx.feed.patches import grid_of
    from attnx.study.patchmap import patch_matrix
    from attnx.view.heatmap import heatmap
    from attnx.view.matrix import of_measurement

    sides = [tokens for tokens in (trace.tokens, trace.memory) if tokens is not None]
    grid = next((grid_of(tokens) for tokens in sides if len(tokens) == len(found.keys)), None)
    if grid is None or found.query is None:
        return []
    matrix = replace(of_measurement(found.last), title="")
    return [heatmap(patch_matrix(matrix, found.query, grid), kind="log"), ""]


def _said(measure: Measurement) -> list[Any]:
    """The lines under a matrix that has none of its own."""
    from attnx.view.page import line
    from attnx.view.reporting import sourced

    return [line(said, "dim") for said in (sourced(measure), *measure.notes)]


def _kept(found: Streams, top: int | None) -> list[int]:
    from attnx.view.reporting import SHOWN, largest

    return largest(found.largest, top or SHOWN)


def _one(found: Streams, top: int | None) -> Columns:
    """How much of each token is in one position of the last layer, by each method."""
    from attnx.view.columns import column, columns
    from attnx.view.reporting import place, sourced

    assert found.query is not None
    kept, labels = _kept(found, top), found.keys
    parts = [column("key", [place(at, len(labels), labels[at]) for at in kept], whole=True)]
    parts.append(column("attention", found.attention.values[kept], bar=(0.0, 1.0)))
    if found.norms is not None:
        parts.append(column("norms", found.norms.values[kept], bar=(0.0, 1.0)))
    parts.append(column("rollout", found.rollout.values[-1, found.query][kept], bar=(0.0, 1.0)))
    if found.flow is not None:
        parts.append(column("flow", found.flow.values[0][kept], bar=(0.0, 1.0)))
    ways = [("attention", found.attention), ("norms", found.norms), ("rollout", found.rollout), ("flow", found.flow)]
    said = [f"{name}: {sourced(measure)}" for name, measure in ways if measure is not None]
    left = len(labels) - len(kept)
    piece = found.queries[found.query].strip()
    return columns(
        f"what {piece}@{found.query} holds of each token",
        parts,
        notes=[*said, *found.rollout.notes, f"{left} more keys; --top K shows K" if left else ""],
    )


def _layers(found: Streams, top: int | None) -> Columns:
    """Rollout after every layer."""
    from attnx.view.columns import column, columns
    from attnx.view.reporting import place

    kept, labels = _kept(found, top), found.keys
    parts = [column("key", [place(at, len(labels), labels[at]) for at in kept], whole=True)]
    for layer, values in zip(found.rollout.axes[0].labels, found.rollout.values, strict=True):
        parts.append(column(layer, values[found.query][kept], decimals=2))
    return columns("rollout after each layer", parts, notes=[f"Source: {found.rollout.source}"])
