"""Value norms and one pair taken apart, by plain loops."""

import math
from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnx.errors import InputError, UnsupportedError, UsageError
from attnx.measure.norms import gram_of, sizes_behind, value_norms
from attnx.measure.pair import head_shares, pair
from attnx.records import Attention

from .planted import drawn, full, plain, site, trace


def norm(v):
    return math.sqrt(sum(float(x) ** 2 for x in v))


def test_norms_by_hand_with_shared_heads():
    t = trace(plain(3), drawn(heads=4, kv=2, n=3, seed=1))
    a = t.attentions[0]
    got = value_norms(t, 0)
    for h in range(4):
        for j in range(3):
            size = norm(a.value[0, h // 2, j])
            assert got.values.values[h, j] == pytest.approx(size, rel=1e-5)
            for i in range(3):
                assert got.heads.values[h, i, j] == pytest.approx(float(a.weights[0, h, i, j]) * size, rel=1e-5)
    assert got.shares.values.sum(-1) == pytest.approx(1)
    assert got.together is None
    assert "without W_O" in got.heads.notes[0]
    assert got.heads.formula == "||a v||"


def test_norms_with_output_projection():
    t = trace(plain(3), drawn(heads=2, n=3, seed=2))
    a = t.attentions[0]
    output = np.random.default_rng(0).standard_normal((2, 4, 6))
    got = value_norms(t, 0, output)
    for i in range(3):
        for j in range(3):
            parts = [float(a.weights[0, h, i, j]) * (a.value[0, h, j].astype(float) @ output[h]) for h in range(2)]
            for h in range(2):
                assert got.heads.values[h, i, j] == pytest.approx(norm(parts[h]), rel=1e-5)
            assert got.together.values[i, j] == pytest.approx(norm(parts[0] + parts[1]), rel=1e-5)
    assert got.heads.notes == ()
    assert got.heads.formula == "||a v W_O||"
    with pytest.raises(InputError, match="W_O is"):
        value_norms(t, 0, np.zeros((2, 3, 6)))


def test_sizes_from_the_product_of_w_o_alone():
    t = trace(plain(3), drawn(heads=2, n=3, seed=2))
    a = t.attentions[0]
    output = np.random.default_rng(0).standard_normal((2, 4, 6))
    sizes = sizes_behind(a, gram_of(output))
    want = [[norm(a.value[0, h, j].astype(float) @ output[h]) for j in range(3)] for h in range(2)]
    np.testing.assert_allclose(sizes, want, rtol=1e-6)
    assert sizes_behind(a, gram_of(np.zeros((2, 3, 6)))) is None  # of another size
    v = a.value[0, 1, 0].astype(float)
    output[1] -= np.outer(v, v @ output[1]) / (v @ v)  # nothing of that value is left
    assert sizes_behind(a, gram_of(output)) is None


def test_a_small_value_takes_weight_away():
    # all weight on the first token, whose value is (almost) nothing
    k = np.array([[[5.0, 0], [0, 0]]])
    v = np.array([[[1e-9, 0], [3, 4]]])
    t = trace(plain(2), full(np.array([[[5.0, 0], [5, 0]]]), k, v, np.zeros((2, 2))))
    assert t.attentions[0].weights[0, 0, 0, 0] > 0.99
    assert value_norms(t, 0).shares.values[0, 0, 1] > 0.9


def test_norms_need_values():
    base = drawn(n=3)
    with pytest.raises(UnsupportedError, match="has no value"):
        value_norms(trace(plain(3), replace(base, value=None)), 0)
    with pytest.raises(UnsupportedError, match="has no weights"):
        value_norms(trace(plain(3), replace(base, weights=None)), 0)
    with pytest.raises(UsageError):
        value_norms(trace(plain(3), base), 1)
    nothing = replace(base, weights=np.zeros_like(base.weights))
    assert np.isnan(value_norms(trace(plain(3), nothing), 0).heads.values).all()
    assert value_norms(trace(plain(1), drawn(n=1)), 0).shares.values.tolist() == [[[1.0]], [[1.0]]]


@settings(max_examples=20)
@given(st.integers(0, 99), st.sampled_from([(2, 2), (4, 2), (4, 1)]), st.sampled_from(["none", "causal"]))
def test_a_pair_by_hand(seed, heads, mask):
    t = trace(plain(4), drawn(heads=heads[0], kv=heads[1], n=4, seed=seed, mask=mask))
    a, h, i, j = t.attentions[0], heads[0] - 1, 2, 1
    group = heads[0] // heads[1]
    got = pair(t, 0, h, i, j)
    q, k = a.query[0, h, i].astype(float), a.key[0, h // group, j].astype(float)
    v = a.value[0, h // group].astype(float)
    w = a.weights[0, h, i].astype(float)
    context = sum(w[x] * v[x] for x in range(4))
    steps = dict(zip(got.steps.axes[0].labels, got.steps.values.tolist(), strict=True))
    assert steps["q·k"] == pytest.approx(sum(x * y for x, y in zip(q, k, strict=True)))
    assert steps["q·k"] == pytest.approx(float(a.scores[0, h, i, j]), abs=1e-5)
    assert steps["cosine"] == pytest.approx(steps["q·k"] / norm(q) / norm(k))
    assert steps["scaled"] == pytest.approx(steps["q·k"] / 2, abs=1e-5)
    assert steps["weight"] == pytest.approx(w[j])
    assert steps["|v|"] == pytest.approx(norm(v[j]))
    assert steps["|weight v|"] == pytest.approx(w[j] * norm(v[j]))
    assert steps["share of context"] == pytest.approx(w[j] * float(v[j] @ context) / norm(context) ** 2)
    assert steps["|context|"] == pytest.approx(norm(a.context[0, h, i]), rel=1e-4)
    assert got.products.values.sum() == pytest.approx(steps["q·k"])
    assert got.products.values.tolist() == pytest.approx((q * k).tolist())
    assert got.largest[0] == int(np.argmax(np.abs(q * k)))
    assert (got.query, got.key) == ("w2", "w1")
    shares = [pair(t, 0, h, i, key).steps.values[9] for key in range(4)]
    assert sum(shares) == pytest.approx(1)
    assert any("share" in note for note in got.notes) == (heads[0] != heads[1])
    assert asdict(got)["steps"]["name"] == "query-key pair"


def test_a_hidden_key_is_said():
    t = trace(plain(4), drawn(n=4, mask="causal"))
    got = pair(t, 0, 0, 1, 3)
    assert got.steps.values[6] == 0
    assert "hidden from the query" in got.notes[0]


def test_values_of_another_size_and_missing_stages():
    draw = np.random.default_rng(0)
    q, k = draw.standard_normal((2, 1, 3, 4))
    a = full(q, k, draw.standard_normal((1, 3, 7)), np.zeros((3, 3)))
    got = pair(trace(plain(3), replace(a, scaled=None, masked=None)), 0, 0, 0, 0)
    assert np.isnan(got.vectors.values[2]).all()
    assert np.isnan(got.steps.values[4:6]).all()


def test_head_shares():
    t = trace(plain(3), drawn(heads=4, kv=2, n=3, seed=4))
    a = t.attentions[0]
    squares = [norm(a.context[0, h, 1]) ** 2 for h in range(4)]
    want = [s / sum(squares) for s in squares]
    assert head_shares(t, 0, 1).values.tolist() == pytest.approx(want, rel=1e-5)
    without = trace(plain(3), replace(a, context=None))
    assert head_shares(without, 0, 1).values.tolist() == pytest.approx(want, rel=1e-4)
    output = np.random.default_rng(1).standard_normal((4, 4, 5))
    parts = [a.context[0, h, 1].astype(float) @ output[h] for h in range(4)]
    total = sum(parts)
    got = head_shares(t, 0, 1, output)
    assert got.values.tolist() == pytest.approx([float(p @ total / (total @ total)) for p in parts], rel=1e-5)
    assert got.values.sum() == pytest.approx(1)
    rows = output.reshape(16, 5)
    np.testing.assert_allclose(head_shares(t, 0, 1, gram=rows @ rows.T).values, got.values, rtol=1e-9)
    with pytest.raises(InputError):
        head_shares(t, 0, 1, np.zeros((4, 3, 5)))
    with pytest.raises(InputError):
        head_shares(t, 0, 1, gram=np.zeros((4, 4)))
    with pytest.raises(UsageError):
        head_shares(t, 0, 9)


def test_pair_errors():
    t = trace(plain(3), drawn(n=3))
    for at in ((2, 0, 0), (0, 3, 0), (0, 0, 3), (-1, 0, 0)):
        with pytest.raises(UsageError):
            pair(t, 0, *at)
    with pytest.raises(UsageError):
        pair(t, 1, 0, 0, 0)
    for name in ("query", "key", "value", "weights"):
        with pytest.raises(UnsupportedError, match=f"has no {name}"):
            pair(trace(plain(3), replace(drawn(n=3), **{name: None})), 0, 0, 0, 0)
    with pytest.raises(UnsupportedError):
        pair(trace(plain(3), Attention(site=site())), 0, 0, 0, 0)


def test_a_vector_that_the_projection_cancels_is_measured_as_what_is_left() -> None:
    one = trace(plain(4), drawn())
    value = one.attentions[0].need("value")[0].astype(np.float64)
    left = np.random.default_rng(3).standard_normal((2, 4, 6))
    for head in range(2):  # the first key's value is all but cancelled
        v = value[head, 0]
        left[head] -= (1 - 1e-7) * np.outer(v, v @ left[head]) / (v @ v)
    got = value_norms(one, 0, left, together=False).values.values
    np.testing.assert_allclose(got, np.linalg.norm(value @ left, axis=-1), rtol=1e-12)
