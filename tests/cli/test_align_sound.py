"""`attnx align --audio`: words with their seconds as table, JSON and subtitles; what does not go together."""

import json
import re
from pathlib import Path

import pytest

from tests.cli.conftest import Run

WORDS = Path(__file__).parents[1] / "families" / "whisper-words"
TRUTH = json.loads((WORDS / "about.json").read_text(encoding="utf-8"))["speech"][0]
BASE = ("align", "--audio", WORDS / "speech.wav", "-m", WORDS, "--generate", "24")


def test_json_has_the_frameworks_times(attnx: Run) -> None:
    got = attnx(*BASE, "--json").document
    assert got["kind"] == "speech"
    count = len(TRUTH["ids"])
    assert got["tokens"]["ids"][:count] == TRUTH["ids"]
    assert got["ends"][:count] == pytest.approx(TRUTH["ends"], abs=1e-4)
    assert got["heads"] == [[0, 1], [1, 0], [1, 1]]
    words = [(word["text"], word["tokens"]) for word in got["words"]]
    assert words == [
        (text, places) for text, places in TRUTH["words"]["chinese" if got["language"] == "zh" else "english"]
    ]
    for word in got["words"]:
        first, last = word["tokens"][0], word["tokens"][-1]
        assert word["start"] == pytest.approx(got["ends"][first - 1] if first else 0, abs=0.006)
        assert word["end"] == pytest.approx(got["ends"][last], abs=0.006)


def test_table_and_subtitles(attnx: Run, tmp_path: Path) -> None:
    told = (*BASE[:-2], "--target", "the cat sat, he said.")
    words = attnx(*told, "--json").document["words"]
    out = attnx(*told).out
    for word in words:
        assert re.search(rf"{word['start']:.2f} +{word['end']:.2f} +{re.escape(word['text'].strip())}\n", out)
    assert "L0 H1" not in out
    assert "L0 H1 L1 H0 L1 H1" in attnx(*told, "--explain").out
    srt = attnx(*told, "--view", "srt").out
    assert srt.startswith("1\n00:00:00,000 --> ")
    assert "the cat sat, he said." in srt
    assert attnx(*told, "--view", "vtt", "--by", "word").out.count(" --> ") == len(words)
    for name in ("out.srt", "out.vtt", "out.json"):
        done = attnx(*told, "--save", name)
        assert done.out == ""
        assert f"wrote {name}" in done.err
    assert (tmp_path / "out.srt").read_text(encoding="utf-8") == srt
    assert (tmp_path / "out.vtt").read_text(encoding="utf-8") == attnx(*told, "--view", "vtt").out
    assert json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["words"] == words
    assert "exists" in attnx(*told, "--save", "out.srt", code=2).err
    attnx(*told, "--save", "out.srt", "--force")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--layer", "0"), "--layer would do nothing with sound"),
        (("--gold", "g"), "--gold would do nothing with sound"),
        (("--seed", "1"), "--seed would do nothing with sound"),
        (("--target", "x", "--generate", "2"), "--generate would do nothing with --target"),
        (("--temperature", "1"), "--temperature would do nothing with sound"),
        (("--view", "lines"), "none of table, srt, vtt"),
        (("--save", "x.png"), "saved as .srt, .vtt or .json"),
        (("--force",), "would do nothing without --save"),
        (("--head", "7.0"), "no layer 7"),
        (("a text",), "a text and a sound were given"),
        (("--target", ""), "the target is empty"),
        (("--generate", "0"), "--generate 0: it takes the number of tokens to write, from 1"),
    ],
)
def test_what_does_not_go_together(attnx: Run, options: tuple[str, ...], said: str) -> None:
    assert said in " ".join(attnx(*BASE, *options, code=2).err.split())


def test_a_model_that_does_not_listen(attnx: Run) -> None:
    assert "takes no sound" in attnx(*BASE[:3], "--head", "0.0", code=2).err
