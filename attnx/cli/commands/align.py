"""`attnx align TEXT`: words to their translations, to sound, to sources."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnx.cli.options import (
    WRITING,
    ExplainOption,
    ForceOption,
    HeadOption,
    JsonlOption,
    LayerOption,
    SaveOption,
    TopOption,
    starts,
)
from attnx.cli.start import Start

if TYPE_CHECKING:
    from attnx.model import Model

_SHARED = frozenset({"--head", "--view", "--target", "--generate"})
_TAKES = {
    "a translator": _SHARED
    | {"--layer", "--all", "--when", "--targets", "--back", "--symmetrise", "--gold", "--gold-from", "--top",
       "--explain", "--jsonl", "--file", "--pair", "--ids", "--inputs", "--set", "--dim", "--temperature", "--top-k",
       "--seed", "--chat"},
    "sound": _SHARED | {"--prompt", "--by", "--explain", "--save", "--force"},
    "an answer": _SHARED
    | {"--layer", "--by", "--spans", "--top", "--explain", "--ids", "--inputs", "--set", "--dim", "--temperature",
       "--top-k", "--seed", "--chat"},
}  # fmt: skip
"""What is aligned -> the options that have an effect on it."""


@starts("file", *WRITING, "audio", "json")
def align(
    run: Start,
    head: HeadOption = None,
    layer: LayerOption = None,
    every: Annotated[bool, typer.Option("--all", help="Translation: average all heads of all layers.")] = False,
    view: Annotated[
        str | None,
        typer.Option(
            "--view",
            "-v",
            metavar="VIEW",
            help="table; translation: lines, heatmap, pharaoh; sound: srt, vtt; answer: strip.",
        ),
    ] = None,
    when: Annotated[
        str | None,
        typer.Option(
            "--when",
            metavar="WHEN",
            help="Translation: use the row that reads a target word (read) or predicts it (written).",
        ),
    ] = None,
    targets: Annotated[
        Path | None,
        typer.Option("--targets", metavar="FILE", help="Translations of the texts in --file, one per line."),
    ] = None,
    back: Annotated[
        str | None, typer.Option("--back", metavar="OTHER", help="A second translator, for the opposite direction.")
    ] = None,
    symmetrise: Annotated[
        str | None,
        typer.Option(
            "--symmetrise", metavar="HOW", help="With --back: intersection, union or grow-diag (the default)."
        ),
    ] = None,
    gold: Annotated[
        Path | None,
        typer.Option(
            "--gold", metavar="FILE", help="Gold links (0-0 1-2 2p3), one line a sentence: precision, recall, AER."
        ),
    ] = None,
    gold_from: Annotated[
        int | None,
        typer.Option("--gold-from", metavar="N", help="The number of the first word in --gold (default 0).", min=0),
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option("--prompt", metavar="TEXT", help="Sound: the text that came before it, to guide the model."),
    ] = None,
    spans: Annotated[
        str | None,
        typer.Option(
            "--spans", metavar="SPANS", help="Answer: split the prompt by sentence, paragraph, or as a file says."
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option("--by", metavar="BY", help="Answer: sentence, word or whole. Subtitles: line or word."),
    ] = None,
    top: TopOption = None,
    explain: ExplainOption = False,
    jsonl: JsonlOption = False,
    save: SaveOption = None,
    force: ForceOption = False,
) -> None:
    """Trace each word of the output: to source words, to seconds of sound, or to parts of the prompt.

    With a translator, cross-attention links target words to source words. The model translates the text itself, or
    takes your translation with --target. --gold measures the links against gold ones: precision, recall, AER.

    With a speech model and --audio, each word gets its start and end: as a table, or as subtitles (--save FILE.srt).

    With a decoder, its own attention shows which parts of the prompt an answer leaned on.

    Examples:
        attnx align "The animal slept." -m opus-mt-en-de/ --view pharaoh
        attnx align -m whisper-tiny/ --audio talk.wav --save talk.srt
        attnx align "The cat sat. It was tired." -m tiny-gpt --generate 6
    """
    from attnx.cli.unused_options import refuse
    from attnx.errors import UsageError
    from attnx.study.crossing import is_two_sided
    from attnx.study.request import agree, parse_head, parse_layers

    model, source, writing = run.opened, run.source, run.writing
    given = {
        "--head": head, "--layer": layer, "--all": every, "--view": view, "--when": when, "--targets": targets,
        "--back": back, "--symmetrise": symmetrise, "--gold": gold, "--gold-from": gold_from, "--prompt": prompt,
        "--spans": spans, "--by": by, "--top": top, "--explain": explain, "--jsonl": jsonl, "--save": save,
        "--force": force, "--file": source.file, "--ids": source.ids, "--inputs": source.inputs,
        "--set": source.values or None, "--dim": source.dims or None, "--pair": source.pair,
        "--temperature": writing.temperature or None, "--top-k": writing.top_k, "--seed": writing.seed,
        "--chat": writing.chat,
    }  # fmt: skip
    heads = tuple(parse_head(text) for text in head or ())
    layers = None if layer is None else parse_layers(layer)
    agree(heads, layers)
    if source.target is not None and not source.target.strip():
        raise UsageError("the target is empty", "Give at least one word, in quotes.")
    if source.audio is not None:
        _idle("sound", given)
        if source.text is not None:
            raise UsageError("a text and a sound were given", "Give the transcript of the sound with --target TEXT.")
        from attnx.cli.timed import UNITS, VIEWS, hear
        from attnx.study.speech import Request

        _either(run)
        if force and save is None:
            refuse("without --save", {"--force": force})
        asked = Request(heads, prompt, source.target, writing.generate)
        shown, unit = _one_of("--view", view, VIEWS), _one_of("--by", by, UNITS)
        if shown != "table":
            refuse(f"with --view {shown}", {"--explain": explain})
        hear(run, model, asked, view=shown, by=unit, explain=explain, save=save, force=force)
        return
    if is_two_sided(model):
        _idle("a translator", given)
        _translation(run, model, heads, layers, given)
        return
    from attnx.cli import traced

    _idle("an answer", given)
    _either(run)
    if view == "strip":
        refuse("with --view strip", {"--by": by, "--top": top, "--explain": explain})
    traced.trace_back(
        run, model,
        traced.Asked(
            heads, layers, _one_of("--by", by, traced.UNITS), "sentence" if spans is None else spans,
            _one_of("--view", view, traced.VIEWS), top, explain,
        ),
    )  # fmt: skip


def _translation(run: Start, model: Model, heads: Any, layers: Any, given: Mapping[str, Any]) -> None:
    from attnx.cli.aligned import VIEWS, Asked, against_gold, translate
    from attnx.cli.inputs import only
    from attnx.cli.unused_options import refuse
    from attnx.measure.links import HOWS
    from attnx.study.crossing import cross_sites
    from attnx.study.translation import WHENS

    view, back, targets = given["--view"], given["--back"], given["--targets"]
    asked = Asked(
        heads=heads,
        layers=layers,
        every=given["--all"],
        when=_one_of("--when", given["--when"], WHENS),
        back=back,
        how=_one_of("--symmetrise", given["--symmetrise"], HOWS, "grow-diag"),
        view=_one_of("--view", view, VIEWS),
        between_spaces=view == "pharaoh",
        top=given["--top"],
        explain=given["--explain"],
    )
    if asked.every:
        refuse("with --all", {name: given[name] for name in ("--head", "--layer")})
    if back is None:
        refuse("without --back", {"--symmetrise": given["--symmetrise"]})
    if targets is not None:
        refuse("with --targets", {"--target": run.source.target, "--generate": run.writing.generate})
    if asked.view != "table":
        refuse(f"with --view {asked.view}", {"--explain": given["--explain"]})
    cross_sites(model)
    if given["--gold"] is not None:
        refuse("with --gold", {name: given[name] for name in ("--head", "--layer", "--all", "--view", "--back")})
        against_gold(run, model, targets, given["--gold"], given["--gold-from"] or 0, asked)
        return
    refuse("without --gold", {name: given[name] for name in ("--gold-from", "--top")})
    if run.output.json:
        only(run.items, "--json", "use --jsonl")
    translate(run, model, targets, asked, jsonl=given["--jsonl"])


def _either(run: Start) -> None:
    """Refuse to write where the text is given."""
    from attnx.cli.unused_options import refuse

    if run.source.target is not None:
        refuse("with --target", {"--generate": run.writing.generate})


def _idle(what: str, given: Mapping[str, Any]) -> None:
    """Refuse the options that have no effect on what is aligned."""
    from attnx.cli.unused_options import refuse

    refuse(f"with {what}", {name: value for name, value in given.items() if name not in _TAKES[what]})


def _one_of(option: str, given: str | None, choices: Any, otherwise: str | None = None) -> Any:
    """The value of an option that takes one of a few words; the first of them where it was not given.

    Raises:
        UsageError: Any other value.
    """
    from attnx.errors import UsageError

    if given is not None and given not in choices:
        raise UsageError(f"{option} {given!r} is none of {', '.join(choices)}", f"Choose one: {option} {choices[0]}.")
    return (otherwise or choices[0]) if given is None else given
