"""`attnx explore [TEXT]`: layers, heads and tokens under the arrow keys."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import typer

from attnx.cli.options import SENSES, WRITING, starts
from attnx.cli.start import Start
from attnx.cli.wording import worded

TEXT = "The animal didn't cross the street because it was too tired."
"""What is shown where nothing is given."""


@starts(*WRITING, *SENSES)
def explore(run: Start, ctx: typer.Context) -> None:
    """Explore the attention of a text in the terminal.

    A grid of layers and heads, the chosen head's matrix or lines, and where the chosen token looks. ? lists the keys.
    """
    from rich.console import Console

    from attnx.errors import UsageError

    try:
        from attnx.explore.app import Explorer
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("textual"):
            raise
        raise UsageError(
            "attnx explore needs textual, which is not installed", "pip install 'attnx[explore]'"
        ) from None
    from attnx.explore.desk import Desk

    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("attnx explore needs a terminal", "`attnx inspect` prints to a pipe or a file.")
    if all(getattr(run, name) is None for name in ("text", "ids", "inputs", *SENSES)) and not run.values:
        run = run.but(text=TEXT)
    (given,) = run.given

    def feed(text: str) -> Mapping[str, Any]:
        # Another text takes the place of ids; what goes with a text (a target, a picture) stays.
        return run.fed(given if text == (given.text or "") else replace(given, text=text, ids=None))

    with Console(stderr=True).status("running the model"):
        desk = Desk(run.opened, given.text or "", feed)
    app = Explorer(desk, partial(worded, command=ctx.command))
    app.run()
    if app.return_code:
        raise typer.Exit(app.return_code)
