"""Batches give what single runs give; a scan that is killed at any moment loses nothing and counts nothing twice."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet as parquet
import pytest

import attnx
from attnx import memory
from attnx.batch import _batches
from attnx.corpus import find, read
from attnx.errors import InputError, RunError, UsageError
from attnx.pipeline import Model
from attnx.scanning import scan

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
    assert list(_batches([0, 1], [4000, 4000], 4, 2, pads=True)) == [[0], [1]]


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
        ("a.csv", b"id,body\n1,x\n", "has no field 'text'; it has id, body"),
        ("a.txt", b"\xff\xfe\xff", "is not UTF-8"),
        ("a.parquet", b"PAR1", "is not a Parquet file"),
    ],
)
def test_what_cannot_be_read_is_said(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=said):
        list(read([tmp_path / name]))


def table(path: Path) -> dict[tuple[int, str, int], dict[str, object]]:
    rows = parquet.read_table(path).to_pylist()
    keyed = {(row["text"], row["layer"], row["head"]): row for row in rows}
    assert len(keyed) == len(rows)
    return keyed


def test_a_scan_measures_what_heads_measures(minilm: Model, tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_text("\n".join(TEXTS[:20]), encoding="utf-8")
    done = scan(minilm, [tmp_path / "c.txt"], tmp_path / "o.parquet", part=8)
    rows = table(tmp_path / "o.parquet")
    assert (done.texts, done.kept, len(rows)) == (20, 0, 20 * 72)
    assert not (tmp_path / "o.parquet.parts").exists()
    weights = [minilm.trace(t, quantities=("weights",)).attentions[3].weights for t in TEXTS[:20]]
    largest = [float(w[0, 7].max(axis=-1).mean()) for w in weights if w is not None]
    got = [rows[at, "L3", 7]["largest weight"] for at in range(20)]
    np.testing.assert_allclose(got, largest, rtol=1e-5)  # type: ignore[arg-type]
    (mean,) = (m for m in done.summary if m.name == "largest weight")
    np.testing.assert_allclose(mean.values[3, 7], np.mean(largest), rtol=1e-5)


def test_a_scan_that_is_killed_goes_on(minilm: Model, tmp_path: Path) -> None:
    """Killed over and over until it is through, it gives the very rows of a scan that was left alone."""
    (tmp_path / "c.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    scan(minilm, [tmp_path / "c.txt"], tmp_path / "whole.parquet", part=4)
    code = (
        "import attnx, sys; from pathlib import Path; from attnx.scanning import scan\n"
        "here = Path(sys.argv[1])\n"
        "scan(attnx.open('minilm', device='cpu'), [here / 'c.txt'], here / 'o.parquet', part=4)\n"
    )
    parts = tmp_path / "o.parquet.parts"
    kills = 0
    for _ in range(60):
        before = len(list(parts.glob("0*.parquet"))) if parts.exists() else 0
        process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)])
        while process.poll() is None and kills < 3:
            there = len(list(parts.glob("0*.parquet"))) if parts.exists() else 0
            if there > before + kills:
                os.kill(process.pid, signal.SIGKILL)
                kills += 1
                break
            time.sleep(0.002)
        if process.wait() == 0:
            break
    assert kills == 3
    assert table(tmp_path / "o.parquet") == table(tmp_path / "whole.parquet")


def test_parts_of_another_scan_are_not_taken(minilm: Model, tmp_path: Path) -> None:
    corpus, out = tmp_path / "c.txt", tmp_path / "o.parquet"
    corpus.write_text("one\ntwo\n", encoding="utf-8")
    (tmp_path / "o.parquet.parts").mkdir()
    (tmp_path / "o.parquet.parts" / "scan.json").write_text(json.dumps({"model": "another"}))
    with pytest.raises(UsageError, match="parts of another scan"):
        scan(minilm, [corpus], out)
    assert scan(minilm, [corpus], out, force=True).texts == 2
    with pytest.raises(UsageError, match="exists"):
        scan(minilm, [corpus], out)


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
