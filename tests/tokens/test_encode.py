import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as RawTokenizer
from tokenizers import models, pre_tokenizers

from attnx.errors import InputError, UsageError
from attnx.tokens import Tokenizer, from_ids, load_tokenizer, pad, parse_ids
from tests.tokens.conftest import MINILM, write_bpe, write_llama, write_unigram

ANIMAL = "The animal didn't cross the street because it was too tired."


def test_sentence(minilm: Tokenizer) -> None:
    tokens = minilm.encode(ANIMAL)
    # The ids that the float32 model's own tokenizer gives this sentence.
    ids = [101, 1996, 4111, 2134, 1005, 1056, 2892, 1996, 2395, 2138, 2009, 2001, 2205, 5458, 1012, 102]
    assert tokens.ids.tolist() == ids
    assert tokens.ids.dtype == np.int64
    assert tokens.pieces == tuple("[CLS] the animal didn ' t cross the street because it was too tired . [SEP]".split())
    assert tokens.words == (None, 0, 1, 2, 2, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, None)
    assert [tokens.text[a:b] for a, b in tokens.offsets[1:6]] == ["The", "animal", "didn", "'", "t"]
    assert tokens.offsets[0] == tokens.offsets[-1] == (0, 0)
    assert [i for i, special in enumerate(tokens.special) if special] == [0, 15]
    assert tokens.mask == (True,) * 16
    assert tokens.type_ids == (0,) * 16
    assert tokens.notes == ()


def test_pair_goes_on_in_one_text(minilm: Tokenizer) -> None:
    tokens = minilm.encode("The cat.", "It sat.")
    assert tokens.pieces == ("[CLS]", "the", "cat", ".", "[SEP]", "it", "sat", ".", "[SEP]")
    assert tokens.type_ids == (0, 0, 0, 0, 0, 1, 1, 1, 1)
    assert tokens.text == "The cat.\nIt sat."
    assert [tokens.text[slice(*tokens.offsets[i])] for i in (1, 2, 3, 5, 6, 7)] == ["The", "cat", ".", "It", "sat", "."]
    assert tokens.words == (None, 0, 1, 2, None, 3, 4, 5, None)


def test_wordpieces_keep_their_mark_and_share_a_word(minilm: Tokenizer) -> None:
    tokens = minilm.encode("Unbelievably tokenized")
    assert tokens.pieces[1:-1] == ("un", "##bel", "##ie", "##va", "##bly", "token", "##ized")
    assert tokens.words[1:-1] == (0, 0, 0, 0, 0, 1, 1)


def test_special_tokens_typed_in_the_text_are_special_but_mask_is_not(minilm: Tokenizer) -> None:
    tokens = minilm.encode("cats [SEP] a [MASK]")
    assert dict(zip(tokens.pieces, tokens.special, strict=True)) == {
        "[CLS]": True, "cats": False, "[SEP]": True, "a": False, "[MASK]": False,
    }  # fmt: skip
    assert tokens.special.count(True) == 3


def test_unknown_pieces_are_noted(minilm: Tokenizer) -> None:
    (note,) = minilm.encode("ok 😀 fine").notes
    assert note == "1 piece is unknown to the tokenizer and seen as [UNK]: 😀 at 2"
    (note,) = minilm.encode("😀 " * 7).notes
    assert note.startswith("7 pieces are unknown")
    assert note.endswith("😀 at 5, and 2 more")


@pytest.mark.parametrize("text", ["", "   ", "\x00\x01", "\x1b"])
def test_text_without_tokens_leaves_the_special_ones(minilm: Tokenizer, text: str) -> None:
    tokens = minilm.encode(text)
    assert tokens.pieces == ("[CLS]", "[SEP]")
    assert tokens.notes[-1:] == ("the text gives no tokens of its own; only special tokens are left",)


def test_text_without_tokens_is_an_error_where_nothing_is_added(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no tokens"):
        load_tokenizer(write_bpe(tmp_path)).encode("")


def test_limit_of_the_model(minilm: Tokenizer) -> None:
    assert minilm.limit == 512
    text = "word " * 20_000
    tokens = minilm.encode(text)
    assert len(tokens) == 512
    assert (tokens.pieces[0], tokens.pieces[-1]) == ("[CLS]", "[SEP]")
    # 510 words of 5 characters; the last one without its space.
    assert tokens.notes == (
        "cut to 512 tokens (the model's limit); left out: 97451 of the 100000 characters of the text",
    )
    # The next text is not affected, and 512 tokens are not too many.
    assert len(minilm.encode("word " * 510)) == 512
    assert minilm.encode("word " * 510).notes == ()


def test_max_length(minilm: Tokenizer) -> None:
    tokens = minilm.encode("a b c d e", max_length=4)
    assert tokens.pieces == ("[CLS]", "a", "b", "[SEP]")
    assert tokens.notes == ("cut to 4 tokens (as asked); left out: 6 of the 9 characters of the text",)
    assert len(minilm.encode("a b c d e")) == 7
    tokens = minilm.encode("a b c d", "e f", max_length=7)
    assert tokens.pieces == ("[CLS]", "a", "b", "[SEP]", "e", "f", "[SEP]")
    assert len(minilm.encode("word " * 600, max_length=10_000)) == 512
    with pytest.raises(UsageError, match="leaves no room"):
        minilm.encode("a", max_length=2)


@pytest.mark.parametrize(
    ("text", "what"), [("a\udcff", "byte 0xff at character 1"), ("\ud800", "U\\+D800, at character 0")]
)
def test_text_that_is_not_utf8(minilm: Tokenizer, text: str, what: str) -> None:
    with pytest.raises(InputError, match=what) as caught:
        minilm.encode(text)
    assert "iconv" in caught.value.hint
    with pytest.raises(InputError, match=what):
        minilm.encode("fine", pair=text)


def test_byte_level_pieces(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_bpe(tmp_path))
    tokens = tokenizer.encode("the cat's\n\n 日it\x1b")
    assert tokens.pieces == (
        "the", " cat", "'", "s", "␊␊", "␠", r"\xe6", r"\x97", r"\xa5", "it", "␛",
    )  # fmt: skip
    spans = [tokens.text[a:b] for a, b in tokens.offsets]
    assert spans == ["the", "cat", "'", "s", "\n\n", "", "日", "日", "日", "it", "\x1b"]
    assert tokens.words == (0, 1, 1, 1, 2, 3, 4, 4, 4, 5, 6)
    assert not any(tokens.special)
    assert tokens.notes == tokenizer.notes


def test_only_emoji_in_bytes(tmp_path: Path) -> None:
    tokens = load_tokenizer(write_bpe(tmp_path)).encode("👩‍👧 😀")
    assert "".join(tokens.pieces).isascii() is False
    assert len(set(tokens.words[:-5])) == 1
    assert bytes(int(piece[2:], 16) for piece in tokens.pieces if piece.startswith("\\x")).decode() == "👩‍👧😀"
    assert len(set(tokens.words)) == 3


def test_sentencepiece_pieces(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_unigram(tmp_path))
    tokens = tokenizer.encode("the cats it Z")
    assert tokens.pieces == (" the", " cat", "s", " it", "␠", "<unk>", "</s>")
    assert tokens.words == (0, 1, 1, 2, 3, 4, None)
    assert [tokens.text[a:b] for a, b in tokens.offsets[:4]] == ["the", "cat", "s", "it"]
    assert tokens.special == (False,) * 6 + (True,)
    assert tokens.notes == ("1 piece is unknown to the tokenizer and seen as <unk>: Z at 5",)
    assert tokenizer.pad_id == 0


def test_byte_fallback_pieces(tmp_path: Path) -> None:
    tokens = load_tokenizer(write_llama(tmp_path)).encode("the é\n")
    assert tokens.pieces == ("<s>", " the", "␠", r"\xc3", r"\xa9", "␊")
    assert tokens.special == (True,) + (False,) * 5
    assert tokens.words[3] == tokens.words[4]


def test_ids_with_a_tokenizer(minilm: Tokenizer) -> None:
    tokens = minilm.from_ids("101, 2134,1005 1056,19204,3550,102,0")
    assert tokens.pieces == ("[CLS]", "didn", "'", "t", "token", "##ized", "[SEP]", "[PAD]")
    assert tokens.ids.tolist() == [101, 2134, 1005, 1056, 19204, 3550, 102, 0]
    assert tokens.special == (True, False, False, False, False, False, True, True)
    assert tokens.words[4:6] == (3, 3)
    assert tokens.text == ""
    assert set(tokens.offsets) == {(0, 0)}
    assert tokens.notes == ()
    beyond = minilm.from_ids([101, 30522])
    assert beyond.pieces == ("[CLS]", "#30522")
    assert beyond.notes == ("the tokenizer has no id 30522: its 30522 ids end at 30521",)


def test_ids_of_byte_level_text_find_their_words(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_bpe(tmp_path))
    ids = tokenizer.encode("the cat's it").ids
    tokens = tokenizer.from_ids(ids)
    assert tokens.pieces == ("the", " cat", "'", "s", " it")
    assert tokens.words == (0, 1, 1, 1, 2)


def test_ids_without_a_tokenizer() -> None:
    tokens = from_ids("5,6")
    assert tokens.pieces == ("#5", "#6")
    assert tokens.words == (0, 1)
    assert tokens.special == (False, False)


@pytest.mark.parametrize("text", ["", " , ", "1,,2", "1,2,", "1,x", "1,-2", "1.5", "1,٣", "9" * 30, "1;2"])
def test_ids_that_are_none(text: str) -> None:
    with pytest.raises(InputError):
        parse_ids(text)
    with pytest.raises(InputError, match="number 2 of the list"):
        from_ids([1, -2])


def test_batch_is_padded(minilm: Tokenizer) -> None:
    texts = ["The cat sat.", "It"]
    right = minilm.encode_batch(texts)
    assert [len(tokens) for tokens in right] == [6, 6]
    assert right[1].ids.tolist() == [101, 2009, 102, 0, 0, 0]
    assert right[1].pieces[3:] == ("[PAD]",) * 3
    assert right[1].mask == (True, True, True, False, False, False)
    assert right[1].special[3:] == (True,) * 3
    assert right[1].words == (None, 0, None, None, None, None)
    left = minilm.encode_batch(texts, side="left")
    assert left[1].ids.tolist() == [0, 0, 0, 101, 2009, 102]
    assert left[1].mask == (False, False, False, True, True, True)
    assert left[1].offsets[4] == (0, 2)
    assert left[0].ids.tolist() == right[0].ids.tolist() == minilm.encode(texts[0]).ids.tolist()
    assert pad([]) == ()


def _is_harmless(piece: str) -> bool:
    return not any(unicodedata.category(c) in {"Cc", "Cs", "Zl", "Zp"} or c in "\u202a\u202e\u2066" for c in piece)


@pytest.fixture(scope="module")
def bpe(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(write_bpe(tmp_path_factory.mktemp("bpe")))


@settings(max_examples=300)
@given(text=st.text(max_size=40))
def test_any_text(minilm: Tokenizer, bpe: Tokenizer, text: str) -> None:
    for tokenizer in (minilm, bpe):
        if not text and tokenizer is bpe:
            continue
        tokens = tokenizer.encode(text)
        n = len(tokens)
        assert {len(tokens.ids), len(tokens.words), len(tokens.offsets), len(tokens.special), len(tokens.type_ids)} == {
            n
        }
        words = [word for word in tokens.words if word is not None]
        assert sorted(set(words)) == list(range(len(set(words))))
        assert words == sorted(words)
        for piece, (start, stop), special in zip(tokens.pieces, tokens.offsets, tokens.special, strict=True):
            assert piece
            assert piece.strip(" ")
            assert _is_harmless(piece)
            assert 0 <= start <= stop <= len(text)
            if special:
                assert (start, stop) == (0, 0)
    # Every byte of the text is in the pieces' ids: nothing is lost by a byte-level vocabulary.
    if text:
        assert bpe._raw.decode(bpe.encode(text).ids.tolist()) == text


def test_tokenizers_is_imported_late() -> None:
    code = "import sys, attnx.tokens; print(*(m for m in ('tokenizers', 'onnx', 'onnxruntime') if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_padding_and_truncation_of_the_file_are_left_out() -> None:
    raw = (MINILM / "tokenizer.json").read_text(encoding="utf-8")
    assert '"Fixed":128' in raw.replace(" ", "")  # the file would pad and cut to 128
    assert len(load_tokenizer(MINILM).encode("word " * 300)) == 302


def test_added_tokens_are_plain_text(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_bpe(tmp_path))
    tokenizer._raw.add_tokens(["   ", "한\x1b"])
    tokenizer = Tokenizer(tokenizer._raw, path=tokenizer.path, spelling=tokenizer._spelling)
    assert tokenizer.encode("the   it한\x1b").pieces == ("the", "␠␠␠", "it", "한␛")


@pytest.mark.parametrize(("text", "said"), [
    ("It\0was", "the tokenizer drops 1 character of the text: ␀ at 2 (counted in characters)"),
    ("It \x7f was", "the tokenizer drops 1 character of the text: ␡ at 3 (counted in characters)"),
    ("a\x1cb", "the tokenizer drops 1 character of the text: ␜ at 1 (counted in characters)"),
    ("a\x0bb", "the tokenizer drops 1 character of the text: ␋ at 1 (counted in characters)"),
    ("\ufeffso\u200bft", "the tokenizer drops 2 characters of the text: \\ufeff at 0, \\u200b at 3 (counted in "
     "characters)"),
    ("a\ufffdb", "the tokenizer drops 1 character of the text: \ufffd at 1 (counted in characters)"),
    ("\x01" * 7 + "a", "the tokenizer drops 7 characters of the text: ␁ at 0, ␁ at 1, ␁ at 2, ␁ at 3, ␁ at 4, and 2 "
     "more (counted in characters)"),
])  # fmt: skip
def test_characters_that_the_tokenizer_drops_are_told(minilm: Tokenizer, text: str, said: str) -> None:
    assert minilm.encode(text).notes == (said,)


@pytest.mark.parametrize("code", [*range(0x20), *range(0x7F, 0xA1), 0xAD, 0x200B, 0x200D, 0x2060, 0xFEFF, 0xFFFD])
def test_every_dropped_character_has_its_note(minilm: Tokenizer, code: int) -> None:
    """It is dropped where the pieces are those of the text without it, and no break stands for it."""
    joined = minilm.encode("Itwas").pieces
    tokens = minilm.encode(f"It{chr(code)}was")
    assert (tokens.pieces == joined) == bool(tokens.notes), tokens.pieces


def test_what_a_byte_tokenizer_keeps_is_not_told() -> None:
    tokens = load_tokenizer(MINILM.parent / "tiny-gpt").encode("It\0was \x7f \x85 \u200b \ufeff\x0b \x0c.")
    assert tokens.notes == ()


def test_dropped_characters_of_a_pair_and_of_what_was_cut(minilm: Tokenizer) -> None:
    assert minilm.encode("It.", "a\0b").notes[0].startswith("the tokenizer drops 1 character of the text: ␀ at 5 ")
    cut = minilm.encode("It was\0 so tired\0 and", max_length=5)
    assert any(note.startswith("the tokenizer drops 1 character of the text: ␀ at 6 ") for note in cut.notes)
    assert any("cut to 5 tokens" in note for note in cut.notes)


def _written(folder: Path, model: Any) -> Tokenizer:
    """A tokenizer.json of this model alone."""
    raw = RawTokenizer(model)
    raw.save(str(folder / "tokenizer.json"))
    return load_tokenizer(folder)


@pytest.mark.parametrize("model", [
    models.WordLevel({"the": 0}, unk_token="[UNK]"),
    models.Unigram([("the", -1.0)], unk_id=None),
    models.BPE({"t": 0, "h": 1}, [], unk_token="[UNK]"),
], ids=["words", "unigram", "bpe"])  # fmt: skip
def test_a_text_that_the_vocabulary_cannot_write_is_refused(tmp_path: Path, model: Any) -> None:
    """The tokenizers package raises a bare Exception there."""
    with pytest.raises(InputError, match="cannot write this text"):
        _written(tmp_path, model).encode("the cat")


def test_characters_that_bpe_leaves_out_are_refused(tmp_path: Path) -> None:
    """Without an entry for the unknown it drops them, and the pieces behind them would stand in other places."""
    tokenizer = _written(tmp_path, models.BPE({letter: i for i, letter in enumerate("that ")}, []))
    assert tokenizer.encode("that hat").offsets[-1] == (7, 8)
    with pytest.raises(InputError, match="no entry for 'o', 'm', nor one for unknown"):
        tokenizer.encode("that tom hat")


def test_characters_that_the_splitting_drops_are_told(tmp_path: Path) -> None:
    raw = RawTokenizer(models.WordLevel({"the": 0, "cat": 1, "?": 2}, unk_token="?"))
    raw.pre_tokenizer = pre_tokenizers.CharDelimiterSplit("|")
    raw.save(str(tmp_path / "tokenizer.json"))
    tokens = load_tokenizer(tmp_path).encode("the|cat")
    assert tokens.offsets == ((0, 3), (4, 7))
    assert tokens.notes == ("the tokenizer drops 1 character of the text: | at 3 (counted in characters)",)


def test_the_unknown_entry_of_a_unigram_model_is_found_by_its_number(tmp_path: Path) -> None:
    tokenizer = _written(tmp_path, models.Unigram([("the", -1.0), ("huh", -2.0)], unk_id=1))
    assert tokenizer.unknown_id == 1
    assert tokenizer.encode("theo").notes == ("1 piece is unknown to the tokenizer and seen as huh: o at 1",)


def test_no_text_is_split_by_chance(tmp_path: Path) -> None:
    """Dropout is for training; with it, two runs of one text would have other tokens."""
    vocabulary = {letter: i for i, letter in enumerate("the")} | {"th": 3, "the": 4}
    model = models.BPE(vocabulary, [("t", "h"), ("th", "e")], dropout=0.9)
    tokenizer = _written(tmp_path, model)
    assert {tokenizer.encode("the" * 20).pieces for _ in range(5)} == {("the",) * 20}
    assert tokenizer.notes == ("the tokenizer's dropout of 0.9 is for training: left out",)
