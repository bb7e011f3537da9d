"""`attnx inspect TEXT`: what each token attends to: an overview, a layer, a head, a token."""

from __future__ import annotations

from typing import Annotated

import typer

from attnx.options import (
    MODEL,
    AudioOption,
    ChatOption,
    DeviceOption,
    DimOption,
    FileOption,
    ForceOption,
    GenerateOption,
    HeadOption,
    IdsOption,
    ImageOption,
    InputsOption,
    JsonlOption,
    JsonOption,
    LayerOption,
    ModelOption,
    MuteOption,
    PairOption,
    QueryOption,
    SaveOption,
    ScaleOption,
    SeedOption,
    SetOption,
    SiteOption,
    StageOption,
    TargetOption,
    TemperatureOption,
    TextArgument,
    TokenizerOption,
    TopKOption,
    TopOption,
    WordsOption,
)


def inspect(
    text: TextArgument = None,
    model: ModelOption = MODEL,
    layer: LayerOption = None,
    head: HeadOption = None,
    query: QueryOption = None,
    top: TopOption = None,
    words: WordsOption = False,
    mute: MuteOption = False,
    stage: StageOption = "weights",
    view: Annotated[
        str | None,
        typer.Option(
            "--view",
            "-v",
            metavar="VIEW",
            help="overview, grid, heatmap, table, row, lines or ranking; else what suits.",
        ),
    ] = None,
    scale: ScaleOption = "linear",
    mean: Annotated[
        str | None, typer.Option("--mean", metavar="OVER", help="The mean over heads, layers or all.")
    ] = None,
    largest: Annotated[
        str | None, typer.Option("--max", metavar="OVER", help="The largest over heads, layers or all.")
    ] = None,
    site: SiteOption = None,
    pair: PairOption = None,
    file: FileOption = None,
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
    tokenizer: TokenizerOption = None,
    device: DeviceOption = "auto",
    json: JsonOption = False,
    jsonl: JsonlOption = False,
    save: SaveOption = None,
    force: ForceOption = False,
) -> None:
    """Show what each token attends to.

    Without options, one screen: where each token looks, which heads are worth a look, where the weight goes.
    --layer, --head and --query narrow it down; --view changes how it is drawn.
    """
    from attnx.beyond import beyond
    from attnx.intake import only, take
    from attnx.request import ask

    more = beyond(
        values, dims, target=target, generate=generate, temperature=temperature, top_k=top_k, seed=seed, chat=chat,
        image=image, audio=audio,
    )  # fmt: skip
    given = take(text, pair=pair, file=file, ids=ids, inputs=inputs, beyond=more)
    asked = ask(
        layer=layer,
        heads=head or (),
        query=query,
        site=site,
        stage=stage,
        top=top,
        words=words,
        mute=mute,
        mean=mean,
        largest=largest,
        view=view,
        scale=scale,
    )
    if json:
        only(given, "--json")
    if save is not None:
        only(given, "--save")

    from attnx import output, pipeline

    opened = pipeline.open(model, device=device, tokenizer=tokenizer)
    if text is not None and target is None and generate is None:
        opened.prepare(asked.quantities, asked.traced_layers)

    from attnx.inspection import choose_sort
    from attnx.inspection import inspect as look
    from attnx.patchmap import PICTURES, save_overlay
    from attnx.presentation import document, render
    from attnx.presentation import save as save_to

    for at, one in enumerate(given):
        feed = one.feed(opened, needs_tokenizer=tokenizer is not None)
        sort, others = choose_sort((*opened.encoder_sites, *opened.find(feed["inputs"]).sites), asked)
        trace = opened.trace(**feed, layers=asked.traced_layers, quantities=asked.quantities)
        output.notes(f"line {one.line}: {said}" if one.line else said for said in trace.notes)
        shown = look(trace, asked, sort, others, matrices=json or jsonl)
        if save is not None and image is not None and save.suffix.lower() in PICTURES:
            output.notes((save_overlay(shown, opened, image, save, force=force), f"wrote {save}"))
        elif save is not None:
            output.notes((*save_to(shown, save, force=force), f"wrote {save}"))
        if json or jsonl:
            output.emit_json(document(shown), pretty=False if jsonl else None)
        elif save is None:
            output.show(*([""] if at else []), *render(shown))
