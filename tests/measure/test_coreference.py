"""Planted coreference heads, baselines, contrast, and accuracy with honest choices."""

import math
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnx.errors import InputError, UnsupportedError, UsageError
from attnx.measure import rows
from attnx.measure.coref_accuracy import Judged, accuracy
from attnx.measure.coref_contrast import contrast
from attnx.measure.coreference import choices, coreference
from attnx.measure.mentions import find_candidates, find_pronouns
from attnx.records import Attention
from attnx.study.mentioned import mentions as find

from .planted import drawn, plain, site, tokens, trace, uniform, weighted

TEXT = tokens("the animal left the street because it was tired", cls=True, split={"animal": 2, "it": 2})
# [CLS] the ani mal left the street because i t was tired [SEP]
#   0    1   2   3   4    5    6      7     8 9  10   11    12
N = len(TEXT)
IT, ANIMAL, STREET = (find(TEXT, word)[0] for word in ("it", "animal", "street"))


def head(rows):
    """Uniform but for the given rows."""
    out = uniform(N)
    for at, row in rows.items():
        out[at] = 0
        for key, weight in row.items():
            out[at, key] = weight
    return out


GOOD = head({8: {2: 0.4, 3: 0.2, 6: 0.1, 0: 0.1, 8: 0.2}, 9: {2: 0.2, 3: 0.2, 6: 0.1, 12: 0.1, 8: 0.1, 9: 0.1, 4: 0.2}})
BAD = head({8: {6: 1.0}, 9: {6: 0.5, 3: 0.1, 1: 0.4}})


def test_pieces_sum_to_mean_from():
    got = coreference(trace(TEXT, weighted([GOOD, BAD])), IT, [ANIMAL, STREET])
    assert got.weights.values[0, 0].tolist() == pytest.approx([(0.6 + 0.4) / 2, 0.1])
    assert got.weights.values[0, 1].tolist() == pytest.approx([0.05, 0.75])
    assert got.shares.values[0, 0].tolist() == pytest.approx([0.5 / 0.6, 0.1 / 0.6])
    assert got.margin.values[0].tolist() == pytest.approx([0.4, 0.7])
    # candidates, special, self, sink, other: they are all of the pronoun's weight
    assert got.aside.values[0, 0].tolist() == pytest.approx([0.6, 0.1, 0.2, 0, 0.1])
    assert got.aside.values[0].sum(-1) == pytest.approx(1)
    assert got.ranked == ((0, 1), (0, 0))
    assert got.layer_best == (1,)
    assert got.weights.axes[2].labels == ("animal", "street")


def test_verdicts_and_baselines():
    rollout = np.zeros((N, N))
    rollout[8, 2] = rollout[9, 3] = 1
    got = coreference(trace(TEXT, weighted([GOOD, BAD])), IT, [ANIMAL, STREET], maps={"rollout": rollout})
    best, mean, rolled = got.verdicts
    assert (best.method, best.where, best.candidate) == ("best head", "L0 H1", 1)
    assert best.shares == pytest.approx((0.05 / 0.8, 0.75 / 0.8))
    assert best.lead == pytest.approx(0.7 / 0.8)
    assert (mean.method, mean.candidate) == ("mean of all heads", 1)
    assert mean.shares == pytest.approx((0.275 / 0.7, 0.425 / 0.7))
    assert (rolled.method, rolled.candidate, rolled.shares) == ("rollout", 0, (1, 0))
    assert [(b.method, b.candidate) for b in got.baselines] == [("uniform", None), ("nearest", 1), ("first", 0)]
    assert got.baselines[0].shares == (0.5, 0.5)
    assert got.layer_means[0].candidate == 1
    assert "one sentence proves nothing" in got.notes[0]
    assert asdict(got)["verdicts"][0]["method"] == "best head"


def test_a_dataset_needs_the_same_weights_and_nothing_else():
    rollout = np.zeros((N, N))
    rollout[8, 2] = rollout[9, 3] = rollout[9, 6] = 1
    got = choices(trace(TEXT, weighted([GOOD, BAD])), IT, [ANIMAL, STREET], maps={"rollout": rollout})
    assert got.weights[0].tolist() == [pytest.approx([0.5, 0.1]), pytest.approx([0.05, 0.75])]
    assert {name: list(one) for name, one in got.others.items()} == {
        "rollout": pytest.approx([2 / 3, 1 / 3]),
        "nearest": [0, 1],
        "first": [1, 0],
    }
    assert got.layers == ("L0",)


def test_a_sink_is_set_aside_even_where_it_is_a_candidate():
    to_street = uniform(N)
    to_street[:, :] = 0
    to_street[:, 6] = 0.9
    to_street[:, 2] = 0.1
    got = coreference(trace(TEXT, weighted([to_street])), IT, [ANIMAL, STREET])
    assert got.weights.values[0, 0].tolist() == pytest.approx([0.1, 0])
    assert got.aside.values[0, 0].tolist() == pytest.approx([0.1, 0, 0, 0.9, 0])
    assert any("as a hub" in note for note in got.notes)


def test_a_causal_model_cannot_see_what_comes_after():
    text = tokens("because it was tired the animal slept")
    rows = np.tril(np.ones((7, 7))) / np.arange(1, 8)[:, None]
    t = trace(text, weighted([rows], causal=True, component="decoder"))
    it, animal, tired = (find(text, word)[0] for word in ("it", "animal", "tired"))
    got = coreference(t, it, [animal])
    assert got.unseen == (0,)
    assert np.isnan(got.weights.values).all()
    assert got.ranked == ()
    assert got.baselines == ()
    assert got.verdicts[0].candidate is None
    assert "'animal' comes after 'it'" in got.notes[1]
    later = find(text, "slept")[0]
    both = coreference(t, later, [animal, tired])
    assert both.unseen == ()
    assert [b.candidate for b in both.baselines] == [None, 0, 1]
    assert any("a later clue cannot count" in note for note in both.notes)


def test_ties_name_nobody():
    got = coreference(
        trace(TEXT, weighted([head({8: {2: 0.25, 3: 0.25, 6: 0.5}, 9: {2: 0.5, 6: 0.5}})])), IT, [ANIMAL, STREET]
    )
    assert got.verdicts[0].candidate is None
    assert got.ranked == ()
    assert got.layer_best == (-1,)


def test_one_candidate():
    got = coreference(trace(TEXT, weighted([GOOD])), IT, [ANIMAL])
    assert got.margin.values[0, 0] == pytest.approx(0.5)
    assert got.verdicts[0].shares == (1,)


def test_the_encoder_is_measured_in_an_encoder_decoder():
    dec = weighted([np.eye(2)], 1, component="decoder", layer=0, causal=True)
    t = trace(plain(2), weighted([GOOD]), dec, memory=TEXT)
    assert coreference(t, IT, [ANIMAL, STREET]).sites == (0,)
    pronoun, word = find(plain(2), "w1")[0], find(plain(2), "w0")[0]
    assert coreference(t, pronoun, [word], tokens=t.tokens).sites == (1,)
    cross = weighted([np.full((2, N), 1 / N)], kind="cross", component="decoder")
    with pytest.raises(UnsupportedError, match="no self-attention"):
        coreference(trace(plain(2), cross, memory=TEXT), IT, [ANIMAL])


def test_past_keys_are_other():
    weights = np.full((1, N, N + 3), 1 / (N + 3))
    got = coreference(trace(TEXT, weighted(weights)), IT, [ANIMAL, STREET])
    assert got.weights.values[0, 0].tolist() == pytest.approx([2 / 16, 1 / 16])
    assert got.aside.values[0, 0].tolist() == pytest.approx([3 / 16, 2 / 16, 2 / 16, 0, 9 / 16])


def test_rows_that_say_nothing():
    for fill in (0.0, np.nan):
        rows = uniform(N)
        rows[8:10] = fill
        got = coreference(trace(TEXT, weighted([rows])), IT, [ANIMAL, STREET])
        assert np.isnan(got.weights.values).all()
        assert got.verdicts[0].candidate is None
        assert math.isnan(got.verdicts[0].lead)


def test_errors():
    t = trace(TEXT, weighted([GOOD]))
    with pytest.raises(UsageError, match="nothing that 'it' could stand for"):
        coreference(t, IT, [])
    with pytest.raises(UsageError, match="is the word looked from"):
        coreference(t, IT, [IT])
    with pytest.raises(InputError, match="the map 'x' is"):
        coreference(t, IT, [ANIMAL], maps={"x": np.zeros((2, 2))})
    with pytest.raises(UnsupportedError, match="has no weights"):
        coreference(trace(TEXT, Attention(site=site())), IT, [ANIMAL])
    with pytest.raises(InputError, match="5 keys where the text has 13"):
        coreference(trace(TEXT, weighted([uniform(5)])), IT, [ANIMAL])


@settings(max_examples=25)
@given(st.integers(0, 99), st.sampled_from(["none", "causal", "-10000"]))
def test_the_parts_are_all_of_the_weight(seed, mask):
    t = trace(TEXT, drawn(n=N, seed=seed, mask=mask, causal=mask != "none", spread=2))
    got = coreference(t, IT, [ANIMAL, STREET])
    assert got.aside.values.sum(-1) == pytest.approx(1, abs=1e-5)
    assert np.nansum(got.weights.values, axis=-1) == pytest.approx(got.aside.values[..., 0], abs=1e-5)


def test_mentions():
    text = tokens("He said the dog's 2 bones are hers, and it won't share them.")
    assert [m.text for m in find_pronouns(text)] == ["He", "hers", "it", "them"]
    assert [m.text for m in find_candidates(text)] == ["said", "dog's", "bones", "share"]
    assert find_pronouns(tokens("no one here")) == ()
    assert [m.text for m in find_candidates(TEXT, IT)] == ["animal", "left", "street", "tired"]
    bones = find(text, "bones")[0]
    assert "bones" not in [m.text for m in find_candidates(text, bones)]
    with pytest.raises(InputError, match="carry no text"):
        find_pronouns(
            type(text)(
                ids=text.ids,
                pieces=text.pieces,
                offsets=text.offsets,
                words=text.words,
                special=text.special,
                mask=text.mask,
            )
        )


def test_words_cut_off_are_no_candidates():
    whole = tokens("the dog saw it")
    cut = type(whole)(
        ids=whole.ids[:2], pieces=whole.pieces[:2], offsets=whole.offsets[:2], words=whole.words[:2],
        special=whole.special[:2], mask=whole.mask[:2], text=whole.text,
    )  # fmt: skip
    assert find_pronouns(cut) == ()
    assert [m.text for m in find_candidates(cut)] == ["dog"]


def test_contrast():
    flipped = head({8: {6: 0.6, 2: 0.2, 1: 0.2}, 9: {6: 0.6, 2: 0.2, 1: 0.2}})
    one = coreference(trace(TEXT, weighted([GOOD, BAD])), IT, [ANIMAL, STREET])
    two = coreference(trace(TEXT, weighted([flipped, BAD])), IT, [ANIMAL, STREET])
    got = contrast(one.weights, two.weights, (0, 1))
    assert got.moved == ((0, 0),)
    assert got.fixed == ((0, 1),)
    assert got.right == ((0, 0),)
    assert got.change.values[0].tolist() == pytest.approx([0.5 / 0.6 - 0.25, 0])
    assert contrast(one.weights, two.weights).right == ()
    other = coreference(trace(TEXT, weighted([GOOD, BAD])), IT, [ANIMAL])
    with pytest.raises(UsageError, match="cannot be compared"):
        contrast(one.weights, other.weights)


def judged(best, answer, group, heads=4, right=0, others=None):
    """Head `right` names the answer; the rest name `best`."""
    weights = np.zeros((1, heads, 2))
    weights[0, :, best] = 1
    weights[0, right] = [answer == 0, answer == 1]
    return Judged(weights, answer, group, others or {})


def test_accuracy_finds_the_planted_head():
    examples = [judged(0, at % 2, str(at // 2), right=2, others={"first": np.array([1.0, 0])}) for at in range(20)]
    got = accuracy(examples, ["L0"])
    assert got.heads.values[0].tolist() == [0.5, 0.5, 1, 0.5]
    assert got.chosen == ((0, 2), (0, 2))
    rows = dict(zip(got.methods.axes[0].labels, got.methods.values.tolist(), strict=True))
    assert rows["best head, chosen on the other half"] == [1, 1, 1, 1]
    assert rows["first"][0] == 0.5
    assert rows["first"][3] == 0  # of each pair it gets one
    assert rows["uniform"] == [0.5, 0.5, 0.5, 0]
    assert (got.examples, got.groups) == (20, 10)
    # the mean of the heads: three quarters on candidate 0, so right where the answer is 0
    assert rows["mean of all heads"][0] == 0.5
    assert got.layers.values.tolist() == [0.5]


def test_the_best_of_random_heads_does_not_hold_on_the_other_half():
    draw = np.random.default_rng(0)
    examples = [Judged(draw.random((6, 12, 2)), int(draw.integers(2)), str(at)) for at in range(60)]
    got = accuracy(examples, [f"L{at}" for at in range(6)])
    accuracy_, low, high, _ = got.methods.values[0]
    assert got.heads.values.max() > 0.6  # chosen after the fact
    assert low < 0.5 < high
    assert low <= accuracy_ <= high
    again = accuracy(examples, [f"L{at}" for at in range(6)])
    assert np.array_equal(again.methods.values, got.methods.values)


def test_interval_by_hand():
    # Two groups, one right and one wrong: half of all draws of two are mixed, a quarter each all right or all wrong.
    examples = [judged(0, 0, "a"), judged(0, 1, "b", right=3, heads=1 + 3)]
    examples[1] = Judged(np.array([[[1.0, 0]] * 4]), 1, "b")
    got = accuracy(examples, ["L0"], draws=4000)
    row = got.methods.values[list(got.methods.axes[0].labels).index("mean of all heads")]
    assert row.tolist() == [0.5, 0, 1, 0.5]


def test_ties_share_the_credit_and_nan_loses():
    level = Judged(np.array([[[0.0, 0.0], [np.nan, 0.1], [np.nan, np.nan]]]), 0, "a")
    got = accuracy([level, Judged(level.weights, 0, "b")], ["L0"])
    assert got.heads.values[0].tolist() == [0.5, 0, 0.5]


def test_a_pair_is_never_split():
    examples = [judged(0, at % 2, str(at // 2)) for at in range(6)]
    assert accuracy(examples, ["L0"]).groups == 3
    with pytest.raises(InputError, match="1 group"):
        accuracy(examples[:2], ["L0"])
    with pytest.raises(InputError, match="answer 5"):
        accuracy([examples[0], Judged(examples[0].weights, 5, "z")], ["L0"])
    with pytest.raises(InputError, match="different models"):
        accuracy([examples[0], judged(0, 0, "z", heads=3)], ["L0"])


def test_sites_of_one_shape_are_looked_at_together_each_with_what_it_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    """A causal layer between two that see all: a candidate after the pronoun is unseen there alone."""
    text = plain(7)
    it, before, after = (find(text, f"w{at}")[0] for at in (4, 1, 6))
    layers = [
        drawn(n=7, seed=s, index=s, mask=m, causal=m == "causal") for s, m in enumerate(("none", "causal", "none"))
    ]
    at_once = coreference(trace(text, *layers), it, [before, after])
    for at, layer in enumerate(layers):
        weights = np.asarray(layer.need("weights"))[0, :, 4].astype(np.float64)
        wanted = weights[:, [1, 6]]
        if at == 1:
            wanted[:, 1] = np.nan
        np.testing.assert_allclose(at_once.weights.values[at], wanted, rtol=1e-12)
    monkeypatch.setattr(rows, "AT_ONCE", 0)
    alone = coreference(trace(text, *layers), it, [before, after])
    np.testing.assert_array_equal(at_once.weights.values, alone.weights.values)
    np.testing.assert_array_equal(at_once.aside.values, alone.aside.values)
