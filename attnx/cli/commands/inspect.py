"""`attnx inspect TEXT`: what each token attends to: an overview, a layer, a head, a token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnx.cli.options import (
    SENSES,
    WRITING,
    ForceOption,
    HeadOption,
    JsonlOption,
    LayerOption,
    MuteOption,
    QueryOption,
    SaveOption,
    ScaleOption,
    SiteOption,
    StageOption,
    TopOption,
    WordsOption,
    starts,
)
from attnx.cli.start import Start

if TYPE_CHECKING:
    from attnx.cli.inputs import Given
    from attnx.study.inspection import Inspection

TEXT = 200
"""Characters of a text that are shown above what is shown of it."""
LONG = 600
"""Characters of a text that may be long."""
_NEXT = "Next: --query TOKEN   --layer L   --head L.H   --view grid   --help"


@starts("file", *WRITING, *SENSES, "json")
def inspect(
    run: Start,
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
    jsonl: JsonlOption = False,
    save: SaveOption = None,
    force: ForceOption = False,
) -> None:
    """Show what each token attends to.

    Without options, one screen: where each token looks, which heads are worth a look, where the weight goes.
    --layer, --head and --query narrow it down; --view changes how it is drawn.
    """
    from attnx.cli.inputs import Lines, only, several
    from attnx.cli.unused_options import refuse_in_view
    from attnx.study.request import ask

    given = run.given
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
    refuse_in_view(asked, documents=run.json or jsonl or (save is not None and save.suffix.lower() == ".json"))
    if run.json:
        only(given, "--json", "use --jsonl")
    if save is not None:
        only(given, "--save", "use --jsonl")

    from attnx.cli import output

    opened = run.opened
    rows = save is None and not several(given) and asked.query is not None and asked.wants_row(opened.sites)
    # Of a long text the overview is reduced in the graph: by a session that is opened when its length is known.
    long = asked.view == "overview" and len(run.text or "") > LONG
    if run.text is not None and run.target is None and run.generate is None and not long:
        reduced = asked.combines_heads and not rows
        quantities = asked.reduced if reduced else asked.quantities
        opened.prepare(quantities, asked.traced_layers, rows=rows or reduced)

    from dataclasses import replace

    from attnx.cli.inspect_run import look
    from attnx.cli.wording import worded_all
    from attnx.study.patchmap import PICTURES, save_overlay
    from attnx.study.presentation import document, render
    from attnx.study.save import save as save_to

    documents = run.json or jsonl
    total = given.count if isinstance(given, Lines) else 1
    with output.progress(total, "texts", quiet=not several(given) or output.is_terminal()) as tell:
        for at, (one, shown) in enumerate(look(run, asked, matrices=documents, rows=rows)):
            output.notes(f"line {one.line}: {said}" if one.line else said for said in shown.trace.notes)
            shown = replace(shown, notes=worded_all(shown.notes))
            if save is not None and run.image is not None and save.suffix.lower() in PICTURES:
                output.notes((save_overlay(shown, opened, run.image, save, force=force), f"wrote {save}"))
            elif save is not None:
                output.notes((*save_to(shown, save, force=force), f"wrote {save}"))
            if documents:
                output.emit_json(document(shown), pretty=False if jsonl else None)
            elif save is None:
                output.show(*([""] if at else []), *_whose(one, shown), *render(shown, _NEXT))
            tell(at + 1)


def _whose(one: Given, shown: Inspection) -> list[Any]:
    """Which line of a file is shown, where the view itself does not say."""
    if one.line is None or one.text is None or shown.request.view == "overview":
        return []
    from attnx.view.page import line

    text = " ".join(one.text.split())
    return [line(f"line {one.line}: {text if len(text) <= TEXT else text[:TEXT] + ' ...'}", "dim")]
