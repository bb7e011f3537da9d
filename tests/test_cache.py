"""The cache: what is kept is what was found; damage, change, and several processes harm nothing."""

import multiprocessing
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import attnx
from attnx.graph.load import load
from attnx.run.prompt import Prompt
from attnx.run.states import states
from attnx.session import cache
from attnx.session import model_summary as inventory
from attnx.session import session_pool as opening
from attnx.sites.recognise import find
from attnx.study.output_weights import contributions, mixed, output_gram, projections_of
from attnx.study.precision import of_model, written
from scripts.bench.make_decoder import Shape, build

SMALL = Shape(layers=2, heads=4, kv_heads=2, head_size=8, ffn=16, vocab=20)
FEED = {"input_ids": np.arange(6, dtype=np.int64)[None] % 5, "attention_mask": np.ones((1, 6), np.int64)}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    onnx.save(build(SMALL), path)
    return path


def weights(path: Path) -> np.ndarray:
    trace = attnx.open(path, device="cpu").trace(inputs=FEED, quantities=("weights",))
    return np.stack([a.weights for a in trace.attentions if a.weights is not None])


def test_an_entry_comes_back_as_it_was() -> None:
    assert cache.read(cache.key("a", 1)) is None
    assert cache.write(cache.key("a", 1), {"x": [1, None, "é"]}, b"\0body")
    assert cache.read(cache.key("a", 1)) == cache.Entry({"x": [1, None, "é"]}, b"\0body")
    assert cache.read(cache.key("a", 2)) is None
    assert cache.clear() == (1, pytest.approx(100, abs=150))
    assert cache.read(cache.key("a", 1)) is None


@pytest.mark.parametrize("damage", [b"", b"attnx", b"\xff" * 300])
def test_a_damaged_entry_is_none(folder: Path, damage: bytes) -> None:
    cache.write(cache.key("a"), {"x": 1}, b"body")
    (entry,) = folder.iterdir()
    entry.write_bytes(damage)
    assert cache.read(cache.key("a")) is None


def test_every_single_flipped_byte_is_noticed(folder: Path) -> None:
    cache.write(cache.key("a"), {"x": 1}, b"body")
    (entry,) = folder.iterdir()
    whole = entry.read_bytes()
    for at in range(len(whole)):
        entry.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert cache.read(cache.key("a")) is None
    for size in range(len(whole)):
        entry.write_bytes(whole[:size])
        assert cache.read(cache.key("a")) is None


def test_the_second_start_reads_neither_the_graph_nor_onnx(model: Path) -> None:
    code = (
        "import sys, numpy as np, attnx\n"
        f"feed = dict(input_ids=np.arange(6)[None] % 5, attention_mask=np.ones((1, 6), np.int64))\n"
        f"trace = attnx.open({str(model)!r}, device='cpu').trace(inputs=feed, quantities=('weights',))\n"
        "print(sum('onnx' == m or m.startswith(('onnx.', 'attnx.sites.fused', 'attnx.graph')) for m in sys.modules))\n"
        "print(repr(trace.attentions[1].weights.tobytes()))"
    )
    said = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(2)]
    first, second = (one.stdout.splitlines() for one in said)
    assert int(first[0]) > 0
    assert int(second[0]) == 0
    assert first[1] == second[1]


def test_how_its_numbers_are_stored_is_read_once(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []
    own = load.load
    monkeypatch.setattr(load, "load", lambda path: read.append(path) or own(path))
    monkeypatch.setattr("attnx.sites.recognise.load", load.load)
    pools = [opening.SessionPool(model, "cpu") for _ in range(2)]
    first, second = (of_model(pool) for pool in pools)
    assert first == second == written(model)
    assert read == [model, model]  # for the sites, and by `written`
    onnx.save(build(replace(SMALL, ffn=24)), model)
    of_model(opening.SessionPool(model, "cpu"))
    assert len(read) == 3


def test_what_is_kept_of_a_model_is_what_was_found(model: Path) -> None:
    found = find(model)
    kept = inventory.take(found, cache.key("x"))
    inventory.save(kept, found)
    assert inventory.load(kept.key) == kept
    assert kept.sites == found.sites


@pytest.mark.parametrize("fused", [False, True])
def test_a_graph_is_read_again_without_numbering_its_sites(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fused: bool
) -> None:
    if fused:
        model = tmp_path / "fused.onnx"
        wide = helper.make_tensor_value_info("x", 1, [1, None, 8])
        node = helper.make_node("MultiHeadAttention", ["x", "x", "x"], ["y"], num_heads=2, domain="com.microsoft")
        out = helper.make_tensor_value_info("y", 1, [1, None, 8])
        graph = helper.make_graph([node], "g", [wide], [out])
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), model)
    fresh = opening.SessionPool(model, "cpu")
    first = fresh.graph(fresh.find().branch)
    again = opening.SessionPool(model, "cpu")
    known = again.find()

    def never(*_: object) -> None:
        raise AssertionError("the sites were numbered again")

    monkeypatch.setattr("attnx.sites.recognise.number", never)
    second = again.graph(known.branch)
    assert (second.sites, second.fused_of, second.misses) == (first.sites, first.fused_of, first.misses)
    assert bool(second.fused_of) is fused
    assert second.replacements.keys() == first.replacements.keys()


def test_no_weight_is_copied(model: Path, folder: Path) -> None:
    weights(model)
    assert 0 < sum(f.stat().st_size for f in folder.iterdir()) < model.stat().st_size


def test_a_changed_model_is_read_again(model: Path) -> None:
    before = weights(model)
    stamp = model.stat().st_mtime_ns
    onnx.save(build(SMALL, seed=1), model)
    os.utime(model, ns=(stamp, stamp))  # same size, same time: only the content tells
    after = weights(model)
    assert before.shape == after.shape
    assert np.abs(before - after).max() > 1e-6


def test_a_changed_weight_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    for seed in (0, 1):
        (tmp_path / "data").unlink(missing_ok=True)
        onnx.save(build(SMALL, seed), path, save_as_external_data=True, location="data", size_threshold=300)
        got = weights(path)
        (tmp_path / "plain").mkdir(exist_ok=True)
        onnx.save(build(SMALL, seed), tmp_path / "plain" / "model.onnx")
        np.testing.assert_array_equal(got, weights(tmp_path / "plain" / "model.onnx"))


def test_states_and_contributions_need_the_graph_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `word`, `flow` and `qkv` read of a model seen before is the same, and its graph is not read for it."""

    around = []

    def read() -> list[np.ndarray]:
        model = attnx.open("tiny-gpt", device="cpu")
        around.append([projections_of(model, site) for site in model.sites])
        trace = model.trace("The cat sat.", quantities=("weights", "value"))
        sizes = [contributions(model, attention)[0] for attention in trace.attentions]
        sizes += [mixed(model, attention.site)[0] for attention in trace.attentions]
        assert all(one is not None for one in sizes)
        return [*states(model, Prompt("The cat sat.")).vectors.values(), *sizes]

    first = read()

    def refuse(*_: object) -> None:
        raise AssertionError("the graph is read")

    monkeypatch.setattr(opening.SessionPool, "graph", refuse)
    for one, other in zip(first, read(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert around[0] == around[1]
    assert all(one.output is not None for one in around[0])


def test_products_of_w_o_are_kept_with_the_state_of_its_file(tmp_path: Path) -> None:
    """The second start reads no graph for them; of other weights, in a file of their own, they are others."""
    path = tmp_path / "model.onnx"
    code = (
        "import sys, attnx; from attnx.study.output_weights import output_gram\n"
        f"model = attnx.open({str(path)!r}, device='cpu')\n"
        "print(*(float(output_gram(model, site).sum()) for site in model.sites), 'onnx' in sys.modules)"
    )
    for seed in (0, 1):
        (tmp_path / "data").unlink(missing_ok=True)
        made = build(SMALL, seed)
        held = {t.name: numpy_helper.to_array(t).astype(float) for t in made.graph.initializer}
        parts = [held[f"layers.{layer}.o"].reshape(4, 8, 32) for layer in (0, 1)]
        onnx.save(made, path, save_as_external_data=True, location="data", size_threshold=300)
        model = attnx.open(path, device="cpu")
        for site, part in zip(model.sites, parts, strict=True):
            np.testing.assert_allclose(output_gram(model, site), part @ part.swapaxes(1, 2), rtol=1e-6)
        again = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
        assert [float(total) for total in again[:2]] == pytest.approx(
            [float((part @ part.swapaxes(1, 2)).sum()) for part in parts], rel=1e-6
        )
        assert again[2] == "False"


@pytest.mark.parametrize("where", ["off", "", "/proc/attnx-cannot-be-made", "file"])
def test_without_a_cache_all_works(model: Path, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    want = weights(model)
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "file") if where == "file" else where)
    np.testing.assert_array_equal(weights(model), want)
    assert not cache.write(cache.key("a"), {})
    assert cache.held() == (0, 0)
    assert cache.clear() == (0, 0)


def test_the_oldest_entries_make_room(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "BOUND", 40_000)
    for at in range(8):
        assert cache.write(cache.key(at), {}, bytes(9000))
        for file in folder.iterdir():
            os.utime(file, (file.stat().st_atime, file.stat().st_mtime - 10))
    assert [cache.read(cache.key(at)) is not None for at in range(8)] == [False] * 4 + [True] * 4
    assert not cache.write(cache.key("large"), {}, bytes(20_000))


def test_an_unfinished_file_is_swept_away_once_it_is_old(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    old, young = folder / "old.part", folder / "young.part"
    for file in (old, young):
        file.write_bytes(b"half")
    os.utime(old, (0, time.time() - 7200))
    cache.write(cache.key("a"), {})
    assert not old.exists()
    assert young.exists()


def _write_and_read(at: int, where: str) -> bool:
    os.environ[cache.VARIABLE] = where
    for turn in range(60):
        cache.write(cache.key("shared", turn % 5), {"by": at}, bytes([at]) * 20_000)
        entry = cache.read(cache.key("shared", turn % 5))
        if entry is not None and entry.body != bytes([entry.head["by"]]) * 20_000:
            return False
        if turn % 20 == 19:
            cache.clear()
    return True


def test_several_processes_share_it(folder: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        assert all(pool.starmap(_write_and_read, [(at, str(folder)) for at in range(3)]))


def test_a_session_that_is_used_again_is_opened_for_many_runs(model: Path) -> None:
    opened = attnx.open(model, device="cpu")
    want = opened.trace(inputs=FEED, quantities=("weights",)).attentions[1].weights
    for _ in range(4):
        got = opened.trace(inputs=FEED, quantities=("weights",)).attentions[1].weights
        np.testing.assert_allclose(got, want, atol=1e-6)
    (held,) = opened.sessions._sessions.values()
    assert held.thorough


def test_the_sessions_used_longest_ago_are_closed(model: Path) -> None:
    opened = attnx.open(model, device="cpu")
    wanted = [("weights",), ("masked",), ("query",), ("key",), ("value",), ("query", "key")]
    assert len(wanted) > opening.KEPT
    for quantities in wanted:
        opened.trace(inputs=FEED, quantities=wanted[0])  # used again and again: it stays
        opened.trace(inputs=FEED, quantities=quantities)
    assert len(opened.sessions._sessions) == opening.KEPT
    kept = {frozenset(one.tapped.taps[0]) for one in opened.sessions._sessions.values()}
    assert kept == {frozenset(one) for one in [wanted[0], *wanted[-(opening.KEPT - 1) :]]}
