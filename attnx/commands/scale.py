"""`attnx scale TEXT`: the softmax before and after scaling: scores, weights, entropy, saturation, gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnx.options import (
    MODEL,
    DeviceOption,
    DimOption,
    GenerateOption,
    IdsOption,
    InputsOption,
    JsonOption,
    LayerOption,
    ModelOption,
    PairOption,
    QueryOption,
    SetOption,
    SiteOption,
    TargetOption,
    TextArgument,
    TokenizerOption,
    TopOption,
)

if TYPE_CHECKING:
    from attnx.measure.scaling import ScalingTable
    from attnx.records import Measurement, Trace
    from attnx.view.columns import Columns

ARRAYS = ("query", "key", "scores", "scaled", "capped", "masked", "weights")


def scale(
    text: TextArgument = None,
    model: ModelOption = MODEL,
    head: Annotated[
        str | None, typer.Option("--head", "-H", metavar="L.H", help="The head; else where scaling changes most.")
    ] = None,
    query: QueryOption = None,
    layer: LayerOption = None,
    site: SiteOption = None,
    every: Annotated[bool, typer.Option("--all", help="A line for every head, not only for every layer.")] = False,
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
        float, typer.Option("--divide", metavar="D", help="What --numbers are divided by; sqrt(64) where not given.")
    ] = 8.0,
    theory: Annotated[
        str | None, typer.Option("--theory", metavar="D,D,...", help="No model: random q and k of these sizes.")
    ] = None,
    top: TopOption = None,
    pair: PairOption = None,
    ids: IdsOption = None,
    inputs: InputsOption = None,
    values: SetOption = None,
    dims: DimOption = None,
    target: TargetOption = None,
    generate: GenerateOption = None,
    tokenizer: TokenizerOption = None,
    device: DeviceOption = "auto",
    json: JsonOption = False,
) -> None:
    """Show what dividing the scores by sqrt(d_k) does to the softmax, the mask on in both.

    One token's row in one head, then every layer. --numbers and --theory do the arithmetic without a model.
    """
    from attnx import output
    from attnx.errors import UsageError

    if as_if not in ("site", "sqrt"):
        raise UsageError(f"--as-if {as_if!r} is no scale", "Give site or sqrt.")
    if similarity not in ("dot", "cosine"):
        raise UsageError(f"--similarity {similarity!r} is none", "Give dot or cosine.")
    if numbers is not None or theory is not None:
        if text is not None or (numbers is not None and theory is not None):
            raise UsageError("--numbers and --theory stand alone, without a text", "Leave the others out.")
        _without_model(numbers, divide, theory, json)
        return

    from dataclasses import replace

    from attnx import pipeline
    from attnx.beyond import beyond
    from attnx.chosen import head_of, layers_of, of_sort, position, trusted
    from attnx.intake import take
    from attnx.measure import scaling
    from attnx.reporting import base, heading, query_labels, site_object
    from attnx.request import parse_layers

    (given,) = take(
        text, pair=pair, ids=ids, inputs=inputs, beyond=beyond(values, dims, target=target, generate=generate)
    )
    layers = layers_of([head] if head else [], parse_layers(layer) if layer else None)
    opened = pipeline.open(model, device=device, tokenizer=tokenizer)
    feed = given.feed(opened, needs_tokenizer=tokenizer is not None)
    trace, doubts = trusted(of_sort(opened.trace(**feed, layers=layers, quantities=ARRAYS), site))
    output.notes((*trace.notes, *doubts))
    if head is not None:
        at, number = head_of(trace, head)
        where = position(trace.queries_of(trace.attentions[at]), query) if query is not None else None
        if where is None:
            _, _, where = scaling.strongest(trace, [at], number)
    elif query is not None:
        where = position(trace.queries_of(trace.attentions[-1]), query)
        at, number = scaling.strongest_head(trace, where)
    else:
        at, number, where = scaling.strongest(trace)
    row = scaling.row(trace, at, number, where, as_if, similarity)  # type: ignore[arg-type]
    table = scaling.all_heads(trace, as_if, similarity)  # type: ignore[arg-type]
    swept = scaling.sweep(trace) if sweep else None
    table = replace(table, notes=_as_shown(table.notes, as_if))
    row = replace(row, notes=_as_shown(row.notes, as_if))
    piece = query_labels(trace, trace.attentions[at])[where].strip()
    if json:
        from attnx.view.json import document

        body: dict[str, Any] = {
            **base(trace),
            "head": site_object(trace, at, number),
            "query": {"position": where, "piece": piece},
            "as_if": as_if,
            "similarity": similarity,
            "row": row,
            "size": table.size,
            "heads": [table.spread, table.entropy, table.largest, table.saturated, table.gradient, table.divergence],
            "layers": table.layers,
            "sweep": swept,
            "notes": [*trace.notes, *doubts, *table.notes],
        }
        output.emit_json(document("attnx/scale", body))
        return
    from attnx.view.line import line

    chosen = "" if head is not None else ", where scaling changes most"
    title = f"{trace.labels[at]} H{number} · from {piece}@{where}{chosen}"
    shown: list[Any] = [line(heading(trace)), _row(title, row, trace, at, top), "", _layers(table)]
    if every:
        shown += ["", _heads(table)]
    if swept is not None:
        shown += ["", _sweep(swept)]
    output.show(*shown)


def _as_shown(notes: tuple[str, ...], as_if: str) -> tuple[str, ...]:
    """What is said of the scale, once for all layers of which it holds; under --as-if, that it is not the model's."""
    from attnx.reporting import grouped

    if as_if == "site" or not any("--as-if" in note for note in notes):
        return grouped(notes)
    rest = tuple(note for note in notes if "--as-if" not in note)
    return (*grouped(rest), "shown as if scaled by 1/sqrt(d_k), which is not what this model does")


def _row(title: str, row: Measurement, trace: Trace, site: int, top: int | None) -> Columns:
    """One query's row: token, score, scaled, both softmaxes with bars, the difference."""
    from attnx.reporting import SHOWN, largest, place, sourced
    from attnx.view.columns import column, columns

    labels = row.axes[0].labels
    kept = largest(row.values[:, 2:4].max(axis=1), top or SHOWN)
    values = row.values[kept]
    left = len(labels) - len(kept)
    said = [sourced(row), *row.notes, f"{left} more keys, none with a larger weight; --top K shows K" if left else ""]
    special = trace.keys_of(trace.attentions[site]).special
    reach = float(abs(values[:, 4]).max(initial=0.0))
    return columns(
        title,
        [
            column("key", [place(at, len(labels), labels[at]) for at in kept]),
            column(row.axes[1].labels[0], values[:, 0], decimals=2),
            column("scaled", values[:, 1], decimals=2),
            column("softmax unscaled", values[:, 2], bar=(0.0, 1.0)),
            column("softmax scaled", values[:, 3], bar=(0.0, 1.0)),
            column("difference", values[:, 4], bar=(-reach, reach)),
        ],
        faint=[n for n, at in enumerate(kept) if len(special) == len(labels) and special[at]],
        said=said,
    )


_COLUMNS = ("spread", "entropy", "largest", "saturated", "gradient")
_HEADINGS = ("score spread", "entropy (nats)", "largest weight", "saturated rows", "gradient 1-Σa²")


def _layers(table: ScalingTable) -> Columns:
    """Every layer: the means over its heads, unscaled and scaled side by side."""
    from attnx.view.cells import number
    from attnx.view.columns import both, column, columns

    values = table.layers.values
    parts = [column("layer", table.size.axes[0].labels), column("d_k", [number(v, 0) for v in table.size.values])]
    for at, name in enumerate(_HEADINGS):
        pairs = [both(one, two) for one, two in values[:, 2 * at : 2 * at + 2]]
        parts.append(column(name, pairs, whole=True))
    parts.append(column("KL", values[:, -1], decimals=2))
    return columns("unscaled → scaled, means over the heads of each layer", parts, said=_said(table))


def _heads(table: ScalingTable) -> Columns:
    """Every head, as `_layers`."""
    from attnx.view.columns import both, column, columns

    layers, heads = (axis.labels for axis in table.divergence.axes)
    there = [(s, h) for s in range(len(layers)) for h in range(len(heads)) if table.spread.values[s, h, 0] >= 0]
    parts = [column("head", [f"{layers[s]} {heads[h]}" for s, h in there])]
    for name, heading in zip(_COLUMNS, _HEADINGS, strict=True):
        pairs = getattr(table, name).values
        parts.append(column(heading, [both(*pairs[s, h]) for s, h in there], whole=True))
    parts.append(column("KL", [float(table.divergence.values[s, h]) for s, h in there], decimals=2))
    return columns("unscaled → scaled, every head", parts, said=_said(table)[:2])


def _said(table: ScalingTable) -> list[str]:
    return [
        "spread: standard deviation of visible scores; theory for unit-variance q, k: sqrt(d_k), then 1",
        "saturated: largest weight > 0.99; gradient: mean of 1 - Σa²; KL(scaled || unscaled) in nats "
        f"({table.size.source})",
        *table.notes,
    ]


def _sweep(swept: Measurement) -> Columns:
    """Entropy, largest weight and saturation by divisor, over all layers."""
    from attnx.reporting import sourced
    from attnx.view.columns import column, columns

    whole = swept.values[:, -1]
    most = float(whole[:, 0].max(initial=0.0))
    return columns(
        "as the divisor grows, mean over all layers",
        [
            column("divisor", [f"{float(step):.4g}" for step in swept.axes[0].labels]),
            column("entropy", whole[:, 0], bar=(0.0, most)),
            column("largest weight", whole[:, 1], bar=(0.0, 1.0)),
            column("saturated rows", whole[:, 2], bar=(0.0, 1.0)),
        ],
        said=[sourced(swept), *swept.notes],
    )


def _without_model(numbers: str | None, divide: float, theory: str | None, json: bool) -> None:
    from attnx import output
    from attnx.measure import scaling_theory

    if numbers is not None:
        found = scaling_theory.numbers(_parsed(numbers, "--numbers", float), divide)
        if json:
            from attnx.view.json import document

            output.emit_json(document("attnx/scale", {"numbers": found.row, "summary": found.summary}))
        else:
            output.show(_numbers(found.row, found.summary))
        return
    drawn = scaling_theory.theory([int(d) for d in _parsed(theory or "", "--theory", int)])
    if json:
        from attnx.view.json import document

        output.emit_json(document("attnx/scale", {"theory": drawn}))
    else:
        output.show(_theory(drawn))


def _numbers(row: Measurement, summary: Measurement) -> Columns:
    from attnx.reporting import sourced
    from attnx.view.columns import column, columns

    values = row.values
    said = [
        f"{way}: entropy {line[0]:.3f} nats, largest {line[1]:.3f}, gradient 1 - Σa² {line[2]:.3f}"
        for way, line in zip(summary.axes[0].labels, summary.values, strict=True)
    ]
    return columns(
        "softmax of the numbers as they are, and divided",
        [
            column("", row.axes[0].labels),
            column("number", values[:, 0]),
            column("divided", values[:, 1]),
            column("softmax of numbers", values[:, 2], bar=(0.0, 1.0)),
            column("softmax of divided", values[:, 3], bar=(0.0, 1.0)),
            column("difference", values[:, 4]),
        ],
        said=[sourced(row), *said],
    )


def _theory(drawn: Measurement) -> Columns:
    from attnx.reporting import sourced
    from attnx.view.columns import both, column, columns

    values = drawn.values
    parts = [
        column("d", drawn.axes[0].labels),
        column("Var(q·k) theory", values[:, 0], decimals=1),
        column("Var(q·k) measured", values[:, 1], decimals=1),
        column("sd of scores", [both(one, two) for one, two in values[:, 2:4]], whole=True),
    ]
    for at, name in enumerate(("entropy", "largest weight", "saturated rows", "gradient 1-Σa²")):
        pairs = values[:, 4 + 2 * at : 6 + 2 * at]
        parts.append(column(name, [both(one, two) for one, two in pairs], whole=True))
    return columns("unit-variance q and k; unscaled → scaled", parts, said=[sourced(drawn), *drawn.notes], gap=1)


def _parsed(text: str, option: str, kind: type) -> list[float]:
    """Numbers separated by commas.

    Raises:
        UsageError: One is no number.
    """
    from attnx.errors import UsageError

    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"{option} {text!r} is no list of numbers", f"For example: {option} 2,16,64.") from None
