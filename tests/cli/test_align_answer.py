"""`attnx align` on a decoder: an answer traced to its prompt, as tables, strip and JSON; what does not go together."""

from pathlib import Path

import numpy as np
import pytest

import attnx as package
from tests.cli.analysed import values
from tests.cli.conftest import Run

GPT = Path(__file__).parents[2] / "models" / "tiny-gpt"
TEXT = "The cat sat on the mat. The dog saw the cat because it was tired."
BASE = ("align", TEXT, "-m", GPT, "--generate", "6")


def test_json(attnx: Run) -> None:
    got = attnx(*BASE, "--by", "word", "--json").document
    assert got["kind"] == "answer"
    assert [span["text"] for span in got["spans"]] == [TEXT[:23], TEXT[24:]]
    model = package.open(GPT, device="cpu")
    trace = model.trace(TEXT, generate=6)
    assert got["tokens"]["ids"] == trace.tokens.ids.tolist()
    size = got["prompt"]
    rows = np.stack([a.need("weights")[0, :, size - 1 : size + 5] for a in trace.attentions])
    sinks = [at for at in range(size) if at == 0 or trace.tokens.special[at]]
    want = []
    for span in got["spans"]:
        inside = [
            at for at, (a, b) in enumerate(trace.tokens.offsets[:size]) if span["start"] <= a < span["end"] and b > a
        ]
        assert span["tokens"] == inside
        want.append(rows[..., [at for at in inside if at not in sinks]].sum(-1))
    own = np.stack([rows[:, :, t, size : size + t].sum(-1) for t in range(6)], axis=-1)
    want += [1 - sum(want) - rows[..., sinks].sum(-1) - own, rows[..., sinks].sum(-1), own]
    np.testing.assert_allclose(got["weights"], np.stack(want, axis=-1).mean((0, 1)), atol=1e-5)
    for unit in got["units"]:
        steps = [at - size for at in unit["tokens"]]
        assert unit["spans"] == pytest.approx(np.array(got["weights"])[steps, :2].mean(0).tolist(), abs=1e-6)
        assert unit["own"] == pytest.approx(np.array(got["weights"])[steps, 4].mean(), abs=1e-6)
    assert "".join(unit["text"] for unit in got["units"]).replace(" ", "")
    assert values(got["lookback"]).shape == (4, 6, 6)
    assert "`attnx ablate TEXT --edge FROM:TO`" in got["notes"][-1]


def test_tables_and_strip(attnx: Run, tmp_path: Path) -> None:
    out = attnx(*BASE).out
    assert "what was read of the prompt" in out
    assert "what was written, by sentence" in out
    assert "lookback ratio: " in out
    assert "no proof of use: `attnx ablate TEXT --edge FROM:TO`" in " ".join(out.split())
    assert "what was written, by word" in attnx(*BASE, "--by", "word", "--top", "2").out
    done = attnx(*BASE, "--view", "strip")
    assert "1 " in done.out
    assert "The cat sat on the mat." in done.out
    model = package.open(GPT, device="cpu")
    trace = model.trace(TEXT, generate=6)
    size = len(trace.tokens) - 6
    rows = np.stack([a.need("weights")[0, :, size - 1 : size + 5] for a in trace.attentions])
    bars = rows.mean(axis=(0, 1, 2))[:size]
    assert f"a bar for each token, sinks left out; tallest {bars[1:].max():.2f}\n" in done.out
    ends = [b for _, b in trace.tokens.offsets[:size]]
    first, second = (sum(bars[at] for at in range(1, size) if (ends[at] <= 23) is early) for early in (True, False))
    shares = f"1  {first / (first + second):.2f} {TEXT[:23]}\n2  {second / (first + second):.2f} {TEXT[24:]}\n"
    assert f"\nshares of the weight on all parts:\n{shares}" in done.out
    wrote = "".join(trace.tokens.pieces[size:]).strip()
    assert f'what was read while writing "{wrote}"\n' in done.out
    assert "no proof of use" in " ".join(done.err.split())
    (tmp_path / "spans.tsv").write_text("0\t7\tbegin\n24\t31\tdog\n", encoding="utf-8")
    out = attnx(*BASE, "--spans", "spans.tsv", "--head", "1.0").out
    assert "begin " in out
    assert "The dog" in out
    assert "L1 H0" in out


def test_an_answer_that_is_told_and_one_that_nothing_is_said_of(attnx: Run) -> None:
    got = attnx("align", TEXT, "-m", GPT, "--target", "The cat was tired.", "--by", "whole", "--json").document
    assert [unit["text"] for unit in got["units"]] == ["The cat was tired."]
    assert len(attnx("align", TEXT, "-m", GPT, "--json").document["tokens"]["ids"]) > got["prompt"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--gold", "g"), "--gold would do nothing with an answer"),
        (("--target", "x", "--generate", "2"), "--generate would do nothing with --target"),
        (("--prompt", "x"), "--prompt would do nothing with an answer"),
        (("--view", "lines"), "none of table, strip"),
        (("--by", "line"), "none of sentence, word, whole"),
        (("--view", "strip", "--by", "word"), "--by would do nothing with --view strip"),
        (("--head", "0.9"), "no head 9"),
        (("--layer", "9"), "no layer 9"),
    ],
)
def test_what_does_not_go_together(attnx: Run, options: tuple[str, ...], said: str) -> None:
    assert said in " ".join(attnx(*BASE, *options, code=2).err.split())


def test_what_cannot_be_used(attnx: Run) -> None:
    assert "writes no text" in attnx("align", TEXT, code=2).err
    assert "cannot be read" in attnx(*BASE, "--spans", "nowhere", code=4).err
