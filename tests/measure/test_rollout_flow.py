"""Rollout by plain multiplication, flow against the smallest cut found by trying all of them."""

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnx.errors import UnsupportedError, UsageError
from attnx.measure.flow import flow
from attnx.measure.rollout import head_rollout, memory_rollout, rollout
from attnx.records import Attention

from .planted import drawn, plain, previous, site, trace, uniform, weighted


def random_layers(n, layers, seed, causal=False):
    draw = np.random.default_rng(seed)
    out = []
    for _ in range(layers):
        w = draw.dirichlet(np.ones(n), size=(2, n))
        if causal:
            w = w * np.tri(n)
            w /= w.sum(-1, keepdims=True)
        out.append(w)
    return out


def model(layers, causal=False):
    n = layers[0].shape[-1]
    return trace(plain(n), *(weighted(w, at, causal=causal) for at, w in enumerate(layers)))


def test_rollout_by_hand():
    a = np.array([[[0.5, 0.5], [0.2, 0.8]], [[0.1, 0.9], [0.4, 0.6]]])
    b = np.array([[[0.0, 1.0], [1.0, 0.0]], [[0.0, 1.0], [1.0, 0.0]]])
    got = rollout(model([a, b]))
    # means: [[.3,.7],[.3,.7]] and the swap; half of each plus half the identity
    first = [[0.65, 0.35], [0.15, 0.85]]
    second = [[0.5 * 0.65 + 0.5 * 0.15, 0.5 * 0.35 + 0.5 * 0.85]] * 2
    assert got.values[0] == pytest.approx(np.array(first))
    assert got.values[1] == pytest.approx(np.array(second))
    assert got.axes[0].labels == ("L0", "L1")


def test_rollout_of_previous_token_heads_is_binomial():
    n = 5
    got = rollout(model([previous(n)[None]] * 3)).values[2, 4]
    want = [math.comb(3, 4 - j) / 8 if 4 - j <= 3 else 0 for j in range(n)]
    assert got.tolist() == pytest.approx(want)


def test_rollout_without_residual_is_the_product():
    layers = random_layers(4, 3, 0)
    got = rollout(model(layers), residual=0).values[2]
    means = [w.mean(0) for w in layers]
    assert got == pytest.approx(means[2] @ means[1] @ means[0], abs=1e-6)


@settings(max_examples=25)
@given(st.integers(1, 6), st.integers(1, 4), st.integers(0, 99), st.booleans(), st.booleans())
def test_rollout_rows_sum_to_one_and_respect_the_mask(n, layers, seed, causal, relative):
    got = rollout(model(random_layers(n, layers, seed, causal), causal), relative=relative).values
    assert got.sum(-1) == pytest.approx(1, abs=1e-6)
    if causal:
        assert (np.triu(got, k=1) == 0).all()


def test_relative_rollout_is_flat_for_uniform_causal_heads():
    n = 5
    even = np.tri(n) / np.arange(1, n + 1)[:, None]
    t = model([even[None]] * 3, causal=True)
    assert rollout(t).values[2, 4, 0] > 0.3  # piles up on the first token though no head prefers it
    got = rollout(t, relative=True)
    assert got.values[2, 4].tolist() == pytest.approx([1 / n] * n)
    assert "experimental" in got.notes[0]
    assert rollout(t).notes == ()


def test_rows_without_weight_pass_their_token_on():
    hidden = uniform(3)
    hidden[1] = 0
    got = rollout(model([hidden[None]])).values[0]
    assert got[1].tolist() == [0, 1, 0]
    broken = uniform(3)
    broken[1] = np.nan
    assert rollout(model([broken[None]])).values[0, 1].tolist() == [0, 1, 0]


def test_a_sinks_share_is_dealt_out():
    assert rollout(model([uniform(2)[None] * 0.5])).values[0, 0].tolist() == pytest.approx([0.75, 0.25])


def test_single_head_rollout():
    layers = random_layers(4, 2, 3)
    got = head_rollout(model(layers), 2).values
    below = 0.5 * layers[0].mean(0) + 0.5 * np.eye(4)
    assert got[0] == pytest.approx(layers[0][:, 2], abs=1e-6)
    assert got[1, 1] == pytest.approx(layers[1][1, 2] @ below, abs=1e-6)
    with pytest.raises(UsageError):
        head_rollout(model(layers), 4)


def test_memory_rollout_by_hand():
    memory = plain(2)
    enc = weighted([[[0.0, 1.0], [1.0, 0.0]]], 0, component="encoder", layer=0)
    dec = weighted([[[1.0, 0.0], [0.5, 0.5]]], 1, component="decoder", layer=0, causal=True)
    cross = weighted([[[1.0, 0.0], [0.0, 1.0]]], 2, component="decoder", kind="cross", layer=0)
    dec2 = weighted([[[1.0, 0.0], [0.5, 0.5]]], 3, component="decoder", layer=1, causal=True)
    cross2 = weighted([[[1.0, 0.0], [0.0, 1.0]]], 4, component="decoder", kind="cross", layer=1)
    got = memory_rollout(trace(plain(2), enc, dec, cross, dec2, cross2, memory=memory))
    # encoder: half swap, half identity = all 0.5, so each cross row brings [.25,.25]
    assert got.values[0] == pytest.approx(np.full((2, 2), 0.25))
    # then self-attention mixes equal rows, and cross halves and adds: .125 + .25
    assert got.values[1] == pytest.approx(np.full((2, 2), 0.375))
    with pytest.raises(UnsupportedError, match="no cross-attention"):
        memory_rollout(model([uniform(2)[None]]))


def least_cut(capacities, source, target):
    """Max-flow by max-flow min-cut: the smallest cut among all."""
    n, depth = len(capacities[0]), len(capacities)
    nodes = [(layer, i) for layer in range(depth + 1) for i in range(n)]
    free = [v for v in nodes if v not in ((depth, source), (0, target))]
    best = math.inf
    for sides in product((False, True), repeat=len(free)):
        inside = dict(zip(free, sides, strict=True)) | {(depth, source): True, (0, target): False}
        cut = sum(
            capacities[layer - 1][i, j]
            for layer in range(1, depth + 1)
            for i in range(n)
            for j in range(n)
            if inside[(layer, i)] and not inside[(layer - 1, j)]
        )
        best = min(best, cut)
    return best


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("n", "depth"), [(3, 2), (2, 4), (3, 3)])
def test_flow_is_the_least_cut(n, depth, seed):
    layers = random_layers(n, depth, seed, causal=seed % 2 == 1)
    capacities = [0.5 * w.mean(0) + 0.5 * np.eye(n) for w in layers]
    query = n - 1
    want = np.array([least_cut(capacities, query, j) for j in range(n)])
    got = flow(model(layers, causal=seed % 2 == 1), [query]).values[0]
    assert got == pytest.approx(want / want.sum(), abs=1e-6)


def test_flow_of_one_layer_is_the_row():
    layers = random_layers(5, 1, 1)
    got = flow(model(layers), [0, 3]).values
    want = 0.5 * layers[0].mean(0) + 0.5 * np.eye(5)
    assert got == pytest.approx(want[[0, 3]], abs=1e-6)


def test_flow_relative_and_errors():
    n = 4
    even = np.tri(n) / np.arange(1, n + 1)[:, None]
    t = model([even[None]] * 2, causal=True)
    assert flow(t, [3], relative=True).values[0].tolist() == pytest.approx([0.25] * 4)
    assert "experimental" in flow(t, [3], relative=True).notes[0]
    with pytest.raises(UsageError):
        flow(t, [4])
    with pytest.raises(UnsupportedError, match="246 tokens are the most"):
        flow(trace(plain(300), *(weighted([np.eye(300)], at) for at in range(2))), [0])


@pytest.mark.parametrize("measure", [rollout, lambda t: flow(t, [0]), lambda t: head_rollout(t, 0)])
def test_what_cannot_be_followed(measure):
    with pytest.raises(UnsupportedError, match="has no weights"):
        measure(trace(plain(3), Attention(site=site())))
    with pytest.raises(UnsupportedError, match="2 to 5 positions"):
        measure(trace(plain(2), weighted([np.full((2, 5), 0.2)])))
    cross = weighted([np.full((2, 3), 1 / 3)], kind="cross", component="decoder")
    with pytest.raises(UnsupportedError, match="no self-attention"):
        measure(trace(plain(2), cross, memory=plain(3)))
    assert measure(trace(plain(1), drawn(n=1, heads=1, kv=1))).values.ravel().tolist() == [1]


def test_the_decoder_can_be_followed_by_name():
    memory, text = plain(3), plain(2)
    enc = weighted([uniform(3)], 0, component="encoder", layer=0)
    dec = weighted([previous(2)], 1, component="decoder", layer=0, causal=True)
    t = trace(text, enc, dec, memory=memory)
    assert rollout(t).values.shape == (1, 3, 3)
    assert rollout(t, text).values[0].tolist() == [[1, 0], [0.5, 0.5]]
