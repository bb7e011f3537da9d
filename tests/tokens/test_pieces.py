import pytest

from attnx.tokens import visible
from attnx.tokens.pieces import BYTES, Spelling, in_prose, quoted
from tests.tokens.conftest import byte_vocabulary


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text", "plain text"),
        ("a\nb\tc\x00", "a␊b␉c␀"),
        ("\x1b[31m", "␛[31m"),
        ("\x7f\x9b", "␡\\x9b"),
        ("a\u202eb\u2028", "a\\u202eb\\u2028"),
        ("\udcff", "\\udcff"),
        ("\U000e0041", "\\U000e0041"),
        ("고양이 日本 😀", "고양이 日本 😀"),
        ("👩‍👧", "👩‍👧"),
        ("\u200d", "\\u200d"),
        ("\ufe0f", "\\ufe0f"),
        ("\u0301a", "◌\u0301a"),
        ("[bold]", "[bold]"),
    ],
)
def test_visible(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_byte_alphabet() -> None:
    assert set(BYTES) == set(byte_vocabulary())
    assert sorted(BYTES.values()) == list(range(256))
    assert (BYTES["Ġ"], BYTES["Ċ"], BYTES["ĉ"], BYTES["a"]) == (0x20, 0x0A, 0x09, 0x61)


@pytest.mark.parametrize(
    ("spelling", "entry", "shown"),
    [
        (Spelling(), "##ed", "##ed"),
        (Spelling(), "", "∅"),
        (Spelling(byte_level=True), "Ġthe", " the"),
        (Spelling(byte_level=True), "Ġ", "␠"),
        (Spelling(byte_level=True), "ĠĠĠ", "␠␠␠"),
        (Spelling(byte_level=True), "ĠĠx", "  x"),
        (Spelling(byte_level=True), "ĊĊ", "␊␊"),
        (Spelling(byte_level=True), "ĠĊ", "␠␊"),
        (Spelling(byte_level=True), "Ã©", "é"),
        (Spelling(byte_level=True), "ðŁĺ", "\\xf0\\x9f\\x98"),
        (Spelling(byte_level=True), "not▁bytes", "not▁bytes"),
        (Spelling(space="▁"), "▁the", " the"),
        (Spelling(space="▁"), "▁", "␠"),
        (Spelling(space="▁", byte_fallback=True), "<0x0A>", "␊"),
        (Spelling(space="▁", byte_fallback=True), "<0xE2>", "\\xe2"),
        (Spelling(space="▁"), "<0x0A>", "<0x0A>"),
        (Spelling(byte_level=True, word_end="</w>"), "cat</w>", "cat"),
        (Spelling(space="▁"), "▁\u0301", " ◌\u0301"),
        (Spelling(), "\xa0", "\\xa0"),
    ],
)
def test_show(spelling: Spelling, entry: str, shown: str) -> None:
    assert spelling.show(entry) == shown


def test_in_prose_only_what_would_be_read_as_prose_is_quoted() -> None:
    assert [in_prose(text) for text in (".", " ", "=", "it", "[CLS]", "😀", "동(ㅗ)")] == [
        "'.'", "' '", "'='", "it", "[CLS]", "😀", "동(ㅗ)",
    ]  # fmt: skip
    assert quoted("\\xea") == "'\\xea'"  # a byte that is spelled out is not escaped again
