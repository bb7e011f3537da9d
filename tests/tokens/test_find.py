from pathlib import Path

import pytest

from attnx.errors import UsageError
from attnx.study.mentioned import mentions
from attnx.tokens import Tokenizer, find, load_tokenizer, places
from attnx.tokens.axes import labelled
from tests.tokens.conftest import write_bpe

ANIMAL = "The animal didn't cross the street because it was too tired."


@pytest.mark.parametrize(
    ("what", "positions"),
    [
        ("it", (10,)),
        ("IT", (10,)),
        (" it ", (10,)),
        ("animal", (2,)),
        ("didn't", (3, 4, 5)),
        ("DIDN'T", (3, 4, 5)),
        ("didn", (3,)),
        ("it@10", (10,)),
        ("the@7", (7,)),
        ("didn't@4", (3, 4, 5)),
        ("t@5", (5,)),
        ("10", (10,)),
        (10, (10,)),
        ("0", (0,)),
        ("@15", (15,)),
        ("[CLS]", (0,)),
        ("[cls]", (0,)),
        (".", (14,)),
        ("the street", (7, 8)),
        ("too tired.", (12, 13, 14)),
    ],
)
def test_found(minilm: Tokenizer, what: str | int, positions: tuple[int, ...]) -> None:
    assert find(minilm.encode(ANIMAL), what) == positions


def error(tokenizer: Tokenizer, text: str, what: str | int) -> tuple[str, str]:
    with pytest.raises(UsageError) as caught:
        find(tokenizer.encode(text), what)
    return caught.value.message, caught.value.hint


def test_repeated_text_lists_the_choices(minilm: Tokenizer) -> None:
    message, hint = error(minilm, ANIMAL, "the")
    assert message == '"the" occurs 2 times'
    assert hint == "Say which: The@1 ([CLS] The animal didn't) or the@7 (didn't cross the street because)."
    message, hint = error(minilm, "the " * 20, "the")
    assert message == '"the" occurs 20 times'
    assert hint.count("the@") == 12
    assert hint.endswith("or one of 8 more.")


def test_word_and_piece_of_another_word_are_two(minilm: Tokenizer) -> None:
    message, hint = error(minilm, "It's late and it rains", "it")
    assert message == '"it" occurs 2 times'
    assert "It@1" in hint
    assert "it@6" in hint


def test_absent_text_suggests_what_is_near(minilm: Tokenizer) -> None:
    assert error(minilm, ANIMAL, "anmial") == ('there is no token or word "anmial"', "Did you mean animal@2?")
    message, hint = error(minilm, ANIMAL, "zebra")
    assert message == 'there is no token or word "zebra"'
    assert hint.startswith("There are: [CLS]@0, The@1, animal@2, didn't@3, cross@6")


def test_positions_that_are_not_there(minilm: Tokenizer) -> None:
    assert error(minilm, ANIMAL, "16")[0] == "there is no position 16: the 16 tokens are at 0 to 15"
    assert error(minilm, ANIMAL, -1)[0] == "there is no position -1: the 16 tokens are at 0 to 15"
    assert error(minilm, ANIMAL, "it@99")[0] == "there is no position 99: the 16 tokens are at 0 to 15"
    assert error(minilm, ANIMAL, "") == ("no token was given", error(minilm, ANIMAL, "16")[1])
    assert error(minilm, ANIMAL, "it@2") == ('position 2 is "animal", not "it"', "Give it@10.")
    assert error(minilm, ANIMAL, "zebra@2")[0] == 'there is no token or word "zebra"'
    _, short = minilm.encode_batch(["one two three", "it"])
    for what in ("4", "[PAD]@4"):
        with pytest.raises(UsageError, match="position 4 is padding"):
            find(short, what)
    with pytest.raises(UsageError, match="no token or word"):
        find(short, "[PAD]")


def test_number_in_the_text(minilm: Tokenizer) -> None:
    tokens = minilm.encode("In 1969 there were 4 of them")
    assert find(tokens, "1969") == (2,)
    message, hint = error(minilm, "In 1969 there were 4 of them", "4")
    assert message == "4 is both a position and a word of the text"
    assert hint == 'Give @4 for the token "were" at that position, or 4@5.'
    assert find(tokens, "@4") == (4,)
    assert find(tokens, "4@5") == (5,)
    # The word that stands at the position of its own number is meant either way.
    assert find(minilm.encode("a b 3"), "3") == (3,)


def test_pieces_inside_words(minilm: Tokenizer) -> None:
    tokens = minilm.encode("tokenized")
    assert find(tokens, "##ized") == find(tokens, "ized") == (2,)
    assert find(tokens, "tokenized") == (1, 2)


def test_piece_inside_a_word_does_not_hide_the_word(tmp_path: Path) -> None:
    bpe = load_tokenizer(write_bpe(tmp_path))
    tokens = bpe.encode("rabbit it")
    assert tokens.pieces == ("r", "a", "b", "b", "it", " it")
    assert find(tokens, "it") == (5,)
    assert find(bpe.from_ids(tokens.ids), "it") == (5,)
    assert find(tokens, "it@4") == (4,)


def test_at_sign_in_the_text(minilm: Tokenizer) -> None:
    tokens = minilm.encode("write to me@9 now")
    assert find(tokens, "me@9") == (3, 4, 5)


def test_what_is_typed_cannot_act_on_a_terminal(minilm: Tokenizer) -> None:
    message, hint = error(minilm, "a \x1b b", "\x1b[2J")
    assert "\x1b" not in message + hint
    assert "␛[2J" in message


def test_messages_stay_short_whatever_the_text(minilm: Tokenizer) -> None:
    for what in ("a" * 10_000, "b"):
        message, hint = error(minilm, "a" * 1000 + " " + "'" * 1000, what)
        assert len(message) < 100
        assert len(hint) < 300


@pytest.mark.parametrize(
    ("text", "what", "said"),
    [
        ("动物没有过马路，因为它太累了。", "它", ["它"]),
        ("动物没有过马路，因为它太累了。", "动物", ["动物"]),
        ("动物喜欢动物园", "动物", ["动物", "动物"]),
        ("それは犬、それは猫", "それ", ["それ", "それ"]),
        ("สัตว์ไม่ข้ามถนน เพราะ มัน เหนื่อย", "มัน", ["มัน"]),
        ("the cat, Theresa and the dog", "the", ["the", "the"]),
        ("a well-known man", "known man", ["known man"]),
    ],
)
@pytest.mark.parametrize("kind", ["wordpiece", "bytes"])
def test_one_finder_for_words_phrases_and_scripts_without_spaces(
    text: str, what: str, said: list[str], kind: str, minilm: Tokenizer, tmp_path: Path
) -> None:
    tokens = (minilm if kind == "wordpiece" else load_tokenizer(write_bpe(tmp_path))).encode(text)
    found = places(tokens, what)
    cut = [text[min(tokens.offsets[at][0] for at in g) : max(tokens.offsets[at][1] for at in g)] for g in found]
    assert cut == said
    assert [one.pieces for one in mentions(tokens, what)] == found
    if len(found) == 1:
        assert find(tokens, what) == found[0]


def test_a_word_of_another_script_does_not_begin_inside_a_letter_and_its_marks(minilm: Tokenizer) -> None:
    with pytest.raises(UsageError):
        find(minilm.encode("น้ำ กา"), "น")


def test_positions_are_ascii_digits_and_times_are_worth_what_they_say(minilm: Tokenizer) -> None:
    tokens = minilm.encode(ANIMAL)
    for what in ("٣", "@٣", "²", "9" * 5000, "it@" + "9" * 5000, "it@²"):
        with pytest.raises(UsageError):
            find(tokens, what)
    times = labelled(["0.00s", "0.50s", "1.00s", "1.50s"])
    assert [find(times, what) for what in ("1s", "1.0s", "1.00 s", "0.5s", "1.500s")] == [(2,), (2,), (2,), (1,), (3,)]
    with pytest.raises(UsageError):
        find(times, "1.25s")
