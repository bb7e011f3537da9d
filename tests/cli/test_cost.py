"""`attnx cost`: sizes worked out by hand, and that what is measured is measured."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from attnx.model import open as open_model
from attnx.run import timing
from attnx.session.ort import Session
from tests.cli.analysed import causal, two_sided, values
from tests.cli.conftest import Run
from tests.small_models import LAYERS, WIDTH


def test_sizes_of_the_bundled_model(attnx: Run) -> None:
    got = attnx("cost", "--lengths", "64,1024", "--no-measure", "--json").document
    # 6 layers: 4 projections of 384 x 384, and 384 x 1536 there and back.
    parameters = 6 * (4 * 384 * 384 + 2 * 384 * 1536)
    assert got["parameters"] == parameters
    for n, row in zip((64, 1024), values(got["attention"]), strict=True):
        own, rest = 6 * 4 * n * n * 384, 2 * parameters * n
        assert row.tolist() == pytest.approx([6 * 12 * n * n, 4 * 6 * 12 * n * n, own, rest, own / (own + rest)])
    assert got["crossover"] == pytest.approx(parameters / (2 * 6 * 384))
    assert values(got["paths"]).tolist() == [[[1, 1], [64, 64]], [[1, 1], [1024, 1024]]]
    assert got["measured"] is None


def test_table(attnx: Run) -> None:
    text = " ".join(attnx("cost", "--lengths", "64", "--no-measure").out.split())
    assert "10.6M parameters" in text
    assert "294.9k" in text  # 72 heads x 64 x 64 cells
    assert "2,304 tokens" in text
    assert "Vaswani" not in text
    text = " ".join(attnx("cost", "--lengths", "64", "--no-measure", "--explain").out.split())
    assert "Vaswani et al. 2017, table 1" in text


def test_it_measures(attnx: Run) -> None:
    got = attnx("cost", "--lengths", "8,64", "--json").document
    seconds, memory = values(got["measured"]).T
    assert (seconds > 0).all()
    assert (memory >= 0).all() or np.isnan(memory).all()
    text = attnx("cost", "--lengths", "8").out
    assert " ms" in text


def test_short_texts_are_run_unasked_and_long_ones_where_asked(attnx: Run) -> None:
    def ran(*options: str) -> tuple[str, ...]:
        measured = attnx("cost", "tiny-gpt", *options, "--json").document["measured"]
        return tuple(measured["axes"][0]["labels"])

    assert ran() == ("64", "256")
    assert ran("--longest", "64") == ("64",)
    assert ran("--longest", "512") == ("64", "256", "512")
    assert ran("--lengths", "8,300") == ("8", "300")
    shown = attnx("cost", "tiny-gpt").out
    assert shown.count(" ms ") == 2
    assert "--longest" in shown
    assert "--longest" not in attnx("cost", "tiny-gpt", "--longest", "64").out
    done = attnx("cost", "tiny-gpt", "--lengths", "2000,3000")
    assert "not measured: every length is more than 1024 tokens; --longest 2000 runs the first" in done.err


def test_a_long_run_is_not_repeated_and_memory_is_given_back_between_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is run, in which order; the clock is ours."""
    clock, ran = [0.0], []
    real = Session.run

    def run(self: Session, feed: Mapping[str, np.ndarray], *names: object, shrink: bool = False) -> object:
        length = next(iter(feed.values())).shape[1]
        ran.append((length, shrink))
        clock[0] += {8: 0.01, 16: 0.03, 32: 0.5}[length]
        return real(self, feed, *names, shrink=shrink)

    model = open_model("tiny-gpt")
    monkeypatch.setattr(Session, "run", run)
    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock[0])
    got = timing.measure(model, [8, 16, 32])
    assert ran == [(8, False)] * 4 + [(8, True)] + [(16, False)] * 2 + [(8, True), (32, False)]
    assert got.table.values[:, 0].tolist() == pytest.approx([0.01, 0.03, 0.5])


def test_ids_are_of_the_models_own_table_and_no_tokenizer_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    model, fed = open_model("tiny-gpt"), list[np.ndarray]()
    real = Session.run

    def run(self: Session, feed: Mapping[str, np.ndarray], *names: object, **more: object) -> object:
        fed.append(feed["input_ids"])
        return real(self, feed, *names, **more)

    monkeypatch.setattr(Session, "run", run)
    timing.measure(model, [64, 96])
    assert "tokenizer" not in vars(model)
    rows = model.find().rows["input_ids"]
    assert rows == model.tokenizer.size
    for ids in fed:
        assert ids.min() >= 1
        assert ids.max() < rows
        assert len(np.unique(ids)) > ids.size / 2


ALONE_AND_AFTER = """
import attnx
from attnx.run.timing import measure
model = attnx.open("tiny-gpt")
measure(model, [16])
for lengths in ([512], [16, 256, 512]):
    print(measure(model, lengths).table.values[-1, 1])
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_memory_of_a_length_hardly_depends_on_those_before() -> None:
    """Alone in a session of its own, and after shorter texts in one session; in a process that holds nothing else."""
    done = subprocess.run([sys.executable, "-c", ALONE_AND_AFTER], capture_output=True, text=True, check=True)
    alone, after = map(float, done.stdout.split())
    assert alone > 4 * 4 * 512 * 512  # the scores of one layer's heads, in float32
    assert after == pytest.approx(alone, rel=0.25)


def test_a_length_that_the_model_does_not_take_is_said(attnx: Run) -> None:
    done = attnx("cost", "--lengths", "8,600", "--json")
    assert np.isnan(values(done.document["measured"])[1]).all()
    assert "600 tokens were not tried: the model takes 512 at most" in done.err
    done = attnx("cost", "--lengths", "8,600", "--longest", "8")
    assert "not tried" not in done.err


def test_what_comes_after_a_length_that_did_not_run_is_not_tried(attnx: Run, tmp_path: Path) -> None:
    """A model that says nowhere how much it takes: the first that fails is told, and that the longer ones were left."""
    rng = np.random.default_rng(0)
    tables = {"words": rng.standard_normal((20, 8)), "places": rng.standard_normal((9, 8))}
    nodes = [
        ("Gather", ["words", "input_ids"], "e"), ("Shape", ["input_ids"], "shape"), ("Gather", ["shape", "one"], "n"),
        ("Range", ["zero", "n", "one"], "at"), ("Gather", ["places", "at"], "p"), ("Add", ["e", "p"], "x"),
        ("Transpose", ["x"], "xt"), ("MatMul", ["x", "xt"], "s"), ("Softmax", ["s"], "w"), ("MatMul", ["w", "x"], "y"),
    ]  # fmt: skip
    more = {"Transpose": {"perm": [0, 2, 1]}}
    graph = helper.make_graph(
        [helper.make_node(op, a, [b], name=b, **more.get(op, {})) for op, a, b in nodes],
        "g",
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["b", "n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["b", "n", 8])],
        [numpy_helper.from_array(v.astype(np.float32), k) for k, v in tables.items()]
        + [numpy_helper.from_array(np.array(v), k) for k, v in (("zero", 0), ("one", 1))],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(made, tmp_path / "m.onnx")
    done = attnx("cost", tmp_path / "m.onnx", "--lengths", "4,16,32,64", "--json")
    seconds = values(done.document["measured"])[:, 0]
    assert (np.isnan(seconds)).tolist() == [False, True, True, True]
    assert "16 tokens did not run" in done.err
    assert "32, 64 tokens were not tried after that" in done.err


def test_a_causal_model_and_an_encoder_decoder(attnx: Run, tmp_path: Path) -> None:
    case = causal(tmp_path / "causal")
    got = attnx("cost", str(case.model), "--lengths", "16", "--json").document
    assert got["parameters"] == LAYERS * 4 * WIDTH * WIDTH  # the head, as wide as the vocabulary, aside
    assert values(got["attention"])[0, 2] == 4 * 16 * 16 * WIDTH * LAYERS
    both = two_sided(tmp_path / "both")
    got = attnx("cost", str(both.model), "--lengths", "4", "--json").document
    assert got["parameters"] == 3 * LAYERS * 4 * WIDTH * WIDTH
    assert values(got["measured"])[0, 0] > 0


@pytest.mark.parametrize("number", [str(2**40 + 1), "1" + "0" * 18, "9" * 30, "9" * 5000])
def test_lengths_that_are_too_large_are_said_to_be(attnx: Run, number: str) -> None:
    err = " ".join(attnx("cost", "--lengths", f"64,{number}", code=2).err.split())
    assert "too large" in err
    assert "Lengths go up to 1,099,511,627,776." in err
    assert attnx("cost", "--lengths", f"{2**40}", "--no-measure").out


@pytest.mark.parametrize("lengths", ["a", "0", "", "-4"])
def test_misuse(attnx: Run, lengths: str) -> None:
    attnx("cost", "--lengths", lengths, code=2)


@pytest.mark.parametrize(("name", "cells"), [("gru", "2 GRU layers"), ("bahdanau", "2 LSTM layers")])
def test_a_recurrent_model_has_steps_and_a_path(attnx: Run, name: str, cells: str) -> None:
    model = str(Path(__file__).parents[1] / "families" / name)
    done = attnx("cost", model, "--lengths", "16,256", "--json")
    assert done.document["attention"] is None
    assert values(done.document["paths"]).tolist() == [[[1, 1], [16, 16]], [[1, 1], [256, 256]]]
    assert cells in done.err
    assert "recurrent" in attnx("cost", model, "--lengths", "16").out
    said = attnx("sites", model)
    assert cells in said.err
