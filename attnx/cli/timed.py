"""`attnx align` for speech: what is run, and how words and their times are shown and saved."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnx.cli import output
from attnx.errors import UsageError
from attnx.numerals import counted
from attnx.study.speech import Request, Speech, time_words

if TYPE_CHECKING:
    from attnx.cli.start import Start
    from attnx.model import Model

VIEWS = ("table", "srt", "vtt")
UNITS = ("line", "word")


def hear(
    run: Start, model: Model, asked: Request, *, view: str, by: str, explain: bool, save: Path | None, force: bool
) -> None:
    """Time the words of a sound, and show or save them."""
    if save is not None and save.suffix.lower() not in (".srt", ".vtt", ".json"):
        raise UsageError(
            f"words are saved as .srt, .vtt or .json, not {save.suffix or 'a name without an ending'}",
            "For example: --save words.srt.",
        )
    assert run.source.audio is not None
    path = Path(run.source.audio)
    with output.progress(None, "seconds") as tell:
        found = time_words(model, path, asked, lambda seconds: tell(int(seconds)))
    output.notes(found.notes)
    if save is not None:
        from attnx.view.json import dumps
        from attnx.view.save import write

        ending = save.suffix.lower()
        made = dumps(document(found), indent=True) if ending == ".json" else written(found, ending[1:], by).encode()
        write(save, made, force=force)
        output.note(output.wrote(save))
    if run.output.json:
        output.emit_json(document(found))
    elif save is None and view != "table":
        output.write(written(found, view, by).removesuffix("\n"))
    elif save is None:
        output.show(*rendered(found, explain=explain))


def written(found: Speech, form: str, by: str) -> str:
    """The words as subtitles."""
    from attnx.view.subtitles import cues, srt, vtt

    shown = cues([(word.text, word.start, word.end) for word in found.words], by_word=by == "word")
    return srt(shown) if form == "srt" else vtt(shown)


def rendered(found: Speech, *, explain: bool) -> list[Any]:
    """The words as a table."""
    from attnx.view.align_tables import timed
    from attnx.view.page import line

    said = f"{found.model} · {found.seconds:.2f} s of sound · {counted(len(found.words), 'word')} · {found.device}"
    hint = [] if explain else [line("seconds · how they are found: --explain", "dim")]
    heads = " ".join(f"L{layer} H{head}" for layer, head in found.heads)
    return [
        line(said),
        "",
        timed([(word.text, word.start, word.end) for word in found.words], heads, explain=explain),
        *hint,
    ]


def document(found: Speech) -> dict[str, Any]:
    """What --json prints."""
    from attnx.view.json import document as as_document

    body: dict[str, Any] = {
        "kind": "speech",
        "model": found.model,
        "device": found.device,
        "tokens": found.tokens,
        "ends": found.ends,
        "words": found.words,
        "heads": found.heads,
        "seconds": found.seconds,
        "windows": found.windows,
        "language": found.language,
        "notes": found.notes,
    }
    return as_document("attnx/align", body)


__all__ = ["UNITS", "VIEWS", "hear"]
