"""`attnx diff MODEL MODEL TEXT`: two models on one input, head by head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnx.cli.options import ExplainOption, ForceOption, SaveOption, SiteOption, TopOption, starts
from attnx.cli.start import Start

if TYPE_CHECKING:
    from attnx.cli.inputs import Item
    from attnx.measure.difference import Difference
    from attnx.model import Model
    from attnx.records import Measurement
    from attnx.run.prompt import Prompt
    from attnx.study.comparison import Compared
    from attnx.study.file_difference import FileDifference, Held
    from attnx.study.saturation import Cost

TOP = 3
"""How many heads are listed without --top."""


@starts("file", "json", first=("text",))
def diff(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The model that is compared with.")],
    other: Annotated[str, typer.Argument(metavar="MODEL", help="The other model; the same one for two texts.")],
    run: Start,
    other_text: Annotated[
        str | None,
        typer.Option("--other-text", metavar="TEXT", help="The second text, of the same number of tokens."),
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
    fail_over: Annotated[
        float | None,
        typer.Option("--fail-over", metavar="T", help="Exit with 6 where a weight of attention differs by more."),
    ] = None,
    top: TopOption = None,
    explain: ExplainOption = False,
    save: SaveOption = None,
    force: ForceOption = False,
    other_inputs: Annotated[
        Path | None,
        typer.Option("--other-inputs", metavar="FEED", help="Arrays for the second model, if not the same."),
    ] = None,
) -> None:
    """Say whether two models attend alike, which head moved most, what their outputs say, and how their files differ.

    One text, or every line of a file. With --fail-over it is a gate: the exit code is 6 where a weight of attention
    differs by more. Models with different numbers of layers, such as a distilled model and its teacher, are compared by
    pairs of layers: --layer 0=1,1=3,2=5; with different numbers of heads by the means of each layer: --mean heads. One
    model on two texts: --other-text.

    Examples:
        attnx diff model.onnx model_int8.onnx "The animal was tired."
        attnx diff model.onnx int8.onnx "The animal was tired." --fail-over 0.01
        attnx diff model.onnx model_int8.onnx --file texts.txt --json
        attnx diff minilm minilm "The cat sat." --other-text "The dog sat."
    """
    from attnx.cli import output, saving
    from attnx.cli.inputs import naming_line, several
    from attnx.errors import DIFFERENT, UsageError
    from attnx.measure.difference import merged
    from attnx.study.comparison import Comparing, of_model
    from attnx.study.file_difference import file_difference
    from attnx.study.inspect_run import all_sites
    from attnx.study.layer_names import from_end, numbered_pairs
    from attnx.study.layer_pairs import parse_pairs
    from attnx.study.saturation import costs

    saving.check(save, force=force)
    second = run
    if other_text is not None or other_inputs is not None:
        pair = run.source.pair if other_text else None
        second = replace(run, source=replace(run.source, text=other_text, pair=pair, ids=None, inputs=other_inputs))
        if run.source.file is not None:
            raise UsageError("--file gives both models the same texts", "Leave --other-text and --other-inputs out.")
    assert run.items and second.items  # noqa: PT018 - before a model is opened
    if not 0 < tolerance < float("inf"):
        raise UsageError(f"--tolerance {tolerance:g} tells nothing", "Give a positive number, such as 0.001.")
    if fail_over is not None and not 0 <= fail_over < float("inf"):
        raise UsageError(f"--fail-over {fail_over:g} is not a limit", "Give a share of a row: 0 to 1, such as 0.01.")
    if mean not in (None, "heads"):
        raise UsageError(f"--mean {mean}: heads are compared, or their mean", "Give --mean heads.")
    counted = any(from_end(one) for text in layer or () for one in text.replace("=", ",").split(","))
    pairs = parse_pairs(layer) if layer and not counted else None
    models = []
    for at, (name, one) in enumerate(((model, run), (other, second))):
        with of_model(at, name):
            models.append(one.open(name))
            assert models[at].sites is not None  # read here, so that an error names this model
    names = _names(models, (model, other))
    comparing = Comparing((models[0], models[1]), names, site, pairs, tolerance, mean is not None)
    if layer and counted:
        comparing = replace(
            comparing, pairs=parse_pairs(numbered_pairs(layer, all_sites(models[0]), all_sites(models[1]), site))
        )
    done, doubts = [], []
    many = several(run.items)
    with output.progress(getattr(run.items, "count", 1), "texts", quiet=not many) as tell:
        for at, item in enumerate(run.items):
            two = item if second is run else next(iter(second.items))
            with naming_line(item):
                prompts, said = _prompts(models, (run, second), (item, two))
                done.append(comparing.compare(*prompts))
            doubts += said
            tell(at + 1)
    found = merged([one.difference for one in done])
    one_model, two_texts = model == other, second is not run
    files = None if one_model else file_difference(*models)
    spent = []
    if not many:
        different = [0] if one_model and not two_texts else [0, 1]
        spent = [cost for at in different for cost in costs(models[at], prompts[at], names[at], site, doubts)]
    notes = list(dict.fromkeys((*doubts, *(note for one in done for note in one.notes))))
    output.notes(notes)
    reached = max(one.reached for one in done)
    over = fail_over is not None and not reached <= fail_over
    verdict = _verdict(found, names[1] if two_texts or not one_model else "", texts=one_model and two_texts)
    whole = _document(done, found, files, spent, verdict, (fail_over, reached, over), notes)
    views = _shown(done, found, files, spent, verdict, names, top or TOP, explain, output.lines_of(notes))
    saving.give(views, _numbers(found), whole, json=run.output.json, path=save, force=force)
    if over and not run.output.json:
        output.note(f"a weight differs by {reached:.3g}, more than --fail-over {fail_over:g}")
    if over:
        raise typer.Exit(DIFFERENT)


def _numbers(found: Difference) -> Measurement:
    """Every measure of every head, [layer,head,measure]."""
    import numpy as np

    from attnx.records import Axis, Measurement

    parts = [found.largest, found.mean, found.divergence, found.rank, found.moved]
    axes = (*found.largest.axes, Axis("measure", tuple(part.name for part in parts)))
    return Measurement("value", "", axes, np.stack([part.values for part in parts], axis=-1))


def _verdict(found: Difference, name: str, *, texts: bool) -> str:
    from attnx.view.diff_tables import verdict

    return verdict(found, name, texts=texts)


def _shown(
    done: Sequence[Compared],
    found: Difference,
    files: FileDifference | None,
    spent: Sequence[Cost],
    verdict: str,
    names: Sequence[str],
    count: int,
    explain: bool,
    noted: int,
) -> list[Any]:
    """The answer in words, then the heads and layers behind it; `noted` lines stand on stderr."""
    from attnx.cli import output
    from attnx.study.output_change import said
    from attnx.study.saturation import table
    from attnx.view import diff_tables as tables
    from attnx.view.page import length, line
    from attnx.view.screen import screen

    a, b = done[0].one, done[0].two
    size = length(a) if len(done) == 1 else f"{len(done)} texts"
    devices = " and ".join(dict.fromkeys((a.device, b.device)))
    out: list[Any] = [line(f"{' and '.join(names)} · {size} · {devices}"), line(verdict, "bold")]
    out.append(line(said([one.outputs for one in done])))
    if files is not None:
        out.append(line("; ".join(files.said) or "the files hold the same operators, weights and opsets"))
    out += [line(note, "dim") for note in found.notes]
    if (found.largest.values > 0).any():
        out += ["", tables.heads(found, count, explain=explain)]
    out += ["", tables.layers(found, few=output.is_terminal(), explain=explain)]
    out += [part for cost in spent for part in ("", table(cost))]
    return [screen(*out, said=noted)] if explain else out


def _document(
    done: Sequence[Compared],
    found: Difference,
    files: FileDifference | None,
    spent: Sequence[Cost],
    verdict: str,
    limit: tuple[float | None, float, bool],
    notes: Sequence[str],
) -> dict[str, Any]:
    from attnx.view.diff_tables import most_moved
    from attnx.view.json import document
    from attnx.view.reporting import base

    together = [{"site": left, "other": right} for left, right in found.pairs]
    first = None if found.first is None else {**together[found.first[0]], "stage": found.first[1]}
    most = most_moved(found)
    moved = None
    if most is not None:
        moved = {**together[most[0]], "head": most[1], "divergence": found.divergence.values[most]}
    body: dict[str, Any] = {
        **base(done[0].one),
        "other": {**base(done[0].two)},
        "verdict": {"same": found.first is None, "text": verdict, "most": moved},
        "texts": len(done),
        "outputs": [None if one.outputs is None else _outputs(one) for one in done],
        "files": None if files is None else _files(files),
        "fail_over": None if limit[0] is None else {"limit": limit[0], "reached": limit[1], "over": limit[2]},
        "pairs": together,
        "heads": [found.largest, found.mean, found.divergence, found.rank, found.moved],
        "stages": found.stages,
        "parts": found.parts,
        "first": first,
        "tolerance": found.tolerance,
        "saturation": [cost.document() for cost in spent],
        "notes": [*notes, *found.notes],
    }
    return document("attnx/diff", body)


def _outputs(one: Compared) -> dict[str, Any]:
    found = one.outputs
    assert found is not None
    return {
        "kind": found.kind,
        "output": found.output,
        "cosine": found.cosine,
        "kl": found.kl,
        "first": found.first,
        "kept": found.kept,
        "relative": found.relative,
    }


def _files(files: FileDifference) -> dict[str, Any]:
    def held(one: Held) -> dict[str, Any]:
        return {
            "operators": one.operators,
            "attention": one.attention,
            "quantised": one.quantised,
            "weights": one.weights,
            "opsets": one.opsets,
            "producer": one.producer,
        }

    return {"differ": files.said, "model": held(files.one), "other": held(files.two)}


def _prompts(
    models: Sequence[Model], runs: Sequence[Start], items: Sequence[Item]
) -> tuple[tuple[Prompt, Prompt], list[str]]:
    """What each model is run on, and notes; a second model without a tokenizer gets the tokens of the first."""
    from attnx.study.comparison import of_model

    prompts: list[Prompt] = []
    notes: list[str] = []
    for at, (opened, one, item) in enumerate(zip(models, runs, items, strict=True)):
        with of_model(at, opened.name):
            prompt = one.prompt_of(item, opened)
        if prompts and prompt.text is not None and not _has_tokenizer(opened):
            prompt = replace(prompt, text=None, pair=None, tokens=models[0].encode(prompt.text, prompt.pair))
            notes.append(f"{opened.name} has no tokenizer: it is given the tokens of {models[0].name}")
        prompts.append(prompt)
    return (prompts[0], prompts[1]), notes


def _names(models: Sequence[Model], given: tuple[str, str]) -> tuple[str, str]:
    """The names of the two models: as shown everywhere, or as they were given where that does not tell them apart."""
    first, second = (model.name for model in models)
    return (first, second) if first != second or given[0] == given[1] else given


def _has_tokenizer(opened: Model) -> bool:
    from attnx.errors import ModelError

    try:
        return opened.tokenizer is not None
    except ModelError:
        return False
