import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Raw

from attnx.cli.wording import worded
from attnx.errors import AttnxError, InputError, ModelError
from attnx.silence import reserve
from attnx.tokens import find_limit, load_tokenizer
from tests.tokens.conftest import MINILM, PIECES, write_bpe, write_unigram, write_vocab_txt


def test_tokenizer_json_comes_before_vocabularies(tmp_path: Path) -> None:
    write_vocab_txt(write_bpe(tmp_path), do_lower_case=True)
    assert load_tokenizer(tmp_path).path.name == "vocab.txt"
    write_unigram(tmp_path)
    assert load_tokenizer(tmp_path).path.name == "tokenizer.json"


def test_model_file_and_hub_layout(tmp_path: Path) -> None:
    write_unigram(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 77}))
    (tmp_path / "onnx").mkdir()
    for model in (tmp_path / "onnx" / "model.onnx", tmp_path / "model.onnx"):
        model.touch()
        tokenizer = load_tokenizer(model)
        assert (
            tokenizer.path == (tmp_path / "tokenizer.json").resolve() or tokenizer.path == tmp_path / "tokenizer.json"
        )
        assert tokenizer.limit == 77
        assert find_limit(model) == 77
    assert load_tokenizer(tmp_path / "onnx").limit == 77
    # A folder that is not called onnx says nothing about its parent.
    (tmp_path / "other").mkdir()
    with pytest.raises(ModelError, match="no tokenizer in"):
        load_tokenizer(tmp_path / "other")


def test_wordpiece_from_vocab_txt_equals_the_same_tokenizer_json(tmp_path: Path) -> None:
    """The bundled tokenizer.json, and one made of its vocabulary alone, agree."""
    vocabulary = Raw.from_file(str(MINILM / "tokenizer.json")).get_vocab()
    write_vocab_txt(tmp_path, sorted(vocabulary, key=vocabulary.__getitem__), do_lower_case=True)
    made, given = load_tokenizer(tmp_path / "vocab.txt"), load_tokenizer(MINILM)
    for text, pair in (("The animal didn't cross, Éa 日本 😀 [SEP] x [MASK]", None), ("One.", "Two, unbelievably!")):
        a, b = made.encode(text, pair), given.encode(text, pair)
        assert a.ids.tolist() == b.ids.tolist()
        assert (a.pieces, a.offsets, a.words, a.special, a.type_ids) == (
            b.pieces,
            b.offsets,
            b.words,
            b.special,
            b.type_ids,
        )
    assert made.special_ids == given.special_ids
    assert made.notes == ()


@pytest.mark.parametrize(
    ("pieces", "config", "expected", "guessed"),
    [
        (PIECES, {"do_lower_case": True}, ["[CLS]", "the", "cat", "##s", "[SEP]"], False),
        (PIECES, {"do_lower_case": False}, ["[CLS]", "[UNK]", "cat", "##s", "[SEP]"], False),
        (PIECES, {}, ["[CLS]", "the", "cat", "##s", "[SEP]"], True),
        ([*PIECES, "The", "It"], {}, ["[CLS]", "The", "cat", "##s", "[SEP]"], True),
    ],
)
def test_lower_case(
    tmp_path: Path, pieces: list[str], config: dict[str, bool], expected: list[str], guessed: bool
) -> None:
    tokenizer = load_tokenizer(write_vocab_txt(tmp_path, pieces, **config))
    tokens = tokenizer.encode("The cats")
    assert list(tokens.pieces) == expected
    assert any("do_lower_case" in note for note in tokens.notes) is guessed


def test_names_of_special_tokens_come_from_the_configuration(tmp_path: Path) -> None:
    pieces = ["<pad>", "<unk>", "<s>", "</s>", "cat"]
    roles = {"unk_token": "<unk>", "cls_token": {"content": "<s>"}, "sep_token": "</s>", "pad_token": "<pad>"}
    tokenizer = load_tokenizer(write_vocab_txt(tmp_path, pieces, do_lower_case=True, **roles))
    assert tokenizer.encode("cat dog").pieces == ("<s>", "cat", "<unk>", "</s>")
    assert (tokenizer.pad_id, tokenizer.unknown_id, tokenizer.special_ids) == (0, 1, {0, 2, 3})


def test_byte_level_bpe_of_gpt2_and_of_roberta(tmp_path: Path) -> None:
    (tmp_path / "gpt").mkdir()
    gpt = load_tokenizer(
        write_bpe(tmp_path / "gpt", "<|endoftext|>", eos_token="<|endoftext|>", unk_token="<|endoftext|>")
    )
    tokens = gpt.encode("the cat<|endoftext|>it")
    assert tokens.pieces == ("the", " cat", "<|endoftext|>", "it")
    assert tokens.special == (False, False, True, False)
    assert gpt.unknown_id is None
    assert "nothing is put around" in gpt.notes[0]
    assert gpt.piece(gpt.pad_id) == "<|endoftext|>"
    assert gpt.roles["eos_token"] == "<|endoftext|>"
    assert gpt.token_id("<|endoftext|>") == gpt.pad_id
    assert gpt.token_id("no such entry") is None
    (tmp_path / "roberta").mkdir()
    roberta = load_tokenizer(write_bpe(tmp_path / "roberta", "<s>", "<pad>", "</s>", "<unk>", "<mask>"))
    tokens = roberta.encode("the cat", "it")
    assert tokens.pieces == ("<s>", "the", " cat", "</s>", "</s>", "it", "</s>")
    assert set(tokens.type_ids) == {0}
    assert roberta.encode("a <mask>").special[-2] is False


def test_limits(tmp_path: Path) -> None:
    write_unigram(tmp_path)
    assert load_tokenizer(tmp_path).limit is None
    config, settings = tmp_path / "config.json", tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({"n_positions": 20}))
    assert load_tokenizer(tmp_path).limit == 20
    settings.write_text(json.dumps({"model_max_length": 1e30}))
    assert load_tokenizer(tmp_path).limit == 20
    settings.write_text(json.dumps({"model_max_length": 18}))
    assert load_tokenizer(tmp_path).limit == 18
    settings.write_text("{}")
    config.write_text(json.dumps({"max_position_embeddings": 99, "text_config": {"max_position_embeddings": 12}}))
    assert load_tokenizer(tmp_path).limit == 12
    # The tokenizer of one folder with the model of another: the shorter holds.
    assert load_tokenizer(tmp_path, model=MINILM).limit == 12
    config.unlink()
    assert load_tokenizer(tmp_path, model=MINILM / "model.onnx").limit == 512


@pytest.mark.parametrize(
    "name", ["spiece.model", "tokenizer.model", "sentencepiece.bpe.model", "source.spm", "x.tiktoken"]
)
def test_sentencepiece_alone_gets_the_remedy(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\x0a\x0b")
    for path in (tmp_path, tmp_path / name):
        with pytest.raises(ModelError, match="sentencepiece or tiktoken") as caught:
            load_tokenizer(path)
        assert "save_pretrained" in caught.value.hint


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b"\x00\xff",
        b"[" * 100_000,
        b'{"version":"1.0","model":{"type":"BPE","vocab":{},"merges":["a b"]}}',
    ],
)
@pytest.mark.parametrize("name", ["tokenizer.json", "other.json", "vocab.txt", "vocab.json"])
def test_damaged_files(tmp_path: Path, content: bytes, name: str) -> None:
    (tmp_path / name).write_bytes(content)
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    with pytest.raises(ModelError) as caught:
        load_tokenizer(tmp_path / name)
    assert name in caught.value.message
    assert caught.value.hint


def test_other_mistakes(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no file or folder"):
        load_tokenizer(tmp_path / "nowhere")
    with pytest.raises(ModelError, match="no tokenizer in") as caught:
        load_tokenizer(tmp_path)
    assert "`tokenizer=...`" in caught.value.hint
    assert "--ids 101,2023,102" in worded(caught.value.hint)
    (tmp_path / "vocab.json").write_text('{"a</w>": 0}')
    with pytest.raises(ModelError, match=r"needs merges\.txt"):
        load_tokenizer(tmp_path / "vocab.json")
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    with pytest.raises(ModelError, match="</w>"):
        load_tokenizer(tmp_path)
    write_unigram(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config\.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(AttnxError, match="JSON object"):
        load_tokenizer(tmp_path)


# Ids by transformers' EsmTokenizer 4.57.6.
ESM = [*"<cls> <pad> <eos> <unk>".split(), *"LAGVSERTIDPKQNFYMHWCXBUZO.-", "<null_1>", "<mask>"]
PROTEINS = {
    "MKTAYIAKQR": [20, 15, 11, 5, 19, 12, 5, 15, 16, 10],
    "MK TA\nYI": [20, 15, 11, 5, 19, 12],
    "MKj?A": [20, 15, 3, 5],
    "mkt": [3],
    "M<mask>KT": [20, 32, 15, 11],
    "A-B.C<null_1>D": [5, 30, 25, 29, 23, 31, 13],
    "A*B": [5, 3, 25],
    "": [],
}


@pytest.mark.parametrize("protein", PROTEINS)
def test_proteins_are_read_residue_by_residue(tmp_path: Path, protein: str) -> None:
    write_vocab_txt(tmp_path, ESM)
    got = load_tokenizer(tmp_path).encode(protein)
    assert got.ids.tolist() == [0, *PROTEINS[protein], 2]
    assert got.special == (True, *[False] * len(PROTEINS[protein]), True)
    if protein == "M<mask>KT":
        assert got.offsets[1:-1] == ((0, 1), (1, 7), (7, 8), (8, 9))


def test_a_list_of_residues_without_an_end(tmp_path: Path) -> None:
    write_vocab_txt(tmp_path, ["<cls>", "<unk>", "A"])
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "EsmTokenizer"}')
    with pytest.raises(ModelError, match="not a vocabulary of residues: <eos>"):
        load_tokenizer(tmp_path)


def test_a_tokenizer_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    content = (MINILM / "tokenizer.json").read_bytes()
    (tmp_path / "tokenizer.json").write_bytes(b"\xef\xbb\xbf" + content)
    assert (
        load_tokenizer(tmp_path).encode("the cat").ids.tolist() == load_tokenizer(MINILM).encode("the cat").ids.tolist()
    )


@pytest.fixture
def alone() -> Iterator[None]:
    """As on the command line: what is written to stderr is this package's."""
    reserve()
    yield
    reserve(False)


@pytest.mark.usefixtures("alone")
def test_what_a_panic_of_the_tokenizers_package_prints_is_kept_out(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    content = json.loads((MINILM / "tokenizer.json").read_text(encoding="utf-8"))
    content["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(ModelError, match="is not a tokenizer that can be read"):
        load_tokenizer(tmp_path)

    class Panicking:
        def encode(self, *_: object, **__: object) -> None:
            os.write(2, b"thread '<unnamed>' panicked")
            raise BaseException("a panic")

    tokenizer = load_tokenizer(MINILM)
    monkeypatch.setattr(tokenizer, "_raw", Panicking())
    with pytest.raises(InputError, match="cannot write this text: a panic"):
        tokenizer._encoded("a", None, True)
    os.write(2, b"after it")
    assert capfd.readouterr().err == "after it"
