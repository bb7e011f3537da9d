"""Does it matter where heads point? Weights, effects and controls against numpy models; statistics against formulas."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

import attnx
from attnx.errors import UnsupportedError
from attnx.interventions.feeds import plan_run
from attnx.interventions.plan import Edit, Intervention
from attnx.interventions.running import Intervening
from attnx.measure.mattering import LESS, MOST, OTHERS, POINTING, RANDOM, Cut, matched, mattered, spearman, wilson
from attnx.records import Axis
from attnx.run.prompt import Prompt
from attnx.study.head_effects import effects
from attnx.study.mattering import Cutter, matter
from attnx.tokens.spans import Mention
from tests.graphs import D, G, H, S
from tests.interventions import models

WORD, TO = 6, (1, 2)


def shares(row: np.ndarray) -> np.ndarray:
    raised = np.exp(row - row.max())
    return raised / raised.sum()


@pytest.mark.parametrize("name", ["pre", "both ways", "grouped", "mha"])
def test_cuts_are_those_of_numpy(name: str, tmp_path: Path) -> None:
    kind = models.KINDS[name]
    w = models.weights(kind)
    ids = models.feeds(kind)[0]["input_ids"][:1]
    mask = np.ones_like(ids)
    model = attnx.open(models.build(kind, w, tmp_path), device="cpu")
    planned = plan_run(model, Prompt(inputs={"input_ids": ids, "attention_mask": mask}))
    cutter = Cutter(model, Intervening(model, {"inputs": planned.feed}), planned, Mention("w", -1, -1, (WORD,)))
    found = matter(cutter, Mention("to", -1, -1, TO))
    unedited = models.recorded(kind, w, ids, mask)
    base = unedited["logits", 0]

    def moved(edited: np.ndarray) -> float:
        if kind.causal:  # what comes next: KL at the last position
            p, q = shares(base[0, -1]), shares(edited[0, -1])
            return float((p * np.log(p / q)).sum())
        return float(np.linalg.norm(edited - base) / np.linalg.norm(base))

    for layer in range(kind.layers):
        for head in range(models.HEADS):
            row = unedited["weights", layer][0, head, WORD]
            target = row[list(TO)].sum()
            assert found.weights.values[layer, head] == pytest.approx(target, abs=1e-5)
            cut = models.edited(kind, mask, "knockout", (layer,), (head,), (WORD,), TO)
            want = moved(models.run(kind, w, ids, mask, cut))
            assert found.moved.values[layer, head] == pytest.approx(want, rel=2e-3, abs=1e-7)
            keys = matched(row, np.isin(np.arange(len(row)), (*TO, WORD), invert=True), target)
            assert found.other_weights.values[layer, head] == pytest.approx(row[keys].sum(), abs=1e-5)
            other = models.edited(kind, mask, "knockout", (layer,), (head,), (WORD,), keys)
            want = moved(models.run(kind, w, ids, mask, other))
            assert found.other_moved.values[layer, head] == pytest.approx(want, rel=2e-3, abs=1e-7)
    best = np.unravel_index(int(found.moved.values.argmax()), found.moved.values.shape)
    assert found.ranked[0] == tuple(map(int, best))
    assert found.correlation == pytest.approx(spearman(found.weights.values, found.moved.values))


def test_other_words_are_matched_in_weight() -> None:
    row = np.array([0.3, 0.25, 0.2, 0.15, 0.1])
    every = np.ones(5, bool)
    assert matched(row, every, 0.3) == [0]
    assert sorted(matched(row, every & (np.arange(5) != 0), 0.3)) == [1], "0.25 is nearer than 0.25 + 0.2"
    assert sorted(matched(row, every, 0.9)) == [0, 1, 2, 3]
    assert matched(row, np.zeros(5, bool), 0.3) == []
    assert matched(row, every, 0.01) == [4], "the least, where all are larger"
    rng = np.random.default_rng(0)
    for _ in range(20):
        row = rng.dirichlet(np.full(8, 0.5))
        target = float(rng.uniform(0.05, 0.9))
        best = min(abs(row[list(some)].sum() - target) for n in range(1, 9) for some in combinations(range(8), n))
        assert abs(row[matched(row, np.ones(8, bool), target)].sum() - target) <= best + row.max()


def test_rank_correlation() -> None:
    rng = np.random.default_rng(1)
    one, two = rng.normal(size=9), rng.normal(size=9)
    gaps = np.argsort(np.argsort(one)) - np.argsort(np.argsort(two))
    assert spearman(one, two) == pytest.approx(1 - 6 * (gaps**2).sum() / (9 * 80))
    assert spearman(one, np.exp(one)) == pytest.approx(1)
    assert spearman(np.array([1, 1, 2, 3]), np.array([1, 2, 3, 3])) == pytest.approx(
        np.corrcoef([1.5, 1.5, 3, 4], [1, 2, 3.5, 3.5])[0, 1]
    )
    assert np.isnan(spearman(np.ones(4), np.arange(4)))


def test_intervals() -> None:
    assert wilson(8, 10) == pytest.approx([0.8, 0.4902, 0.9433], abs=1e-4)
    assert wilson(0, 5)[1] == 0
    rng = np.random.default_rng(2)
    examples = []
    for at in range(40):
        weights = rng.uniform(size=(2, 3))
        examples.append(Cut(weights, 0.5 * weights, 0.3, float(rng.uniform(0, 0.1)), f"g{at // 2}"))
    found = mattered(examples, ("L0", "L1"), "effect")
    rows = dict(zip(found.comparison.axes[0].labels, found.comparison.values, strict=True))
    tops = np.array([one.moved.max() for one in examples])
    others = np.array([one.other_moved for one in examples])
    rest = np.array([(one.moved.sum() - one.moved.max()) / 5 for one in examples])
    assert rows[POINTING][0] == pytest.approx(tops.mean())
    assert rows[OTHERS][0] == pytest.approx(others.mean())
    assert rows[RANDOM][0] == pytest.approx(rest.mean())
    assert rows[LESS[0]][0] == pytest.approx((tops - others).mean())
    assert rows[LESS[1]][0] == pytest.approx((tops - rest).mean())
    assert list(rows[MOST]) == pytest.approx(wilson(40, 40))
    per_group = (tops - others).reshape(20, 2).mean(1)
    spread = 1.96 * per_group.std() / np.sqrt(20)  # what the normal approximation says of a mean over groups
    low, high = rows[LESS[0]][1:]
    assert low == pytest.approx(per_group.mean() - spread, abs=0.3 * spread)
    assert high == pytest.approx(per_group.mean() + spread, abs=0.3 * spread)
    np.testing.assert_allclose(found.heads.values, np.mean([one.moved for one in examples], axis=0))
    assert (found.examples, found.groups) == (40, 20)


def reader(folder: Path, kinds: str) -> tuple[attnx.Model, dict[str, np.ndarray]]:
    """A reader of ids, a layer for each letter.

    p is plain attention; h hides cells behind the softmax and divides once more, so that nothing can be hidden before
    it; k has a learned key and value before the text's.
    """
    g = G()
    drawn = np.random.default_rng(4)
    g.weight = lambda *shape: g.const(drawn.standard_normal(shape).astype(np.float32) / 3)  # type: ignore[method-assign]
    x = str(g.op("Gather", g.weight(9, D * H), g.input("input_ids", [1, S], 7)))
    for kind in kinds:
        q, k, v = (g.heads(g.linear(x, D * H, D * H)) for _ in range(3))
        if kind == "k":
            k, v = (str(g.op("Concat", g.weight(1, H, 1, D), side, axis=2)) for side in (k, v))
        weights = g.softmax(g.scores(q, str(g.op("Transpose", k, perm=[0, 1, 3, 2]))))
        if kind == "h":
            weights = g.op("Mul", weights, g.const(np.arange(S) != 3, np.float32))
            weights = g.op("Div", weights, g.op("ReduceSum", weights, g.const([-1], np.int64), keepdims=1))
        context = g.op("Transpose", g.op("MatMul", weights, v), perm=[0, 2, 1, 3])
        merged = str(g.op("Reshape", context, g.const([0, -1, D * H], np.int64)))
        x = str(g.op("Add", x, g.linear(merged, D * H, D * H)))
    return attnx.open(g.save(folder, x), device="cpu"), {"input_ids": np.array([[1, 4, 2, 8, 5]])}


HIDDEN = "L1 has no masked to change: the mask is applied after the softmax, so there is no masked stage"


@pytest.mark.parametrize(("kinds", "why"), [("php", HIDDEN), ("pkp", "L1 has 5 queries and 6 keys")])
def test_layers_that_cannot_be_cut_are_left_out_by_name(kinds: str, why: str, tmp_path: Path) -> None:
    model, feed = reader(tmp_path, kinds)
    planned = plan_run(model, Prompt(inputs=feed))
    running = Intervening(model, {"inputs": planned.feed})
    told: list[tuple[int, int]] = []
    cutter = Cutter(model, running, planned, Mention("w", -1, -1, (4,)))
    found = matter(cutter, Mention("to", -1, -1, TO), lambda *of: told.append(of))
    assert found.moved.axes[0].labels == ("L0", "L2")
    assert [note for note in cutter.left if not note.startswith(f"left out: {why}")] == []
    assert len(cutter.left) == 1
    assert {every for _, every in told} == {4 * H}  # both layers, edges and controls
    assert told[-1][0] == 4 * H
    base, weights = running.base("inputs"), running.attentions("inputs", cutter.sites)
    for at, site in enumerate(cutter.sites):
        cut = Intervention("cut", (Edit("knockout", (site.layer,), (1,), (4,), TO),))
        (effect,) = running.run([cut])
        assert found.moved.values[at, 1] == pytest.approx(cutter.read.change(base, effect.outputs).moved, rel=1e-4)
        row = weights[site.index].need("weights")[0, 1, 4]
        assert found.weights.values[at, 1] == pytest.approx(row[list(TO)].sum(), abs=1e-6)


def test_where_no_layer_can_be_cut_the_reason_is_given(tmp_path: Path) -> None:
    for kinds, why in (("h", HIDDEN.replace("L1", "L0")), ("k", "L0 has 5 queries and 6 keys")):
        (tmp_path / kinds).mkdir()
        model, feed = reader(tmp_path / kinds, kinds)
        planned = plan_run(model, Prompt(inputs=feed))
        with pytest.raises(UnsupportedError, match=why):
            Cutter(model, Intervening(model, {"inputs": planned.feed}), planned, Mention("w", -1, -1, (4,)))


def test_effects_count_the_heads_that_are_ablated(tmp_path: Path) -> None:
    model, feed = reader(tmp_path, "ppp")
    trace = model.trace(inputs=feed)
    like = attnx.Measurement(
        "like", "", (Axis("layer", ("L0", "L1", "L2")), Axis("head", tuple("0123"))), np.zeros((3, H))
    )
    told: list[tuple[int, int]] = []
    made, notes = effects(model, Prompt(inputs=feed), trace, like, lambda *of: told.append(of))
    assert told == [(n, 3 * H) for n in range(1, 3 * H + 1)] + [(3 * H, 3 * H)]  # and all of them together
    assert np.isfinite(made.values).all()
    assert not [note for note in notes if "left out" in note]
