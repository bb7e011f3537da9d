"""`attnx scan`: the Parquet file, the summary, and what is said of mistakes."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as parquet
import pytest

from attnx.scan import scanning
from attnx.scan.progress import clock, line
from attnx.scan.scanning import Progress
from tests.cli.conftest import Run


def test_scan(attnx: Run, tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_text("The animal was tired.\n\nIt slept.\n", encoding="utf-8")
    done = attnx("scan", "c.txt", "-o", "o.parquet", "--json")
    assert done.document["schema"] == "attnx/scan"
    assert (done.document["texts"], done.document["kept"]) == (2, 0)
    rows = parquet.read_table(tmp_path / "o.parquet").to_pylist()
    of_head = [r["value"] for r in rows if (r["measure"], r["layer"], r["head"]) == ("entropy", "L2", 5)]
    summary = next(m for m in done.document["summary"] if m["name"] == "entropy")
    assert abs(summary["values"][2][5] - sum(of_head) / 2) < 1e-6
    assert {row["line"] for row in rows} == {1, 3}
    rate = done.document["rate"]
    assert done.document["hours_per_million"] == pytest.approx(1e6 / rate / 3600)
    hours = f"a million texts take {1e6 / rate / 3600:.2f} hours"
    assert f"measured: {rate:.1f} texts a second with these settings on this machine; at this rate {hours}" in done.err
    assert "wrote o.parquet" in done.err
    assert "o.parquet exists" in attnx("scan", "c.txt", "-o", "o.parquet", code=2).err
    shown = attnx("scan", "c.txt", "-o", "o.parquet", "--force", "--measure", "sinks,coref,entropy", code=4)
    assert "c.txt holds texts and nothing else; 'pronoun' and 'candidates' must stand beside each" in shown.err


def test_the_summary(attnx: Run, tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_text("The animal was tired.\nIt slept.\n", encoding="utf-8")
    document = attnx("scan", "c.txt", "-o", "o.parquet", "--json", "--measure", "entropy").document
    shown = attnx("scan", "c.txt", "-o", "p.parquet", "--measure", "entropy").out.splitlines()
    assert shown[0].startswith("minilm · 2 texts, ")
    values = document["summary"][0]["values"]
    best = max((value, layer, head) for layer, row in enumerate(values) for head, value in enumerate(row))
    mean = sum(sum(row) for row in values) / 72
    (row,) = [one for one in shown if one.startswith("entropy  ")]
    assert f"{mean:.3f}" in row
    assert f"L{best[1]} H{best[2]} {best[0]:.2f}" in row


def test_mistakes(attnx: Run, tmp_path: Path) -> None:
    assert "nothing to read at none.txt" in attnx("scan", "none.txt", "-o", "o.parquet", code=4).err
    assert "nothing to read at *.jsonl" in attnx("scan", "*.jsonl", "-o", "o.parquet", code=4).err
    (tmp_path / "empty").mkdir()
    assert "nothing to read at empty" in attnx("scan", "empty", "-o", "o.parquet", code=4).err
    (tmp_path / "c.txt").write_text("\n\n", encoding="utf-8")
    assert "no text in the corpus" in attnx("scan", "c.txt", "-o", "o.parquet", code=4).err
    (tmp_path / "d.txt").write_text("one\n", encoding="utf-8")
    assert "scan measures no 'x'" in attnx("scan", "d.txt", "-o", "p.parquet", "--measure", "x", code=2).err
    assert "there is no engine 'spark'" in attnx("scan", "d.txt", "-o", "p.parquet", "--engine", "spark", code=2).err
    assert "are for --engine ray" in attnx("scan", "d.txt", "-o", "p.parquet", "--workers", "2", code=2).err
    (tmp_path / "e.jsonl").write_text('{"body": "one"}\n', encoding="utf-8")
    said = attnx("scan", "e.jsonl", "-o", "p.parquet", code=4).err
    assert "e.jsonl, line 1 has no field 'text'; it has body" in said
    assert "would be overwritten" in attnx("scan", "d.txt", "-o", "d.txt", "--force", code=2).err
    assert "-o is empty" in attnx("scan", "d.txt", "-o", "", code=2).err
    for folder in (".", "empty"):
        assert "is a folder" in attnx("scan", "d.txt", "-o", folder, code=2).err
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        assert "is not an ordinary file" in attnx("scan", "d.txt", "-o", "pipe", "--force", code=2).err
        (tmp_path / "pipe").unlink()
    assert "Create it: mkdir -p no/such" in attnx("scan", "d.txt", "-o", "no/such/p.parquet", code=2).err
    for name in ("p.csv", "p.JSONL", "p.txt"):
        assert "a scan writes Parquet" in attnx("scan", "d.txt", "-o", name, code=2).err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c.txt", "d.txt", "e.jsonl", "empty"]


def test_folders_and_patterns(attnx: Run, tmp_path: Path) -> None:
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "in" / "a.txt").write_text("one\r\ntwo\r\n", newline="")
    (tmp_path / "in" / "deep" / "b.csv").write_text("text\nthree\n")
    (tmp_path / "in" / "c.bin").write_bytes(b"\xff")
    attnx("scan", "in", "in/**/*.csv", "-o", "o.parquet", "--measure", "entropy")
    rows = parquet.read_table(tmp_path / "o.parquet").to_pylist()
    found = sorted({(row["text"], row["source"], row["line"]) for row in rows})
    assert found == [(0, "in/a.txt", 1), (1, "in/a.txt", 2), (2, "in/deep/b.csv", 2)]


def test_an_interrupt_says_how_to_go_on(attnx: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "c.txt").write_text("one\ntwo\nthree\n")
    real, made = scanning.made_of, []

    def interrupted(*args: object) -> bytes:
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(args)
        return real(*args)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(scanning, "made_of", interrupted)
        said = attnx("scan", "c.txt", "-o", "o.parquet", "--part", "1", code=130).err
    assert "what is done is kept in o.parquet.parts; the same command goes on from there" in said
    assert "attnx: interrupted" in said
    assert "3 texts in" in attnx("scan", "c.txt", "-o", "o.parquet", "--part", "1").err


def test_a_corpus_that_must_be_mended_costs_one_part(attnx: Run, tmp_path: Path) -> None:
    good = b"one\ntwo\nthree\nfour\n"
    (tmp_path / "c.txt").write_bytes(good + b"\xff\nsix\n")
    said = attnx("scan", "c.txt", "-o", "o.parquet", "--part", "2", "--measure", "entropy", code=4).err
    assert "c.txt, line 5 is not UTF-8 text" in said
    assert "what is done is kept in o.parquet.parts; with --force the same command goes on" in said
    (tmp_path / "c.txt").write_bytes(good + b"five\nsix\n")
    refused = attnx("scan", "c.txt", "-o", "o.parquet", "--part", "2", "--measure", "entropy", code=2).err
    assert "c.txt has changed" in refused
    assert "what is done is kept" not in refused  # the same command would be refused again
    refused = attnx("scan", "c.txt", "-o", "o.parquet", "--part", "2", "--measure", "sinks", code=2).err
    assert "holds parts of another scan" in refused
    assert "what is done is kept" not in refused
    done = attnx("scan", "c.txt", "-o", "o.parquet", "--part", "2", "--measure", "entropy", "--force", "--json")
    assert (done.document["texts"], done.document["kept"]) == (6, 4)


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")
def test_ctrl_c(tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_text("the animal was tired and slept\n" * 4000)
    command = [sys.executable, "-m", "attnx", "scan", "c.txt", "-o", "o.parquet", "--part", "4", "--device", "cpu"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    parts = tmp_path / "o.parquet.parts"
    for _ in range(6000):
        if len(list(parts.glob("0*.parquet"))) > 2 or process.poll() is not None:
            break
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "the same command goes on from there" in err
    assert "Traceback" not in err
    assert out == ""
    assert len(list(parts.glob("0*.parquet"))) > 2
    assert not list(parts.glob(".*unfinished"))


def test_what_is_said_on_the_way(attnx: Run, tmp_path: Path) -> None:
    at = Progress(texts=1536, kept=512, seconds=10.24, read=30, kept_read=10, total=100)
    assert line(at) == "1536 texts, 512 kept from before, 30 % read, 100.0 texts/s, 0:35 left"
    assert line(Progress(8, 0, 0.0, 8, 0, 0)) == "8 texts, 0.0 texts/s, 0:00 left"
    assert [clock(seconds) for seconds in (5, 187, 43387)] == ["0:05", "3:07", "12:03:07"]
    (tmp_path / "c.txt").write_text("one\ntwo\n")
    assert "texts/s" not in attnx("scan", "c.txt", "-o", "o.parquet", "--measure", "entropy").err
    said = attnx("scan", "c.txt", "-o", "p.parquet", "--measure", "entropy", "--verbose").err
    assert "attnx: 2 texts, 100 % read, " in said


def test_without_ray_it_is_said_how_to_get_it(attnx: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "c.txt").write_text("one\n")
    monkeypatch.setitem(sys.modules, "ray", None)
    said = attnx("scan", "c.txt", "-o", "o.parquet", "--engine", "ray", code=2).err
    assert "--engine ray needs Ray Data, which is not installed here" in said
    assert "pip install 'ray[data]'" in said


def test_a_measure_goes_by_the_name_that_heads_gives_it(attnx: Run, tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_text("the cat sat on the mat\nthe dog\n", encoding="utf-8")
    attnx("scan", "c.txt", "-o", "all.parquet", "--measure", "heads,sinks")
    attnx("scan", "c.txt", "-o", "few.parquet", "--measure", "Mean-Distance,strongest key")
    whole, few = (parquet.read_table(tmp_path / f"{name}.parquet").to_pylist() for name in ("all", "few"))
    assert {row["measure"] for row in few} == {"mean distance", "strongest key"}
    assert few == [row for row in whole if row["measure"] in ("mean distance", "strongest key")]
    said = attnx("scan", "c.txt", "-o", "p.parquet", "--measure", "mean distanc", code=2).err
    assert "Did you mean 'mean distance'? Choose from heads, coref," in said
    assert "or a single measure: entropy, entropy share, " in said


def test_the_summary_says_why_a_measure_has_no_value(attnx: Run, tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_text("the cat sat\nthe dog and the bird\n", encoding="utf-8")
    done = attnx("scan", "c.txt", "-o", "p.parquet", "--measure", "repeats")
    assert re.search(r"^induction +-", done.out, re.M)
    assert "induction: no value in any text; a text needs 8 tokens or more that repeat" in done.out
    assert "duplicate: a value in 1 of 2 texts; a text needs a token that repeats" in done.out
    document = attnx("scan", "c.txt", "-o", "q.parquet", "--measure", "repeats", "--json").document
    assert any("no value in any text" in note for m in document["summary"] for note in m["notes"])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
def test_a_pipe_is_refused_and_not_waited_for(attnx: Run, tmp_path: Path) -> None:
    """Opened a second time, it would wait for ever for someone to write."""
    os.mkfifo(tmp_path / "pipe.txt")
    assert "a pipe or a device" in attnx("scan", "pipe.txt", "-o", "o.parquet", code=4).err
