"""Softmax before and after the scale, against plain Python."""

import math
from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnx.errors import UnsupportedError, UsageError
from attnx.measure import unscaled
from attnx.measure.scaling import all_heads, row, strongest, strongest_head, sweep
from attnx.measure.scaling_theory import numbers, theory
from attnx.measure.softmax_rows import SoftmaxRows
from attnx.measure.unscaled import both_ways
from attnx.records import Attention

from .planted import drawn, full, plain, site, softmax, tokens, trace


def one(**more):
    return trace(plain(5), drawn(**more))


def test_row_by_hand():
    # q.k = 8, 4, 0 with d_k = 4: scaled 4, 2, 0
    q = np.array([[[2.0, 2, 0, 0]] * 3])
    k = np.array([[[2.0, 2, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1]]])
    t = trace(plain(3), full(q, k, k, np.zeros((3, 3))))
    got = row(t, 0, 0, 1)
    assert got.axes[0].labels == ("w0", "w1", "w2")
    assert got.values[:, 0].tolist() == pytest.approx([8, 4, 0])
    assert got.values[:, 1].tolist() == pytest.approx([4, 2, 0])
    before, after = softmax([8, 4, 0]), softmax([4, 2, 0])
    assert got.values[:, 2].tolist() == pytest.approx(before)
    assert got.values[:, 3].tolist() == pytest.approx(after)
    assert got.values[:, 4].tolist() == pytest.approx([b - a for a, b in zip(before, after, strict=True)])
    assert "1/sqrt(4)" in got.formula
    assert got.notes == ()


@pytest.mark.parametrize("mask", ["none", "causal", "-10000", "-3.4028235e38"])
def test_the_mask_stays_on_in_both(mask):
    t = one(seed=2, mask=mask, heads=4, kv=2)
    ways = both_ways(t, 0)
    a = t.attentions[0]
    sees = np.ones((5, 5), bool) if mask == "none" else np.tri(5, dtype=bool)
    for h in range(4):
        for i in range(5):
            raw = [float(x) if s else -math.inf for x, s in zip(a.scores[0, h, i], sees[i], strict=True)]
            assert np.exp(ways.unscaled[h, i]).tolist() == pytest.approx(softmax(raw), abs=1e-6)
            assert np.exp(ways.scaled[h, i]).tolist() == pytest.approx(softmax([x / 2 for x in raw]), abs=1e-6)
            assert np.exp(ways.scaled[h, i]).tolist() == pytest.approx(a.weights[0, h, i].tolist(), abs=1e-5)
    assert (np.exp(ways.scaled)[:, ~sees] == 0).all()
    if mask != "none":
        assert "4 of 5 keys are hidden" in row(t, 0, 0, 0).notes


def test_bias_and_softcap_stay_on_in_both():
    draw = np.random.default_rng(5)
    q, k = draw.standard_normal((2, 1, 4, 4)) * 3
    bias = draw.standard_normal((4, 4))
    t = trace(plain(4), full(q, k, k, bias, softcap=2.0))
    ways = both_ways(t, 0)
    for i in range(4):
        raw = [float(q[0, i] @ k[0, j]) for j in range(4)]
        for got, scale in ((ways.unscaled, 1.0), (ways.scaled, 0.5)):
            want = softmax([2 * math.tanh(x * scale / 2) + b for x, b in zip(raw, bias[i], strict=True)])
            assert np.exp(got[0, i]).tolist() == pytest.approx(want, abs=1e-5)


def test_a_sink_is_found_and_stays_on_in_both(monkeypatch: pytest.MonkeyPatch):
    base = drawn(heads=2, n=4, seed=1)
    logits = (0.7, -1.0)
    weights = np.zeros((1, 2, 4, 4), np.float32)
    for h in range(2):
        for i in range(4):
            weights[0, h, i] = softmax([*base.masked[0, h, i].tolist(), logits[h]])[:4]
    t = trace(plain(4), replace(base, weights=weights, site=replace(base.site, sink=True)))
    ways = both_ways(t, 0)
    assert ways.sink.ravel().tolist() == pytest.approx(logits, abs=1e-4)
    assert np.exp(ways.scaled) == pytest.approx(weights[0], abs=1e-5)
    want = softmax([*base.scores[0, 1, 2].tolist(), logits[1]])[:4]
    assert np.exp(ways.unscaled[1, 2]).tolist() == pytest.approx(want, abs=1e-5)
    monkeypatch.setattr(unscaled, "BLOCK", 1)  # a row at a time: the sink is still that of all rows
    for head, line, some in unscaled.in_blocks(t, 0):
        assert some.sink.ravel().tolist() == ways.sink.ravel()[head : head + 1].tolist()
        assert np.array_equal(some.scaled[0, 0], ways.scaled[head, line])
    nothing = trace(plain(4), replace(base, site=replace(base.site, sink=True)))
    assert np.exp(both_ways(nothing, 0).scaled) == pytest.approx(base.weights[0], abs=1e-5)


def test_without_a_scale_both_ways_are_the_same_and_it_is_said():
    t = one(scale=1.0)
    table = all_heads(t)
    assert table.divergence.values == pytest.approx(0, abs=1e-9)
    assert table.entropy.values[..., 0] == pytest.approx(table.entropy.values[..., 1])
    assert "no scale" in table.notes[0]
    as_if = all_heads(t, as_if="sqrt")
    assert (as_if.divergence.values > 0.01).all()
    a = t.attentions[0]
    want = softmax([float(x) / 2 for x in a.scores[0, 1, 3]])
    assert np.exp(both_ways(t, 0, "sqrt").scaled[1, 3]).tolist() == pytest.approx(want, abs=1e-6)


def test_a_scale_of_its_own_is_said():
    assert all_heads(one(scale=0.25)).notes == (
        "L0: a scale of its own, 0.25 (1/sqrt(d_k) would be 0.5: `as_if='sqrt'`)",
    )
    assert all_heads(one()).notes == ()


def test_an_unknown_scale_still_shows_both_ways():
    base = drawn(seed=4)
    t = trace(plain(5), replace(base, site=replace(base.site, scale=None)))
    assert np.exp(both_ways(t, 0).scaled) == pytest.approx(base.weights[0], abs=1e-5)
    assert all_heads(t).notes == ("L0: the scale is not known",)
    with pytest.raises(UnsupportedError, match="scale of L0 is not known"):
        both_ways(t, 0, similarity="cosine")


def test_cosine():
    t = one(seed=6, spread=3)
    a = t.attentions[0]
    ways = both_ways(t, 0, similarity="cosine")
    q, k = a.query[0, 1, 2].astype(float), a.key[0, 1].astype(float)
    cosines = [float(q @ x / np.linalg.norm(q) / np.linalg.norm(x)) for x in k]
    assert ways.product[1, 2].tolist() == pytest.approx(cosines, abs=1e-6)
    assert np.exp(ways.unscaled[1, 2]).tolist() == pytest.approx(softmax(cosines), abs=1e-6)
    assert np.exp(ways.scaled[1, 2]).tolist() == pytest.approx(softmax([c / 2 for c in cosines]), abs=1e-6)
    assert row(t, 0, 1, 2, similarity="cosine").axes[1].labels[0] == "cosine"


def test_all_heads_by_hand():
    t = one(seed=7, spread=2)
    a, table = t.attentions[0], all_heads(t)
    for h in range(2):
        raw = [[float(x) for x in line] for line in a.scores[0, h]]
        cells = [x for line in raw for x in line]
        mean = sum(cells) / 25
        sd = math.sqrt(sum((x - mean) ** 2 for x in cells) / 25)
        assert table.spread.values[0, h].tolist() == pytest.approx([sd, sd / 2], rel=1e-5)
        before = [softmax(line) for line in raw]
        after = [softmax([x / 2 for x in line]) for line in raw]
        for way, rows in enumerate((before, after)):
            entropies = [-sum(p * math.log(p) for p in r) for r in rows]
            assert table.entropy.values[0, h, way] == pytest.approx(sum(entropies) / 5, rel=1e-4)
            assert table.largest.values[0, h, way] == pytest.approx(sum(map(max, rows)) / 5, rel=1e-5)
            assert table.saturated.values[0, h, way] == sum(max(r) > 0.99 for r in rows) / 5
            gradients = [1 - sum(p * p for p in r) for r in rows]
            assert table.gradient.values[0, h, way] == pytest.approx(sum(gradients) / 5, rel=1e-4)
        divergences = [
            sum(p * math.log(p / q) for p, q in zip(r, s, strict=True)) for r, s in zip(after, before, strict=True)
        ]
        assert table.divergence.values[0, h] == pytest.approx(sum(divergences) / 5, rel=1e-4)
    assert table.size.values.tolist() == [4]
    assert table.layers.values[0, 2] == pytest.approx(table.entropy.values[0, :, 0].mean())
    assert table.layers.axes[1].labels[2] == "entropy unscaled"
    assert table.layers.values[0, -1] == pytest.approx(table.divergence.values[0].mean())
    assert asdict(table)["entropy"]["unit"] == "nats"


def test_kl_survives_weights_too_small_for_a_float():
    q = np.array([[[1e3, 0.0, 0, 0]]])
    k = np.array([[[1.0, 0, 0, 0], [0, 0, 0, 0]]])
    t = trace(plain(2), full(q, k, k, np.zeros((1, 2)), kind="cross", component="decoder"), memory=plain(2))
    assert all_heads(t).divergence.values[0, 0] == pytest.approx(0, abs=1e-6)
    flat = trace(
        plain(2), full(q, k, k, np.zeros((1, 2)), kind="cross", component="decoder", scale=1e-3), memory=plain(2)
    )
    p = softmax([1.0, 0.0])
    assert all_heads(flat).divergence.values[0, 0] == pytest.approx(
        p[0] * math.log(p[0]) + p[1] * (math.log(p[1]) + 1e3)
    )


def test_strongest_finds_the_row_that_changes_most():
    a = drawn(seed=8, n=5, spread=1)
    sharp = drawn(seed=9, n=5, spread=2, index=1)
    t = trace(plain(5), a, sharp)
    best, where = -1.0, None
    for s, at in enumerate(t.attentions):
        for h in range(2):
            for i in range(5):
                raw = at.scores[0, h, i].tolist()
                gap = sum(abs(p - q) for p, q in zip(softmax(raw), softmax([x / 2 for x in raw]), strict=True))
                if gap > best:
                    best, where = gap, (s, h, i)
    assert strongest(t) == where
    assert strongest(t, sites=[0])[0] == 0
    assert strongest(t, head=1)[1] == 1
    assert [(first, w.seen.shape[0]) for first, _, w in unscaled.in_blocks(t, 0, head=1)] == [(1, 1)]
    with pytest.raises(UnsupportedError, match="no row"):
        strongest(t, head=2)


def test_sweep_by_hand():
    t = one(seed=10)
    got = sweep(t)
    assert got.axes[0].labels == ("1", "2", "4")  # powers of two up to d_k = 4, and sqrt(4) = 2
    for at, divisor in enumerate((1, 2, 4)):
        rows = [softmax([float(x) / divisor for x in line]) for head in t.attentions[0].scores[0] for line in head]
        want = [
            sum(-sum(p * math.log(p) for p in r) for r in rows) / 10,
            sum(map(max, rows)) / 10,
            sum(max(r) > 0.99 for r in rows) / 10,
        ]
        assert got.values[at, 0].tolist() == pytest.approx(want, rel=1e-5)
        assert got.values[at, 1].tolist() == pytest.approx(want, rel=1e-5)
    assert got.axes[1].labels == ("L0", "all")
    with pytest.raises(UsageError):
        sweep(t, [0])


@settings(max_examples=25)
@given(st.integers(0, 200), st.sampled_from(["none", "causal"]))
def test_a_larger_divisor_never_lowers_entropy(seed, mask):
    values = sweep(one(seed=seed, mask=mask, spread=2), [1, 2, 3, 5, 8]).values[:, 1]
    assert (np.diff(values[:, 0]) >= -1e-9).all()
    assert (np.diff(values[:, 1]) <= 1e-9).all()


def test_rows_that_say_nothing_are_left_out():
    bias = np.where(np.tri(5, dtype=bool), 0.0, -np.inf)
    bias[3] = -np.inf
    draw = np.random.default_rng(0)
    q, k = draw.standard_normal((2, 1, 5, 4))
    hidden = all_heads(trace(plain(5), full(q, k, k, bias)))
    keep = [0, 1, 2, 4]
    rows = [softmax([float(q[0, i] @ k[0, j]) / 2 for j in range(i + 1)]) for i in keep]
    assert hidden.largest.values[0, 0, 1] == pytest.approx(sum(map(max, rows)) / 4, rel=1e-5)
    nothing = trace(plain(5), full(q, k, k, np.full((5, 5), -np.inf)))
    assert np.isnan(all_heads(nothing).entropy.values).all()
    with pytest.raises(UnsupportedError, match="no row"):
        strongest(nothing)


def test_padding_is_left_out():
    text = tokens("a b c", pad=2)
    bias = np.zeros((5, 5))
    bias[:, 3:] = -1e4
    q, k = np.random.default_rng(3).standard_normal((2, 1, 5, 4))
    table = all_heads(trace(text, full(q, k, k, bias)))
    rows = [softmax([float(q[0, i] @ k[0, j]) / 2 for j in range(3)]) for i in range(3)]
    assert table.largest.values[0, 0, 1] == pytest.approx(sum(map(max, rows)) / 3, rel=1e-5)


def test_nan_is_left_out():
    base = drawn(seed=11, heads=1, kv=1)
    arrays = {name: getattr(base, name).copy() for name in ("scores", "scaled", "capped", "masked", "weights")}
    for array in arrays.values():
        array[0, 0, 2] = np.nan
    table = all_heads(trace(plain(5), replace(base, **arrays)))
    tops = [max(softmax([float(x) for x in base.scaled[0, 0, i]])) for i in (0, 1, 3, 4)]
    assert table.largest.values[0, 0, 1] == pytest.approx(sum(tops) / 4, rel=1e-5)


def test_what_is_missing_is_named():
    base = drawn()
    with pytest.raises(UnsupportedError, match="has no scores"):
        all_heads(trace(plain(5), replace(base, scores=None, query=None)))
    with pytest.raises(UnsupportedError, match="has no masked"):
        all_heads(trace(plain(5), replace(base, masked=None)))
    with pytest.raises(UnsupportedError, match="has no query"):
        all_heads(trace(plain(5), replace(base, query=None)), similarity="cosine")
    with pytest.raises(UnsupportedError, match="has no capped"):
        all_heads(trace(plain(5), replace(drawn(softcap=3.0), capped=None)))
    with pytest.raises(UnsupportedError, match="has no"):
        all_heads(trace(plain(5), Attention(site=site())))
    assert all_heads(trace(plain(5), replace(base, scores=None))).entropy.values == pytest.approx(
        all_heads(trace(plain(5), base)).entropy.values, rel=1e-5
    )
    with pytest.raises(UsageError, match="no site 7"):
        both_ways(trace(plain(5), base), 7)
    with pytest.raises(UsageError, match="no head 9"):
        row(trace(plain(5), base), 0, 9, 0)


def test_a_site_without_scores_is_left_out_and_said():
    additive = replace(drawn(seed=1), site=site(0, kind="additive", heads=2), scores=None, query=None)
    t = trace(plain(5), additive, drawn(seed=2, index=1))
    table = all_heads(t)
    assert table.entropy.axes[0].labels == table.size.axes[0].labels == ("encoder L1",)
    assert table.entropy.values == pytest.approx(all_heads(trace(plain(5), drawn(seed=2))).entropy.values)
    assert "is left out" in table.notes[0]
    assert sweep(t).values.shape == (3, 2, 3)
    assert strongest(t)[0] == 1


@pytest.mark.parametrize(
    ("values", "divide", "want"),
    [
        ([1e308, 1e308], 1e-308, [0.5, 0.5]),
        ([1e308, 0], 0.1, [1, 0]),
        ([1, 2], 1e-320, [0, 1]),
        ([0, -1e308], 1e-3, [1, 0]),
    ],
)
def test_quotients_beyond_all_numbers_have_a_softmax_too(values, divide, want):
    np.testing.assert_allclose(numbers(values, divide).row.values[:, 3], want)


def test_numbers_of_the_readme():
    got = numbers([8.2, 1.1, 2.0], 8)
    assert [round(x, 3) for x in got.row.values[:, 2].tolist()] == [0.997, 0.001, 0.002]
    assert got.row.values[:, 3].tolist() == pytest.approx(softmax([8.2 / 8, 1.1 / 8, 2.0 / 8]))
    after = softmax([8.2 / 8, 1.1 / 8, 2.0 / 8])
    entropy = -sum(p * math.log(p) for p in after)
    assert got.summary.values[1].tolist() == pytest.approx([entropy, max(after), 1 - sum(p * p for p in after)])
    still = numbers([500, 300, 100], 10)
    assert still.row.values[:, 3].tolist() == pytest.approx([1, 0, 0], abs=1e-8)
    assert numbers([0, -math.inf]).row.values[:, 2].tolist() == [1, 0]


@pytest.mark.parametrize(
    ("values", "divide"),
    [([], 1), ([math.nan], 1), ([math.inf], 1), ([-math.inf], 1), ([1], 0), ([1], -2), ([1], math.nan)],
)
def test_numbers_refuses(values, divide):
    with pytest.raises(UsageError):
        numbers(values, divide)


def test_theory_is_what_a_draw_shows():
    got = theory()
    assert got.axes[0].labels == ("2", "16", "64", "256")
    assert got.values[:, 0].tolist() == [2, 16, 64, 256]
    # Var(q.k) = d: the draw's own error is about sqrt(2 / (d x 1024) + 2 / 32768), 3% at d = 2.
    assert got.values[:, 1] == pytest.approx(got.values[:, 0], rel=0.1)
    assert got.values[:, 2] == pytest.approx(np.sqrt(got.values[:, 0]), rel=0.05)
    assert got.values[:, 3] == pytest.approx(1, rel=0.05)
    assert (np.diff(got.values[:, 4]) < 0).all()  # the unscaled softmax sharpens as d grows
    assert got.values[:, 5] == pytest.approx(got.values[1, 5], rel=0.1)  # the scaled one does not
    assert np.array_equal(got.values, theory().values)
    assert np.array_equal(theory([64]).values[0], got.values[2])
    assert not np.array_equal(theory(seed=1).values, got.values)
    with pytest.raises(UsageError):
        theory([])
    for size in (0, 1 << 15, 10**8):  # the last would draw 25 GB a query
        with pytest.raises(UsageError, match="whole numbers from 1 to 16384"):
            theory([64, size])


@pytest.mark.parametrize("mask", ["none", "causal"])
@pytest.mark.parametrize("scale", [None, (0.5, 0.25, 1.0, 2.0)])
def test_a_few_heads_at_a_time_give_what_all_give(monkeypatch: pytest.MonkeyPatch, mask, scale):
    t = one(seed=4, heads=4, kv=2, mask=mask)
    if scale is not None:
        a = t.attentions[0]
        scores = (a.scaled / np.asarray(scale)[None, :, None, None]).astype(np.float32)
        t = replace(t, attentions=(replace(a, site=replace(a.site, scale=scale), scores=scores),))

    def found():
        tables = [all_heads(t), *(all_heads(t, "sqrt", kind) for kind in ("dot", "cosine"))]
        names = ("spread", "entropy", "largest", "saturated", "gradient", "divergence", "layers")
        values = [getattr(table, name).values for table in tables for name in names]
        return [*values, sweep(t).values], (tables[0].notes, tables[0].strongest, strongest(t), strongest_head(t, 2))

    whole, said = found()
    assert said[1] == said[2]
    monkeypatch.setattr(unscaled, "BLOCK", 1)
    assert len(list(unscaled.in_blocks(t, 0))) == 4 * 5  # each row of each head
    parts, again = found()
    assert again == said
    for part, all_at_once in zip(parts, whole, strict=True):
        np.testing.assert_allclose(part, all_at_once, rtol=1e-12)


@pytest.mark.parametrize("hides", [-math.inf, -1e4, -3.4028235e38])
@pytest.mark.parametrize("more", [{}, {"softcap": 2.0}, {"scale": -0.5}])
def test_keys_that_no_row_of_a_block_sees_are_left_out(monkeypatch: pytest.MonkeyPatch, hides, more):
    draw = np.random.default_rng(3)
    q, k = draw.standard_normal((2, 2, 9, 4)) * 2
    behind = np.arange(9)[:, None] - np.arange(9)[None, :]
    t = trace(plain(9), full(q, k, k, np.where((behind >= 0) & (behind < 3), 0.0, hides), **more))
    monkeypatch.setattr(unscaled, "BLOCK", 18)  # two rows
    assert [w.seen.shape[-1] for _, _, w in unscaled.in_blocks(t, 0)] == [2, 4, 4, 4, 3] * 2
    table, cap, scale = all_heads(t), more.get("softcap"), more.get("scale", 0.5)
    for h in range(2):
        raw = [[float(q[h, i] @ k[h, j]) for j in range(max(0, i - 2), i + 1)] for i in range(9)]
        spread = np.std(np.concatenate(raw))
        assert table.spread.values[0, h].tolist() == pytest.approx([spread, spread * abs(scale)], rel=1e-5)

        def of(row, factor):
            return softmax([cap * math.tanh(x * factor / cap) if cap else x * factor for x in row])

        before, after = ([of(row, factor) for row in raw] for factor in (1.0, scale))
        for way, rows in enumerate((before, after)):
            entropies = [-sum(p * math.log(p) for p in r) for r in rows]
            assert table.entropy.values[0, h, way] == pytest.approx(sum(entropies) / 9, rel=1e-4)
            assert table.gradient.values[0, h, way] == pytest.approx(
                sum(1 - sum(p * p for p in r) for r in rows) / 9, rel=1e-4
            )
        kl = [sum(p * math.log(p / u) for p, u in zip(a, b, strict=True)) for a, b in zip(after, before, strict=True)]
        assert table.divergence.values[0, h] == pytest.approx(sum(kl) / 9, rel=1e-4)
    a = t.attentions[0]
    scores = a.scores.copy()
    scores[0, 0, 1, 8] = np.nan  # hidden, but a row with NaN does not count
    broken = trace(plain(9), replace(a, scores=scores))
    assert [w.seen.shape[-1] for _, _, w in unscaled.in_blocks(broken, 0)][:2] == [9, 4]
    assert not np.concatenate([w.real[0] for _, _, w in unscaled.in_blocks(broken, 0)][:5])[1]


def test_rows_are_measured_as_their_weights_are():
    logits = np.random.default_rng(4).normal(scale=4, size=(2, 2, 5, 6))
    logits[:, 0, 1, 3:] = -np.inf
    logits[:, 1, 2] = -np.inf
    logits[:, 1, 3, 0] = np.nan
    for sink in (None, np.array([1.5, 30.0]).reshape(2, 1, 1)):
        shares = np.exp(logits)
        with np.errstate(invalid="ignore"):
            total = shares.sum(-1, keepdims=True) + (0 if sink is None else np.exp(sink))
            shares /= total
            sunk = None if sink is None else (np.exp(sink) / total)[..., 0]
        one, two = (SoftmaxRows(each.copy(), sink) for each in logits)
        real = np.ones((2, 5), bool)
        real[1, 2:4] = False
        a, b = shares
        sums = a.sum(-1, keepdims=True)
        with np.errstate(all="ignore"):
            wanted = {
                "entropy": -np.where(a > 0, a / sums * np.log(a / sums), 0).sum(-1),
                "largest": a.max(-1),
                "gradient": (a * (1 - a)).sum(-1),
                "kl": np.where(a > 0, a * np.log(a / b), 0).sum(-1)
                + (0 if sunk is None else sunk[0] * np.log(sunk[0] / sunk[1])),
                "distance": np.abs(a - b).sum(-1) / 2,
            }
        got = [one.entropy(), one.largest(), one.gradient(), one.divergence(two), one.distance(two)]
        for values, (name, want) in zip(got, wanted.items(), strict=True):
            np.testing.assert_allclose(values[real], want[real], rtol=1e-9, atol=1e-14, err_msg=name)
            assert np.isnan(values[1, 3])
