"""Several tokens at once: spans, lists, and what is written so in the text itself."""

import pytest

import attnx
from attnx.errors import UsageError
from attnx.tokens.group import find_group

ANIMAL = "The animal didn't cross the street because it was too tired."
TOKENS = attnx.open("minilm", device="cpu").encode(ANIMAL)


@pytest.mark.parametrize(
    ("what", "positions", "several"),
    [
        ("it", (10,), False),
        ("didn't", (3, 4, 5), False),
        ("it..tired", (10, 11, 12, 13), True),
        ("animal..didn't", (2, 3, 4, 5), True),
        ("it,animal", (2, 10), True),
        (" it , animal..didn't ", (2, 3, 4, 5, 10), True),
        ("@1..@3", (1, 2, 3), True),
        ("1..3,13", (1, 2, 3, 13), True),
        ("the@7..it", (7, 8, 9, 10), True),
        ("it..it", (10,), True),
        ("it,it", (10,), True),
    ],
)
def test_groups(what: str, positions: tuple[int, ...], several: bool) -> None:
    assert find_group(TOKENS, what) == (positions, several)


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("tired..it", "runs backwards"), ("it..cat", 'no token or word "cat"'), ("cat,it", 'no token or word "cat"'),
        ("the..it", "occurs 2 times"), ("it..", "no token or word"), ("..", "no token or word"), ("", "no token"),
        ("it,", "no token or word"), ("it..99", "no position 99"),
    ],
)  # fmt: skip
def test_what_is_no_group(what: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        find_group(TOKENS, what)


def test_what_is_written_so_in_the_text_comes_first() -> None:
    encode = attnx.open("minilm", device="cpu").encode
    number = encode("it cost 3,000 in 2 days, more or less")
    found, several = find_group(number, "3,000")
    assert not several
    assert "".join(number.pieces[at].removeprefix("##") for at in found) == "3,000"
    comma = encode("one, two")
    assert find_group(comma, ",") == ((2,), False)
    assert find_group(comma, "one,two") == ((1, 3), True)
    dots = encode("wait ... what")
    assert find_group(dots, "...")[1] is False
