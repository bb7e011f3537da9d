"""`attnx inspect TEXT`: what each token attends to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnx.cli.options import (
    SENSES,
    WRITING,
    ExplainOption,
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
    from pathlib import Path

    from attnx.cli.inputs import Item
    from attnx.model import Model
    from attnx.study.inspection import Inspection
    from attnx.study.request import Request

TEXT = 200
"""How many characters of a text are shown above its result."""
LONG = 600
"""Texts of more characters than this may be long."""
_NEXT = "Next: --query TOKEN   --layer L   --head L.H   --view grid   --all   --help"


_REST = ": --all"


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
    every: Annotated[bool, typer.Option("--all", help="Everything that one screen has no room for.")] = False,
    explain: ExplainOption = False,
    jsonl: JsonlOption = False,
    save: SaveOption = None,
    force: ForceOption = False,
) -> None:
    """Show what each token attends to.

    Without options, one screen: where each token looks, which heads are worth a look, where the weight goes.
    --layer, --head and --query narrow it down; --view changes how it is drawn.

    Examples:
        attnx inspect "The animal slept because it was tired."
        attnx inspect "The cat slept; it was tired." --head 5.11 --query it
        attnx inspect "The animal was tired." --layer last --view heatmap
    """
    from attnx.cli.inputs import Lines, only, several
    from attnx.cli.unused_options import refuse, refuse_in_view
    from attnx.study.request import ask

    items = run.items
    request = ask(
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
    json = run.output.json
    refuse_in_view(request, documents=json or jsonl or (save is not None and save.suffix.lower() == ".json"))
    suited = view is None and request.view == "table" and top is None
    if (request.view not in ("overview", "row", "ranking") and not suited) or top is not None or json or jsonl:
        refuse("where everything is shown", {"--all": every})
    if json:
        only(items, "--json", "use --jsonl")
    if save is not None:
        only(items, "--save", "use --jsonl")

    from attnx.cli import output

    opened = run.opened
    rows = save is None and not several(items) and request.query is not None and request.wants_row(opened.sites)
    # For a long text the overview is reduced in the graph, by a session that is opened once its length is known.
    text, image = run.source.text, run.source.image
    long = request.view == "overview" and len(text or "") > LONG
    if text is not None and run.source.target is None and run.writing.generate is None and not long:
        reduced = request.combines_heads and not rows
        quantities = request.reduced if reduced else request.quantities
        opened.prepare(quantities, request.traced_layers, rows=rows or reduced)

    from attnx.cli.wording import worded_all
    from attnx.study.presentation import document, render

    documents = json or jsonl
    total = items.count if isinstance(items, Lines) else 1
    with output.progress(total, "texts", quiet=not several(items) or output.is_terminal()) as tell:
        for at, (one, shown) in enumerate(_inspections(run, request, matrices=documents, rows=rows)):
            said = [f"line {one.line}: {note}" if one.line else note for note in shown.trace.notes]
            output.notes(said)
            head = _heading(one, shown)
            shown = replace(shown, notes=worded_all(shown.notes))
            if save is not None:
                output.notes((*_save(shown, opened, image, save, force=force), output.wrote(save)))
            if documents:
                output.emit_json(document(shown), pretty=False if jsonl else None)
            elif save is None:
                taken = output.lines_of(said) + len(head)
                views = render(_with_model(shown), _NEXT, _REST, every=every, said=taken, suited=suited)
                if explain:
                    views = _explained(shown, views, taken, every=every)
                output.show(*([""] if at else []), *head, *views)
            tell(at + 1)


def _save(shown: Inspection, opened: Model, image: Path | None, path: Path, *, force: bool) -> Sequence[str]:
    """Write what is shown to a file, over the picture that the model saw where both are pictures; notes on it."""
    if image is not None:
        from attnx.study.patchmap import PICTURES, save_overlay

        if path.suffix.lower() in PICTURES:
            return (save_overlay(shown, opened, image, path, force=force),)
    from attnx.study.save import save

    return save(shown, path, force=force)


def _inspections(run: Start, request: Request, *, matrices: bool, rows: bool) -> Iterator[tuple[Item, Inspection]]:
    """What is shown for each item, in order."""
    from attnx.cli.inputs import naming_line, several
    from attnx.study.inspect_run import all_sites, inspect_prompt

    if not several(run.items):
        (one,) = run.items
        yield one, inspect_prompt(run.opened, run.prompt, request, matrices=matrices, rows=rows)
        return
    from attnx.cli.batch_run import traces
    from attnx.study.attention_kind import choose_sort
    from attnx.study.inspection import inspect

    sort, others = choose_sort(all_sites(run.opened), request)
    for one, trace in traces(run, request.quantities, request.traced_layers):
        with naming_line(one):
            shown = inspect(trace, request, sort, others, matrices=matrices)
        yield one, shown


def _explained(shown: Inspection, views: Sequence[Any], said: int, *, every: bool) -> list[Any]:
    """What is shown, with what its numbers are."""
    from attnx.study.explained import explained
    from attnx.view.page import line
    from attnx.view.reporting import heading
    from attnx.view.screen import choice, explanation, screen

    short = [line(heading(shown.trace))] if shown.request.view == "overview" else []
    return [screen(choice(views, short), explanation(*explained(shown)), said=said, every=every)]


def _heading(one: Item, shown: Inspection) -> list[Any]:
    """The model, the text's length and the device, and which line of a file is shown, where the view does not say."""
    view = shown.request.view
    if view == "overview":
        return []
    from attnx.view.page import line
    from attnx.view.reporting import heading

    head = [] if view == "grid" or _is_one_matrix(shown) else [line(heading(shown.trace))]
    if one.line is None or one.text is None:
        return head
    text = " ".join(one.text.split())
    return [*head, line(f"line {one.line}: {text if len(text) <= TEXT else text[:TEXT] + ' ...'}", "dim")]


def _is_one_matrix(shown: Inspection) -> bool:
    """Whether all that is shown is one head's matrix, under its title."""
    return len(shown.picks) == 1 and shown.request.view not in ("overview", "grid", "ranking")


def _with_model(shown: Inspection) -> Inspection:
    """The same with the model in the title of a matrix that is shown alone, where every line of a screen counts."""
    if not _is_one_matrix(shown):
        return shown
    (pick,) = shown.picks
    title = f"{shown.trace.model} · {pick.matrix.title}"
    return replace(shown, picks=(replace(pick, matrix=replace(pick.matrix, title=title)),))
