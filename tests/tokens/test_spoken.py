"""Tokens into words with their punctuation; what transformers makes of the same tokens is held by test_families."""

import pytest

from attnx.tokens.spoken import spoken

PIECES = [
    " The",
    " cat",
    "'s",
    " hat",
    ",",
    " he",
    " said",
    ":",
    ' "',
    "Yes",
    "!",
    '"',
    " caf",
    "\xc3",
    "\xa9",
    " -",
    "x",
]
BYTES = {13: b"\xc3", 14: b"\xa9"}


def decode(ids: list[int]) -> str:  # as a byte-level tokenizer does
    return b"".join(BYTES.get(n, PIECES[n].encode()) for n in ids).decode("utf-8", "replace")


def test_words_keep_what_is_written_to_them() -> None:
    got = spoken(range(len(PIECES)), decode)
    assert [text for text, _ in got] == [
        " The", " cat's", " hat,", " he", " said:", ' "Yes!"', " café", " -x",
    ]  # fmt: skip
    assert [at for _, at in got] == [(0,), (1, 2), (3, 4), (5,), (6, 7), (8, 9, 10, 11), (12, 13, 14), (15, 16)]


def test_without_spaces_every_whole_character_is_a_word() -> None:
    text = "猫がいる。"
    raw = text.encode()
    got = spoken(range(len(raw)), lambda ids: bytes(raw[n] for n in ids).decode("utf-8", "replace"), spaces=False)
    assert [word for word, _ in got] == ["猫", "が", "い", "る。"]
    assert got[-1][1] == tuple(range(9, 15))
    joined = spoken(range(len(raw)), lambda ids: bytes(raw[n] for n in ids).decode("utf-8", "replace"))
    assert [word for word, _ in joined] == ["猫がいる。"]


@pytest.mark.parametrize("cut", range(1, 6))
def test_a_character_that_is_cut_off_is_kept(cut: int) -> None:
    raw = b"a " + "é".encode() + b" b" + "猫".encode()
    ids = range(len(raw) - cut)
    got = spoken(ids, lambda some: bytes(raw[n] for n in some).decode("utf-8", "replace"))
    assert [at for _, places in got for at in places] == list(ids)
    assert spoken([], decode) == ()
