from pathlib import Path

import pytest

from attnx.tokens import Tokenizer, from_ids, group_words, label, load_tokenizer, pad
from attnx.tokens.words import split_words
from tests.tokens.conftest import write_bpe


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The animal didn't cross.", ["The", "animal", "didn't", "cross", "."]),
        ("well-known 'quoted' dogs' rock'n'roll", ["well-known", "'", "quoted", "'", "dogs", "'", "rock'n'roll"]),
        (
            "It’s 3.14, 1,000 and 12:30; U.S. (yes)",
            ["It’s", "3.14", ",", "1,000", "and", "12:30", ";", "U.S", ".", "(", "yes", ")"],
        ),
        ("Wait... no!! a--b", ["Wait", "...", "no", "!!", "a", "--", "b"]),
        ("a,b me@home.org snake_case", ["a", ",", "b", "me@home.org", "snake_case"]),
        ("고양이가 생선을 먹었다.", ["고양이가", "생선을", "먹었다", "."]),
        ("日本語 text", ["日", "本", "語", "text"]),
        ("हिन्दी नमस्ते", ["हिन्दी", "नमस्ते"]),
        ("cafe\u0301 x", ["cafe\u0301", "x"]),
        ("👩‍👧 😀👍🏽 🇰🇷🇯🇵 ❤️", ["👩‍👧", "😀", "👍🏽", "🇰🇷", "🇯🇵", "❤️"]),
        ("", []),
        (" \n\t", []),
    ],
)
def test_split_words(text: str, words: list[str]) -> None:
    assert [text[a:b] for a, b in split_words(text)] == words


def test_split_stops_where_asked() -> None:
    assert split_words("one two three", 5) == [(0, 3), (4, 7)]


def test_group_words_and_labels(minilm: Tokenizer) -> None:
    tokens = minilm.encode("He didn't, unbelievably")
    groups = group_words(tokens)
    assert groups == ((0,), (1,), (2, 3, 4), (5,), (6, 7, 8, 9, 10), (11,))
    assert [label(tokens, group) for group in groups] == ["[CLS]", "He", "didn't", ",", "unbelievably", "[SEP]"]


def test_padding_is_in_no_group(minilm: Tokenizer) -> None:
    _, short = minilm.encode_batch(["one two three", "it"])
    assert group_words(short) == ((0,), (1,), (2,))
    (tokens,) = pad([from_ids("3,4")])
    assert group_words(tokens) == ((0,), (1,))


def test_labels_without_text(minilm: Tokenizer, tmp_path: Path) -> None:
    tokens = minilm.from_ids("101,19204,3550,102")
    assert [label(tokens, group) for group in group_words(tokens)] == ["[CLS]", "tokenized", "[SEP]"]
    bpe = load_tokenizer(write_bpe(tmp_path))
    tokens = bpe.from_ids(bpe.encode("the cat's").ids)
    assert [label(tokens, group) for group in group_words(tokens)] == ["the", "cat's"]


def test_labels_cannot_act_on_a_terminal(minilm: Tokenizer) -> None:
    tokens = minilm.encode("a\x1b\u202eb")
    assert [label(tokens, group) for group in group_words(tokens)] == ["[CLS]", "a␛\\u202eb", "[SEP]"]
