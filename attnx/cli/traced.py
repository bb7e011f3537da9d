"""`attnx align` for answers: what is run, and how an answer traced to its prompt is shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnx.cli import extra_inputs, output
from attnx.formula import average
from attnx.numerals import counted
from attnx.records import Array
from attnx.study.answer import UNITS, Answer, Unit, answer
from attnx.study.request import Head

if TYPE_CHECKING:
    from attnx.cli.start import Start
    from attnx.model import Model

VIEWS = ("table", "strip")
WRITES = 32
"""The most tokens to write without --generate."""
BEST = 8
"""How many heads are listed without --top."""
ASIDE = ("rest of the prompt", "sinks", "own words")


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of tracing an answer."""

    heads: tuple[Head, ...] = ()
    layers: tuple[int, ...] | None = None
    by: str = "sentence"
    spans: str = "sentence"
    view: str = "table"
    top: int | None = None
    explain: bool = False


def trace_back(run: Start, model: Model, asked: Asked) -> None:
    """Let the model answer, and show which parts of the prompt it read."""
    from attnx.run.generate import plan

    prompt = run.prompt
    writing = extra_inputs.plan(model, run.writing)
    if writing is None and prompt.target is None:
        writing = plan(model, WRITES)
    found = answer(model, prompt, writing, asked.spans)
    output.notes(found.notes[:-1] if asked.view == "table" or run.output.json else found.notes)
    if run.output.json:
        output.emit_json(document(found, asked))
        return
    output.show(*rendered(found, asked))


def units(found: Answer, asked: Asked) -> list[tuple[Unit, Array, float]]:
    """Each part of the answer with the mean weight of its rows on each part of the prompt, and its lookback ratio."""
    weights = found.mean(found.weights, asked.heads, asked.layers)
    ratios = found.mean(found.lookback, asked.heads, asked.layers)
    out = []
    for unit in found.units(asked.by):
        steps = list(unit.steps)
        out.append((unit, weights[steps].mean(axis=0), float(average(ratios[steps], axis=0))))
    return out


def rendered(found: Answer, asked: Asked) -> list[Any]:
    """What is shown."""
    from attnx.cli import output
    from attnx.view import align_tables as tables
    from attnx.view.page import line
    from attnx.view.prompt_strip import Part, prompt_strip
    from attnx.view.screen import choice, screen

    where = named(found, asked)
    prompt = f"prompt of {counted(found.prompt, 'token')}"
    head = line(f"{found.model} · {prompt} · {found.written} written · {where} · {found.device}")
    every = [at for unit in found.units("whole") for at in unit.steps] or list(range(found.written))
    whole = found.mean(found.weights, asked.heads, asked.layers)[every].mean(axis=0)
    count = len(found.spans)
    shares = whole[:count] / whole[:count].sum() if whole[:count].sum() > 0 else whole[:count]
    said = [f"prompt {whole[: count + 1].sum():.2f} · sinks {whole[-2]:.2f} · own words {whole[-1]:.2f} of all weight"]
    if asked.view == "strip":
        blocks = found.mean(found.blocks, asked.heads, asked.layers)[every].mean(axis=0)
        parts = [Part(span.name, span.text, span.tokens[0] if span.tokens else found.prompt - 1, share)
                 for span, share in zip(found.spans, shares, strict=True)]  # fmt: skip
        wrote = " ".join(" ".join(unit.text for unit in found.units("whole")).split())
        title = f'what was read while writing "{wrote}"' if wrote else "what was read while writing"
        return [head, "", prompt_strip(blocks, found.prompt, parts, title, said)]
    sizes = [len(span.tokens) for span in found.spans]
    spans = tables.spans([(span.name, span.text) for span in found.spans], shares, sizes, said, explain=asked.explain)
    rows = [(unit.text, part, ratio) for unit, part, ratio in units(found, asked)]
    answered = tables.units(rows, [span.name for span in found.spans], asked.by, explain=asked.explain)
    ways = [
        ["", tables.lookback(found.lookback, count, [found.notes[-1]], _more, explain=asked.explain)]
        for count in ((asked.top,) if asked.top else (BEST, BEST // 2, 2, 1, 0))
    ]
    hints = [] if asked.explain else ["formulas, sources: --explain"]
    # Of many spans and parts all are shown: they are the answer, and by what it is cut up is chosen.
    return [
        screen(
            head,
            "",
            spans,
            "",
            answered,
            choice(*ways),
            said=output.lines_of(found.notes[:-1]),
            hints=hints,
        )
    ]


def _more(left: int) -> str:
    return f"{counted(left, 'more head')}: --top K" if left else ""


def named(found: Answer, asked: Asked) -> str:
    """The heads whose mean is shown."""
    if asked.heads:
        return " ".join(f"H{h.head}" if h.layer is None else f"L{h.layer} H{h.head}" for h in asked.heads)
    layers, heads = found.weights.values.shape[:2]
    kept = layers if asked.layers is None else len(asked.layers)
    return f"mean of {counted(heads, 'head')} of {counted(kept, 'layer')}"


def document(found: Answer, asked: Asked) -> dict[str, Any]:
    """What --json prints."""
    from attnx.view.json import document as as_document

    parts: Sequence[str] = found.weights.axes[-1].labels
    body: dict[str, Any] = {
        "kind": "answer",
        "model": found.model,
        "device": found.device,
        "tokens": found.tokens,
        "prompt": found.prompt,
        "where": named(found, asked),
        "by": asked.by,
        "spans": found.spans,
        "units": [
            {
                "text": unit.text,
                "tokens": [found.prompt + at for at in unit.steps],
                "spans": weights[: len(found.spans)],
                "rest": weights[-3],
                "sinks": weights[-2],
                "own": weights[-1],
                "lookback": ratio,
            }
            for unit, weights, ratio in units(found, asked)
        ],
        "parts": parts,
        "weights": found.mean(found.weights, asked.heads, asked.layers),
        "lookback": found.lookback,
        "notes": found.notes,
    }
    return as_document("attnx/align", body)


__all__ = ["UNITS", "VIEWS", "Asked", "trace_back"]
