"""Small tokenizers of each family, written in the test."""

import json
from pathlib import Path

import pytest

from attnx.tokens import Tokenizer, load_tokenizer

MINILM = Path(__file__).parents[2] / "models" / "minilm"
PIECES = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "the",
    "cat",
    "sat",
    "##s",
    "un",
    "##believ",
    "##able",
    ".",
    "'",
]


def byte_vocabulary() -> dict[str, int]:
    """GPT-2's 256 byte characters, from its definition and not from the code under test: see Radford et al. 2019."""
    kept = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
    moved = [b for b in range(256) if b not in kept]
    return {chr(c): i for i, c in enumerate([*kept, *(256 + n for n in range(len(moved)))])}


MERGES = ["t h", "th e", "Ġ the", "c a", "ca t", "Ġ cat", "i t", "Ġ it", "Ċ Ċ"]


@pytest.fixture(scope="session")
def minilm() -> Tokenizer:
    return load_tokenizer(MINILM)


def write_vocab_txt(folder: Path, pieces: list[str] = PIECES, **config: object) -> Path:
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    if config:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def write_bpe(folder: Path, *more: str, **config: object) -> Path:
    vocabulary = byte_vocabulary()
    for entry in [*(merge.replace(" ", "") for merge in MERGES), *more]:
        vocabulary[entry] = len(vocabulary)
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(MERGES) + "\n", encoding="utf-8")
    if config:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def write_unigram(folder: Path) -> Path:
    """T5's and XLM-R's family: "▁" for a space, </s> after the text."""
    state = {
        "version": "1.0",
        "added_tokens": [
            {
                "id": n,
                "content": t,
                "special": True,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
            }
            for n, t in enumerate(["<pad>", "</s>", "<unk>"])
        ],
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "</s>", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {"</s>": {"id": "</s>", "ids": [1], "tokens": ["</s>"]}},
        },
        "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
        "model": {
            "type": "Unigram",
            "unk_id": 2,
            "vocab": [
                ["<pad>", 0],
                ["</s>", 0],
                ["<unk>", 0],
                ["▁", -3],
                ["▁the", -1],
                ["▁cat", -1],
                ["s", -2],
                ["▁it", -1],
            ],
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(state), encoding="utf-8")
    return folder


def write_llama(folder: Path) -> Path:
    """Llama's family: "▁" put in by the normalizer and taken out by a Replace, missing bytes written <0x..>."""
    entries = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "▁", "t", "h", "e", "▁t", "he", "▁the"]
    state = {
        "version": "1.0",
        "added_tokens": [
            {
                "id": n,
                "content": t,
                "special": True,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
            }
            for n, t in enumerate(["<unk>", "<s>", "</s>"])
        ],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
            ],
        },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        "model": {
            "type": "BPE",
            "unk_token": "<unk>",
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": {entry: n for n, entry in enumerate(entries)},
            "merges": ["▁ t", "h e", "▁t he"],
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(state), encoding="utf-8")
    return folder
