"""`attnx cost MODEL`: what attention costs as the text grows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnx.cli.option_groups import MODEL
from attnx.cli.options import DeviceOption, ExplainOption, ForceOption, JsonOption, SaveOption

if TYPE_CHECKING:
    from attnx.measure.cost import Cost
    from attnx.records import Measurement
    from attnx.run.timing import Timing
    from attnx.view.columns import Columns

_LENGTHS = "64,256,512,1024,4096"
_LARGEST = 1 << 40
"""The longest text that is counted for."""
_RUN = 256
"""The most tokens that are run unasked: enough to see the time grow, and over in a moment."""
_RUN_GIVEN = 1024
"""The same where lengths are given."""


def cost(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="An .onnx file, a folder as on the Hub, or a bundled model's name.")
    ] = MODEL,
    lengths: Annotated[
        str | None, typer.Option("--lengths", metavar="N,N,...", help=f"Lengths, in tokens, else {_LENGTHS}.")
    ] = None,
    measured: Annotated[
        bool, typer.Option("--measure/--no-measure", help="Also run the model at those lengths.")
    ] = True,
    longest: Annotated[
        int | None,
        typer.Option(
            "--longest",
            metavar="N",
            help=f"Do not run the model on more tokens than that, else {_RUN}, or {_RUN_GIVEN} with --lengths.",
            min=1,
        ),
    ] = None,
    device: DeviceOption = "auto",
    explain: ExplainOption = False,
    save: SaveOption = None,
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """Work out what attention takes as the text grows, against the rest and a recurrent layer; and measure it.

    Cells and operations of attention grow with the square of the length, the rest with the length. The model itself is
    run on short texts, so that the answer comes at once; --longest has it run on longer ones.

    Examples:
        attnx cost minilm
        attnx cost minilm --longest 512
        attnx cost minilm --lengths 128,512,2048
    """
    from attnx import model as pipeline
    from attnx.cli import output, saving
    from attnx.cli.unused_options import refuse
    from attnx.cli.wording import worded
    from attnx.errors import UnsupportedError, UsageError
    from attnx.measure import cost as measure
    from attnx.numerals import beyond, whole
    from attnx.wording import Wording

    if not measured:
        refuse("with --no-measure", {"--longest": longest})
    most = longest or (_RUN if lengths is None else _RUN_GIVEN)
    parts = (_LENGTHS if lengths is None else lengths).split(",")
    if any(beyond(part, _LARGEST) for part in parts):
        raise UsageError("--lengths has a number that is too large", f"Lengths go up to {_LARGEST:,}.")
    read = [whole(part, least=1) for part in parts]
    sizes = sorted({size for size in read if size is not None})
    if None in read:
        raise UsageError(f"--lengths {lengths!r} is not a list of whole numbers from 1", "Try --lengths 64,256,1024")
    saving.check(save, force=force)
    opened = pipeline.open(model, device=device)
    count = opened.sessions.parameters(opened.find())
    sites = [*opened.encoder_sites, *opened.sites]
    if opened.encoder is not None:
        count += opened.encoder.sessions.parameters(opened.encoder.find())
    try:
        found = measure.cost(sites, sizes, parameters=count or None)
    except UnsupportedError:
        if (recurrent := opened.find().note) is None:
            raise
        _recurrent(opened.name, recurrent, measure.paths(sizes), count, json=json, save=save, force=force)
        return
    timing, notes = None, list[str]()
    if measured and sizes[0] > most:
        notes.append(f"not measured: every length is more than {most} tokens; --longest {sizes[0]} runs the first")
    elif measured:
        from attnx.run.timing import measure as run

        try:
            timing = run(opened, [size for size in sizes if size <= most])
        except UnsupportedError as error:
            notes.append(worded(Wording("not measured: {why}. {hint}", why=error.message, hint=error.hint)))
    notes += [] if timing is None else timing.notes
    output.notes(notes)
    whole_document: dict[str, Any] = {}
    if json or save is not None:
        from attnx.view.json import document

        body: dict[str, Any] = {
            "model": opened.name,
            "parameters": count or None,
            "attention": found.attention,
            "paths": found.paths,
            "crossover": found.crossover,
            "measured": None if timing is None else timing.table,
            "notes": [*found.notes, *notes],
        }
        whole_document = document("attnx/cost", body)
        if save is None:
            output.emit_json(whole_document)
            return
    from attnx.view.page import line
    from attnx.view.screen import choice, screen

    paths = _paths(found.paths, explain)
    hints = [] if explain else ["formulas, sources: --explain"]
    if timing is not None and longest is None and sizes[-1] > most:
        hints.append(f"run on more than {most} tokens: --longest N")
    short = line(_paths_said(found.paths))
    shown = screen(
        _table(opened.name, count, found, timing, explain),
        choice(["", paths], [short], instead="steps and paths by length: --explain"),
        said=output.lines_of(notes), every=explain, hints=hints,
    )  # fmt: skip
    rows = _rows(found.attention, found.paths, *(() if timing is None else (timing.table,)))
    saving.give([shown], saving.columns_of(rows), whole_document, json=json, path=save, force=force)


def _rows(*measures: Measurement) -> list[dict[str, Any]]:
    """A line for each value: at a length, of attention or of a recurrent layer."""
    from attnx.cli.saving import rows_of

    out = [row for measure in measures for row in rows_of(measure, {})]
    return [{**row, "tokens": int(row.pop("tokens_label"))} for row in out]


def _recurrent(
    model: str, said: str, paths: Measurement, count: int, *, json: bool, save: Path | None, force: bool
) -> None:
    """For a model with recurrent layers only: their steps, compared with those of attention."""
    from attnx.cli import output, saving
    from attnx.view.json import document

    output.note(said)
    body = {"model": model, "parameters": count or None, "attention": None, "paths": paths, "crossover": None,
            "measured": None, "notes": [said]}  # fmt: skip
    rows = saving.columns_of(_rows(paths))
    views = [_paths(paths, explain=True)]
    saving.give(views, rows, document("attnx/cost", body), json=json, path=save, force=force)


def _table(model: str, count: int, found: Cost, timing: Timing | None, explain: bool) -> Columns:
    """The calculated costs, with the measured ones beside them."""
    from attnx.view.columns import column, columns
    from attnx.view.reporting import sourced

    values, labels = found.attention.values, found.attention.axes[0].labels
    parts = [
        column("tokens", labels, whole=True),
        column("cells", [_short(v) for v in values[:, 0]], whole=True),
        column("their bytes", [_bytes(v) for v in values[:, 1]], whole=True),
        column("FLOPs of attention", [_short(v) for v in values[:, 2]], whole=True),
        column("FLOPs of the rest", [_short(v) for v in values[:, 3]], whole=True),
        column("share of attention", values[:, 4], bar=(0.0, 1.0)),
    ]
    if timing is not None:
        known = dict(zip(timing.table.axes[0].labels, timing.table.values, strict=True))
        nothing = (float("nan"), float("nan"))
        parts.append(column("time", [_seconds(known.get(label, nothing)[0]) for label in labels], whole=True))
        parts.append(column("peak memory", [_bytes(known.get(label, nothing)[1]) for label in labels], whole=True))
    cross = found.crossover
    even = f"attention takes as much as the rest at {cross:,.0f} tokens" if cross == cross else ""
    return columns(
        f"{model} · {_short(count)} parameters that every token is multiplied with" if count else model,
        parts,
        notes=[
            even,
            *([sourced(found.attention)] if explain else []),
            f"time and memory: {sourced(timing.table)}" if timing is not None and explain else "",
            *(found.notes if explain else []),
        ],
    )


def _paths_said(found: Measurement) -> str:
    """The same of the longest text, in a line."""
    longest = found.axes[0].labels[-1]
    each = [f"{name} {found.values[-1, at, 0]:,.0f}" for at, name in enumerate(found.axes[1].labels)]
    return f"steps one after another of a layer over {longest} tokens: {', '.join(each)}"


def _paths(found: Measurement, explain: bool) -> Columns:
    """Sequential steps, and the longest path between two tokens."""
    from attnx.view.columns import column, columns
    from attnx.view.reporting import sourced

    values, labels = found.values, found.axes[0].labels
    names = found.axes[1].labels
    parts = [column("tokens", labels, whole=True)]
    for at, name in enumerate(names):
        parts.append(column(f"{name}: steps", values[:, at, 0], decimals=0))
        parts.append(column(f"{name}: path", values[:, at, 1], decimals=0))
    return columns(
        "sequential steps and longest path between two tokens, one layer",
        parts,
        notes=[sourced(found)] if explain else [],
    )


def _short(value: float) -> str:
    """A count in a few characters: 1.2k, 3.4M, 5.6G."""
    return _in_units(value, {"P": 1e15, "T": 1e12, "G": 1e9, "M": 1e6, "k": 1e3, "": 1.0})


def _bytes(value: float) -> str:
    """A number of bytes in a few characters."""
    return _in_units(value, {" TiB": 2.0**40, " GiB": 2.0**30, " MiB": 2.0**20, " KiB": 2.0**10, " B": 1.0})


def _in_units(value: float, units: dict[str, float]) -> str:
    """A value in the largest unit that it reaches, or in whole numbers of the last; "-" for NaN."""
    if value != value:
        return "-"
    for unit, size in units.items():
        if value >= size > 1:
            return f"{value / size:.1f}{unit}"
    return f"{value:.0f}{next(reversed(units))}"


def _seconds(value: float) -> str:
    if value != value:
        return "-"
    return f"{value:.2f} s" if value >= 1 else f"{1000 * value:.1f} ms"
