"""Heads against heads, traces against traces."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnx.errors import InputError, UnsupportedError, UsageError
from attnx.measure.difference import difference
from attnx.measure.similarity import distances, similar
from attnx.records import Attention

from .planted import drawn, plain, previous, site, to, trace, uniform, weighted


def js(p, q):
    total = 0.0
    for a, b in zip(p, q, strict=True):
        m = (a + b) / 2
        total += sum(x / 2 * math.log(x / m) for x in (a, b) if x > 0)
    return total


def test_distance_of_planted_heads():
    t = trace(plain(4), weighted([to(4, 0), to(4, 1), uniform(4)]), weighted([to(4, 0)], 1))
    got = similar(t, 0, 0)
    assert got.values[0].tolist() == pytest.approx([0, math.log(2), js([1, 0, 0, 0], [0.25] * 4)])
    assert got.values[1, 0] == pytest.approx(0)
    assert np.isnan(got.values[1, 1:]).all()
    assert got.notes == ("distance to L0 H0",)
    with pytest.raises(UsageError):
        similar(t, 0, 3)
    with pytest.raises(UsageError):
        similar(t, 2, 0)


def test_all_distances_agree_with_one():
    t = trace(plain(5), drawn(seed=1), drawn(seed=2, index=1, heads=4, kv=2))
    table = distances(t)
    assert table.axes[0].labels == ("L0 H0", "L0 H1", "L1 H0", "L1 H1", "L1 H2", "L1 H3")
    a, b = t.attentions
    want = sum(js(a.weights[0, 1, i].tolist(), b.weights[0, 3, i].tolist()) for i in range(5)) / 5
    assert table.values[1, 5] == pytest.approx(want, rel=1e-4)
    assert similar(t, 0, 1).values[1, 3] == pytest.approx(want, rel=1e-4)
    assert table.values == pytest.approx(table.values.T)
    assert np.diag(table.values) == pytest.approx(0, abs=1e-12)


def test_sites_over_other_tokens_are_not_compared():
    memory = plain(3)
    cross = weighted([np.full((2, 3), 1 / 3)], 1, kind="cross", component="decoder", layer=0)
    t = trace(plain(2), weighted([np.eye(2)], component="decoder"), cross, memory=memory)
    assert np.isnan(distances(t).values[0, 1])


def moved(attention, **arrays):
    return replace(attention, **{k: np.asarray(v, np.float32) for k, v in arrays.items()})


def test_difference_by_hand():
    one = trace(plain(2), weighted([[[0.9, 0.1], [0.5, 0.5]]]))
    two = trace(plain(2), weighted([[[0.3, 0.7], [0.5, 0.5]]]))
    got = difference(one, two)
    assert got.largest.values[0, 0] == pytest.approx(0.6)
    assert got.mean.values[0, 0] == pytest.approx(1.2 / 4)
    assert got.divergence.values[0, 0] == pytest.approx(js([0.9, 0.1], [0.3, 0.7]) / 2, rel=1e-5)
    assert got.rank.values[0, 0] == pytest.approx(0.5)
    assert got.moved.values[0, 0] == pytest.approx(0.5)
    assert got.parts == ("weights",)
    assert got.first == (0, "weights")
    assert np.isnan(got.stages.values[0, :4]).all()


def test_the_first_stage_that_parts():
    a, b = drawn(seed=1), drawn(seed=2, index=1)
    same = trace(plain(5), a, b)
    assert difference(same, same).first is None
    assert difference(same, same).stages.values == pytest.approx(0)
    scaled = b.scaled.copy()
    scaled[0, 1, 2, 3] += 0.5
    got = difference(same, trace(plain(5), a, moved(b, scaled=scaled)))
    assert got.parts == (None, "scaled")
    assert got.first == (1, "scaled")
    assert got.stages.values[1].tolist() == pytest.approx([0, 0.5, 0, 0, 0])
    assert got.stages.axes[1].labels == ("scores", "scaled", "capped", "masked", "weights")
    assert difference(same, trace(plain(5), a, moved(b, scaled=scaled)), tolerance=10).first is None


def test_hidden_cells_do_not_count():
    one = drawn(mask="-10000", causal=True)
    other = np.where(np.tri(5, dtype=bool), one.masked, -np.inf)
    assert difference(trace(plain(5), one), trace(plain(5), moved(one, masked=other))).first is None


def test_a_nan_in_one_alone_is_a_difference():
    one = drawn()
    scores = one.scores.copy()
    scores[0, 0, 0, 0] = np.nan
    got = difference(trace(plain(5), one), trace(plain(5), moved(one, scores=scores)))
    assert got.first == (0, "scores")
    assert got.stages.values[0, 0] == math.inf
    broken = moved(one, scores=scores)
    assert difference(trace(plain(5), broken), trace(plain(5), broken)).first is None


def test_traces_that_do_not_fit():
    one = trace(plain(5), drawn())
    with pytest.raises(InputError, match="1 attentions and planted has 2"):
        difference(one, trace(plain(5), drawn(), drawn(index=1)))
    with pytest.raises(InputError, match="L0 has 5 queries and 5 keys in the first and 4 queries"):
        difference(one, trace(plain(4), drawn(n=4)))
    with pytest.raises(UnsupportedError, match="has no weights"):
        difference(one, trace(plain(5), Attention(site=site())))


def test_what_is_said_of_texts_that_differ():
    assert (
        "texts differ"
        in difference(trace(plain(3), drawn(n=3)), trace(replace(plain(3), pieces=("a", "b", "c")), drawn(n=3))).notes[
            0
        ]
    )


def test_no_rows_and_one_token():
    nothing = trace(plain(3), weighted([np.zeros((3, 3))]))
    got = difference(nothing, nothing)
    assert np.isnan(got.largest.values).all()
    assert np.isnan(got.divergence.values).all()
    assert np.isnan(distances(nothing).values).all()
    one = trace(plain(1), drawn(n=1))
    assert difference(one, one).mean.values.tolist() == [[0, 0]]
    assert similar(one, 0, 0).values.tolist() == [[0, 0]]


@settings(max_examples=25)
@given(st.integers(0, 99), st.integers(0, 99))
def test_divergence_is_symmetric_and_bounded(a, b):
    one, two = trace(plain(5), drawn(seed=a)), trace(plain(5), drawn(seed=b))
    forth, back = difference(one, two), difference(two, one)
    assert forth.divergence.values == pytest.approx(back.divergence.values)
    assert (forth.divergence.values <= math.log(2)).all()
    assert forth.largest.values == pytest.approx(back.largest.values)


def test_previous_against_uniform_moves_the_first_key():
    one = trace(plain(4), weighted([previous(4)]))
    two = trace(plain(4), weighted([uniform(4)]))
    assert difference(one, two).rank.values[0, 0] == 0  # level keys are not ahead of it
    assert difference(one, two).mean.values[0, 0] == pytest.approx((0.75 + 3 * 0.25) / 4)
