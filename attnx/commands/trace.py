"""`attnx trace MODEL`: every array of a run, for scripts."""

from __future__ import annotations

from typing import Annotated

import typer

from attnx.options import DeviceOption, ForceOption, InputsOption, JsonOption, SaveOption, TokenizerOption


def trace(
    model: Annotated[str, typer.Argument(help="An .onnx file, a folder, or the name of a bundled model.")],
    text: Annotated[str | None, typer.Argument(help="Text to run on; or give --inputs.")] = None,
    inputs: InputsOption = None,
    save: SaveOption = None,
    json: JsonOption = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Also compare the model's outputs with and without taps.")
    ] = False,
    device: DeviceOption = "auto",
    tokenizer: TokenizerOption = None,
    force: ForceOption = False,
) -> None:
    """Write every array of a run to a file, and say what they are."""
    from attnx import pipeline
    from attnx.arrays import load_feed, save_trace
    from attnx.output import emit_json
    from attnx.view.contract import trace_document

    opened = pipeline.open(model, device=device, tokenizer=tokenizer)
    feed = load_feed(inputs) if inputs is not None else None
    result = opened.trace(text, inputs=feed, verify_outputs=verify, required=False)
    if save is not None:
        save_trace(result, save, force=force)
    if json:
        emit_json(trace_document(result))
    else:
        from attnx.output import show
        from attnx.view.traced import traced

        show(traced(result))
