"""When each token and word of a recording is spoken, by a speech model's cross-attention, in windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from attnx.errors import InputError, UsageError
from attnx.feed.audio import listen
from attnx.feed.generation_config import pairs, settings
from attnx.records import Array, Tokens
from attnx.session.protocol import OpenModel
from attnx.study.crossing import cross_sites
from attnx.study.hearing import Ear, Part
from attnx.study.request import Head
from attnx.tokens import from_ids
from attnx.tokens.spoken import SPACELESS, spoken
from attnx.wording import Wording


@dataclass(frozen=True, slots=True)
class Timed:
    """A word with its time."""

    text: str
    start: float
    """Seconds."""
    end: float
    tokens: tuple[int, ...]
    """Which of the written tokens make it up."""


@dataclass(frozen=True, slots=True, eq=False)
class Speech:
    """What is said in a sound, and when."""

    model: str
    device: str
    tokens: Tokens
    """The written tokens of all windows, including timestamps and end tokens."""
    ends: Array
    """float64 [T]: where each token ends, in seconds from the beginning of the sound."""
    words: tuple[Timed, ...]
    heads: tuple[tuple[int, int], ...]
    """Layer and head whose weights are read."""
    seconds: float
    """Length of the sound."""
    windows: tuple[float, ...]
    """The start of each window."""
    language: str | None
    """The language code, if the model gives one."""
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Request:
    """What to do with a sound."""

    heads: tuple[Head, ...] = ()
    """By default, those of the configuration, or else of the decoder's upper half."""
    prompt: str | None = None
    """The text that came before the sound."""
    target: str | None = None
    """The transcript, if it is known."""
    count: int | None = None
    """The most tokens to write per window; None for as many as the model takes."""


def alignment_heads(model: OpenModel, asked: Sequence[Head] = ()) -> tuple[tuple[tuple[int, int], ...], str | None]:
    """The heads whose weights determine times.

    Args:
        model: A speech model.
        asked: The named heads.

    Returns:
        Layer and head of each; and a note if the configuration names none.

    Raises:
        UsageError: A head that does not exist.
        ModelError: The configuration names heads that the model does not have.
    """
    sites = {site.layer: site for site in cross_sites(model) if site.layer is not None}
    config, note = settings(model), None
    if asked:
        wanted = [(layer, head.head) for head in asked for layer in ([head.layer] if head.layer is not None else sites)]
    elif told := pairs(config, "alignment_heads", "a list of [layer, head]"):
        if any(layer not in sites or head >= (sites[layer].heads or head + 1) for layer, head in told):
            raise config.wrong("alignment_heads", "a list of heads of the model's cross-attention")
        wanted = told
    else:
        upper = sorted(sites)[len(sites) // 2 :]
        wanted = [(layer, head) for layer in upper for head in range(sites[layer].heads or 1)]
        note = (
            f"no alignment_heads in generation_config.json: all {len(wanted)} heads of the upper half of the decoder's "
            "layers are read, as in openai-whisper"
        )
    for layer, head in wanted:
        if layer not in sites:
            raise UsageError(
                f"there is no layer {layer}", f"The cross-attention has layers {min(sites)} to {max(sites)}."
            )
        count = sites[layer].heads
        if count is not None and head >= count:
            raise UsageError(f"there is no head {head}", f"{sites[layer].label} has heads 0 to {count - 1}.")
    return tuple(wanted), note


def time_words(model: OpenModel, path: Path, asked: Request, tell: Callable[[float], None] = lambda _: None) -> Speech:
    """Transcribe a sound, or take its transcript, and find when each word is spoken.

    Args:
        model: An encoder-decoder that takes sound.
        path: A WAV file.
        asked: See `Request`.
        tell: Called with the seconds finished after each window.

    Raises:
        InputError: The file cannot be read, or nothing was said.
        UsageError: The model takes no sound, or has no such heads.
    """
    sound = listen(model, path, {})
    heads, note = alignment_heads(model, asked.heads)
    ear = Ear(model, sound, heads, prompt=asked.prompt, target=asked.target, count=asked.count)
    parts = []
    for part in ear.windows():
        parts.append(part)
        tell(min(part.start + sound.span, ear.seconds))
    ids = [number for part in parts for number in part.ids]
    if not ids:
        raise InputError(f"{model.name} wrote nothing about {path}", Wording("Give its transcript: <target=>."))
    tokens = from_ids(ids, model.tokenizer)
    ends = np.concatenate([part.ends + part.start for part in parts])
    words: list[Timed] = []
    at = 0
    for part in parts:
        words += _words(ear, part, at)
        at += len(part.ids)
    notes = [*sound.notes, *ear.notes, *([note] if note else [])]
    return Speech(
        model.name, ear.device, tokens, ends, tuple(words), heads, ear.seconds, tuple(p.start for p in parts),
        ear.language, tuple(dict.fromkeys(notes)),
    )  # fmt: skip


def _words(ear: Ear, part: Part, shift: int) -> list[Timed]:
    """The words of a window: each from where the token before it ends to where its last one does."""
    tokenizer = ear.model.tokenizer
    kept = [
        at
        for at, number in enumerate(part.ids)
        if not tokenizer.is_special(number) and (ear.begin is None or number < ear.begin)
    ]
    out = []
    ids = [part.ids[at] for at in kept]
    for text, places in spoken(ids, tokenizer.decode, spaces=ear.language not in SPACELESS):
        at, to = kept[places[0]], kept[places[-1]]
        start = float(part.ends[at - 1]) if at else 0.0
        named = tuple(shift + kept[place] for place in places)
        out.append(Timed(text, round(part.start + start, 2), round(part.start + float(part.ends[to]), 2), named))
    return out


__all__ = ["Request", "Speech", "Timed", "alignment_heads", "time_words"]
