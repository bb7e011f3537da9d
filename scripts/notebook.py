#!/usr/bin/env python3
"""The notebook of docs/: run its cells in order, without Jupyter, and put what they show under them.

    python scripts/notebook.py

tests/test_notebook.py holds the notebook to this.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

PATH = Path(__file__).parents[1] / "docs" / "notebook" / "attnx.ipynb"


def cells() -> list[dict[str, Any]]:
    """The cells that hold code."""
    found = json.loads(PATH.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in found if cell["cell_type"] == "code"]


def shown(cell: dict[str, Any]) -> str:
    """The text that the notebook has under a cell."""
    return "".join(
        "".join(output["text"] if output["output_type"] == "stream" else output["data"]["text/plain"])
        for output in cell["outputs"]
    )


def run(cell: dict[str, Any], names: dict[str, Any]) -> tuple[str, str]:
    """What a cell prints, and its last expression as text.

    Args:
        cell: A cell of code; what it raises is raised.
        names: The names that cells before it made, to which it adds its own.
    """
    tree = ast.parse("".join(cell["source"]))
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(tree, PATH.name, "exec"), names)
        value = None if last is None else eval(compile(ast.Expression(last.value), PATH.name, "eval"), names)
    bundle = getattr(value, "_repr_mimebundle_", None)
    return out.getvalue(), "" if value is None else bundle()["text/plain"] if bundle else repr(value)


def main() -> int:
    """Write the outputs."""
    book = json.loads(PATH.read_text(encoding="utf-8"))
    names: dict[str, Any] = {}
    for count, cell in enumerate((cell for cell in book["cells"] if cell["cell_type"] == "code"), 1):
        printed, value = run(cell, names)
        cell["execution_count"], cell["outputs"] = count, []
        if printed:
            text = printed.splitlines(keepends=True)
            cell["outputs"].append({"name": "stdout", "output_type": "stream", "text": text})
        if value:
            data = {"text/plain": value.splitlines(keepends=True)}
            result = {"data": data, "execution_count": count, "metadata": {}, "output_type": "execute_result"}
            cell["outputs"].append(result)
    PATH.write_text(json.dumps(book, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
