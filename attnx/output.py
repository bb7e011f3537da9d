"""stdout: a result, as JSON or through Rich, and nothing else."""

from __future__ import annotations

import sys
from typing import Any


def emit_json(document: Any, *, pretty: bool | None = None) -> None:
    """Write one JSON document to stdout; indented for a terminal, on one line for a pipe. NaN becomes null."""
    import orjson

    options = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
    if sys.stdout.isatty() if pretty is None else pretty:
        options |= orjson.OPT_INDENT_2
    sys.stdout.buffer.write(orjson.dumps(document, option=options) + b"\n")
    sys.stdout.buffer.flush()


def show(*renderables: Any) -> None:
    """Print Rich renderables to stdout: colour and width follow the terminal, NO_COLOR and COLUMNS."""
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    for renderable in renderables:
        console.print(renderable)
