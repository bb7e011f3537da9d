"""A page in one file: template, style, program and data put together, and a policy that lets nothing else in."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from importlib.resources import files
from typing import Any

SCRIPTS = (
    "inflate.js", "store.js", "colour.js", "draw.js", "grid.js", "lines.js", "matrix.js", "rows.js", "stages.js",
    "coreference.js", "kinds.js", "main.js",
)  # fmt: skip
"""The page's program, in the order in which its parts need each other."""
TITLE = 60


def webpage(text: str, data: dict[str, Any]) -> bytes:
    """Fill in the template. The policy in its head lets no script run but its own, and nothing be fetched.

    Args:
        text: What the title is made of.
        data: What the program shows; numbers, texts, lists, and dictionaries of them.

    Returns:
        HTML, UTF-8.
    """
    folder = files("attnx.view").joinpath("report_html")
    style = folder.joinpath("page.css").read_text(encoding="utf-8")
    program = "".join(folder.joinpath(name).read_text(encoding="utf-8") for name in SCRIPTS)
    program = f'"use strict";\n(() => {{\n{program}}})();\n'
    title = text if len(text) <= TITLE else text[: TITLE - 1] + "…"
    parts = {
        "title": html.escape(title),
        "policy": f"default-src 'none'; script-src 'sha256-{_sha(program)}'; style-src 'sha256-{_sha(style)}'",
        "style": style,
        "program": program,
        "data": _script(data),
    }
    pieces = folder.joinpath("page.html").read_text(encoding="utf-8").split("@@")
    return "".join(parts[piece] if at % 2 else piece for at, piece in enumerate(pieces)).encode("utf-8")


def _script(data: Any) -> str:
    """JSON that cannot end the element it stands in."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c").replace(">", "\\u003e")


def _sha(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
