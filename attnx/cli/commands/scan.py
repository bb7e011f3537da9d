"""`attnx scan CORPUS -o OUT.parquet`: what every head does, text by text, over a corpus."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnx.cli.option_groups import MODEL
from attnx.cli.options import DeviceOption, ForceOption, JsonOption, ModelOption, TokenizerOption
from attnx.numerals import counted

if TYPE_CHECKING:
    from attnx.records import Measurement
    from attnx.scan.scanning import Scanned
    from attnx.view.columns import Columns

TOP = 3
"""How many heads the summary names for each measure."""


def scan(
    corpus: Annotated[
        list[str], typer.Argument(metavar="CORPUS", help="Files, patterns or folders: .txt, .jsonl, .csv, .parquet.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="OUT", help="The Parquet file to write.")],
    model: ModelOption = MODEL,
    measure: Annotated[
        str,
        typer.Option(
            "--measure",
            metavar="NAMES",
            help="What is measured, with commas between: heads, coref, distance, entropy, place, repeats, sharpness, "
            "sinks, tokens; or single measures, by their names in attnx heads. coref needs the fields pronoun and "
            "candidates, and takes answer.",
        ),
    ] = "heads",
    field: Annotated[
        str, typer.Option("--field", metavar="NAME", help="The field or column that holds the text.")
    ] = "text",
    batch: Annotated[int, typer.Option("--batch", metavar="N", help="Texts a batch.", min=1, max=1 << 20)] = 32,
    part: Annotated[
        int,
        typer.Option(
            "--part",
            metavar="N",
            help="Texts per part: the most that is lost when a scan is killed.",
            min=1,
            max=1 << 20,
        ),
    ] = 512,
    engine: Annotated[str, typer.Option("--engine", metavar="ENGINE", help="local, or ray (Ray Data).")] = "local",
    address: Annotated[
        str | None, typer.Option("--address", metavar="A", help="With --engine ray: the cluster; else one is started.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", metavar="N", help="With --engine ray: the number of workers.", min=1)
    ] = None,
    tokenizer: TokenizerOption = None,
    device: DeviceOption = "auto",
    json: JsonOption = False,
    force: ForceOption = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show progress even where stderr is not a terminal.")
    ] = False,
) -> None:
    """Measure every head on every text of a corpus, and write each value to Parquet.

    A scan that is broken off goes on where it was when it is started again; nothing is lost or counted twice.

    The file has a row for each value, with the columns text (its number), source, line, tokens, measure, item
    (coreference: pronoun → candidate), layer, head, value.

    Examples:
        attnx scan corpus.txt -o heads.parquet
        attnx scan "texts/*.jsonl" -o heads.parquet --field body --measure entropy
        attnx scan corpus.txt -o heads.parquet --engine ray --address auto
    """
    from attnx import model as pipeline
    from attnx.cli import output
    from attnx.errors import AttnxError, InputError, UnsupportedError, UsageError
    from attnx.feed.inputs import takes_target
    from attnx.scan.corpus import find
    from attnx.scan.progress import shown
    from attnx.scan.scanning import local
    from attnx.scan.scanning import scan as run

    if engine not in ("local", "ray"):
        raise UsageError(f"there is no engine {engine!r}", "Choose local or ray.")
    if engine == "local" and (address is not None or workers is not None):
        raise UsageError("--address and --workers are for --engine ray", "Add --engine ray, or leave them out.")
    files = find(corpus)
    measures = [name.strip() for name in measure.split(",") if name.strip()]
    make: Any = local
    if engine == "ray":
        from attnx.scan.distributed import engine as made

        make = made(address, workers)
    opened = pipeline.open(model, device=device, tokenizer=tokenizer)
    if opened.encoder is not None or takes_target(opened.slots()):
        raise UnsupportedError(
            f"{opened.name} is an encoder-decoder, and a corpus has no texts for the second side",
            "Scan the file of its encoder, or a model of one side.",
        )
    try:
        with shown(verbose) as tell:
            scanned = run(
                opened, files, out, field=field, measures=measures, size=batch, part=part, force=force, engine=make,
                tell=tell,
            )  # fmt: skip
    except (AttnxError, KeyboardInterrupt) as error:
        if not isinstance(error, UsageError):  # the same command would be refused again
            _kept(out, isinstance(error, InputError))
        raise
    output.notes(_notes(scanned, out))
    if json:
        from attnx.view.json import document

        body = {
            "model": opened.name,
            "device": scanned.device,
            "out": str(out),
            "texts": scanned.texts,
            "tokens": scanned.tokens,
            "kept": scanned.kept,
            "seconds": scanned.seconds,
            "rate": scanned.rate,
            "hours_per_million": None if scanned.rate is None else 1e6 / scanned.rate / 3600,
            "left_out": {name: {"texts": count, "first": first} for name, (count, first) in scanned.left.items()},
            "summary": scanned.summary,
            "notes": scanned.notes,
        }
        output.emit_json(document("attnx/scan", body))
    else:
        from attnx.view.page import line

        texts = f"{counted(scanned.texts, 'text')}, {counted(scanned.tokens, 'token')}"
        heading = f"{opened.name} · {texts} · {scanned.device}"
        output.show(line(heading), *(_summary(scanned.summary) if scanned.summary else ()))


def _kept(out: Path, mended: bool) -> None:
    """Say how to continue, if there is anything to continue from.

    Args:
        out: The file that was to be written.
        mended: Whether the corpus has to be fixed first.
    """
    from attnx.cli import output
    from attnx.scan.resume import folder_of, has_parts

    folder = folder_of(out)
    if has_parts(folder):
        how = "with --force the same command goes on from there, once the corpus is mended: parts before it are kept"
        output.note(f"what is done is kept in {folder}; {how if mended else 'the same command goes on from there'}")


def _notes(scanned: Scanned, out: Path) -> list[str]:
    """The notes written to stderr at the end."""
    from attnx.cli import output

    notes = list(scanned.notes)
    for name, (count, first) in scanned.left.items():
        texts = counted(count, "text")
        what = f"{texts} with a note" if name == "notes" else f"{name}: {texts} left out"
        notes.append(f"{what}, the first: {first}")
    said = f"{counted(scanned.texts, 'text')} in {scanned.seconds:.1f} s"
    if scanned.kept:
        said += f", {scanned.kept} of them kept from before"
    notes.append(said)
    if scanned.rate is not None:
        hours = 1e6 / scanned.rate / 3600
        notes.append(
            f"measured: {scanned.rate:.1f} texts a second with these settings on this machine; at this rate a million "
            f"texts take {hours:.2f} hours"
        )
    return [*notes, output.wrote(out)]


def _summary(measures: tuple[Measurement, ...]) -> list[Columns]:
    """For each measure the mean over heads, and the heads with the highest and lowest values."""
    import numpy as np

    from attnx.formula import average
    from attnx.view.cells import number
    from attnx.view.columns import column, columns

    def named(one: Measurement, order: Any) -> str:
        layers, heads = (axis.labels for axis in one.axes)
        places = [divmod(int(at), one.values.shape[1]) for at in order]
        return ", ".join(f"{layers[s]} {heads[h]} {number(float(one.values[s, h]))}" for s, h in places)

    most, least, means = [], [], []
    for one in measures:
        flat = one.values.ravel()
        there = np.flatnonzero(~np.isnan(flat))
        order = there[np.argsort(-flat[there], kind="stable")]
        most.append(named(one, order[:TOP]))
        least.append(named(one, order[::-1][:1]))
        means.append(float(average(flat)))
    parts = [
        column("measure", [one.name for one in measures], whole=True),
        column("mean", means, decimals=3),
        column("largest heads", most, whole=True),
        column("smallest", least, whole=True, spare=True),
    ]
    notes = dict.fromkeys(note for one in measures for note in one.notes)
    said = [*notes, "means over texts; --json has every head, the Parquet file every text"]
    return [columns("", parts, notes=said, gap=2)]
