"""Self-attention whose keys are not the text's tokens: fewer, or some more before or behind them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto

import attnx
from attnx.errors import UnsupportedError
from attnx.formula import softmax
from attnx.measure import describe_heads
from attnx.measure.coreference import coreference
from attnx.measure.visibility import visibility
from attnx.records import Attention, Site, Trace
from attnx.run.axis_tokens import name_axes
from attnx.tokens.axes import labelled
from attnx.tokens.spans import Mention
from tests.graphs import G, plain

S, W = 7, 16


def every_second(g: G, x: str) -> str:
    ends = [g.const([n], np.int64) for n in (0, 2**62, 1, 2)]
    return str(g.op("Slice", x, *ends))


def without_first(g: G, x: str) -> str:
    return str(g.op("Slice", x, *[g.const([n], np.int64) for n in (1, 2**62, 1, 1)]))


def one_before(g: G, x: str) -> str:
    return str(g.op("Concat", g.weight(1, 1, W), x, axis=1))


def one_behind(g: G, x: str) -> str:
    return str(g.op("Concat", x, g.weight(1, 1, W), axis=1))


def run(folder: Path, keys: Callable[[G, str], str] | None) -> Trace:
    g = G()
    x = str(g.op("Gather", g.weight(50, W), g.input("input_ids", ["batch", "length"], TensorProto.INT64)))
    path = g.save(folder, plain(g, x, None if keys is None else keys(g, x)))
    return attnx.open(path, device="cpu").trace(inputs={"input_ids": np.arange(3, 3 + S)[None]})


@pytest.mark.parametrize("keys", [every_second, without_first, one_before, one_behind])
def test_nothing_is_counted_from_a_place_that_is_not_known(keys: Callable[[G, str], str], tmp_path: Path) -> None:
    trace = run(tmp_path, keys)
    (a,) = trace.attentions
    assert a.site.kind == "self"
    count = a.need("weights").shape[3]
    assert count != S
    assert trace.keys_of(a).pieces == tuple(map(str, range(count)))
    assert any(f"L0: {S} queries and {count} keys, which are not" in note for note in trace.notes)
    table = describe_heads(trace)
    for name in ("previous", "next", "self", "mean distance", "locality"):
        assert np.isnan(table.measure(name).values).all(), name
    np.testing.assert_allclose(
        table.measure("largest weight").values[0], a.need("weights")[0].max(axis=-1).mean(axis=-1), rtol=1e-5
    )
    with pytest.raises(UnsupportedError, match="no self-attention of this model is over that text"):
        coreference(trace, Mention("x", 5, 6, (5,)), [Mention("y", 1, 2, (1,))])
    assert visibility(trace, 0).pattern == "bidirectional"


def test_where_they_are_the_text_s_everything_is(tmp_path: Path) -> None:
    trace = run(tmp_path, None)
    weights = trace.attentions[0].need("weights")[0]
    table = describe_heads(trace)
    np.testing.assert_allclose(table.measure("self").values[0], weights[:, range(S), range(S)].mean(-1), rtol=1e-5)
    assert not any("one by one" in note for note in trace.notes)


def test_a_text_behind_learned_tokens_is_ablated_run_by_run(tmp_path: Path) -> None:
    """Its stream has a batch of one, whatever is fed, so that several runs cannot share a batch."""
    g = G()
    x = str(g.op("Gather", g.weight(50, W), g.input("input_ids", ["batch", "length"], TensorProto.INT64)))
    x = str(g.op("Concat", g.weight(1, 1, W), x, axis=1))
    path = g.save(tmp_path, str(g.op("Add", x, plain(g, x))))
    trace = attnx.open(path, device="cpu").trace(inputs={"input_ids": np.arange(3, 3 + S)[None]})
    assert any(f"L0: {S + 1} positions, where the text has {S} tokens" in note for note in trace.notes)
    found = attnx.open(path, device="cpu").ablate({"inputs": {"input_ids": np.arange(3, 3 + S)[None]}})
    assert any("one at a time" in note for note in found.notes)
    assert all(effect.change.moved > 0 for effect in found.effects)


@pytest.mark.parametrize(("start", "known"), [(0, False), (2, False), (3, True)])
def test_keys_of_a_cache_are_named_where_its_last_are_the_queries_own(start: int, known: bool) -> None:
    """A cache of fixed size: seven keys, of which those after the text's own are free."""
    masked = np.where(np.tri(4, 7, start), 0.0, np.finfo(np.float32).min).astype(np.float32)[None, None]
    site = Site(0, 0, "decoder", "self", "Softmax", "", 1, 1, None, None, causal=True)
    a = Attention(site, masked=masked, weights=np.asarray(softmax(masked)))
    tokens = labelled(["a", "b", "c", "d"])
    (_, _, sides) = name_axes([a], tokens, None)
    assert (sides[0][1].pieces == ("past0", "past1", "past2", "a", "b", "c", "d")) is known
    trace = Trace("", "cpu", tokens, None, (a,), sides=sides)
    assert visibility(trace, 0).pattern == "causal"
    assert np.isnan(describe_heads(trace).measure("self").values).all() is not known
