"""How records show themselves in a notebook: the same views as in a terminal, as HTML that carries its own colours."""

from __future__ import annotations

import io
from typing import Any

from attnx.errors import AttnxError
from attnx.numerals import counted
from attnx.records import Measurement, Sites, Trace

WIDTH = 110
_HTML = (
    '<pre style="white-space:pre;overflow-x:auto;line-height:1.15;'
    "font-family:'Fira Code','DejaVu Sans Mono',Menlo,Consolas,monospace\"><code>{code}</code></pre>"
)


def bundle(record: Any) -> dict[str, str]:
    """A record as a notebook takes it.

    Args:
        record: A Trace, a Measurement or Sites.

    Returns:
        "text/plain" without colour, "text/html" with it; nothing in either is loaded from elsewhere, and what comes
        from users and models is escaped.
    """
    from rich.console import Console

    view = _view(record)
    settings: dict[str, Any] = {"width": WIDTH, "height": 1000, "legacy_windows": False, "_environ": {}}
    settings["force_jupyter"] = False  # otherwise rich would show it in the notebook again each time
    drawn = Console(file=io.StringIO(), record=True, force_terminal=True, color_system="truecolor", **settings)
    drawn.print(view)
    bare = Console(file=io.StringIO(), record=True, force_terminal=False, color_system=None, no_color=True, **settings)
    bare.print(view)
    lines = bare.export_text(styles=False).splitlines()
    return {
        "text/plain": "\n".join(line.rstrip() for line in lines),
        "text/html": drawn.export_html(inline_styles=True, code_format=_HTML),
    }


def _view(record: Any) -> Any:
    from rich.text import Text

    if isinstance(record, Sites):
        from attnx.view.sites import sites_table

        return sites_table(record)
    try:
        if isinstance(record, Trace):
            return _trace(record)
        if isinstance(record, Measurement):
            from attnx.view.table import table

            return table(record)
    except AttnxError as error:  # nothing to draw: its heading and the reason are shown instead
        return Text(f"{_heading(record)}\n{error.message}")
    raise TypeError(f"a {type(record).__name__} has no view")


def _trace(trace: Trace) -> Any:
    from rich.console import Group
    from rich.text import Text

    from attnx.view.grid import grid

    return Group(Text(_heading(trace)), Text(""), grid(trace, height=60))


def _heading(record: Any) -> str:
    from attnx.view.cells import safe
    from attnx.view.page import length

    if not isinstance(record, Trace):
        return safe(getattr(record, "name", type(record).__name__))
    text = " ".join(record.tokens.text.split())
    heading = f"{record.model} · {length(record)} · {counted(len(record.attentions), 'layer')} · {record.device}"
    return "\n".join(safe(line) for line in (heading, text[:300]) if line)


__all__ = ["bundle"]
