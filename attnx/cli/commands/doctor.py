"""`attnx doctor`: what works here, and how to mend what does not."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Annotated

import typer

from attnx.cli.options import JsonOption
from attnx.numerals import counted


def doctor(
    clear_cache: Annotated[bool, typer.Option("--clear-cache", help="Empty the cache first.")] = False,
    every: Annotated[bool, typer.Option("--all", help="A line for every finding.")] = False,
    json: JsonOption = False,
) -> None:
    """Try what attnx needs: versions, devices, CUDA libraries, the cache, the bundled models, a self-test.

    Exits with 5 where something is bad.

    Examples:
        attnx doctor
        attnx doctor --json
        attnx doctor --clear-cache
    """
    from attnx import model
    from attnx.cli import output
    from attnx.cli.wording import worded
    from attnx.errors import RUN
    from attnx.study.health import examine

    if clear_cache:
        from attnx.session import cache

        count, size = cache.clear()
        output.note(f"cleared the cache: {counted(count, 'entry', 'entries')}, {size / 1e6:.1f} MB")
    found = [replace(f, said=worded(f.said), remedy=worded(f.remedy)) for f in examine(model.open)]
    if json:
        from attnx.view.json import document

        output.emit_json(document("attnx/doctor", {"findings": [asdict(f) for f in found]}))
    else:
        from attnx.view.health import health

        output.show(health([(f.part, f.name, f.state, f.said, f.remedy) for f in found], every=every))
        if not every:
            from attnx.view.page import line

            output.show(line("--all: a line for every finding", "dim"))
    if any(f.state == "bad" for f in found):
        raise typer.Exit(RUN)
