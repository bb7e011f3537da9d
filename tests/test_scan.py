"""What a scan writes is what single runs give; killed at any moment, it loses nothing and counts nothing twice."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

import attnx
from attnx.cli.wording import worded
from attnx.errors import InputError, RunError, UsageError
from attnx.measure import describe_heads
from attnx.model import Model
from attnx.scan import parts, scanning, surveys
from attnx.scan.corpus import Text, read
from attnx.scan.measuring import Job, measure
from attnx.scan.observations import COLUMNS, schema
from attnx.scan.parts import SCAN, note_of
from attnx.scan.resume import alone
from attnx.scan.scanning import Progress, scan
from attnx.study.batch_head_stats import LONG

WORDS = "the animal did not cross a wide street because it was too tired to walk, and so we sat".split()
TEXTS = [" ".join(WORDS[at % 5 : 5 + at % 5 + at % 9] + WORDS[: at % 3]) for at in range(30)]
PART = 8


@pytest.fixture(scope="module")
def minilm() -> Model:
    return attnx.open("minilm", device="cpu")


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "c.txt"
    path.write_text("\n".join(TEXTS), encoding="utf-8")
    return path


Key = tuple[int, str, str | None, str, int | None]


def table(path: Path) -> dict[Key, float]:
    found = parquet.read_table(path)
    *key, values = (found[name].to_pylist() for name in ("text", "measure", "item", "layer", "head", "value"))
    keyed = dict(zip(zip(*key, strict=True), values, strict=True))
    assert len(keyed) == len(values)
    return keyed


@pytest.fixture(scope="module")
def whole(minilm: Model, tmp_path_factory: pytest.TempPathFactory) -> dict[Key, float]:
    """The table of a scan that was left alone."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "c.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    scan(minilm, [folder / "c.txt"], folder / "o.parquet", part=PART)
    return table(folder / "o.parquet")


def test_a_scan_measures_what_heads_measures(minilm: Model, corpus: Path, tmp_path: Path) -> None:
    done = scan(minilm, [corpus], tmp_path / "o.parquet", part=PART)
    rows = table(tmp_path / "o.parquet")
    assert (done.texts, done.kept, done.device) == (len(TEXTS), 0, "cpu")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c.txt", "o.parquet"]
    for at in (0, 7, 8, 29):
        trace = minilm.trace(TEXTS[at], quantities=("masked", "weights"))
        for one in describe_heads(trace).measures:
            for (layer, head), value in np.ndenumerate(one.values):
                got = rows.get((at, one.name, None, f"L{layer}", head))
                assert (got is None) == bool(np.isnan(value))
                assert got is None or got == pytest.approx(value, rel=1e-4, abs=1e-5), one.name
    (mean,) = (m for m in done.summary if m.name == "duplicate")
    there = [value for key, value in rows.items() if key[1:] == ("duplicate", None, "L3", 7)]
    assert 0 < len(there) < len(TEXTS)
    assert mean.values[3, 7] == pytest.approx(np.mean(there), rel=1e-6)


def test_the_file_is_as_it_is_documented(minilm: Model, corpus: Path, tmp_path: Path) -> None:
    scan(minilm, [corpus], tmp_path / "o.parquet", measures=["entropy"], part=PART)
    found = parquet.read_table(tmp_path / "o.parquet")
    assert found.schema.remove_metadata() == schema().remove_metadata()
    assert {field.name: str(field.type).split("<")[0] for field in found.schema} == {
        "text": "int64", "source": "dictionary", "line": "int64", "tokens": "int32", "measure": "dictionary",
        "item": "dictionary", "layer": "dictionary", "head": "int32", "value": "float",
    }  # fmt: skip
    readme = (Path(__file__).parents[1] / "docs" / "guide" / "corpus.md").read_text(encoding="utf-8")
    for name, said in COLUMNS.items():
        assert f"| `{name}` | {said} |" in readme
    about = json.loads(found.schema.metadata[SCAN])
    assert about["measure"] == ["entropy"]
    assert about["attnx"] == attnx.__version__
    order = found.column("text").to_numpy()
    assert (np.diff(order) >= 0).all()
    assert sorted(set(order.tolist())) == list(range(len(TEXTS)))


def test_every_survey_gives_what_it_says(minilm: Model, corpus: Path, tmp_path: Path) -> None:
    names = [name for name in surveys.names() if not surveys.load(name).required]
    assert names[0] == "heads"
    trace = minilm.trace(TEXTS[8], quantities=("masked", "weights"))
    for name in names:
        survey = surveys.load(name)
        assert tuple(one.name for one in survey.compute(trace, {})) == survey.batched
    scan(minilm, [corpus], tmp_path / "o.parquet", measures=names, part=PART)
    measured = {key[1] for key in table(tmp_path / "o.parquet")}
    assert measured == {one for name in names for one in surveys.load(name).batched} - {"induction"}


def test_a_measure_of_batches_that_proves_wrong_is_not_used(
    minilm: Model, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: dict[Key, float]
) -> None:
    from attnx.study import batch_head_stats as headsums

    real = headsums.measure
    monkeypatch.setattr(headsums, "measure", lambda b, names: {n: v + 0.01 for n, v in (real(b, names) or {}).items()})
    done = scan(minilm, [corpus], tmp_path / "o.parquet", part=PART)
    assert any("differ from those of single texts" in note for note in done.notes)
    got = table(tmp_path / "o.parquet")
    assert got.keys() == whole.keys()
    assert max(abs(got[key] - whole[key]) for key in got) < 1e-4


COREF = "The animal did not cross the street because it was too tired."


def test_coreference_by_row(minilm: Model, tmp_path: Path) -> None:
    rows = [
        {"text": COREF, "pronoun": "it", "candidates": "animal,street", "answer": "animal"},
        {"text": COREF, "pronoun": [44, 46], "candidates": [[4, 10], [29, 35]], "answer": 1},
        {"text": COREF, "pronoun": "it", "candidates": ["animal", "street"]},
        {"text": COREF, "pronoun": "they", "candidates": ["animal", "street"]},
        {"text": COREF, "pronoun": "the", "candidates": ["animal"]},
        {"text": COREF, "pronoun": "it", "candidates": ["animal"], "answer": "dog"},
        {"text": COREF, "pronoun": "it", "candidates": ["animal"], "answer": [0]},
        {"text": COREF, "pronoun": 3, "candidates": ["animal"]},
        {"text": COREF, "pronoun": [44, 460], "candidates": ["animal"]},
        {"text": COREF, "pronoun": "it", "candidates": []},
        {"text": COREF, "pronoun": "it", "candidates": "[1,"},
        {"text": COREF, "pronoun": "it", "candidates": ["animal"], "answer": "animal"},
        {"text": COREF, "pronoun": "it", "candidates": ["animal", "animal"]},
        {"text": COREF, "pronoun": "it", "candidates": [[0, 10], [4, 10]]},
    ]
    (tmp_path / "c.jsonl").write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    done = scan(minilm, [tmp_path / "c.jsonl"], tmp_path / "o.parquet", measures=["coref"])
    count, first = done.left["coref"]
    assert count == 11
    assert first.endswith('c.jsonl, line 4: there is no token or word "they"')
    got = table(tmp_path / "o.parquet")
    assert {key[0] for key in got} == {0, 1, 2}
    weights = minilm.trace(COREF, quantities=("weights",)).attentions[3].need("weights")[0, 1]
    at = [minilm.encode(COREF).pieces.index(piece) for piece in ("it", "animal", "street")]
    animal, street = (f"it@{at[0]} → {name}@{place}" for name, place in zip(("animal", "street"), at[1:], strict=True))
    for text in (0, 1, 2):
        assert got[text, "coreference weight", animal, "L3", 1] == pytest.approx(weights[at[0], at[1]], abs=1e-5)
        assert got[text, "coreference weight", street, "L3", 1] == pytest.approx(weights[at[0], at[2]], abs=1e-5)
        share = weights[at[0], at[1]] / (weights[at[0], at[1]] + weights[at[0], at[2]])
        assert got[text, "coreference share", animal, "L3", 1] == pytest.approx(share, abs=1e-4)
    assert [got.get((text, "coreference accuracy", None, "L3", 1)) for text in (0, 1, 2)] == [1.0, 0.0, None]
    (accuracy,) = (m for m in done.summary if m.name == "coreference accuracy")
    assert accuracy.values[3, 1] == 0.5
    assert {m.name for m in done.summary} == {"coreference accuracy", "coreference margin"}


def test_lists_in_csv_are_json(minilm: Model, tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text(
        f'text,pronoun,candidates,answer\n"{COREF}",it,"animal,street",0\n'
        f'"{COREF}","[44, 46]","[[4, 10], ""street""]",\n'
    )
    done = scan(minilm, [tmp_path / "c.csv"], tmp_path / "o.parquet", measures=["coref", "entropy"])
    assert not done.left
    got = table(tmp_path / "o.parquet")
    for key in [key for key in got if key[0] == 0 and key[1].startswith("coreference")]:
        if key[1] != "coreference accuracy":
            assert got[(1, *key[1:])] == got[key]
    assert sum(key[1] == "entropy" for key in got) == 2 * 72


def test_long_texts_are_reduced_in_the_graph(minilm: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = " ".join(WORDS * 15)
    (tmp_path / "c.txt").write_text(f"it was tired\n{text}\nit slept\n", encoding="utf-8")
    traced = minilm.trace(text, quantities=("masked", "weights"))
    assert len(traced.tokens) > LONG
    with monkeypatch.context() as patch:
        patch.setattr(Model, "trace", None)  # no matrix of it is fetched
        scan(minilm, [tmp_path / "c.txt"], tmp_path / "o.parquet")
    rows = table(tmp_path / "o.parquet")
    assert {key[0] for key in rows} == {0, 1, 2}
    for one in describe_heads(traced).measures:
        for (layer, head), value in np.ndenumerate(one.values):
            got = rows.get((1, one.name, None, f"L{layer}", head))
            assert (got is None) == bool(np.isnan(value))
            assert got is None or got == pytest.approx(value, rel=1e-4, abs=1e-5), one.name
    scan(minilm, [tmp_path / "c.txt"], tmp_path / "p.parquet", measures=["sinks"])  # has what is not reduced so
    assert table(tmp_path / "p.parquet")[1, "sink", None, "L4", 5] == pytest.approx(
        rows[1, "sink", None, "L4", 5], rel=1e-4
    )


def test_the_bytes_do_not_hang_on_the_threads() -> None:
    """So that parts of machines of any size are the same."""
    texts = [Text("c.txt", at, text) for at, text in enumerate(TEXTS, 1)]
    made = set()
    for threads in (1, 3):
        model = attnx.open("minilm", device="cpu")
        model.sessions.threads = threads
        made.add(measure(model, Job(size=5), 0, 0, texts))
    assert len(made) == 1


def test_decoders(tmp_path: Path, corpus: Path) -> None:
    model = attnx.open("tiny-gpt", device="cpu")
    scan(model, [corpus], tmp_path / "o.parquet", measures=["sinks"], part=PART)
    got = table(tmp_path / "o.parquet")
    trace = model.trace(TEXTS[20], quantities=("weights",))
    mean = trace.attentions[1].need("weights")[0, 2, :, 0].mean()
    assert got[20, "sink", None, "L1", 2] == pytest.approx(mean, abs=1e-5)


CHILD = """
import os, signal, sys
from pathlib import Path
import attnx
from attnx.scan import scanning
here, when = Path(sys.argv[1]), sys.argv[2]

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

def nth(count, owner, name, before):
    real, calls = getattr(owner, name), [0]
    def call(*args, **named):
        calls[0] += 1
        if before and calls[0] == count:
            die()
        out = real(*args, **named)
        if calls[0] == count:
            die()
        return out
    setattr(owner, name, call)

import shutil
if when == "while a part is written":
    nth(3, os, "fsync", True)         # the plan, the first part, the second part
elif when == "between two parts":
    nth(3, Path, "replace", False)
elif when == "while the whole is written":
    import pyarrow.parquet
    real = scanning.join
    def join(parts, out, about):
        nth(3, pyarrow.parquet, "read_table", True)
        real(parts, out, about)
    scanning.join = join
elif when == "before the whole is in its place":
    nth(6, Path, "replace", True)     # the plan, four parts, the whole
elif when == "with the whole and the parts there":
    nth(1, Path, "rename", True)
elif when == "before the parts are removed":
    nth(1, Path, "rename", False)
scanning.scan(attnx.open("minilm", device="cpu"), [here / "c.txt"], here / "o.parquet", part=8)
"""
MOMENTS = {
    "while a part is written": 1,
    "between two parts": 2,
    "while the whole is written": 4,
    "before the whole is in its place": 4,
    "with the whole and the parts there": 4,
    "before the parts are removed": None,
}


@pytest.mark.parametrize("when", MOMENTS)
def test_killed_at_any_moment(when: str, minilm: Model, corpus: Path, tmp_path: Path, whole: dict[Key, float]) -> None:
    out = tmp_path / "o.parquet"
    env = {**os.environ, "ATTNX_CACHE": "off"}  # which renames files as well, and would be counted
    command = [sys.executable, "-c", CHILD, str(tmp_path), when]
    process = subprocess.run(command, env=env, capture_output=True, text=True)
    assert process.returncode == -signal.SIGKILL, process.stderr
    done = MOMENTS[when]
    if done is None:  # nothing is left to be done, and the file is there
        with pytest.raises(UsageError, match="exists"):
            scan(minilm, [corpus], out, part=PART)
    else:
        parts = sorted((tmp_path / "o.parquet.parts").glob("0*.parquet"))
        assert len(parts) == done
        before = {part: part.stat().st_mtime_ns for part in parts}
        resumed = scan(minilm, [corpus], out, part=PART)
        assert resumed.kept == min(done * PART, len(TEXTS))
        assert resumed.texts == len(TEXTS)
        assert len(before) == done
    assert table(out) == whole
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c.txt", "o.parquet"]


def test_killed_over_and_over(minilm: Model, corpus: Path, tmp_path: Path, whole: dict[Key, float]) -> None:
    """From outside, whenever there is a new part, until it is through."""
    parts = tmp_path / "o.parquet.parts"
    kills = 0
    for _ in range(60):
        before = len(list(parts.glob("0*.parquet"))) if parts.exists() else 0
        process = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path), "never"])
        while process.poll() is None and kills < 3:
            there = len(list(parts.glob("0*.parquet"))) if parts.exists() else 0
            if there > before:
                process.kill()
                kills += 1
                break
            time.sleep(0.002)
        if process.wait() == 0:
            break
    assert kills
    assert table(tmp_path / "o.parquet") == whole


def parts_of(minilm: Model, corpus: Path, out: Path, count: int, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a scan that an interrupt ended after some parts."""
    real = scanning.made_of
    made = 0

    def some(*args: object) -> bytes:
        nonlocal made
        if made == count:
            raise KeyboardInterrupt
        made += 1
        return real(*args)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(scanning, "made_of", some)
        with pytest.raises(KeyboardInterrupt):
            scan(minilm, [corpus], out, part=PART)
    return out.with_name(out.name + ".parts")


def test_parts_of_another_scan_are_not_taken(
    minilm: Model, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "o.parquet"
    folder = parts_of(minilm, corpus, out, 2, monkeypatch)

    def differs(said: str, **named: object) -> None:
        with pytest.raises(UsageError, match=said) as caught:
            scan(minilm, [corpus], out, **{"part": PART, **named})  # type: ignore[arg-type]
        assert "what differs: " in caught.value.message
        assert "--force to begin anew" in worded(caught.value.hint)

    differs(r"differs: measure coref,heads \(before: heads\)$", measures=["coref", "heads"])
    differs(r"batch 7 \(before: 32\); part 4 \(before: 8\)$", size=7, part=4)
    other = attnx.open("tiny-gpt", device="cpu")
    with pytest.raises(UsageError, match=r"the model .*tiny.* \(before: .*minilm.*\)"):
        scan(other, [corpus], out, part=PART)
    second = tmp_path / "d.txt"
    second.write_text("more\n")
    with pytest.raises(UsageError, match=r"d.txt was not read$"):
        scan(minilm, [corpus, second], out, part=PART)
    text = corpus.read_text(encoding="utf-8")
    corpus.write_text(text + "\nmore", encoding="utf-8")
    differs("c.txt has changed$")
    assert len(list(folder.glob("0*.parquet"))) == 2

    # With --force: the first two parts have the very texts that they had, and are kept.
    forced = scan(minilm, [corpus], out, part=PART, force=True)
    assert (forced.texts, forced.kept) == (len(TEXTS) + 1, 2 * PART)


def test_a_changed_text_is_measured_again(
    minilm: Model, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "o.parquet"
    parts_of(minilm, corpus, out, 2, monkeypatch)
    corpus.write_text("\n".join([*TEXTS[:9], "something else", *TEXTS[10:]]), encoding="utf-8")
    forced = scan(minilm, [corpus], out, part=PART, force=True)
    assert forced.kept == PART
    trace = minilm.trace("something else", quantities=("weights",))
    value = trace.attentions[0].need("weights")[0, 0].max(axis=-1).mean()
    assert table(out)[9, "largest weight", None, "L0", 0] == pytest.approx(value, abs=1e-5)


def test_a_damaged_part_is_made_again(
    minilm: Model, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: dict[Key, float]
) -> None:
    out = tmp_path / "o.parquet"
    folder = parts_of(minilm, corpus, out, 3, monkeypatch)
    first, second, third = sorted(folder.glob("0*.parquet"))
    first.write_bytes(b"")
    second.write_bytes(third.read_bytes())
    assert note_of(first) is None
    assert scan(minilm, [corpus], out, part=PART).kept == PART
    assert table(out) == whole


def test_an_out_that_is_there_is_kept(minilm: Model, corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "o.parquet"
    out.write_text("mine")
    with pytest.raises(UsageError, match=r"o.parquet exists"):
        scan(minilm, [corpus], out)
    assert out.read_text() == "mine"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c.txt", "o.parquet"]
    with pytest.raises(UsageError, match="is a file of the corpus"):
        scan(minilm, [corpus], corpus, force=True)
    assert scan(minilm, [corpus], out, force=True).texts == len(TEXTS)


def test_two_scans_at_once(minilm: Model, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = parts_of(minilm, corpus, tmp_path / "o.parquet", 1, monkeypatch)
    with alone(folder), pytest.raises(UsageError, match="another scan is writing to"):
        scan(minilm, [corpus], tmp_path / "o.parquet", part=PART)
    assert scan(minilm, [corpus], tmp_path / "o.parquet", part=PART).kept == PART


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), int(sys.argv[1])))
from attnx.cli import app as cli
sys.exit(cli.run(["scan", "c.txt", "-o", "o.parquet", "--part", "8", "--device", "cpu"]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs a limit on the size of files")
@pytest.mark.parametrize("share", [0.5, 1.3])
def test_a_full_disk(
    share: float, minilm: Model, corpus: Path, tmp_path: Path, whole: dict[Key, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too little room for a part, or for all but the whole."""
    folder = parts_of(minilm, corpus, tmp_path / "x.parquet", 1, monkeypatch)
    limit = int(share * next(folder.glob("0*.parquet")).stat().st_size)
    env = {**os.environ, "ATTNX_CACHE": "off", "ATTNX_ISOLATE": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", LIMITED, str(limit)]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 5, done.stderr
    assert "cannot be written: File too large" in done.stderr
    assert "the same command then goes on" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    there = list((tmp_path / "o.parquet.parts").glob("0*.parquet"))
    assert len(there) == (0 if share < 1 else 4)
    monkeypatch.chdir(tmp_path)
    resumed = scan(minilm, [Path("c.txt")], Path("o.parquet"), part=PART)
    assert (resumed.texts, resumed.kept) == (len(TEXTS), len(TEXTS) if there else 0)
    assert table(tmp_path / "o.parquet") == whole


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_what_the_system_refuses_is_said(
    number: int, minilm: Model, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: dict[Key, float]
) -> None:
    out = tmp_path / "o.parquet"
    real = Path.write_bytes

    def refuse(path: Path, data: bytes) -> int:
        if "00000002" in path.name:
            real(path, data[:100])
            raise OSError(number, os.strerror(number))
        return real(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", refuse)
        with pytest.raises(RunError, match=os.strerror(number)):
            scan(minilm, [corpus], out, part=PART)
    assert [p.name for p in sorted(tmp_path.glob("o.parquet.parts/*"))] == [
        "00000000.parquet", "00000001.parquet", "lock", "scan.json"
    ]  # fmt: skip
    assert scan(minilm, [corpus], out, part=PART).kept == 2 * PART
    assert table(out) == whole


def test_a_folder_that_cannot_be(minilm: Model, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RunError, match=r"Not a directory|File exists"):
        scan(minilm, [corpus], corpus / "o.parquet")

    def read_only(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", read_only)
    with pytest.raises(RunError, match=r"o.parquet cannot be written: Permission denied"):
        scan(minilm, [corpus], tmp_path / "o.parquet")


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("a.csv", 'text\n"The cat\nIt slept\nA dog\n', "line 4 is not CSV that can be read: unexpected end of data"),
        ("a.csv", "id,text\n1,The cat sat, and ran.\n", "line 2 has 3 cells, and the first line 2"),
        ("a.tsv", "id\ttext\n1\tok\n2\n", "line 3 has 1 cell, and the first line 2"),
        ("a.csv", "text,text\na,b\n", "a.csv has 2 columns called 'text'"),
        ("a.json", '[\n"The cat"]', "line 1 is not JSON"),
        ("a.json", '["The cat"]', "line 1: there is no text in it"),
    ],
)
def test_a_corpus_of_which_texts_would_be_lost_is_refused(name: str, content: str, what: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError) as caught:
        list(read([tmp_path / name]))
    assert what in caught.value.message
    assert caught.value.hint


def test_what_a_corpus_may_hold_besides_its_texts(tmp_path: Path) -> None:
    kept = {
        "a.json": '{"text": "The cat"}\n"A dog"\n',
        "a.csv": 'id,text,,\n1,"The ""cat""\nsat, yes",,\n\n2,,,\n3,A dog,,,,\n',
        "a.tsv": 'id\ttext\n1\tHe said "hi", twice\n',
    }
    texts = {
        "a.json": ["The cat", "A dog"], "a.csv": ['The "cat"\nsat, yes', "A dog"], "a.tsv": ['He said "hi", twice'],
    }  # fmt: skip
    for name, content in kept.items():
        (tmp_path / name).write_text(content)
        assert [one.text for one in read([tmp_path / name])] == texts[name]


def test_a_corpus_without_texts_leaves_nothing_behind(minilm: Model, tmp_path: Path) -> None:
    for name, content in (("a.txt", ""), ("b.txt", "\n \n"), ("c.csv", "text\n"), ("d.jsonl", "")):
        (tmp_path / name).write_text(content)
        with pytest.raises(InputError, match="there is no text in the corpus"):
            scan(minilm, [tmp_path / name], tmp_path / "o.parquet")
        (tmp_path / name).unlink()
    assert list(tmp_path.iterdir()) == []


def test_nothing_to_measure(minilm: Model, corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nothing to measure"):
        scan(minilm, [corpus], tmp_path / "o.parquet", measures=[])
    with pytest.raises(UsageError, match="scan measures no 'entropi'") as caught:
        scan(minilm, [corpus], tmp_path / "o.parquet", measures=["entropi"])
    assert caught.value.hint.startswith("Did you mean 'entropy'? Choose from heads, ")


def test_progress_counts_what_is_new() -> None:
    at = Progress(texts=300, kept=100, seconds=4.0, read=3000, kept_read=1000, total=9000)
    assert at.rate == 50.0
    assert at.left == 12.0
    assert Progress(100, 100, 1.0, 1000, 1000, 9000).left is None


def test_each_part_is_told_of(minilm: Model, corpus: Path, tmp_path: Path) -> None:
    told: list[Progress] = []
    scan(minilm, [corpus], tmp_path / "o.parquet", measures=["tokens"], part=PART, tell=told.append)
    assert [one.texts for one in told] == [8, 16, 24, 30]
    assert [one.read for one in told] == sorted(one.read for one in told)
    assert told[-1].read == told[-1].total == corpus.stat().st_size


def other_tokenizer(folder: Path) -> Path:
    """The bundled tokenizer in a folder of its own."""
    from attnx.catalog.models import bundled_root

    folder.mkdir()
    (folder / "tokenizer.json").write_bytes((bundled_root() / "minilm" / "tokenizer.json").read_bytes())
    return folder


def begun(model: Model, corpus: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan of which only the first part is done."""

    class StopError(Exception):
        pass

    def tell(progress: scanning.Progress) -> None:
        raise StopError

    with pytest.raises(StopError):
        scan(model, [corpus], out, part=PART, tell=tell)
    assert len(list((out.parent / f"{out.name}.parts").glob("0*.parquet"))) == 1


@pytest.mark.parametrize("change", ["another tokenizer", "its settings", "its limit", "the weights", "onnxruntime"])
def test_what_changes_a_row_makes_another_scan(
    change: str, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed scan does not go on with what would give its texts other tokens or other numbers."""
    first, second = other_tokenizer(tmp_path / "a"), other_tokenizer(tmp_path / "b")
    out = tmp_path / "o.parquet"
    begun(attnx.open("minilm", device="cpu", tokenizer=first), corpus, out, monkeypatch)
    after, said = attnx.open("minilm", device="cpu", tokenizer=first), "tokenizer"
    if change == "another tokenizer":
        after = attnx.open("minilm", device="cpu", tokenizer=second)
    elif change == "its settings":
        (first / "tokenizer_config.json").write_text('{"model_max_length": 7}')
    elif change == "its limit":
        (first / "config.json").write_text('{"max_position_embeddings": 7}')
    elif change == "the weights":
        found = after.find()
        other = replace(found, files=(*found.files, ["w.bin", 1, 1, 1]))
        monkeypatch.setattr(type(after), "find", lambda *_: other)
        said = "weights"
    else:
        monkeypatch.setattr("attnx.scan.identity.metadata.version", lambda name: "9.9")
        said = "onnxruntime"
    with pytest.raises(UsageError, match=f"another scan; what differs: .*{said}"):
        scan(after, [corpus], out, part=PART)


def test_the_same_scan_goes_on(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, out = other_tokenizer(tmp_path / "a"), tmp_path / "o.parquet"
    begun(attnx.open("minilm", device="cpu", tokenizer=first), corpus, out, monkeypatch)
    assert scan(attnx.open("minilm", device="cpu", tokenizer=first), [corpus], out, part=PART).kept == PART


def test_parts_of_two_devices_are_not_mixed(
    minilm: Model, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "o.parquet"
    begun(minilm, corpus, out, monkeypatch)
    made = scanning.made_of

    def elsewhere(*args: Any) -> bytes:
        real = parts.encode
        monkeypatch.setattr(
            "attnx.scan.measuring.encode_part", lambda rows, note: real(rows, replace(note, device="cuda:0"))
        )
        return made(*args)

    monkeypatch.setattr(scanning, "made_of", elsewhere)
    with pytest.raises(UsageError, match="were made on cpu and on cuda"):
        scan(minilm, [corpus], out, part=PART)
    monkeypatch.undo()
    assert scan(minilm, [corpus], out, part=PART).kept == PART


@pytest.mark.parametrize(("cells", "said"), [
    (pa.array([b"The cat", b"\xff"]), "row 2: the column 'text' holds bytes that are not UTF-8 text (byte 1 is 0xff)"),
    (pa.array([["a"], ["b"]]), "row 1: the column 'text' has no text but list in it"),
    (pa.array([1, 2]), "row 1: the column 'text' has no text but int in it"),
])  # fmt: skip
def test_cells_that_are_no_text_are_refused(tmp_path: Path, cells: pa.Array, said: str) -> None:
    parquet.write_table(pa.table({"text": cells}), tmp_path / "c.parquet")
    with pytest.raises(InputError) as caught:
        list(read([tmp_path / "c.parquet"]))
    assert said in caught.value.message


def test_bytes_in_a_column_are_the_text_that_they_encode(tmp_path: Path) -> None:
    texts = ["The cat sat.", "Le café.", "고양이"]
    parquet.write_table(pa.table({"text": pa.array([t.encode() for t in texts])}), tmp_path / "c.parquet")
    assert [row.text for row in read([tmp_path / "c.parquet"])] == texts


def test_a_link_that_leads_to_itself_is_no_place_for_a_scan(minilm: Model, tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_text("The cat")
    (tmp_path / "o.parquet").symlink_to("o.parquet")
    with pytest.raises(UsageError, match=r"o\.parquet cannot be written: it is a link that leads back to itself"):
        scan(minilm, [tmp_path / "c.txt"], tmp_path / "o.parquet")
    assert {one.name for one in tmp_path.iterdir()} == {"c.txt", "o.parquet"}


def test_a_field_that_stands_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_text('{"text": "a", "text": "a"}\n{"text": "The cat", "text": "The dog"}\n')
    with pytest.raises(InputError, match=r"line 2 has 'text' twice"):
        list(read([tmp_path / "c.jsonl"]))
