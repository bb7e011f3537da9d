"""`attnx trace MODEL`: every array of a run, for scripts."""

from __future__ import annotations

from typing import Annotated

import typer

from attnx.cli.options import SENSES, WRITING, ForceOption, LayerOption, SaveOption, starts
from attnx.cli.start import Start


@starts(*WRITING, *SENSES, "json", first=("model", "text"))
def trace(
    run: Start,
    save: SaveOption = None,
    layer: LayerOption = None,
    only: Annotated[
        str | None,
        typer.Option("--only", metavar="NAMES", help="Only these arrays: weights,scores,..."),
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Also compare the model's outputs with and without taps.")
    ] = False,
    force: ForceOption = False,
) -> None:
    """Run a model once, write the arrays of every attention to .npz or .safetensors, and say what they are.

    The arrays are called attention.N.QUANTITY: N counts sites in execution order, and QUANTITY is query, key, value,
    scores, scaled, capped, masked, weights or context.

    Examples:
        attnx trace minilm "The animal was tired." --save animal.npz
        attnx trace minilm "The animal was tired." --layer last --only weights
        attnx trace model.onnx --inputs feed.npz --save out.npz --json
    """
    from attnx.study.request import parse_layers, parse_quantities

    assert run.items  # checked before anything else
    layers = None if layer is None else parse_layers(layer)
    quantities = parse_quantities(only)

    from attnx.cli import output
    from attnx.feed.arrays import check_target
    from attnx.run.pipeline import execute
    from attnx.session.protocol import Wanted

    if save is not None:
        check_target(save, force=force)
    wanted = Wanted(layers, quantities, verify_outputs=verify, required=False)
    if save is None:
        result = execute(run.opened, run.prompt, wanted)
    else:
        from attnx.study.saved_trace import run_and_save

        result = run_and_save(run.opened, run.prompt, wanted, save, force=force)
    if run.output.json:
        from attnx.view.contract import trace_document

        output.notes(result.notes)
        output.emit_json(trace_document(result, save))
    else:
        from attnx.view.traced import traced

        output.show(traced(result, saved=[] if save is None else [output.wrote(save)], why="see attnx sites"))
