"""Subtitles: lines of words, exact text, and what parsers that are not ours read out of it."""

import html
import io

import pytest

from attnx.view.subtitles import LEAST, cues, srt, vtt

WORDS = [
    (" The", 0.0, 0.3), (" cat", 0.3, 0.62), (" sat", 0.62, 0.9), (" down.", 0.9, 1.4), (" It", 1.42, 1.5),
    (" was", 1.5, 1.5), (" tired", 3.2, 3.8), (" &", 3.8, 3.9), (" <b>", 3.9, 4.0), (" -->", 4.0, 4.1),
    (" 猫\n", 3725.5, 3726.125),
]  # fmt: skip
ODD = [
    "a\n\nb", " 1", "", " ", " 00:00:01.000 --> 00:00:02.000", " WEBVTT", " NOTE", " STYLE", " --", ">", " <i>",
    " </b>", " &amp;", "\u2028x", "\x85y", "\x0b", " \x00", " {\\an8}", "\ufeff", " <00:00:01.000>", "，", "\x1b[31m",
]  # fmt: skip
"""Words that a subtitle's file could take for its own signs."""


def test_lines_end_with_sentences_pauses_and_their_length() -> None:
    got = cues(WORDS)
    assert [cue.text for cue in got] == ["The cat sat down.", "It was", "tired & <b> -->", "猫"]
    assert [(cue.start, cue.end) for cue in got] == [(0.0, 1.4), (1.42, 1.5), (3.2, 4.1), (3725.5, 3726.125)]
    long = cues([(" abcdefghi", i, i + 1.0) for i in range(12)])
    assert [len(cue.text) for cue in long] == [39, 39, 39]
    single = cues(WORDS, by_word=True)
    assert len(single) == len(WORDS)
    assert (single[5].start, single[5].end) == (1.5, 1.52)  # a word of no length is shown for a frame
    assert cues([]) == ()


def test_no_cue_starts_before_the_one_in_front_of_it() -> None:
    """As a word of the next window may, where the last word of a window lasts beyond that window's end."""
    back = [(" one.", 29.5, 30.4), (" two", 30.4, 31.0), (" three", 30.0, 30.2), (" four", 30.2, 31.5)]
    got = [(cue.text, cue.start, cue.end) for cue in cues(back, by_word=True)]
    assert got == [("one.", 29.5, 30.4), ("two", 30.4, 31.0), ("three", 30.4, 30.4 + LEAST), ("four", 30.4, 31.5)]
    assert [(cue.start, cue.end) for cue in cues(back)] == [(29.5, 30.4), (30.4, 31.5)]


def test_as_text() -> None:
    shown = cues(WORDS)
    assert srt(shown) == (
        "1\n00:00:00,000 --> 00:00:01,400\nThe cat sat down.\n\n"
        "2\n00:00:01,420 --> 00:00:01,500\nIt was\n\n"
        "3\n00:00:03,200 --> 00:00:04,100\ntired & <b> →\n\n"
        "4\n01:02:05,500 --> 01:02:06,125\n猫\n"
    )
    assert vtt(shown) == (
        "WEBVTT\n\n"
        "00:00:00.000 --> 00:00:01.400\nThe cat sat down.\n\n"
        "00:00:01.420 --> 00:00:01.500\nIt was\n\n"
        "00:00:03.200 --> 00:00:04.100\ntired &amp; &lt;b&gt; →\n\n"
        "01:02:05.500 --> 01:02:06.125\n猫\n"
    )
    assert vtt(()) == "WEBVTT\n"


@pytest.mark.parametrize("by_word", [False, True])
def test_parsers_of_others_read_the_same(by_word: bool) -> None:
    shown = cues(WORDS, by_word=by_word)
    theirs = pytest.importorskip("srt")
    read = list(theirs.parse(srt(shown)))
    assert [(c.start.total_seconds(), c.end.total_seconds()) for c in read] == [(c.start, c.end) for c in shown]
    assert [c.content for c in read] == [c.text.replace("-->", "→") for c in shown]
    assert [c.index for c in read] == list(range(1, len(shown) + 1))
    webvtt = pytest.importorskip("webvtt")
    found = webvtt.from_buffer(io.StringIO(vtt(shown)))
    assert [(c.start_in_seconds, c.end_in_seconds) for c in found] == [
        (pytest.approx(c.start, abs=1), pytest.approx(c.end, abs=1)) for c in shown
    ]
    assert [c.start for c in found] == [line.split()[0] for line in vtt(shown).splitlines() if " --> " in line]
    assert len(found.captions) == len(shown)


@pytest.mark.parametrize("by_word", [False, True])
@pytest.mark.parametrize("start", [0.0, 3599.9996, 359_999.5])
def test_odd_words_are_taken_for_nothing_else(by_word: bool, start: float) -> None:
    theirs, webvtt = pytest.importorskip("srt"), pytest.importorskip("webvtt")
    shown = cues([(word, start + at / 10, start + at / 10) for at, word in enumerate(ODD)], by_word=by_word)
    assert len(shown) > (len(ODD) - 6 if by_word else 2)
    read = list(theirs.parse(srt(shown)))
    found = list(webvtt.from_buffer(io.StringIO(vtt(shown))))
    assert len(read) == len(found) == len(shown)
    for cue, one, two in zip(shown, read, found, strict=True):
        assert one.start.total_seconds() == pytest.approx(cue.start, abs=0.001)
        assert one.end.total_seconds() == pytest.approx(cue.end, abs=0.001)
        assert one.start < one.end
        assert (two.start, two.end) == tuple(
            theirs.timedelta_to_srt_timestamp(t).replace(",", ".") for t in (one.start, one.end)
        )
        assert one.content.strip()
        assert html.unescape(two.raw_text) == one.content
