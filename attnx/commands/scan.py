"""`attnx scan CORPUS -o OUT.parquet`: what every head does, text by text, over any number of texts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from attnx.options import MODEL, DeviceOption, ForceOption, JsonOption, ModelOption, TokenizerOption


def scan(
    corpus: Annotated[
        list[str], typer.Argument(metavar="CORPUS", help="Files, patterns or folders: .txt, .jsonl, .csv, .parquet.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="OUT", help="The Parquet file to write.")],
    model: ModelOption = MODEL,
    measure: Annotated[str, typer.Option("--measure", metavar="NAMES", help="What is measured: heads.")] = "heads",
    field: Annotated[
        str, typer.Option("--field", metavar="NAME", help="The field or column that holds the text.")
    ] = "text",
    batch: Annotated[int, typer.Option("--batch", metavar="N", help="Texts a batch.", min=1)] = 32,
    tokenizer: TokenizerOption = None,
    device: DeviceOption = "auto",
    json: JsonOption = False,
    force: ForceOption = False,
) -> None:
    """Measure every head on every text of a corpus, and write a row for each to Parquet.

    A scan that is broken off goes on where it was when it is started again; nothing is lost or counted twice.
    """
    from attnx import output, pipeline
    from attnx.corpus import find
    from attnx.scanning import scan as run

    files = find(corpus)
    opened = pipeline.open(model, device=device, tokenizer=tokenizer)
    measures = [name.strip() for name in measure.split(",") if name.strip()]
    scanned = run(
        opened, files, out, field=field, measures=measures, size=batch, force=force,
        tell=_tell if sys.stderr.isatty() else lambda texts, kept, seconds: None,
    )  # fmt: skip
    fresh = scanned.texts - scanned.kept
    said = f"{scanned.texts} texts in {scanned.seconds:.1f} s"
    if scanned.kept:
        said += f", {scanned.kept} of them kept from before"
    if fresh and scanned.seconds > 0:
        said += f", {fresh / scanned.seconds:.0f} texts a second"
    output.notes((*scanned.notes, said, f"wrote {out}"))
    if json:
        from attnx.view.json import document

        output.emit_json(
            document("attnx/scan", {"texts": scanned.texts, "kept": scanned.kept, "summary": scanned.summary})
        )
    else:
        from attnx.view.table import table

        for measurement in scanned.summary:
            output.show(table(measurement))


def _tell(texts: int, kept: int, seconds: float) -> None:
    rate = (texts - kept) / seconds if seconds else 0.0
    sys.stderr.write(f"\rattnx: {texts} texts, {rate:.0f} a second ")
    sys.stderr.flush()
