from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from attnx.view.cells import clusters, cut, fit, in_ascii, label, number, safe, stack

ANY = st.text(st.characters(), max_size=12)


@given(ANY)
def test_safe_text_moves_no_cursor_and_turns_no_line(piece: str) -> None:
    text = safe(piece)
    assert text
    for char in text:
        assert unicodedata.category(char) not in ("Cc", "Cs", "Zl", "Zp")
        assert char not in "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200b\ufeff\ufe0f"


@given(ANY, st.integers(0, 30))
def test_fit_is_exact(piece: str, width: int) -> None:
    for right in (False, True):
        assert cell_len(fit(safe(piece), width, right=right)) == width
    assert cell_len(cut(safe(piece), width)) <= width


@given(ANY)
def test_what_is_cut_is_a_start_and_an_ellipsis(piece: str) -> None:
    text = safe(piece)
    short = cut(text, 5)
    assert short == text if cell_len(text) <= 5 else text.startswith(short[:-1]) and short.endswith("…")


@given(ANY, st.integers(1, 8))
def test_stacks_are_straight(piece: str, height: int) -> None:
    lines = stack(piece, height, 2)
    assert len(lines) == height
    assert {cell_len(line) for line in lines} == {2}


@given(ANY)
def test_clusters_put_together_are_the_text(piece: str) -> None:
    assert "".join(clusters(safe(piece))) == safe(piece)


@given(ANY)
def test_ascii_is_ascii(piece: str) -> None:
    assert in_ascii(safe(piece)).isascii()
    assert label(piece, 7, ascii_only=True).isascii()
    assert len(label(piece, 7, ascii_only=True)) == 7


@pytest.mark.parametrize(
    ("piece", "shown", "width"),
    [
        ("고양이", "고양이", 6),
        ("\u1112\u1161\u11ab", "한", 2),  # the same syllable in three pieces
        ("日本語", "日本語", 6),
        ("e\u0301", "é", 1),
        ("\u0301", "◌\u0301", 1),
        ("👩\u200d🚀", "👩🚀", 4),
        ("👍🏽", "👍", 2),
        ("❤\ufe0f", "❤", 1),
        ("\u200d", "<U+200D>", 8),
        ("می\u200cخواهم", "می\u200cخواهم", 7),
        ("\x1b[31m", "<0x1B>[31m", 10),
        ("\u202e", "<U+202E>", 8),
        ("\n", "↵", 1),
        ("\t", "⇥", 1),
        ("", "∅", 1),
        ("  ", "␣␣", 2),
        (" the", " the", 4),
        ("[bold]", "[bold]", 6),
    ],
)
def test_pieces(piece: str, shown: str, width: int) -> None:
    assert safe(piece) == shown
    assert cell_len(shown) == width


@pytest.mark.parametrize(
    ("value", "decimals", "written"),
    [
        (0.6731, 2, "0.67"), (0.6731, 3, "0.673"), (-0.001, 2, "0.00"), (-0.0, 2, "0.00"), (12.345, 2, "12.3"),
        (-123.4, 2, "-123"), (1234.5, 2, "1234"), (123456.0, 2, "1.2e5"), (-1e10, 2, "-1.0e10"),
        (float("nan"), 2, "-"), (float("inf"), 2, "inf"), (float("-inf"), 2, "-inf"), (1e-9, 2, "0.00"),
    ],
)  # fmt: skip
def test_number(value: float, decimals: int, written: str) -> None:
    assert number(value, decimals) == written


@given(st.floats(-99999, 99999), st.integers(0, 4))
def test_numbers_say_what_they_are(value: float, decimals: int) -> None:
    places = 0 if abs(value) >= 1000 else max(0, decimals - (abs(value) >= 10) - (abs(value) >= 100))
    assert abs(float(number(value, decimals)) - value) <= 0.5 * 10.0**-places + 1e-9


def test_a_product_in_ascii_is_no_difference() -> None:
    assert in_ascii("q·k · Σa² ± √d, Q Kᵀ") == "q.k - sum a^2 +- sqrt d, Q K^T"
