"""The methods of a model give what the commands' studies give; tokens may be named by their text."""

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

import attnx
from attnx.errors import InputError, UnsupportedError, UsageError
from attnx.interventions.feeds import plan_run
from attnx.interventions.plan import Edit, Intervention
from attnx.interventions.running import Intervening
from attnx.run.prompt import Prompt
from attnx.study import ablation
from attnx.study.mattering import Cutter, matter
from attnx.tokens.axes import numbered
from attnx.tokens.spans import Mention
from tests import small_models as small
from tests.graphs import D, G, H
from tests.small_senses import letters

CAT, DOG = "The cat sat on the mat. The cat", "The dog ran on the mat. The dog"


@pytest.fixture(scope="module")
def gpt() -> attnx.Model:
    return attnx.open("tiny-gpt", device="cpu")


def test_a_head_that_is_needed(gpt: attnx.Model) -> None:
    found = gpt.ablate(CAT, heads=[(0, 3), (2, 2)])
    assert [effect.place.label for effect in found.ranked][-1] == "L2 H2"
    there = gpt.ablate(CAT, heads=[(0, 3)], queries=["cat@9"])
    assert there.effects[0].change == gpt.ablate(CAT, heads=[(0, 3)], queries=[9]).effects[0].change
    assert not there.effects[0].change.kept
    cut = gpt.ablate(CAT, heads=[(0, 3)], edges=[("cat@9", "cat@2")])
    assert 0 < cut.effects[0].change.moved < there.effects[0].change.moved


def test_a_patch_and_a_path(gpt: attnx.Model) -> None:
    found = gpt.patch(CAT, DOG, heads=[(0, 3), (1, 0)], answer="sat", foil="did")
    assert found.ranked[0].spot.label == "L0 H3"
    assert found.ranked[0].share > 0.5
    row = gpt.patch(CAT, DOG, quantity="residual", layers=[3], at=["cat@9", 2], answer="sat", foil="did")
    assert [one.share for one in row.effects] == pytest.approx([1, 0], abs=1e-3)
    sent = gpt.patch_paths(CAT, DOG, from_=[(0, 3)], to=[(2, 2)], into="value", answer="sat", foil="did")
    assert 0 < abs(sent.effects[0].share) < found.ranked[0].share
    with pytest.raises(UsageError, match="10 tokens and the corrupt one 2"):
        gpt.patch(CAT, "The")


def test_what_layers_say_and_what_parts_add(gpt: attnx.Model) -> None:
    seen = gpt.lens(CAT, at="all")
    assert seen.positions == tuple(range(10))
    parts = gpt.attribute(CAT, at="cat@9")
    assert parts.readout.answer == seen.answers[9]
    assert parts.what == "logit(sat)"
    assert gpt.lens(CAT, at=[9], top=2).top[-1, 0, 0] == seen.answers[9]


def test_arrays_in_place_of_a_text(tmp_path: Path) -> None:
    from tests.interventions import models

    kind = models.KINDS["pre"]
    one, two = models.feeds(kind)
    model = attnx.open(models.build(kind, models.weights(kind), tmp_path), device="cpu")
    found = model.patch(
        {name: array[:1] for name, array in one.items()}, {name: array[:1] for name, array in two.items()},
        quantity="residual", layers=[1], at=[6], answer="3", foil="5",
    )  # fmt: skip
    assert found.effects[0].share == pytest.approx(1, abs=1e-4)


PAST, WORDS = [3, 9, 14], [5, 2, 17, 8, 11]


def mild() -> dict[str, np.ndarray]:
    """Weights that leave the answer open, so that it can be moved."""
    w = small.weights(3)
    return w | {"head": w["head"] / 10}


def cached(folder: Path, w: dict[str, np.ndarray]) -> tuple[attnx.Model, dict[str, np.ndarray]]:
    """A decoder with PAST in its cache, and the feed of WORDS behind it."""
    small.save(folder, model=small.cached_decoder(w))
    ran = small.decoder(w, PAST)
    feed = {
        "input_ids": np.array([WORDS]),
        "attention_mask": np.ones((1, len(PAST) + len(WORDS)), np.int64),
        "position_ids": np.arange(len(PAST), len(PAST) + len(WORDS))[None],
    }
    for layer, arrays in enumerate(ran.decoder):
        feed |= {f"past_key_values.{layer}.{name}": arrays[name].astype(np.float32) for name in ("key", "value")}
    return attnx.open(folder, device="cpu"), feed


def test_an_edge_is_between_tokens_where_cached_keys_stand_before_them(tmp_path: Path) -> None:
    w = mild()
    model, feed = cached(tmp_path / "cached", w)
    small.save(tmp_path / "plain", model=small.plain_decoder(w))
    whole = {"input_ids": np.array([PAST + WORDS]), "attention_mask": feed["attention_mask"]}
    whole["position_ids"] = np.arange(len(PAST + WORDS))[None]
    plain = attnx.open(tmp_path / "plain", device="cpu")
    first = len(PAST)
    behind = model.ablate(feed, edges=[(4, 3)]).effects
    together = plain.ablate(whole, edges=[(first + 4, first + 3)]).effects
    assert [e.change.moved for e in behind] == pytest.approx([e.change.moved for e in together], rel=1e-3, abs=1e-7)
    assert max(e.change.moved for e in behind) > 1e-3
    planned = plan_run(model, Prompt(inputs=feed))
    cutter = Cutter(model, Intervening(model, {"inputs": planned.feed}), planned, Mention("w", -1, -1, (4,)))
    cut = matter(cutter, Mention("to", -1, -1, (3,))).moved.values.ravel()
    assert cut == pytest.approx([e.change.moved for e in together], rel=1e-3, abs=1e-7)


def test_an_encoder_is_changed_at_the_tokens_that_it_reads(tmp_path: Path) -> None:
    w = mild()
    small.save(tmp_path / "both", config={"decoder_start_token_id": 5}, model=small.one_file(w))
    letters(tmp_path / "both")
    model = attnx.open(tmp_path / "both", device="cpu")
    said = {"text": "bdcf", "target": "hg"}
    where = {"component": "encoder", "heads": [(0, 1)]}
    at = model.trace("bdcf", target="hg").memory.pieces.index("c")
    ends = {at: model.ablate(said, queries=[at], **where) for at in range(6)}
    assert ends[at].effects == model.ablate(said, queries=["c"], **where).effects
    edit = Edit("ablate", (0,), (1,), (at,), component="encoder", method="zero")
    got = model.run_with([Intervention("z", (edit,))], said)
    base, edited = got.unedited["inputs"], got.effects["z"].outputs
    assert ends[at].effects[0].change == ends[at].readout.change(base, edited)
    cut = model.ablate(said, edges=[("c", "f")], **where).effects[0].change
    edit = Edit("knockout", (0,), (1,), (at,), (at + 1,), component="encoder")
    edited = model.run_with([Intervention("k", (edit,))], said).effects["k"].outputs
    assert cut.moved == pytest.approx(ends[at].readout.change(base, edited).moved, rel=1e-4)
    trace = model.trace("bdcf", target="hg", quantities=("value", "weights", "context"))
    context = next(a.context for a in trace.attentions if a.site.component == "encoder" and a.site.layer == 0)
    assert context.shape[2] == 6 != len(trace.tokens)
    means = ablation.corpus_means(iter([trace]), "encoder")
    assert means[0] == pytest.approx(context[0].mean(axis=1), abs=1e-6)


@pytest.mark.parametrize("named", [{"answer": ""}, {"answer": "sat", "foil": ""}])
def test_an_empty_word_is_no_token(gpt: attnx.Model, named: dict[str, str]) -> None:
    for experiment in (gpt.ablate, gpt.attribute):
        with pytest.raises(UsageError, match="names no token"):
            experiment(CAT, **named)


def test_keys_that_are_no_cache_are_not_counted_as_one(tmp_path: Path) -> None:
    """A learned key behind those of the tokens, as in nn.MultiheadAttention(add_bias_kv=True)."""
    g = G()
    x = g.input("x", [1, 5, D * H])
    q, k, v = (g.heads(g.linear(x, D * H, D * H)) for _ in range(3))
    key, value = (g.op("Concat", side, g.weight(1, H, 1, D), axis=2) for side in (k, v))
    weights = g.softmax(g.scores(q, str(g.op("Transpose", key, perm=[0, 1, 3, 2]))))
    path = g.save(tmp_path, g.out(g.op("MatMul", weights, value)))
    model = attnx.open(path, device="cpu")
    feed = {"x": np.random.default_rng(0).standard_normal((1, 5, D * H)).astype(np.float32)}
    assert model.ablate(feed, queries=[3]).effects
    with pytest.raises(UnsupportedError, match="has 6 keys, and looks at 5 tokens"):
        model.ablate(feed, edges=[(4, 3)])
    planned = plan_run(model, Prompt(inputs=feed))
    running = Intervening(model, {"inputs": planned.feed})
    with pytest.raises(UnsupportedError, match="has 5 query positions, and the input has 4 tokens"):
        ablation.ablate(model, running, planned.tokens, at_queries=numbered(4), queries=[3])


def last_layer_alone(folder: Path) -> tuple[attnx.Model, dict[str, np.ndarray]]:
    """Two layers of heads, and a third whose weights are the answer, as in a model that maps atoms on atoms."""
    g = G()
    drawn = np.random.default_rng(4)
    g.weight = lambda *shape: g.const(drawn.standard_normal(shape).astype(np.float32) / 3)  # type: ignore[method-assign]
    x = g.input("x", [1, 5, D * H])
    for _ in range(2):
        q, k, v = (g.heads(g.linear(x, D * H, D * H)) for _ in range(3))
        weights = g.softmax(g.scores(q, str(g.op("Transpose", k, perm=[0, 1, 3, 2]))))
        merged = g.op(
            "Reshape",
            g.op("Transpose", g.op("MatMul", weights, v), perm=[0, 2, 1, 3]),
            g.const([0, -1, D * H], np.int64),
        )
        x = str(g.op("Add", x, g.linear(str(merged), D * H, D * H)))
    q, k = (g.heads(g.linear(x, D * H, D * H)) for _ in range(2))
    weights = g.softmax(g.scores(q, str(g.op("Transpose", k, perm=[0, 1, 3, 2]))))
    path = g.save(folder, str(g.op("ReduceMean", weights, axes=[1], keepdims=0)))
    feed = {"x": np.random.default_rng(0).standard_normal((1, 5, D * H)).astype(np.float32)}
    return attnx.open(path, device="cpu"), feed


def test_heads_that_can_be_ablated_are_ranked_beside_a_layer_that_weighs_nothing(tmp_path: Path) -> None:
    model, feed = last_layer_alone(tmp_path)
    found = model.ablate(feed)
    assert [e.place.label for e in found.effects] == [f"L{layer} H{head}" for layer in (0, 1) for head in range(H)]
    alone = model.ablate(feed, heads=[(1, 2)])
    one = next(e for e in found.effects if e.place.label == "L1 H2")
    assert one.change.moved == pytest.approx(alone.effects[0].change.moved, rel=1e-4)
    assert one.change.moved > 0
    assert [note for note in found.notes if "left out" in note] == [
        "left out: L2 has no context to change: no value is weighed with what Softmax 'n45_Softmax' gives"
    ]
    even = model.ablate(feed, method="uniform")  # weights can be changed in every layer
    assert len(even.effects) == 3 * H
    assert not [note for note in even.notes if "left out" in note]
    for named in ({"heads": [(2, 0)]}, {"layers": [2]}, {"layers": [2], "means": {}}):
        with pytest.raises(UnsupportedError, match="L2 has no context to change: no value is weighed"):
            model.ablate(feed, **named)
    two = {"x": feed["x"][:, ::-1].copy()}
    patched = model.patch(two, feed, quantity="context")
    assert {e.spot.layer for e in patched.effects} == {0, 1}
    assert sum("left out: L2 has no context" in note for note in patched.notes) == 1
    with pytest.raises(UnsupportedError, match="L2 has no context"):
        model.patch(two, feed, quantity="context", layers=[2])


def weighing_twice(folder: Path, joined: bool, share: float | None = None) -> Path:
    """One softmax, and a product with each of two values, joined or subtracted; `share`: each weight of head 1."""
    g = G()
    drawn = np.random.default_rng(4)
    g.weight = lambda *shape: g.const(drawn.standard_normal(shape).astype(np.float32) / 3)  # type: ignore[method-assign]
    x = g.input("x", [1, 5, D * H])
    q, k, v, other = (g.heads(g.linear(x, D * H, D * H)) for _ in range(4))
    weights = g.softmax(g.scores(q, str(g.op("Transpose", k, perm=[0, 1, 3, 2]))))
    weights = g.op("Where", g.op("IsNaN", weights), g.const(0.0, np.float32), weights)
    if share is not None:
        weights = g.op("Where", g.const((np.arange(H) == 1)[:, None, None]), g.const(share, np.float32), weights)
    one, two = g.op("MatMul", weights, v), g.op("MatMul", weights, other)
    folder.mkdir()
    if joined:
        return g.save(folder, g.out(str(g.op("Concat", one, two, axis=3)), 2 * D * H))
    return g.save(folder, g.out(str(g.op("Sub", one, g.op("Mul", two, g.const(0.3, np.float32))))))


@pytest.mark.parametrize("joined", [True, False])
def test_weights_that_weigh_two_tensors_are_not_ablated_by_halves(joined: bool, tmp_path: Path) -> None:
    """DiffLlama through scaled_dot_product_attention: a product with each half of the values."""
    model = attnx.open(weighing_twice(tmp_path / "given", joined), device="cpu")
    feed = {"x": np.random.default_rng(0).standard_normal((1, 5, D * H)).astype(np.float32)}
    ways: list[tuple[Edit, float]] = [(Edit("ablate", (0,), (1,), method="uniform"), 0.2)]
    if joined:
        ways.append((Edit("ablate", (0,), (1,)), 0.0))
    else:
        with pytest.raises(UnsupportedError, match=r"L0 context cannot be changed: .* weighs another tensor too"):
            model.ablate(feed)
    for edit, share in ways:
        (got,) = model.run_with([Intervention("one", (edit,))], feed).effects["one"].outputs.values()
        wanted = weighing_twice(tmp_path / f"{share}", joined, share)
        session = ort.InferenceSession(wanted, providers=["CPUExecutionProvider"])
        assert got == pytest.approx(session.run(None, feed)[0], abs=1e-5)


@pytest.mark.parametrize("at", [2, 5, "the@5"])
def test_the_position_that_is_read_is_the_one_that_is_named(gpt: attnx.Model, at: int | str) -> None:
    place = 5 if isinstance(at, str) else at
    running = Intervening(gpt, {"inputs": plan_run(gpt, Prompt(CAT)).feed})
    (edited,) = running.run([Intervention("one", (Edit("ablate", (0,), (3,)),))])
    one, two = (np.asarray(of["logits"][0, place], np.float64) for of in (running.base("inputs"), edited.outputs))
    log = [row - row.max() - np.log(np.exp(row - row.max()).sum()) for row in (one, two)]
    got = gpt.ablate(CAT, heads=[(0, 3)], position=at).effects[0].change.moved
    assert got == pytest.approx(float((np.exp(log[0]) * (log[0] - log[1])).sum()), rel=1e-3)


@pytest.mark.parametrize("at", [99, -1, "dog"])
def test_a_position_that_is_not_there_is_refused(gpt: attnx.Model, at: int | str) -> None:
    with pytest.raises((UsageError, InputError)):
        gpt.ablate(CAT, heads=[(0, 3)], position=at)
