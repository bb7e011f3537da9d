"""`attnx trace MODEL`: every array of a run, for scripts."""

from __future__ import annotations

from typing import Annotated

import typer

from attnx.options import (
    AudioOption,
    ChatOption,
    DeviceOption,
    DimOption,
    ForceOption,
    GenerateOption,
    IdsOption,
    ImageOption,
    InputsOption,
    JsonOption,
    LayerOption,
    ModelArgument,
    PairOption,
    SaveOption,
    SeedOption,
    SetOption,
    TargetOption,
    TemperatureOption,
    TextArgument,
    TokenizerOption,
    TopKOption,
)


def trace(
    model: ModelArgument,
    text: TextArgument = None,
    pair: PairOption = None,
    ids: IdsOption = None,
    inputs: InputsOption = None,
    values: SetOption = None,
    dims: DimOption = None,
    target: TargetOption = None,
    generate: GenerateOption = None,
    temperature: TemperatureOption = 0.0,
    top_k: TopKOption = None,
    seed: SeedOption = 0,
    chat: ChatOption = False,
    image: ImageOption = None,
    audio: AudioOption = None,
    save: SaveOption = None,
    layer: LayerOption = None,
    only: Annotated[
        str | None,
        typer.Option("--only", metavar="NAMES", help="Only these arrays: weights,scores,..."),
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Also compare the model's outputs with and without taps.")
    ] = False,
    json: JsonOption = False,
    device: DeviceOption = "auto",
    tokenizer: TokenizerOption = None,
    force: ForceOption = False,
) -> None:
    """Run a model once, write the arrays of every attention to .npz or .safetensors, and say what they are.

    The arrays are called attention.N.QUANTITY: N counts sites in execution order, and QUANTITY is query, key, value,
    scores, scaled, capped, masked, weights or context.
    """
    from attnx.beyond import beyond
    from attnx.intake import take
    from attnx.request import parse_layers, parse_quantities

    more = beyond(
        values, dims, target=target, generate=generate, temperature=temperature, top_k=top_k, seed=seed, chat=chat,
        image=image, audio=audio,
    )  # fmt: skip
    (given,) = take(text, pair=pair, ids=ids, inputs=inputs, beyond=more)
    layers = None if layer is None else parse_layers(layer)
    quantities = parse_quantities(only)

    from attnx import output, pipeline
    from attnx.arrays import check_target, save_trace

    if save is not None:
        check_target(save, force=force)
    opened = pipeline.open(model, device=device, tokenizer=tokenizer)
    result = opened.trace(
        **given.feed(opened, needs_tokenizer=tokenizer is not None),
        layers=layers,
        quantities=quantities,
        verify_outputs=verify,
        required=False,
    )
    if save is not None:
        save_trace(result, save, force=force)
    if json:
        from attnx.view.contract import trace_document

        output.notes(result.notes)
        output.emit_json(trace_document(result, save))
    else:
        from attnx.view.traced import traced

        output.show(traced(result, saved=[] if save is None else [f"wrote {save}"]))
