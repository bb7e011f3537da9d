"""`attnx report TEXT`: one page for a browser: every layer and head."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attnx.cli.options import SENSES, ForceOption, LayerOption, OneQueryOption, SiteOption, starts
from attnx.cli.start import Start
from attnx.numerals import counted

PAGE = Path("report.html")


@starts("generate", "chat", *SENSES)
def report(
    run: Start,
    out: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The page, an .html file.")] = PAGE,
    head: Annotated[
        str | None,
        typer.Option("--head", "-H", metavar="L.H", help="The head that is open first; else the one worth opening."),
    ] = None,
    query: OneQueryOption = None,
    from_: Annotated[
        str | None, typer.Option("--from", metavar="WORD", help="The word to look from; else the first pronouns.")
    ] = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="WORD,WORD", help="The candidates; else the content words near by.")
    ] = None,
    layer: LayerOption = None,
    site: SiteOption = None,
    causal: Annotated[
        bool, typer.Option("--causal", help="Ablate every head as well: how far the answer moves, as one more map.")
    ] = False,
    force: ForceOption = False,
) -> None:
    """Write a page that shows everything at once, in one file that opens anywhere.

    Layers by heads, a head as lines and as a matrix, its stages with the softmax before and after scaling, one token's
    row across heads, coreference, and what each head does.

    Examples:
        attnx report "The animal slept because it was tired."
        attnx report "The cat slept; it was tired." -o cat.html --from it --to cat
        attnx report "The cat sat on the mat. The cat" -m tiny-gpt --head 0.3
    """
    from attnx.cli import output
    from attnx.errors import UsageError
    from attnx.study.html_report import compose
    from attnx.study.request import parse_layers
    from attnx.view.save import write

    if out.suffix.lower() not in (".html", ".htm") and out.is_file() | (not out.exists()):
        raise UsageError(f"{out} is not an HTML page: its name does not end in .html", "For example: -o report.html.")
    if out.is_file() and not force:
        raise UsageError(f"{out} exists", "Give --force to replace it, or another name.")
    assert run.items  # checked before anything else
    layers = parse_layers(layer) if layer else None
    with output.progress(None, "heads ablated", quiet=not causal) as tell:
        page, shown = compose(
            run.opened, run.prompt, layers, site,
            from_=from_, to=to, head=head, query=query, causal=causal, tell=tell,
        )  # fmt: skip
    write(out, page.content, force=force)
    output.notes((*shown.trace.notes, *(note for note in shown.notes if "NOT TRUSTED" in note), *page.notes))
    output.note(
        f"{output.wrote(out)}: {_size(len(page.content))}, {counted(page.heads, 'head')}, "
        f"weights within {page.error:.1g}"
    )


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e5 else f"{count / 1e3:.0f} kB"
