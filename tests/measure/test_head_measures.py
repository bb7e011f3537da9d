"""Planted heads, whose measures are known in closed form."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnx.errors import UnsupportedError, UsageError
from attnx.measure import describe_heads
from attnx.measure.confidence import confidence, largest
from attnx.measure.distance import locality, mean_distance
from attnx.measure.duplicate import duplicate
from attnx.measure.entropy import entropy, entropy_rows, entropy_share
from attnx.measure.heads import over_texts, table
from attnx.measure.induction import induction, probe_ids
from attnx.measure.offsets import first, offset, offset_argmax
from attnx.measure.sinks import sink, sinks
from attnx.measure.special import is_punctuation, punctuation, special
from attnx.records import Attention, Trace

from .planted import drawn, following, full, plain, previous, site, to, tokens, trace, uniform, weighted

N = 6
HEADS = trace(plain(N), weighted([previous(N), following(N), np.eye(N), uniform(N), to(N, 2)]))
EVERY = [
    entropy, entropy_share, mean_distance, locality, confidence, largest, first, special, punctuation, sink,
    duplicate, induction, lambda t: offset(t, -1), lambda t: offset_argmax(t, 1),
]  # fmt: skip


def row(measurement, at=0):
    return measurement.values[at].tolist()


def test_entropy_is_zero_for_one_hot_and_ln_n_for_uniform():
    assert row(entropy(HEADS)) == pytest.approx([0, 0, 0, math.log(N), 0], abs=1e-6)
    assert row(entropy_share(HEADS)) == pytest.approx([0, 0, 0, 1, 0], abs=1e-6)


def test_entropy_by_hand():
    t = trace(plain(2), weighted([[[0.25, 0.75], [0.5, 0.5]]]))
    one = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    assert entropy_rows(t, 0).values.tolist() == [pytest.approx([one, math.log(2)])]
    assert row(entropy(t)) == pytest.approx([(one + math.log(2)) / 2])


def test_entropy_share_counts_visible_keys():
    causal = np.tril(np.ones((3, 3))) / np.array([[1], [2], [3]])
    t = trace(plain(3), weighted([causal], causal=True))
    assert row(entropy_share(t)) == pytest.approx([1.0])  # the first row sees one key and has no choice


def test_a_sinks_missing_share_does_not_lower_entropy():
    t = trace(plain(4), weighted([uniform(4) * 0.5], sink=True))
    assert row(entropy(t)) == pytest.approx([math.log(4)])


def test_distance():
    # previous: 5 of 6 rows are 1 away; uniform: mean |i - j| over 36 cells is 70 / 36
    assert row(mean_distance(HEADS)) == pytest.approx([5 / 6, 5 / 6, 0, 70 / 36, 9 / 6])
    # uniform within 2: 3+4+5+5+4+3 = 24 of 36
    assert row(locality(HEADS))[:4] == pytest.approx([1, 1, 1, 24 / 36])


def test_distance_counts_past_keys():
    weights = np.zeros((1, 2, 5))
    weights[0, 0, 0] = weights[0, 1, 4] = 1  # queries stand at 3 and 4
    t = trace(plain(2), weighted(weights))
    assert row(mean_distance(t)) == pytest.approx([1.5])
    assert row(offset(t, 0)) == pytest.approx([0.5])


def test_offsets():
    assert row(offset(HEADS, -1)) == pytest.approx([1, 0, 0, 1 / 6, 1 / 5])
    assert row(offset(HEADS, 1)) == pytest.approx([0, 1, 0, 1 / 6, 1 / 5])
    assert row(offset(HEADS, 0)) == pytest.approx([1 / 6, 1 / 6, 1, 1 / 6, 1 / 6])
    assert row(first(HEADS)) == pytest.approx([2 / 6, 0, 1 / 6, 1 / 6, 0])
    assert row(offset_argmax(HEADS, -1))[:3] == pytest.approx([1, 0, 0])
    assert offset(HEADS, -1).name == "previous"
    assert offset(HEADS, 3).name == "offset +3"


def test_first_skips_left_padding():
    text = plain(3)
    padded = type(text)(
        ids=text.ids, pieces=text.pieces, offsets=text.offsets, words=text.words, special=(True, False, False),
        mask=(False, True, True), text=text.text,
    )  # fmt: skip
    assert row(first(trace(padded, weighted([to(3, 1)])))) == pytest.approx([1])


def test_special_and_punctuation():
    text = tokens("a cat, it sat.", cls=True)
    assert text.pieces == ("[CLS]", "a", "cat", ",", "it", "sat", ".", "[SEP]")
    assert is_punctuation(text) == (False, False, False, True, False, False, True, False)
    t = trace(text, weighted([uniform(8), to(8, 7), to(8, 3)]))
    assert row(special(t)) == pytest.approx([2 / 8, 1, 0])
    assert row(punctuation(t)) == pytest.approx([2 / 8, 0, 1])


def test_confidence_leaves_special_tokens_out():
    text = tokens("a b", cls=True)
    t = trace(text, weighted([[[0.7, 0.1, 0.1, 0.1], [0.5, 0.3, 0.1, 0.1], [0.2, 0.2, 0.4, 0.2], [1, 0, 0, 0]]]))
    assert row(confidence(t)) == pytest.approx([(0.3 + 0.4) / 2])
    assert row(largest(t)) == pytest.approx([(0.7 + 0.5 + 0.4 + 1) / 4])


def test_sinks():
    found = sinks(HEADS)
    assert row(found.first) == pytest.approx([2 / 6, 0, 1 / 6, 1 / 6, 0])
    assert row(found.strongest)[4] == pytest.approx(1)
    assert row(found.token)[4] == 2
    assert found.labels[0][2] == "w2"
    # One head of five passes 0.3 on the first token (the previous-token head, whose first token has nowhere to look).
    assert found.rate.values.tolist() == pytest.approx([1 / 5, 1 / 5])
    assert found.rate.axes[0].labels == ("L0", "all")


def test_sink_importance_counts_only_rows_that_see_the_key():
    causal = np.zeros((4, 4))
    causal[:, 0] = 1
    attention = weighted([causal], causal=True)
    assert row(sink(trace(plain(4), attention))) == pytest.approx([1])
    last = np.eye(4)
    found = sinks(trace(plain(4), weighted([last], causal=True)))
    assert row(found.first) == pytest.approx([1 / 4])  # 4 rows see the first token, one of them looks at it


def test_duplicate_and_induction_by_hand():
    text = tokens("a b c a b")
    weights = np.zeros((5, 5))
    weights[0, 0] = weights[1, 1] = weights[2, 2] = 1
    weights[3] = [0.25, 0.5, 0, 0, 0.25]  # the second "a": earlier copy at 0, followed by "b" at 1
    weights[4] = [0, 0.125, 0.75, 0, 0.125]  # the second "b": earlier copy at 1, followed by "c" at 2
    t = trace(text, weighted([weights]))
    assert row(duplicate(t)) == pytest.approx([(0.25 + 0.125) / 2])
    assert row(induction(t)) == pytest.approx([(0.5 + 0.75) / 2])


def test_induction_leaves_immediate_repeats_out():
    t = trace(tokens("a a"), weighted([np.eye(2)]))
    assert np.isnan(induction(t).values).all()
    assert row(duplicate(t)) == pytest.approx([0])


def test_a_few_repeats_are_no_induction_score():
    text = tokens("a b c a b")
    weights = np.eye(5)[[0, 0, 0, 1, 2]]
    assert row(induction(trace(text, weighted([weights])))) == [1]
    few = induction(trace(text, weighted([weights])), at_least=3)
    assert np.isnan(few.values).all()
    assert "only 2 tokens repeat (3 are needed)" in few.notes[0]
    assert describe_heads(trace(text, weighted([weights]))).kinds == (("sink",),)


def test_nothing_repeats_is_nan():
    assert np.isnan(duplicate(HEADS).values).all()
    assert np.isnan(induction(HEADS).values).all()


@settings(max_examples=30)
@given(st.integers(2, 12), st.integers(2, 4), st.integers(0, 9), st.booleans())
def test_a_planted_induction_head_scores_one_on_the_probe(length, repeats, seed, cls):
    ids = probe_ids(40, (0, 1), length=length, repeats=repeats, prefix=(0,) if cls else (), seed=seed)
    start = int(cls)
    assert len(ids) == start + length * repeats
    assert np.array_equal(
        ids, probe_ids(40, (0, 1), length=length, repeats=repeats, prefix=(0,) if cls else (), seed=seed)
    )
    block = ids[start : start + length]
    assert len(set(block.tolist())) == length
    assert not {0, 1} & set(block.tolist())
    assert np.array_equal(ids[start:], np.tile(block, repeats))
    n = len(ids)
    stripe = np.eye(n)
    for i in range(start + length, n):
        stripe[i] = np.eye(n)[i - (length - 1)]
    text = plain(n)
    text = type(text)(
        ids=ids, pieces=text.pieces, offsets=text.offsets, words=text.words,
        special=tuple(bool(start) and at == 0 for at in range(n)), mask=text.mask, text=text.text,
    )  # fmt: skip
    # With more than two repeats the weight may lie on any copy's successor; the stripe takes the last.
    assert row(induction(trace(text, weighted([stripe])))) == pytest.approx([1])


def test_probe_refuses_what_shows_nothing():
    with pytest.raises(UsageError, match="shows nothing"):
        probe_ids(10, repeats=1)
    with pytest.raises(UsageError, match="has 3 to draw from"):
        probe_ids(5, (0, 1), length=4)


def test_kinds_of_planted_heads():
    found = describe_heads(HEADS)
    assert found.kinds == (("previous-token", "next-token", "self", "broad", "mixed"),)
    n = 8
    text = tokens("a b c d e f g h a b c d e f g h")
    stripe = np.eye(2 * n)[[*[0] * n, *range(1, n + 1)]]
    comma = tokens("one two, three four, five")
    assert describe_heads(trace(text, weighted([stripe, to(2 * n, 0)]))).kinds == (("induction", "sink"),)
    at = comma.pieces.index(",")
    assert describe_heads(trace(comma, weighted([to(7, at)]))).kinds == (("punctuation",),)
    assert found.measure("previous").values[0, 0] == 1
    with pytest.raises(UsageError, match="nonsense"):
        found.measure("nonsense")


def test_over_texts_gives_mean_and_spread():
    one = describe_heads(trace(plain(4), weighted([uniform(4)])))
    two = describe_heads(trace(plain(8), weighted([uniform(8)])))
    both = over_texts([one, two])
    a, b = math.log(4), math.log(8)
    assert both.texts == 2
    assert both.measure("entropy").values[0, 0] == pytest.approx((a + b) / 2)
    assert both.spread[0].values[0, 0] == pytest.approx(math.sqrt(((a - b) / 2) ** 2 * 2))
    assert np.isnan(over_texts([one]).spread[0].values).all()
    with pytest.raises(UsageError):
        over_texts([])
    with pytest.raises(UsageError):
        over_texts([one, describe_heads(trace(plain(4), weighted([uniform(4), uniform(4)])))])
    with pytest.raises(UsageError):
        table([])


@pytest.mark.parametrize("measure", EVERY)
def test_one_token(measure):
    values = measure(trace(plain(1), weighted([[[1.0]]]))).values
    assert values.shape == (1, 1)


@pytest.mark.parametrize("measure", EVERY)
def test_no_rows_give_nan_and_no_warning(measure):
    assert np.isnan(measure(trace(plain(3), weighted([np.zeros((3, 3))]))).values).all()
    broken = measure(trace(plain(3), weighted([np.full((3, 3), np.nan)])))
    assert np.isnan(broken.values).all()
    assert "3 rows hold NaN and are left out" in broken.notes


@pytest.mark.parametrize("measure", EVERY)
def test_missing_weights_are_named(measure):
    with pytest.raises(UnsupportedError, match=r"L0 .*has no weights"):
        measure(trace(plain(3), Attention(site=site())))


def test_rows_that_do_not_count_change_nothing():
    hidden, broken = uniform(4), uniform(4)
    hidden[1], broken[2] = 0, np.nan
    for weights in (hidden, broken):
        assert row(entropy(trace(plain(4), weighted([weights])))) == pytest.approx([math.log(4)])
    text = tokens("a b", pad=2)
    weights = np.zeros((4, 4))
    weights[:2, :2], weights[2:, 0] = 0.5, 1
    assert row(entropy(trace(text, weighted([weights])))) == pytest.approx([math.log(2)])


def test_layers_of_different_size_and_cross_attention():
    memory = plain(3)
    cross = weighted([np.full((2, 3), 1 / 3)] * 2, 1, kind="cross", component="decoder", layer=0)
    t = trace(plain(2), weighted([np.eye(2)], component="decoder", causal=True), cross, memory=memory)
    assert t.labels == ("decoder L0", "cross L0")
    values = entropy(t).values
    assert values[0, 0] == pytest.approx(0)
    assert np.isnan(values[0, 1])
    assert values[1].tolist() == pytest.approx([math.log(3)] * 2)
    assert np.isnan(mean_distance(t).values[1]).all()
    assert "cross-attention" in mean_distance(t).notes[0]
    assert row(first(t), 1) == pytest.approx([1 / 3, 1 / 3])
    assert describe_heads(t).kinds == (("self", ""), ("sink", "sink"))


def test_only_the_first_sequence_of_a_batch_counts():
    one = weighted([uniform(3)])
    both = Attention(site=one.site, weights=np.concatenate([one.weights, np.eye(3, dtype=np.float32)[None, None]]))
    assert row(entropy(trace(plain(3), both))) == pytest.approx([math.log(3)])


def test_a_trace_without_sites():
    empty = Trace(model="none", device="cpu", tokens=plain(2), memory=None, attentions=())
    assert entropy(empty).values.shape == (0, 0)
    assert describe_heads(empty).kinds == ()


@settings(max_examples=25)
@given(st.integers(1, 7), st.integers(0, 99), st.sampled_from(["none", "causal", "-10000.0"]))
def test_bounds_hold_for_any_weights(n, seed, mask):
    t = trace(plain(n), drawn(n=n, seed=seed, spread=2, mask=mask, causal=mask != "none"))
    for measure in EVERY:
        found = measure(t)
        low, high = found.bounds
        real = found.values[~np.isnan(found.values)]
        assert low is None or (real >= low - 1e-6).all()
        assert high is None or (real <= high + 1e-6).all()


def test_shared_key_heads_make_no_difference_to_weights():
    shared = drawn(heads=4, kv=2, n=4, seed=3)
    alone = full(shared.query[0], np.repeat(shared.key[0], 2, 0), np.repeat(shared.value[0], 2, 0), np.zeros((4, 4)))
    assert row(entropy(trace(plain(4), shared))) == pytest.approx(row(entropy(trace(plain(4), alone))), rel=1e-5)
