"""Hangul in pieces: whole syllables, and letters in theirs."""

import unicodedata

import pytest

import attnx
from attnx.cli import app as cli
from attnx.tokens.jamo import in_text, letters

TEXT = "동물은 길을 건너지 않았다"


def apart(text: str) -> str:
    return unicodedata.normalize("NFD", text)


def test_every_letter_of_every_syllable_can_be_shown() -> None:
    """Of each syllable, its two or three letters: none stays conjoining, and initials, vowels and finals are right."""
    for code in range(0xAC00, 0xD7A4):
        at = code - 0xAC00
        one, two, *three = apart(chr(code))
        names = [unicodedata.name(letters(letter)).rpartition(" ")[2] for letter in (one, two, *three)]
        said = [unicodedata.name(letter).rpartition(" ")[2] for letter in (one, two, *three)]
        assert [n.replace("-", "") for n in names] == [n.replace("-", "") for n in said], chr(code)
        assert bool(three) == bool(at % 28)


@pytest.mark.parametrize(
    ("piece", "written", "shown"),
    [
        ("##" + apart("은")[1], "은", "##은(ㅡ)"),
        (apart("동")[0], "동", "동(ㄷ)"),
        ("##" + apart("무"), "물", "##물(무)"),
        ("##" + apart("물"), "물", "##물"),
        (apart("동물"), "동물", "동물"),
        (" " + apart("동ㅁ"), "동물", " 동물(동ㅁ)"),
        ("##" + apart("은")[1], "", "##ㅡ"),
        ("##ed", "red", "##ed"),
        ("물", "물", "물"),
    ],
)
def test_a_letter_stands_in_its_syllable(piece: str, written: str, shown: str) -> None:
    assert in_text(piece, written) == shown


def test_pieces_of_a_sentence() -> None:
    tokens = attnx.open("minilm", device="cpu").encode(TEXT)
    assert tokens.pieces[1:10] == (
        "동(ㄷ)", "##동(ㅗ)", "##동(ㅇ)", "##물(ㅁ)", "##물(ㅜ)", "##물(ㄹ)", "##은(ㅇ)", "##은(ㅡ)", "##은(ㄴ)",
    )  # fmt: skip
    assert not any(0x1100 <= ord(c) <= 0x11FF for c in "".join(tokens.pieces))


@pytest.mark.parametrize("query", ["호", "ㅡ", "동물이"])
def test_errors_show_no_letter_that_cannot_be_shown(query: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["inspect", TEXT, "--query", query]) == 2
    said = capsys.readouterr().err
    assert not any(0x1100 <= ord(c) <= 0x11FF for c in said)
    assert "U+11" not in said
