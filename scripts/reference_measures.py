"""docs/explanation/measures.md: what every measure computes and where it is from, as the documents of attnx say it."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from reference_markdown import MADE, escaped, table

from attnx.cli import app as cli

HEAD = """# What each measure computes

`a` is a weight, from query `i` to key `j`; a mean over queries leaves padding and rows without a visible key out. Every
number that attnx shows carries its formula and its source with it: `--json` has both under each measurement, and the
table below is read off those. "attnx" as a source means that the measure, or the threshold, is our own choice and that
no paper stands behind it. Tokens in brackets, as in p(river), are those of the text that was measured for this page.
"""
SENTENCE = "The animal didn't cross the street because it was too tired."
SHORT = "The cat slept because it was tired."
COPIES = "king lamp river king lamp"
GPT = ("-m", "tiny-gpt")
RUNS: dict[str, tuple[tuple[str, ...], ...]] = {
    "heads": (("heads", SENTENCE, "--causal", "--layer", "0"), ("heads", SENTENCE, "--similar", "5.11")),
    "scale": (("scale", SENTENCE, "--query", "it", "--head", "5.11"),),
    "qkv": (("qkv", SENTENCE, "--query", "it", "--key", "animal", "--head", "5.11"),),
    "mask": (("mask", SENTENCE),),
    "coref": (("coref", SENTENCE, "--to", "animal,street"), ("coref", SHORT, *GPT, "--to", "cat", "--causal")),
    "flow": (("flow", SENTENCE, "--query", "it"),),
    "diff": (("diff", "minilm", "minilm", SENTENCE),),
    "word": (("word", "the bank of the river", "money in the bank", "--word", "bank"),),
    "inspect": (("inspect", SENTENCE),),
    "cost": (("cost", "minilm", "--no-measure"),),
    "ablate": (("ablate", SHORT, "--layer", "5"), ("ablate", COPIES, *GPT)),
    "patch": (("patch", COPIES, "king lamp water king lamp", *GPT, "--layer", "1"),),
    "lens": (("lens", COPIES, *GPT),),
    "attribute": (("attribute", COPIES, *GPT),),
    "contacts": (("contacts", "MKLAGVSERTIDPKQNFYMHW", "-m", "protein"),),
}
"""Command -> command lines whose documents have its measures."""


def page() -> str:
    """The page."""
    out = [MADE, HEAD]
    for command, lines in RUNS.items():
        rows: dict[tuple[str, str, str], tuple[str, str, str, str]] = {}
        thresholds: list[str] = []
        for line in lines:
            document = _document(line)
            thresholds = document.get("thresholds", thresholds)
            whole = {"name": document.get("measure", ""), "unit": "", "formula": document.get("formula", "")}
            for one in (whole, *_measurements(document)):
                formula, source = one.get("formula", ""), one.get("source", "")
                if formula:
                    cells = (f"**{escaped(one['name'])}**", escaped(one["unit"]), escaped(formula), escaped(source))
                    rows.setdefault((one["name"], formula, source), cells)
        if rows:
            out.append(f"## {cli.summary(command).rstrip('.')}\n")
            out.append(f"[`attnx {command}`](../reference/commands.md#attnx-{command})\n")
            out.append(table(("measure", "unit", "formula", "source"), rows.values()))
            if thresholds:
                out.append("What names a head; the first that is passed does:\n")
                out.append("".join(f"- {escaped(one)}\n" for one in thresholds))
    return "\n".join(out)


def _document(line: tuple[str, ...]) -> Any:
    """What a command line prints as JSON, run in this process.

    Raises:
        RuntimeError: It failed.
    """
    out, err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True), io.StringIO()
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        if "protein" in line:
            examples = Path(stack.enter_context(TemporaryDirectory()))
            subprocess.run(
                [sys.executable, Path(__file__).with_name("make_examples.py"), examples],
                check=True,
                stdout=subprocess.DEVNULL,
            )
            line = tuple(str(examples / one) if one == "protein" else one for one in line)
        code = cli.run([*line, "--json", "--device", "cpu"] if line[0] != "cost" else [*line, "--json"])
    if code:
        raise RuntimeError(f"attnx {' '.join(line)}: {err.getvalue()}")
    return json.loads(out.buffer.getvalue())  # type: ignore[attr-defined]


def _measurements(found: Any) -> Iterator[dict[str, Any]]:
    """Every measurement in a document, in order; those of the rest of a head's weight say so in their names."""
    if isinstance(found, dict) and {"name", "unit", "axes", "values"} <= set(found):
        yield found
    elif isinstance(found, dict):
        for key, one in found.items():
            of = "rest: " if key == "rest" else ""
            yield from ({**measured, "name": f"{of}{measured['name']}"} for measured in _measurements(one))
    elif isinstance(found, list):
        for one in found:
            if not isinstance(one, int | float | str):
                yield from _measurements(one)
