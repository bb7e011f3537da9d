"""Batches give what single runs give; every kind of corpus is read, and what cannot be read is said."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet as parquet
import pytest
from onnx import TensorProto

import attnx
from attnx.errors import InputError, RunError, UsageError
from attnx.model import Model
from attnx.run import batch as batching
from attnx.run.batch import _batches, _run, run, together
from attnx.scan.corpus import find, read, size
from attnx.session import memory
from attnx.session.protocol import Wanted
from attnx.tokens.ids import from_ids
from tests import graphs

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


def test_decoders_with_a_cache_run_in_batches() -> None:
    gpt = attnx.open("tiny-gpt", device="cpu")
    assert together(gpt)
    for got in gpt.trace_many(TEXTS[:9], quantities=("key", "masked", "weights")):
        want = gpt.trace(tokens=got.tokens, quantities=("key", "masked", "weights"))
        for one, other in zip(got.attentions, want.attentions, strict=True):
            assert one.trusted
            np.testing.assert_allclose(one.need("weights"), other.need("weights"), atol=1e-5)
            np.testing.assert_allclose(one.need("key"), other.need("key"), atol=1e-4)


def test_a_model_whose_batches_mix_is_run_one_by_one() -> None:
    """Dynamic quantisation takes one scale for a whole batch: a text's numbers would hang on those beside it."""
    model = attnx.open(Path(__file__).parent / "zoo" / "int8-dynamic-ts17" / "model.onnx", device="cpu")
    tokens = [from_ids(ids) for ids in ([3, 1, 2, 4], [4, 5, 6, 7], [2, 2, 1, 3], [5, 5, 5, 5], [1, 8, 1, 8])]
    wanted = Wanted(None, ("masked", "weights"))
    mixed = _run(model, range(5), tokens, wanted)
    alone = [model.trace(tokens=one, quantities=("masked", "weights")) for one in tokens]
    apart = [
        np.abs(got.attentions[-1].need("weights") - want.attentions[-1].need("weights")).max()
        for got, want in zip(mixed.traces(), alone, strict=True)
    ]
    assert max(apart) > 1e-3, "the batch of this model does not mix: it shows nothing"
    for got, want in zip(model.trace_many(tokens), alone, strict=True):
        assert any("run one by one" in note for note in got.notes)
        for one, other in zip(got.attentions, want.attentions, strict=True):
            np.testing.assert_allclose(one.need("weights"), other.need("weights"), atol=1e-6)


def test_an_interrupted_batch_leaves_no_thread_behind(minilm: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minilm.sessions, "lanes", lambda: 3)
    traces = minilm.trace_many(TEXTS, size=2)
    next(traces)
    traces.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("attnx-batch")]


@pytest.mark.parametrize("lanes", [1, 3])
def test_the_order_does_not_hang_on_how_many_run_at_once(
    minilm: Model, monkeypatch: pytest.MonkeyPatch, lanes: int
) -> None:
    monkeypatch.setattr(minilm.sessions, "lanes", lambda: lanes)
    tokens = [minilm.encode(text) for text in TEXTS[:20]]
    batches = list(run(minilm, tokens, Wanted(None, ("weights",)), 4))
    order = sorted(range(20), key=lambda at: len(tokens[at]))
    first, *others = _batches(order, [len(one) for one in tokens], 4, 72, pads=True)
    assert [batch.places for batch in batches] == [tuple(part) for part in (first, *reversed(others))]


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
    assert read_so_far == 16  # eight batches of two


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
    assert caught.value.hint == "Did you mean 'Body'? Name the text's: `field=...`."
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


def test_a_carriage_return_alone_ends_a_line(tmp_path: Path) -> None:
    """As in text that Python reads; in a CSV file, it ends no row, and may stand in a cell in quotes."""
    (tmp_path / "a.txt").write_bytes(b"one\r\rtwo\r")
    (tmp_path / "b.jsonl").write_bytes(b'{"text": "one"}\r"two"\r')
    (tmp_path / "c.csv").write_bytes(b'text\n"one\rtwo"\n')
    (tmp_path / "d.csv").write_bytes(b"text\rone\rtwo\r")
    found = list(read([tmp_path / name for name in ("a.txt", "b.jsonl", "c.csv")]))
    assert [(t.line, t.text, t.end) for t in found] == [
        (1, "one", 4), (3, "two", 9), (1, "one", 25), (2, "two", 31), (2, "one\rtwo", 46),
    ]  # fmt: skip
    with pytest.raises(InputError, match="is not CSV"):
        list(read([tmp_path / "d.csv"]))


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


def test_no_more_is_read_ahead_than_memory_is_meant_for(minilm: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    from attnx.run import batch

    read: list[int] = []

    def texts() -> Iterator[str]:
        for at in range(40):
            read.append(at)
            yield TEXTS[0]

    one = 4 * 72 * len(minilm.encode(TEXTS[0])) ** 2
    monkeypatch.setattr(batch, "BYTES", 5 * one)
    traces = minilm.trace_many(texts(), quantities=("weights",))
    next(traces)
    assert len(read) == 6  # five, and the one that no longer fits
    assert len(list(traces)) == 39


def test_a_model_is_held_against_single_runs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    proofs: list[int] = []
    agreeing = batching._agreeing

    def counted(*args: Any) -> Any:
        proofs.append(1)
        return agreeing(*args)

    monkeypatch.setattr(batching, "_agreeing", counted)
    model = attnx.open("tiny-gpt", device="cpu")
    texts = [f"the cat sat on the {'mat ' * (at % 5)}" for at in range(40)]
    assert len(list(model.trace_many(texts, quantities=("weights",), size=4))) == 40
    list(model.trace_many(texts, quantities=("weights",)))
    assert len(proofs) == 1


@pytest.mark.parametrize("text", [5, b"x", ["a", "b"], {"input_ids": [101]}])
def test_what_is_no_text_is_refused_by_its_type(text: Any) -> None:
    model = attnx.open("minilm", device="cpu")
    for call in (model.trace, model.heads, lambda one: list(model.trace_many([one])), lambda one: model.rows(one, [0])):
        with pytest.raises(UsageError, match=f"a text is a str, and this is {type(text).__name__}"):
            call(text)


def test_one_text_is_not_several() -> None:
    with pytest.raises(UsageError, match="several texts go in a list"):
        attnx.open("minilm", device="cpu").trace_many("abc")


def test_texts_that_padding_spoils_are_run_alone(tmp_path: Path) -> None:
    """Rows of padding behind a window see nothing: the softmax makes them NaN, and the next layer all rows."""
    g = graphs.G()
    ids = g.input("input_ids", ["batch", "length"], TensorProto.INT64)
    mask = g.input("attention_mask", ["batch", "length"], TensorProto.INT64)
    length = g.op("Gather", g.op("Shape", ids), g.const(np.array(1)), axis=0)
    steps = g.op("Range", g.const(np.array(0)), length, g.const(np.array(1)))
    back = g.op("Sub", g.op("Unsqueeze", steps, g.const(np.array([1]))), steps)
    near = g.op("And", g.op("GreaterOrEqual", back, g.const(np.array(0))), g.op("Less", back, g.const(np.array(3))))
    there = g.op("Cast", g.op("Unsqueeze", mask, g.const(np.array([1, 2]))), to=TensorProto.BOOL)
    shown = g.op("And", near, there)
    x = str(g.op("Gather", g.weight(50, 16), ids))
    for _ in range(2):
        q, k, v = graphs.qkv(g, x)
        masked = g.op("Where", shown, g.scores(q, k), g.const(np.float32(-np.inf)))
        x = str(g.op("Add", x, g.out(str(g.op("MatMul", g.softmax(masked), v)))))
    model = attnx.open(g.save(tmp_path, x), device="cpu")
    texts = [from_ids(range(1, 2 + n)) for n in (4, 4, 5, 11)]
    got = list(batching.trace_many(model, texts, ("weights",), size=2))  # the first two share a batch without padding
    for text, trace in zip(texts, got, strict=True):
        (alone,) = batching.trace_many(model, [text], ("weights",))
        assert all(a.trusted for a in trace.attentions)
        for one, other in zip(trace.attentions, alone.attentions, strict=True):
            np.testing.assert_allclose(one.need("weights"), other.need("weights"), atol=1e-6)
            np.testing.assert_allclose(one.need("weights").sum(-1), 1, atol=1e-5)
    assert [batching.PADDED in trace.notes for trace in got] == [False, False, True, True]
