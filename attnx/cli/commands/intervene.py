"""`attnx intervene MODEL`: a plan of interventions carried out, for scripts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnx.cli.options import DeviceOption, ForceOption, JsonOption, ModelArgument, SaveOption

if TYPE_CHECKING:
    from attnx.interventions.perform import Results
    from attnx.interventions.plan import Step
    from attnx.records import Array
    from attnx.view.columns import Columns


def intervene(
    model: ModelArgument,
    inputs: Annotated[
        Path, typer.Option("--inputs", metavar="FEED", help="An .npz file with an array for each graph input.")
    ],
    plan: Annotated[Path, typer.Option("--plan", metavar="PLAN", help="A JSON file with a list of interventions.")],
    other: Annotated[
        Path | None,
        typer.Option("--other", metavar="FEED", help="A second feed, which `run` and `from` call other."),
    ] = None,
    save: SaveOption = None,
    device: DeviceOption = "auto",
    json: JsonOption = False,
    force: ForceOption = False,
) -> None:
    """Run a model with heads ablated, edges knocked out and activations patched, and write what it gives.

    An intervention has an id, a kind (ablate, knockout, patch, lens, attribute), a run (inputs or other), and says
    where: component, layers, heads, queries, keys (null is all). Ablate takes with (zero, mean, uniform) and over;
    knockout keep_self; patch a quantity (query, key, value, weights, context, attention, mlp, residual) and from;
    attribute targets: [row, position, token]. Outputs are called base.NAME, corrupt.NAME and ID.NAME.

    Examples:
        attnx intervene model.onnx --plan plan.json --inputs feed.npz
        attnx intervene model.onnx --plan plan.json --inputs feed.npz --save out.npz
        attnx intervene model.onnx --plan plan.json --inputs a.npz --other b.npz
    """
    from attnx import model as pipeline
    from attnx.cli import output
    from attnx.feed.arrays import check_target, load_feed, save_arrays
    from attnx.interventions.perform import run_with
    from attnx.interventions.plan_file import read_plan

    if save is not None:
        check_target(save, force=force)
    steps = read_plan(plan)
    given = {"inputs": load_feed(inputs)}
    second = {"inputs": load_feed(other)} if other is not None else None
    opened = pipeline.open(str(model), device=device)
    results = run_with(opened, steps, given, second)
    arrays = results.arrays()
    if save is not None:
        save_arrays(arrays, save, force=force)
    output.notes(results.notes)
    if json:
        from attnx.view.json import document

        output.emit_json(document("attnx/intervene", _body(opened.name, results, steps, arrays, save)))
        return
    output.show(_table(steps, results), *([output.wrote(save)] if save is not None else []))


def _body(
    model: str, results: Results, steps: list[Step], arrays: dict[str, Array], saved: Path | None
) -> dict[str, Any]:
    def shapes(name: str) -> dict[str, Any]:
        return {
            key: {"shape": list(array.shape), "type": array.dtype.name}
            for key, array in arrays.items()
            if key.startswith(f"{name}.")
        }

    return {
        "model": model,
        "device": results.device,
        "saved": saved,
        "unedited": [{"id": name, "arrays": shapes(name)} for name in ("base", "corrupt") if shapes(name)],
        "interventions": [
            {"id": step.id, "run": step.run, "moved": results.moved(step), "arrays": shapes(step.id)} for step in steps
        ],
        "notes": results.notes,
    }


def _table(steps: list[Step], results: Results) -> Columns:
    """Each intervention, and how far each output moved."""
    from attnx.view.columns import column, columns

    moved = [results.moved(step) for step in steps]
    names = list(dict.fromkeys(name for one in moved for name in one))
    nothing = float("nan")
    most = max((v for one in moved for v in one.values() if v == v), default=0.0) or 1.0
    return columns(
        "interventions",
        [
            column("id", [step.id for step in steps], whole=True),
            column("run", [step.run for step in steps]),
            *(column(name, [one.get(name, nothing) for one in moved], bar=(0.0, most)) for name in names),
        ],
        notes=["largest difference to the unedited run, relative to the larger of 1 and the output's largest number"],
    )
