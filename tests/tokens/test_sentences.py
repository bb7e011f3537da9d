"""Sentences and paragraphs: where one ends, and where a full stop ends none."""

import pytest

from attnx.tokens.sentences import paragraphs, sentences


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("One. Two! Three?", ["One.", "Two!", "Three?"]),
        ('He said "Yes." Then he left.', ['He said "Yes."', "Then he left."]),
        ("Dr. Smith met J. Doe at 3.14 p.m. today. Good.", ["Dr. Smith met J. Doe at 3.14 p.m. today.", "Good."]),
        ("See Fig. 2, e.g. this... or that. End", ["See Fig. 2, e.g. this... or that.", "End"]),
        ("A title\nA line. Another", ["A title", "A line.", "Another"]),
        ("吾輩は猫である。名前はまだ無い。「そう。」と", ["吾輩は猫である。", "名前はまだ無い。", "「そう。」", "と"]),
        ("written␊by a model", ["written", "by a model"]),
        ("  ", []),
        ("", []),
    ],
)
def test_sentences(text: str, want: list[str]) -> None:
    assert [text[a:b] for a, b in sentences(text)] == want


def test_paragraphs() -> None:
    text = " One.\nStill one.\n\n  \nTwo.\n \nThree. "
    assert [text[a:b] for a, b in paragraphs(text)] == ["One.\nStill one.", "Two.", "Three."]
    assert paragraphs("") == ()
