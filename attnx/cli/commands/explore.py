"""`attnx explore [TEXT]`: layers, heads and tokens under the arrow keys."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from attnx.cli.options import SENSES, WRITING, OneQueryOption, starts
from attnx.cli.start import Start
from attnx.cli.wording import worded

if TYPE_CHECKING:
    from attnx.run.prompt import Prompt

TEXT = "The animal didn't cross the street because it was too tired."
"""The text that is shown where none is given."""


@starts(*WRITING, *SENSES)
def explore(
    run: Start,
    ctx: typer.Context,
    head: Annotated[
        str | None,
        typer.Option("--head", "-H", metavar="L.H", help="The head that is open first; else the one worth opening."),
    ] = None,
    query: OneQueryOption = None,
) -> None:
    """Explore the attention of a text in the terminal.

    A grid of layers and heads, the chosen head's matrix or lines, and where the chosen token looks. ? lists the keys.

    Examples:
        attnx explore
        attnx explore "The cat slept; it was tired." --head 5.11 --query it
        attnx explore "The cat sat on the mat. The cat" -m tiny-gpt --generate 5
    """
    from rich.console import Console

    from attnx.errors import UsageError
    from attnx.installed import pip

    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("attnx explore needs a terminal", "`attnx inspect` prints to a pipe or a file.")
    try:
        from attnx.explore.app import Explorer
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("textual"):
            raise
        raise UsageError("attnx explore needs textual, which is not installed", pip("explore")) from None
    from attnx.explore.desk import Desk

    if run.source.is_empty:
        run = replace(run, source=replace(run.source, text=TEXT))
    (item,) = run.items

    def prompt(text: str) -> Prompt:
        # Another text replaces ids; what accompanies a text (a target, a picture) stays.
        same = text == (item.text or "")
        return run.prompt_of(item if same else replace(item, source=replace(item.source, text=text, ids=None)))

    with Console(stderr=True).status("running the model"):
        desk = Desk(run.opened, item.text or "", prompt)
        desk.start(head, query)
    app = Explorer(desk, partial(worded, command=ctx.command))
    app.run()
    if app.crash is not None:
        raise app.crash
    if app.return_code:
        raise typer.Exit(app.return_code)
