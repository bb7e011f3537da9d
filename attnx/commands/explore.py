"""`attnx explore [TEXT]`: layers, heads and tokens under the arrow keys."""

from __future__ import annotations

import sys

import typer

from attnx.options import MODEL, DeviceOption, ModelOption, TextArgument, TokenizerOption

TEXT = "The animal didn't cross the street because it was too tired."
"""What is shown where no text is given."""


def explore(
    text: TextArgument = None,
    model: ModelOption = MODEL,
    tokenizer: TokenizerOption = None,
    device: DeviceOption = "auto",
) -> None:
    """Explore the attention of a text in the terminal.

    A grid of layers and heads, the chosen head's matrix or lines, and where the chosen token looks. ? lists the keys.
    """
    from attnx import pipeline
    from attnx.errors import UsageError

    try:
        from attnx.explore.app import Explorer
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("textual"):
            raise
        raise UsageError(
            "attnx explore needs textual, which is not installed.", "pip install 'attnx[explore]'"
        ) from None
    from attnx.explore.desk import Desk

    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("attnx explore needs a terminal.", "`attnx inspect` prints to a pipe or a file.")
    app = Explorer(Desk(pipeline.open(model, device=device, tokenizer=tokenizer), text or TEXT))
    app.run()
    if app.return_code:
        raise typer.Exit(app.return_code)
