"""Words with their times as subtitles: SubRip (.srt) and WebVTT (.vtt)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from attnx.tokens.pieces import visible

LINE, PAUSE = 42, 1.0
"""Characters of a line, and seconds of silence that end one."""
LEAST = 0.02
"""Seconds that a word is shown at least: a frame of the sound."""
_END = re.compile(r"[.?!。！？…][\"'”’)\]]*$")


@dataclass(frozen=True, slots=True)
class Cue:
    """What is shown at one time."""

    start: float
    """Seconds."""
    end: float
    text: str


def cues(words: Sequence[tuple[str, float, float]], *, by_word: bool = False) -> tuple[Cue, ...]:
    """Lines of words, each ended by the end of a sentence, a pause, or its length; or a cue for each word.

    No cue starts before the one in front of it, as WebVTT has it: where windows of a sound overlap, times may go back.

    Args:
        words: What each says, the space before it included, and its start and end in seconds.
        by_word: A cue for each word.
    """
    out: list[Cue] = []
    for text, start, end in words:
        last = out[-1] if out else None
        joined = "" if last is None else last.text + text
        if last is None or by_word or len(joined) > LINE or _END.search(last.text) or start - last.end >= PAUSE:
            start = start if last is None else max(start, last.start)
            out.append(Cue(start, max(end, start + LEAST), text.strip()))
        else:
            out[-1] = Cue(last.start, max(last.end, end), joined)
    return tuple(cue for cue in out if cue.text.strip())


def srt(shown: Sequence[Cue]) -> str:
    """Cues in SubRip's format: numbered, "00:00:01,500 --> 00:00:02,000"."""
    parts = [f"{n}\n{_clock(c.start, ',')} --> {_clock(c.end, ',')}\n{_line(c.text)}\n" for n, c in enumerate(shown, 1)]
    return "\n".join(parts)


def vtt(shown: Sequence[Cue]) -> str:
    """Cues in WebVTT: "00:00:01.500 --> 00:00:02.000", &, < and > written out."""
    escaped = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
    parts = [
        f"{_clock(cue.start, '.')} --> {_clock(cue.end, '.')}\n{_line(cue.text).translate(escaped)}\n" for cue in shown
    ]
    return "\n".join(["WEBVTT\n", *parts])


def _clock(seconds: float, mark: str) -> str:
    thousandths = round(max(0.0, seconds) * 1000)
    minutes, rest = divmod(thousandths, 60_000)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{rest // 1000:02d}{mark}{rest % 1000:03d}"


def _line(text: str) -> str:
    """On one line; an arrow would be taken for that between two times."""
    return visible(" ".join(text.split())).replace("-->", "→") or "…"


__all__ = ["Cue", "cues", "srt", "vtt"]
