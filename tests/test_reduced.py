"""Reductions in the graph give what the measures make of the whole matrices, and rows are the rows of the whole."""

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto

import attnx
from attnx.errors import InputError
from attnx.formula import softmax
from attnx.measure import describe_heads
from attnx.measure.distance import mean_distance
from attnx.measure.looks import mass
from attnx.model import Model
from attnx.records import Attention, Site, Tokens, Trace
from attnx.run.batch import run
from attnx.run.check import check
from attnx.run.prompt import Prompt
from attnx.run.unseen import unseen
from attnx.session.protocol import Wanted
from attnx.sites.recognise import find
from attnx.study.head_stats import heads, of_batch, sample
from attnx.taps.reductions import ROWS
from attnx.taps.tap import tap
from attnx.tokens import from_ids
from scripts.bench.make_decoder import Shape, build
from tests.graphs import D, G, H

ANIMAL = "The animal didn't cross the street because it was too tired."
REPEATS = "one two three, one two three, one two three, one two three. one two three"
SMALL = Shape(layers=3, heads=4, kv_heads=2, head_size=8, ffn=32, vocab=50)


@pytest.fixture(scope="module")
def minilm() -> Model:
    return attnx.open("minilm", device="cpu")


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = tmp_path_factory.mktemp("decoder") / "model.onnx"
    onnx.save(build(SMALL), path)
    return attnx.open(path, device="cpu")


def ids(count: int) -> Tokens:
    return from_ids(np.random.default_rng(count).integers(0, SMALL.vocab, count).tolist(), None)


def same(got: attnx.Measurement, want: attnx.Measurement) -> None:
    for field in dataclasses.fields(got):
        if field.name != "values":
            assert getattr(got, field.name) == getattr(want, field.name), (want.name, field.name)
    np.testing.assert_allclose(got.values, want.values, rtol=2e-5, atol=2e-6, err_msg=want.name)


@pytest.mark.parametrize("text", [ANIMAL, REPEATS, "a"])
def test_heads_of_an_encoder(minilm: Model, text: str) -> None:
    want, got = describe_heads(minilm.trace(text)), minilm.heads(text)
    for one, other in zip((*got.measures, *got.rest), (*want.measures, *want.rest), strict=True):
        same(one, other)
    assert got.rest_kinds == want.rest_kinds
    assert got.kinds == want.kinds


@pytest.mark.parametrize("count", [1, 2, 40, 130])
def test_heads_of_a_decoder(decoder: Model, count: int) -> None:
    want, got = describe_heads(decoder.trace(tokens=ids(count))), decoder.heads(tokens=ids(count))
    for one, other in zip((*got.measures, *got.rest), (*want.measures, *want.rest), strict=True):
        same(one, other)
    assert got.rest_kinds == want.rest_kinds


def test_no_matrix_leaves_the_session(minilm: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    from attnx.session.ort import Session

    tokens = minilm.encode(" ".join([ANIMAL] * 12))
    largest = 0
    whole = Session.run

    def run(self: Session, *args: object, **named: object) -> dict[str, np.ndarray]:
        nonlocal largest
        values = whole(self, *args, **named)  # type: ignore[arg-type]
        largest = max(largest, *(v.size for v in values.values()))
        return values

    monkeypatch.setattr(Session, "run", run)
    minilm.heads(tokens=tokens)
    assert largest < 12 * len(tokens) ** 2 / 4
    largest = 0
    minilm.rows(tokens=tokens, positions=[5])
    assert largest == 12 * len(tokens)


@pytest.mark.parametrize("positions", [[8], [3, 1, 3]])
def test_rows_are_the_rows_of_the_whole(minilm: Model, positions: list[int]) -> None:
    quantities = ("query", "key", "scores", "scaled", "masked", "weights", "context")
    whole = minilm.trace(ANIMAL, quantities=quantities)
    some = minilm.rows(ANIMAL, positions, quantities=quantities)
    for one, other in zip(some.attentions, whole.attentions, strict=True):
        assert one.trusted
        for name in quantities:
            want = getattr(other, name)
            want = want if name == "key" else want[:, :, positions]
            np.testing.assert_allclose(getattr(one, name), want, atol=2e-5, err_msg=name)
    assert some.rows == tuple(positions)
    queries = some.queries_of(some.attentions[0])
    assert queries.pieces == tuple(whole.tokens.pieces[at] for at in positions)
    assert some.keys_of(some.attentions[0]).pieces == whole.tokens.pieces


def test_measures_of_rows_know_where_they_stand(decoder: Model) -> None:
    tokens = ids(20)
    whole = decoder.trace(tokens=tokens, quantities=("masked", "weights"))
    weights = np.stack([a.weights[0] for a in whole.attentions if a.weights is not None])[:, :, [4, 17]]
    away = np.abs(np.array([4, 17])[:, None] - np.arange(20)[None, :])
    got = mean_distance(decoder.rows(tokens=tokens, positions=[4, 17])).values
    np.testing.assert_allclose(got, (weights * away).sum((2, 3)) / weights.sum((2, 3)), rtol=1e-5)


def test_layers_that_are_not_asked_for_are_not_run(decoder: Model) -> None:
    found = decoder.find()
    sites = [s for s in found.sites if s.layer == 1]
    _, tapped = decoder.sessions.session(found, sites, ("weights",), False)
    run = onnx.load_from_string(tapped.model).graph
    assert [o.name for o in run.output] == [sites[0].places["weights"].value]
    assert sum(node.op_type == "Softmax" for node in run.node) == 2
    assert not any(tensor.name.startswith("layers.2") for tensor in run.initializer)
    got = decoder.trace(tokens=ids(9), layers=[1], quantities=("weights",)).attentions[0].weights
    np.testing.assert_array_equal(got, decoder.trace(tokens=ids(9), quantities=("weights",)).attentions[1].weights)


def test_the_row_input_is_the_only_one_that_rows_add(decoder: Model) -> None:
    found = decoder.find()
    _, tapped = decoder.sessions.session(found, found.sites, ("weights",), False, rows=True)
    graph = onnx.load_from_string(tapped.model).graph
    assert [i.name for i in graph.input] == ["input_ids", "attention_mask", ROWS]


@pytest.mark.parametrize(("positions", "said"), [([], "no positions"), ([99], "no token"), ([-1], "no token")])
def test_a_position_that_is_not_there(minilm: Model, positions: list[int], said: str) -> None:
    with pytest.raises(InputError, match=said):
        minilm.rows(ANIMAL, positions)


@pytest.mark.parametrize(("together", "sentences", "off"), [(0, 30, 2e-6), (512, 30, 5e-5), (512, 60, 1e-4)])
def test_distances_of_a_head_or_of_each_row(
    minilm: Model, monkeypatch: pytest.MonkeyPatch, together: int, sentences: int, off: float
) -> None:
    """Of long texts the distance is summed row by row, of others over all cells of a head at once."""
    from attnx.study import head_stats as reduced

    monkeypatch.setattr(reduced, "TOGETHER", together)
    tokens = minilm.encode(" ".join([ANIMAL] * sentences))
    want, got = mean_distance(minilm.trace(tokens=tokens)), minilm.heads(tokens=tokens).measure("mean distance")
    np.testing.assert_allclose(got.values, want.values, rtol=off)


@pytest.fixture(scope="module")
def gpt() -> Model:
    return attnx.open("tiny-gpt", device="cpu")


def fed(model: Model, mask: list[int]) -> dict[str, np.ndarray]:
    """A feed of a few ids, with a mask of its own."""
    count = len(mask)
    feed = {slot.name: np.zeros((1, *[d if isinstance(d, int) else 0 for d in slot.shape[1:]]), np.float32)
            for slot in model.slots() if "past" in slot.name}  # fmt: skip
    rows = {"input_ids": np.arange(40, 40 + count), "attention_mask": np.array(mask), "position_ids": np.arange(count)}
    return feed | {slot.name: rows[slot.name][None] for slot in model.slots() if slot.name in rows}


@pytest.mark.parametrize("mask", [[1] * 12, [0, 0, 0, *[1] * 9]])
def test_entropy_of_one_head_at_a_time(gpt: Model, monkeypatch: pytest.MonkeyPatch, mask: list[int]) -> None:
    """Of long texts, what entropy takes is held for one head at a time: the same numbers, padded rows among them."""
    from attnx.study import head_stats as reduced

    feed = fed(gpt, mask)
    together = heads(gpt, Prompt(inputs=feed))[0].measure("entropy").values
    monkeypatch.setattr(reduced, "TOGETHER", 0)
    single = heads(gpt, Prompt(inputs=feed))[0].measure("entropy").values
    np.testing.assert_array_equal(single, together)


def test_entropy_of_one_head_at_a_time_is_that_of_its_rows(decoder: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    from attnx.study import head_stats as reduced

    monkeypatch.setattr(reduced, "TOGETHER", 0)
    got = decoder.heads(tokens=ids(40)).measure("entropy").values
    for layer, attention in enumerate(decoder.trace(tokens=ids(40), quantities=("weights",)).attentions):
        a = attention.need("weights")[0].astype(np.float64)
        want = -(a * np.log(np.where(a > 0, a, 1))).sum(axis=-1).mean(axis=-1)
        np.testing.assert_allclose(got[layer], want, rtol=2e-5)


def test_no_difference_of_all_heads_is_held(decoder: Model) -> None:
    """Nodes that are run for all heads at once make no further tensor of the size of the weights."""
    found = find(decoder.path)
    inside = {}
    for stat in ("entropy", "entropy_single"):
        proto = onnx.load_from_string(tap(found, {0: (stat,)}, outputs=()).model)
        inside[stat] = {node.op_type for node in proto.graph.node if node.name.startswith("attnx/")}
    assert {"Sub", "Clip"} <= inside["entropy"]
    assert inside["entropy_single"].isdisjoint({"Sub", "Clip"})


@pytest.mark.parametrize("hidden", [float("-inf"), float(np.finfo(np.float32).min), -10000.0])
def test_rows_that_see_no_key_do_not_count(hidden: float) -> None:
    """A softmax makes weights of such rows too, unless what hides the keys is minus infinity."""
    rng = np.random.default_rng(0)
    scores = rng.normal(0, 3, (1, 2, 5, 5)).astype(np.float32)
    put = np.zeros((5, 5), np.float32)
    put[[0, 3]] = hidden
    masked = scores + put
    weights = np.asarray(softmax(masked))
    tokens = Tokens(np.arange(5), tuple("abcde"), ((0, 0),) * 5, tuple(range(5)), (False,) * 5, (True,) * 5)
    site = Site(0, 0, "encoder", "self", "Softmax", "", 2, 2, None, None)
    trace = Trace("", "cpu", tokens, None, (Attention(site, capped=scores, masked=masked, weights=weights),))
    table, rows = describe_heads(trace), [1, 2, 4]
    wide, away = weights[0, :, rows].astype(np.float64).transpose(1, 0, 2), np.abs(np.subtract.outer(rows, range(5)))
    want = {
        "self": wide[:, range(3), rows].mean(axis=1),
        "largest weight": wide.max(axis=-1).mean(axis=1),
        "first": wide[..., 0].mean(axis=1),
        "entropy": -(wide * np.log(wide)).sum(axis=-1).mean(axis=1),
        "mean distance": (wide * away).sum(axis=(1, 2)) / wide.sum(axis=(1, 2)),
    }
    for name, values in want.items():
        np.testing.assert_allclose(table.measure(name).values[0], values, rtol=1e-5, err_msg=name)
    (note,) = unseen(trace)
    assert note.startswith("every key is hidden from 2 of 5 queries in L0: ")


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("least", [1, 2, 0])
def test_a_mask_in_the_graph_that_hides_a_token_from_itself(least: int, together: bool, tmp_path: Path) -> None:
    """A finite number hides every key but those `least` tokens back or more: the first rows say nothing."""
    g = G()
    x = str(g.op("Gather", g.weight(50, 16), g.input("input_ids", ["b", "s"], TensorProto.INT64)))
    scores = g.scores(g.heads(g.linear(x, D * H)), g.heads(g.linear(x, D * H), (0, 2, 3, 1)))
    hidden = g.op(
        "Trilu", g.op("Expand", g.const(-1e9, np.float32), g.op("Shape", scores)), g.const(1 - least), upper=1
    )
    weights = g.softmax(str(g.op("Add", scores, hidden)))
    g.save(tmp_path, g.out(str(g.op("MatMul", weights, g.heads(g.linear(x, D * H))))), weights)
    tokens = from_ids([3, 7, 1, 9, 4, 8, 2], None)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    (wide,) = session.run([weights], {"input_ids": np.array([tokens.ids])})
    rows = np.arange(least, 7)
    wide, away = wide[0, :, rows].astype(np.float64).transpose(1, 0, 2), np.abs(np.subtract.outer(rows, range(7)))
    want = {
        "self": wide[:, range(len(rows)), rows].mean(axis=1),
        "largest weight": wide.max(axis=-1).mean(axis=1),
        "first": wide[..., 0].mean(axis=1),
        "mean distance": (wide * away).sum(axis=(1, 2)) / wide.sum(axis=(1, 2)),
        "entropy": -(wide * np.log(np.where(wide > 0, wide, 1))).sum(axis=-1).mean(axis=1),
    }
    model = attnx.open(tmp_path / "model.onnx", device="cpu")
    if together:
        parts = list(run(model, [tokens] * 6, Wanted(None, ("masked", "weights"))))
        assert max(len(part.tokens) for part in parts) > 1
        tables = [table for part in parts for table, _ in of_batch(part, lambda trace: trace)]
    else:
        table, trace = heads(model, Prompt(tokens=tokens))
        tables = [table]
        notes = [note for note in trace.notes if note.startswith("every key is hidden from")]
        assert [f"from {least} of 7 queries in L0: " in note for note in notes] == [True] * (least > 0)
    for table in tables:
        for name, values in want.items():
            np.testing.assert_allclose(table.measure(name).values[0], values, rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("way", ["Add", "two Adds", "Where", "Where not", "Sub"])
def test_a_mask_that_hides_more_in_one_row_of_a_long_text(way: str, causal: bool, tmp_path: Path) -> None:
    """Row 41 of 80 does not see the first 20 keys, which neither a short text nor the rows that are checked tell."""
    length, row = 80, 41
    assert row not in sample(length)
    hidden = np.triu(np.full((length, length), causal), 1)
    whole = hidden.copy()
    hidden[row, :20] = True
    g = G()
    x = str(g.op("Gather", g.weight(50, 16), g.input("input_ids", ["b", "s"], TensorProto.INT64)))
    scores = g.scores(g.heads(g.linear(x, D * H)), g.heads(g.linear(x, D * H), (0, 2, 3, 1)))
    size = g.op("Slice", g.op("Shape", scores), g.const([2]), g.const([4]), g.const([0]))

    def cut(array: np.ndarray, dtype: type) -> str:
        return str(g.op("Slice", g.const(array, dtype), g.const([0, 0]), size, g.const([0, 1])))

    far = np.float32(-1e9)
    if way == "two Adds":
        masked = g.op(
            "Add", g.op("Add", scores, cut(whole * far, np.float32)), cut((hidden & ~whole) * far, np.float32)
        )
    elif way == "Where":
        masked = g.op("Where", cut(~hidden, np.bool_), scores, g.const(far, np.float32))
    elif way == "Where not":
        masked = g.op("Where", cut(hidden, np.bool_), g.const(far, np.float32), scores)
    else:  # what is subtracted is no mask that is looked at on its own: the masked scores are
        masked = g.op(way, scores, cut(hidden * (far if way == "Add" else -far), np.float32))
    weights = g.softmax(str(masked))
    g.save(tmp_path, g.out(str(g.op("MatMul", weights, g.heads(g.linear(x, D * H))))), weights)
    tokens = from_ids([3 + at % 7 for at in range(length)], None)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    wide = session.run([weights], {"input_ids": np.array([tokens.ids])})[0][0].astype(np.float64)
    entropy = -(wide * np.log(np.where(wide > 0, wide, 1))).sum(axis=-1)
    counts = (~hidden).sum(axis=1)
    model = attnx.open(tmp_path / "model.onnx", device="cpu")
    assert model.sites[0].causal is causal
    table, _ = heads(model, Prompt(tokens=tokens))
    some = counts > 1
    share = (entropy[:, some] / np.log(counts[some])).mean(axis=1)
    np.testing.assert_allclose(table.measure("entropy share").values[0], share, rtol=1e-4)
    first = wide[:, hidden[:, 0] == 0, 0].mean(axis=1)
    np.testing.assert_allclose(table.measure("sink").values[0], first, rtol=1e-4)


def test_where_every_key_is_hidden_no_measure_has_a_value(gpt: Model) -> None:
    feed = fed(gpt, [0] * 5)
    reduced, trace = heads(gpt, Prompt(inputs=feed))
    assert any("every key is hidden from every query in L0" in note for note in trace.notes)
    for table in (reduced, describe_heads(gpt.trace(inputs=feed))):
        assert all(np.isnan(one.values).all() for one in (*table.measures, *table.rest))
        assert set(sum(table.kinds, ())) == {""}


def test_a_text_of_padding_alone_is_said_to_see_nothing(minilm: Model) -> None:
    given = {"attention_mask": np.zeros((1, len(minilm.trace(ANIMAL).tokens)), np.int64)}
    trace = minilm.trace(ANIMAL, inputs=given)
    assert not any(trace.tokens.mask)
    assert any("every key is hidden from every query in L0" in note for note in trace.notes)
    assert np.isnan(mass(trace).values).all()


@pytest.mark.parametrize(
    ("hidden", "sums", "holds"), [(True, 0.75, True), (True, 1.0, True), (True, 1.25, False), (False, 0.75, False)]
)
def test_a_row_that_sees_no_key_may_share_its_weight_with_cells_that_are_no_keys(
    hidden: bool, sums: float, holds: bool
) -> None:
    """Padding fills up a block of queries, whose softmax then runs over places before and behind the text too."""
    masked = np.zeros((1, 1, 2, 6), np.float32)
    masked[0, 0, 1] -= 1e10 * hidden
    weights = np.asarray(softmax(masked))
    weights[0, 0, 1] *= sums
    site = Site(0, 0, "encoder", "self", "Softmax", "", 1, 1, None, None)
    done = check(site, {"masked": masked, "weights": weights}, {"masked": "tapped", "weights": "tapped"}, low=False)
    assert [one.name for one in done[:2]] == ["rows sum to 1", "weights = softmax(masked)"]
    assert (done[0].difference <= done[0].tolerance) is holds
    assert done[1].difference <= done[1].tolerance or not hidden
