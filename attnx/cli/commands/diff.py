"""`attnx diff MODEL MODEL TEXT`: two models on one input, head by head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnx.cli.options import SiteOption, TopOption, starts
from attnx.cli.start import Start

if TYPE_CHECKING:
    from attnx.measure.difference import Difference
    from attnx.model import Model
    from attnx.records import Trace
    from attnx.run.prompt import Prompt
    from attnx.view.columns import Columns

ARRAYS = ("query", "key", "scores", "scaled", "capped", "masked", "weights")
TOP = 8
"""Heads that are listed where --top does not say."""


@starts("json", first=("text",))
def diff(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The model that is compared with.")],
    other: Annotated[str, typer.Argument(metavar="MODEL", help="The other model; the same one for two texts.")],
    run: Start,
    other_text: Annotated[
        str | None,
        typer.Option("--other-text", metavar="TEXT", help="Another text, of as many tokens, for the second."),
    ] = None,
    tolerance: Annotated[
        float, typer.Option("--tolerance", metavar="T", help="A stage differs by more than this, relative to its size.")
    ] = 1e-3,
    layer: Annotated[
        list[str] | None,
        typer.Option(
            "--layer",
            "-l",
            metavar="L",
            help="A layer from 0, last or -1, a range 2-4, or a list 0,5; pairs, where the models' layers differ: 3=7, "
            "0-2=9-11, 0=1,1=3.",
        ),
    ] = None,
    mean: Annotated[
        str | None,
        typer.Option("--mean", metavar="OVER", help="heads: compare the means over all heads of each layer."),
    ] = None,
    site: SiteOption = None,
    top: TopOption = None,
    other_inputs: Annotated[
        Path | None, typer.Option("--other-inputs", metavar="FEED", help="Arrays for the second, if not the same.")
    ] = None,
) -> None:
    """Compare the attention of two models on one text, or of one model on two: how far apart, and where it begins.

    Did int8 or fp16 move the heads? Where do two exports of one model part? Models with different numbers of layers,
    such as a distilled model and its teacher, are compared by pairs of layers: --layer 0=1,1=3,2=5; with different
    numbers of heads by the means of each layer: --mean heads. Where integer products of a model can saturate on this
    processor, what that costs is measured besides.

    Examples:
        attnx diff model.onnx model_int8.onnx "The animal slept because it was tired."
        attnx diff model.onnx model_int8.onnx "The animal slept because it was tired." --tolerance 0.01
        attnx diff minilm minilm "The cat sat." --other-text "The dog sat."
    """
    from attnx.cli import output
    from attnx.errors import UsageError
    from attnx.measure.combine import over_heads
    from attnx.measure.difference import difference
    from attnx.run.pipeline import execute
    from attnx.session.protocol import Wanted
    from attnx.study.inspect_run import all_sites
    from attnx.study.layer_names import from_end, numbered_pairs
    from attnx.study.layer_pairs import aligned, check, parse_pairs
    from attnx.study.saturation import costs, table
    from attnx.study.selection import of_sort
    from attnx.view.reporting import base

    second = run
    if other_text is not None or other_inputs is not None:
        pair = run.source.pair if other_text else None
        second = replace(run, source=replace(run.source, text=other_text, pair=pair, ids=None, inputs=other_inputs))
    assert run.items and second.items  # noqa: PT018 - before a model is opened
    if not 0 < tolerance < float("inf"):
        raise UsageError(f"--tolerance {tolerance:g} tells nothing", "Give a positive number, such as 0.001.")
    if mean not in (None, "heads"):
        raise UsageError(f"--mean {mean}: heads are compared, or their mean", "Give --mean heads.")
    counted = any(from_end(one) for text in layer or () for one in text.replace("=", ",").split(","))
    pairs = parse_pairs(layer) if layer and not counted else None
    models = [one.open(name) for name, one in ((model, run), (other, second))]
    prompts, doubts = _prompts(models, (run, second))
    names = _names(models, (model, other))
    sites = [all_sites(m, prompt.inputs) for m, prompt in zip(models, prompts, strict=True)]
    if layer and counted:
        pairs = parse_pairs(numbered_pairs(layer, sites[0], sites[1], site))
    check(names, sites, site, pairs)
    traces = []
    for at, (opened, prompt) in enumerate(zip(models, prompts, strict=True)):
        layers = None if pairs is None else sorted({pair[at] for pair in pairs})
        trace = of_sort(execute(opened, prompt, Wanted(layers, ARRAYS)), site)
        failed = [label for label, a in zip(trace.labels, trace.attentions, strict=True) if not a.trusted]
        doubts += [f"{names[at]}: {label} NOT TRUSTED, a check of its arrays failed" for label in failed]
        traces.append(trace)
    a, b = aligned(names, traces[0], traces[1], pairs)
    if mean is not None:
        a, b = over_heads(a), over_heads(b)
    found = difference(a, b, tolerance, heads=None if mean is None else ("mean",))
    different = [0] if model == other and second is run else [0, 1]
    spent = [cost for at in different for cost in costs(models[at], prompts[at], names[at], site, doubts)]
    notes = list(dict.fromkeys((*a.notes, *b.notes, *doubts)))
    output.notes(notes)
    if run.output.json:
        from attnx.view.json import document

        together = [{"site": left, "other": right} for left, right in found.pairs]
        first = None if found.first is None else {**together[found.first[0]], "stage": found.first[1]}
        body: dict[str, Any] = {
            **base(a),
            "other": {**base(b)},
            "pairs": together,
            "heads": [found.largest, found.mean, found.divergence, found.rank, found.moved],
            "stages": found.stages,
            "parts": found.parts,
            "first": first,
            "tolerance": found.tolerance,
            "saturation": [cost.document() for cost in spent],
            "notes": [*notes, *found.notes],
        }
        output.emit_json(document("attnx/diff", body))
        return
    moved = bool((found.largest.values > 0).any())
    heads = _heads(found, top or TOP) if moved else "no head moved"
    tables = [part for cost in spent for part in ("", table(cost))]
    output.show(*_head(a, b, names, found), _layers(found), "", heads, *tables)


def _prompts(models: Sequence[Model], runs: Sequence[Start]) -> tuple[list[Prompt], list[str]]:
    """What each model is run on, and notes; a second model without a tokenizer gets the tokens of the first."""
    prompts: list[Prompt] = []
    notes: list[str] = []
    for opened, one in zip(models, runs, strict=True):
        prompt = one.prompt_of(next(iter(one.items)), opened)
        if prompts and prompt.text is not None and not _has_tokenizer(opened):
            prompt = replace(prompt, text=None, pair=None, tokens=models[0].encode(prompt.text, prompt.pair))
            notes.append(f"{opened.name} has no tokenizer: it is given the tokens of {models[0].name}")
        prompts.append(prompt)
    return prompts, notes


def _names(models: Sequence[Model], given: tuple[str, str]) -> tuple[str, str]:
    """What the two are called: as they are shown everywhere, or as they were given where that does not tell them."""
    first, second = (model.name for model in models)
    return (first, second) if first != second or given[0] == given[1] else given


def _has_tokenizer(opened: Model) -> bool:
    from attnx.errors import ModelError

    try:
        return opened.tokenizer is not None
    except ModelError:
        return False


def _head(a: Trace, b: Trace, names: tuple[str, str], found: Difference) -> list[Any]:
    """The two runs, and in a line where they part."""
    from attnx.view.page import length, line

    if found.first is None:
        verdict = f"no stage differs by more than {found.tolerance:g} of its size"
    else:
        at, stage = found.first
        site = found.stages.axes[0].labels[at]
        verdict = f"they part first at {stage} of {site} (by more than {found.tolerance:g} of its size)"
    both = " and ".join(names)
    devices = " and ".join(dict.fromkeys((a.device, b.device)))
    return [line(f"{both} · {length(a)} · {devices}"), line(verdict, "bold")]


def _layers(found: Difference) -> Columns:
    """Every layer: how far apart its stages are, and how far its heads moved."""
    import numpy as np

    from attnx.formula import average
    from attnx.view.cells import small
    from attnx.view.columns import column, columns

    labels = found.stages.axes[0].labels
    parts = [column("layer", labels, whole=True)]
    for at, stage in enumerate(found.stages.axes[1].labels):
        if np.isnan(found.stages.values[:, at]).all():
            continue  # one of the two has it nowhere
        parts.append(
            column(stage, [small(value) for value in found.stages.values[:, at]], whole=True, spare=at in (1, 2))
        )
    parts += [
        column("parts at", [part or "-" for part in found.parts], whole=True),
        column("JS mean", [small(value) for value in average(found.divergence.values, axis=1)], whole=True),
        column("JS largest", [small(value) for value in np.nanmax(found.divergence.values, axis=1)], whole=True),
        column("rows moved", average(found.moved.values, axis=1), decimals=3),
    ]
    return columns(
        "by layer",
        parts,
        notes=[
            f"stages: {found.stages.formula}; JS: {found.divergence.formula} in nats ({found.divergence.source})",
            f"rows moved: {found.moved.formula} whose strongest key changes",
            *found.notes,
        ],
    )


def _heads(found: Difference, count: int) -> Columns:
    """The heads that moved most."""
    import numpy as np

    from attnx.view.cells import small
    from attnx.view.columns import column, columns

    layers, heads = (axis.labels for axis in found.divergence.axes)
    values = found.divergence.values
    order = np.argsort(-np.nan_to_num(values, nan=-1.0), axis=None, kind="stable")
    places = [divmod(int(at), values.shape[1]) for at in order]
    kept = [(s, h) for s, h in places if values[s, h] > 0 or found.largest.values[s, h] > 0][:count]

    def of(measure: Any) -> list[float]:
        return [float(measure.values[s, h]) for s, h in kept]

    return columns(
        "heads that moved most" if "mean" not in heads else "means over heads that moved most",
        [
            column("head", [f"{layers[s]} {heads[h]}" for s, h in kept], whole=True),
            column("largest", [small(value) for value in of(found.largest)], whole=True),
            column("mean", [small(value) for value in of(found.mean)], whole=True),
            column("JS", [small(value) for value in of(found.divergence)], whole=True),
            column("rank of the first key", of(found.rank), decimals=2),
            column("rows moved", of(found.moved), bar=(0.0, 1.0)),
        ],
        notes=[
            f"largest: {found.largest.formula}; mean: {found.mean.formula}; rank: {found.rank.formula} "
            f"({found.largest.source})",
        ],
    )
