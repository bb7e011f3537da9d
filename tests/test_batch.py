"""Batches give what single runs give; every kind of corpus is read, and what cannot be read is said."""

from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet as parquet
import pytest

import attnx
from attnx import memory
from attnx.batch import _batches
from attnx.corpus import find, read, size
from attnx.errors import InputError, RunError
from attnx.pipeline import Model

WORDS = "the animal did not cross a wide street because it was too tired to walk, and so we sat".split()
TEXTS = [" ".join(WORDS[at % 5 : 5 + at % 5 + at % 9]) for at in range(70)]


@pytest.fixture(scope="module")
def minilm() -> Model:
    return attnx.open("minilm", device="cpu")


@pytest.mark.parametrize("size", [1, 7, 32])
def test_batches_give_what_single_runs_give(minilm: Model, size: int) -> None:
    quantities = ("query", "key", "scores", "masked", "weights", "context")
    texts = [*TEXTS[:12], "", "a " * 60]
    many = list(minilm.trace_many(texts, quantities=quantities, size=size))
    assert [m.tokens.text for m in many] == texts
    for got in many:
        want = minilm.trace(tokens=got.tokens, quantities=quantities)
        assert got.tokens is want.tokens or got.tokens == want.tokens
        for one, other in zip(got.attentions, want.attentions, strict=True):
            assert one.trusted
            for name in quantities:
                np.testing.assert_allclose(getattr(one, name), getattr(other, name), atol=3e-5, err_msg=name)


def test_texts_share_a_batch_with_texts_of_like_length() -> None:
    lengths = [3, 3, 3, 5, 9, 9]
    order = range(6)
    assert list(_batches(order, lengths, 4, 1, pads=True)) == [[0, 1, 2, 3], [4, 5]]
    assert list(_batches(order, lengths, 4, 1, pads=False)) == [[0, 1, 2], [3], [4, 5]]
    assert list(_batches([0, 1], [4000, 4000], 4, 3, pads=True)) == [[0], [1]]


def test_a_window_is_read_no_further_than_it_must(minilm: Model) -> None:
    read_so_far = 0

    def texts() -> object:
        nonlocal read_so_far
        for text in TEXTS:
            read_so_far += 1
            yield text

    next(minilm.trace_many(texts(), size=2))  # type: ignore[arg-type]
    assert read_so_far == 16


def write_corpus(folder: Path) -> None:
    (folder / "in").mkdir()
    (folder / "in" / "a.txt").write_text("one\n\ntwo \N{SNOWMAN}\n", encoding="utf-8")
    (folder / "in" / "b.jsonl").write_text('{"text": "three", "n": 1}\n\n"four"\n', encoding="utf-8")
    (folder / "in" / "c.csv").write_text('id,text\n1,"five, six"\n2,\n', encoding="utf-8")
    parquet.write_table(pyarrow.table({"text": ["seven", None, "eight"]}), folder / "in" / "d.parquet")
    (folder / "in" / "e.bin").write_bytes(b"\0")


def test_every_kind_of_file_is_read(tmp_path: Path) -> None:
    write_corpus(tmp_path)
    files = find([str(tmp_path / "in"), str(tmp_path / "in" / "*.txt")])
    assert [f.name for f in files] == ["a.txt", "b.jsonl", "c.csv", "d.parquet"]
    got = [(Path(t.source).name, t.line, t.text) for t in read(files)]
    assert got == [
        ("a.txt", 1, "one"), ("a.txt", 3, "two \N{SNOWMAN}"), ("b.jsonl", 1, "three"), ("b.jsonl", 3, "four"),
        ("c.csv", 2, "five, six"), ("d.parquet", 1, "seven"), ("d.parquet", 3, "eight"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", b'{"x": 1}\n', "has no field 'text'; it has x"),
        ("a.jsonl", b"{\n", "is not JSON"),
        ("a.jsonl", b'{"text": 3}\n', "there is no text in it"),
        ("a.jsonl", b"[" * 100_000, "is not JSON"),
        ("a.csv", b"id,body\n1,x\n", "has no field 'text'; it has id, body"),
        ("a.csv", b'text\n"a\rb"\na\rb\n', "line 3 is not CSV"),
        ("a.txt", b"good\r\n\xff\xfe\xff", "line 2 is not UTF-8 text .byte 1 is 0xff"),
        ("a.csv", b"text\nx\ny\xe9\n", "line 3 is not UTF-8"),
        ("a.parquet", b"PAR1", "is not a Parquet file"),
    ],
)
def test_what_cannot_be_read_is_said(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=said):
        list(read([tmp_path / name]))


def test_a_field_that_is_not_there_is_guessed(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("Body,cand\nx,y\n")
    with pytest.raises(InputError) as caught:
        list(read([tmp_path / "a.csv"], "body"))
    assert caught.value.hint == "Did you mean 'Body'? Name the text's: --field NAME."
    (tmp_path / "a.jsonl").write_text('{"text": "x", "candidate": "y"}\n')
    with pytest.raises(InputError) as caught:
        list(read([tmp_path / "a.jsonl"], needs=("candidates",)))
    assert caught.value.hint == "Did you mean 'candidate'? What is measured needs that field."
    (tmp_path / "a.txt").write_text("x\n")
    with pytest.raises(InputError, match="holds texts and nothing else; 'pronoun' must stand beside each"):
        list(read([tmp_path / "a.txt"], needs=("pronoun",)))


def test_lines_that_end_in_crlf_are_the_same_texts(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\n\r\ntwo\r\n")
    (tmp_path / "b.csv").write_bytes(b'text,n\r\none,1\r\n"two\r\nlines",2\r\nthree,3\r\n')
    (tmp_path / "c.jsonl").write_bytes(b'{"text": "one"}\r\n')
    found = list(read([tmp_path / name for name in ("a.txt", "b.csv", "c.jsonl")], may=("n",)))
    assert [(t.line, t.text, dict(t.fields)) for t in found] == [
        (1, "one", {}), (3, "two", {}), (2, "one", {"n": "1"}), (3, "two\r\nlines", {"n": "2"}),
        (5, "three", {"n": "3"}), (1, "one", {}),
    ]  # fmt: skip
    assert found[-1].end == size([tmp_path / name for name in ("a.txt", "b.csv", "c.jsonl")])
    assert [t.end for t in found] == sorted(t.end for t in found)


def test_what_does_not_fit_in_memory_is_refused_before_it_is_run(
    minilm: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = minilm.encode(TEXTS[8])
    one = 4 * 12 * len(tokens) ** 2
    monkeypatch.setattr(memory, "available", lambda: 6 * one)
    assert minilm.trace(tokens=tokens, quantities=("weights",)).attentions
    with pytest.raises(RunError, match="masked, weights of 6 sites need"):
        minilm.trace(tokens=tokens, quantities=("masked", "weights"))
    assert minilm.heads(tokens=tokens).measures
