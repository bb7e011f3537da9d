"""`attnx scale TEXT`: the softmax before and after scaling."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from attnx.cli.options import (
    SENSES,
    ExplainOption,
    ForceOption,
    LayerOption,
    QueryOption,
    SaveOption,
    SiteOption,
    TopOption,
    starts,
)
from attnx.cli.start import Start
from attnx.numerals import counted

if TYPE_CHECKING:
    from attnx.records import Measurement
    from attnx.study.scaled import Scaled

N = TypeVar("N", int, float)
TOP = 5
"""Keys that are listed where --top does not say."""


@starts("generate", *SENSES, "json")
def scale(
    run: Start,
    head: Annotated[
        str | None, typer.Option("--head", "-H", metavar="L.H", help="The head; else where scaling changes most.")
    ] = None,
    query: QueryOption = None,
    layer: LayerOption = None,
    site: SiteOption = None,
    every: Annotated[
        bool, typer.Option("--all", help="Every key, and a line for every head, not only for every layer.")
    ] = False,
    sweep: Annotated[bool, typer.Option("--sweep", help="Entropy and saturation as the divisor goes to d_k.")] = False,
    as_if: Annotated[
        str, typer.Option("--as-if", metavar="SCALE", help="site: the model's own scale; sqrt: 1/sqrt(d_k).")
    ] = "site",
    similarity: Annotated[
        str, typer.Option("--similarity", metavar="KIND", help="dot, or cosine in place of the dot product.")
    ] = "dot",
    numbers: Annotated[
        str | None, typer.Option("--numbers", metavar="X,Y,...", help="No model: the softmax of these numbers.")
    ] = None,
    divide: Annotated[
        float | None,
        typer.Option("--divide", metavar="D", help="What --numbers are divided by; sqrt(64) where not given."),
    ] = None,
    theory: Annotated[
        str | None, typer.Option("--theory", metavar="D,D,...", help="No model: random q and k of these sizes.")
    ] = None,
    top: TopOption = None,
    explain: ExplainOption = False,
    save: SaveOption = None,
    force: ForceOption = False,
) -> None:
    """Show what dividing the scores by sqrt(d_k) does to the softmax, the mask on in both.

    One token's row in one head, then every layer; with --head L.H its layer alone, unless --layer names more.
    --numbers and --theory do the arithmetic without a model.

    Examples:
        attnx scale "The animal slept because it was tired."
        attnx scale "The animal slept because it was tired." --head 5.11 --query it
        attnx scale --numbers 112,96 --divide 8
    """
    from attnx.cli import output, saving
    from attnx.cli.unused_options import refuse
    from attnx.errors import UsageError

    if as_if not in ("site", "sqrt"):
        raise UsageError(f"--as-if {as_if!r} is not a scale", "Give site or sqrt.")
    if similarity not in ("dot", "cosine"):
        raise UsageError(f"--similarity {similarity!r} is none", "Give dot or cosine.")
    saving.check(save, force=force)
    if numbers is not None or theory is not None:
        source = run.source
        given = not source.is_empty or source.pair is not None or source.target is not None
        if given or (numbers is not None and theory is not None):
            raise UsageError("--numbers and --theory stand alone, without a text", "Leave the others out.")
        idle = {
            "--head": head, "--query": query, "--layer": layer, "--site": site, "--all": every, "--sweep": sweep,
            "--as-if": as_if != "site", "--similarity": similarity != "dot", "--top": top,
            "--divide": None if numbers is not None else divide,
        }  # fmt: skip
        refuse("with --numbers" if numbers is not None else "with --theory", idle)
        _without_model(numbers, 8.0 if divide is None else divide, theory, run.output.json, save, force)
        return
    refuse("without --numbers", {"--divide": divide})

    from dataclasses import replace

    from attnx.cli.wording import worded_all
    from attnx.study.request import parse_layers
    from attnx.study.scaled import Asked, look
    from attnx.study.selection import layers_of
    from attnx.view.reporting import base, heading, query_labels, site_object

    layers = layers_of([head] if head else [], parse_layers(layer) if layer else None)
    asked = Asked(layers, site, head, query, as_if, similarity, sweep)  # type: ignore[arg-type]
    looked = look(run.opened, run.prompt, asked)
    trace, at, number, group, doubts = looked.trace, looked.at, looked.head, looked.queries, looked.doubts
    said = dict.fromkeys((*trace.notes, *doubts))
    output.notes(said)
    table, swept, where = looked.table, looked.sweep, group[0]
    table = replace(table, notes=_as_shown(worded_all(table.notes), as_if))
    row = replace(looked.row, notes=_as_shown(worded_all(looked.row.notes), as_if))
    piece = query_labels(trace, trace.attentions[at])[where].strip() if len(group) == 1 else query or ""
    whole: dict[str, Any] = {}
    if run.output.json or save is not None:
        from attnx.view.json import document

        body: dict[str, Any] = {
            **base(trace),
            "head": site_object(trace, at, number),
            "query": {"position": where, "piece": piece, "positions": group},
            "as_if": as_if,
            "similarity": similarity,
            "row": row,
            "size": table.size,
            "heads": [table.spread, table.entropy, table.largest, table.saturated, table.gradient, table.divergence],
            "layers": table.layers,
            "sweep": swept,
            "notes": [*trace.notes, *doubts, *table.notes],
        }
        whole = document("attnx/scale", body)
        if save is None:
            output.emit_json(whole)
            return
    from attnx.view import scale_tables as tables
    from attnx.view.page import line
    from attnx.view.screen import screen

    chosen = "" if head is not None else ", where scaling changes most"
    named = f"{piece}@{where}" if len(group) == 1 else piece
    title = f"{trace.labels[at]} H{number} · from {named}{chosen}"
    kept = len(row.axes[0].labels) if every else top or TOP
    shown: list[Any] = [
        line(heading(trace)),
        tables.one_row(title, row, trace, at, kept, explain=explain),
        "",
        tables.layers(table, explain=explain),
    ]
    if every:
        shown += ["", tables.heads(table, explain=explain)]
    if swept is not None:
        shown += ["", tables.sweep(swept, explain=explain)]
    left = max(0, len(row.axes[0].labels) - kept)
    hints = [f"{counted(left, 'more key')}, every head: --all" if left else ""]
    hints += [] if explain else ["formulas, sources: --explain"]
    shown = [screen(*shown, said=output.lines_of(said), every=every, hints=hints)]
    columns = saving.columns_of(_rows(row, looked, (at, number, where, piece)))
    saving.give(shown, columns, whole, json=run.output.json, path=save, force=force)


def _rows(row: Measurement, looked: Scaled, at: tuple[int, int, int, str]) -> list[dict[str, Any]]:
    """A line for each value: of the keys of the row, then of every head, unscaled and scaled."""
    from attnx.cli.saving import rows_of

    site, head, query, piece = at
    trace, table = looked.trace, looked.table
    of = {"layer": trace.attentions[site].site.layer, "layer_label": trace.labels[site]}
    of |= {"head": head, "head_label": f"H{head}"}
    out = rows_of(row, {**of, "query": query, "query_label": piece})
    measures = (table.spread, table.entropy, table.largest, table.saturated, table.gradient, table.divergence)
    of_heads = [one for measure in measures for one in rows_of(measure, {}, measure.name)]
    return [*out, *({**one, "layer": looked.layers[one["layer_label"]]} for one in of_heads)]


def _as_shown(notes: tuple[str, ...], as_if: str) -> tuple[str, ...]:
    """A note on the scale, once for all layers that share it; under --as-if, that it is not the model's."""
    from attnx.view.reporting import grouped

    if as_if == "site" or not any("--as-if" in note for note in notes):
        return grouped(notes)
    rest = tuple(note for note in notes if "--as-if" not in note)
    return (*grouped(rest), "shown as if scaled by 1/sqrt(d_k), which is not what this model does")


def _without_model(
    numbers: str | None, divide: float, theory: str | None, json: bool, save: Path | None, force: bool
) -> None:
    from functools import partial

    from attnx.cli import saving
    from attnx.measure import scaling_theory
    from attnx.numerals import real, whole
    from attnx.view import scale_tables as tables
    from attnx.view.json import document

    if numbers is not None:
        found = scaling_theory.numbers(_listed(numbers, "--numbers", partial(real, infinite=True)), divide)
        body: dict[str, Any] = {"numbers": found.row, "summary": found.summary}
        view, rows = tables.given_numbers(found.row, found.summary), saving.rows_of(found.row, {})
    else:
        drawn = scaling_theory.theory(_listed(theory or "", "--theory", whole))
        body, view, rows = {"theory": drawn}, tables.theory(drawn), saving.rows_of(drawn, {})
    saving.give([view], saving.columns_of(rows), document("attnx/scale", body), json=json, path=save, force=force)


def _listed(text: str, option: str, read: Callable[[str], N | None]) -> list[N]:
    """Numbers separated by commas.

    Raises:
        UsageError: One is not a number.
    """
    from attnx.errors import UsageError

    found = [number for part in text.split(",") if (number := read(part)) is not None]
    if len(found) < text.count(",") + 1:
        raise UsageError(f"{option} {text!r} is not a list of numbers", f"For example: {option} 2,16,64.")
    return found
