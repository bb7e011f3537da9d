"""Words out of pieces, special tokens muted, spans of text."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnx.errors import InputError, UnsupportedError, UsageError
from attnx.measure.words import merge, merge_tokens, merge_trace, mute, mute_trace
from attnx.records import Attention
from attnx.study.mentioned import mentions as find
from attnx.tokens.spans import axis_labels, mention, word_text, words

from .planted import drawn, plain, site, tokens, trace, uniform, weighted

SPLIT = tokens("the animal slept", cls=True, split={"animal": 2})


def test_words_of_split_pieces():
    assert SPLIT.pieces == ("[CLS]", "the", "ani", "mal", "slept", "[SEP]")
    assert words(SPLIT) == ((0,), (1,), (2, 3), (4,), (5,))
    assert [word_text(SPLIT, group) for group in words(SPLIT)] == ["[CLS]", "the", "animal", "slept", "[SEP]"]


def test_the_same_word_index_after_a_special_token_is_another_word():
    text = replace(plain(3), words=(0, None, 0))
    assert words(text) == ((0,), (1,), (2,))


def test_to_a_split_word_the_sum_from_it_the_mean():
    weights = np.zeros((1, 6, 6))
    weights[0, 1] = [0.1, 0.2, 0.3, 0.1, 0.2, 0.1]
    weights[0, 2] = [0.5, 0.5, 0, 0, 0, 0]
    weights[0, 3] = [0, 0, 0.25, 0.25, 0.5, 0]
    for i in (0, 4, 5):
        weights[0, i, i] = 1
    merged = merge_trace(trace(SPLIT, weighted(weights)))
    got = merged.attentions[0].weights[0, 0]
    assert got.shape == (5, 5)
    assert got[1].tolist() == pytest.approx([0.1, 0.2, 0.4, 0.2, 0.1])
    assert got[2].tolist() == pytest.approx([0.25, 0.25, 0.25, 0.25, 0])
    assert merged.tokens.pieces == ("[CLS]", "the", "animal", "slept", "[SEP]")
    assert merged.tokens.offsets[2] == (4, 10)
    assert merged.tokens.special == (True, False, False, False, True)
    assert merged.attentions[0].origin == {"weights": "computed"}
    assert merged.attentions[0].scores is None


def test_merge_both_axes_of_a_cross_attention():
    memory = tokens("a bcd", split={"bcd": 2})
    cross = weighted([np.full((4, 3), 1 / 3)], kind="cross", component="decoder")
    merged = merge_trace(trace(tokens("go there now", split={"there": 2}), cross, memory=memory))
    assert merged.attentions[0].weights[0, 0] == pytest.approx(np.full((3, 2), 1) * [1 / 3, 2 / 3])
    assert merged.memory.pieces == ("a", "bcd")


def test_sides_of_their_own_are_merged_too():
    other = tokens("a bcd", split={"bcd": 2})
    whole = trace(SPLIT, weighted([uniform(6)]), weighted([np.full((3, 6), 1 / 6)], index=1))
    merged = merge_trace(replace(whole, sides={1: (other, whole.tokens)}))
    queries, keys = merged.queries_of(merged.attentions[1]), merged.keys_of(merged.attentions[1])
    assert merged.attentions[1].weights.shape[2:] == (len(queries), len(keys)) == (2, 5)
    assert queries.pieces == ("a", "bcd")
    assert keys is merged.tokens


def test_what_was_written_is_counted_in_words():
    whole = replace(trace(SPLIT, weighted([uniform(6)])), generated=4)
    assert merge_trace(whole).generated == 3


def test_past_keys_stand_alone():
    merged = merge_trace(trace(tokens("abcd", split={"abcd": 2}), weighted([np.full((2, 5), 0.2)])))
    assert merged.attentions[0].weights[0, 0].tolist() == [pytest.approx([0.2, 0.2, 0.2, 0.4])]


def test_a_hidden_piece_does_not_halve_its_word():
    got = merge(np.array([[0.0, 0.0], [0.4, 0.6]]), [[0, 1]], None)
    assert got.tolist() == [pytest.approx([0.4, 0.6])]
    assert np.isnan(merge(np.array([[np.nan, 0.0], [0.4, 0.6]]), [[0, 1]], None)[0, 0])


@settings(max_examples=40)
@given(st.integers(1, 9), st.data())
def test_merging_keeps_row_sums(n, data):
    cuts = sorted(data.draw(st.sets(st.integers(1, n - 1))) if n > 1 else set())
    edges = [0, *cuts, n]
    groups = [list(range(a, b)) for a, b in zip(edges, edges[1:], strict=False)]  # noqa: RUF007
    weights = np.random.default_rng(n).dirichlet(np.ones(n), size=(2, n))
    got = merge(weights, groups, groups)
    assert got.shape == (2, len(groups), len(groups))
    assert got.sum(axis=-1) == pytest.approx(1, abs=1e-6)


def test_mute():
    got, taken = mute(np.array([[0.5, 0.25, 0.25], [1, 0, 0], [0, 0, 0]]), [True, False, False])
    assert got.tolist() == [[0, 0.5, 0.5], [0, 0, 0], [0, 0, 0]]
    assert taken.tolist() == [0.5, 1, 0]
    muted = mute_trace(trace(SPLIT, weighted([uniform(6)]))).attentions[0].weights[0, 0, 1]
    assert muted.tolist() == pytest.approx([0, 0.25, 0.25, 0.25, 0.25, 0])


def test_words_need_axes_that_fit():
    with pytest.raises(InputError, match="2 positions for 3 tokens"):
        merge_trace(trace(plain(3), weighted([uniform(2)])))
    with pytest.raises(UnsupportedError, match="has no weights"):
        merge_trace(trace(plain(3), Attention(site=site())))
    with pytest.raises(UnsupportedError, match="has no weights"):
        mute_trace(trace(plain(3), Attention(site=site())))


def test_one_token_and_grouped_heads():
    assert merge_trace(trace(plain(1), drawn(n=1))).attentions[0].weights.tolist() == [[[[1.0]], [[1.0]]]]
    assert merge_tokens(plain(1)).pieces == ("w0",)


def test_find_mentions():
    text = tokens("It saw that it bit it.", cls=True)
    assert [m.pieces for m in find(text, "it")] == [(1,), (4,), (6,)]
    assert [m.text for m in find(SPLIT, "ANIMAL")] == ["animal"]
    assert find(SPLIT, "animal")[0].pieces == (2, 3)
    assert find(SPLIT, "the animal")[0].pieces == (1, 2, 3)
    with pytest.raises(InputError, match='no token or word "anim"') as error:
        find(SPLIT, "anim")
    assert "animal@2" in error.value.hint
    with pytest.raises(UsageError):
        find(SPLIT, " ")


def test_a_stretch_that_was_cut_off():
    cut = replace(SPLIT, text=SPLIT.text + " again")
    with pytest.raises(InputError, match="no token covers 'again'"):
        mention(cut, 17, 22)


def test_axis_labels():
    assert axis_labels(plain(2), 2) == ("w0", "w1")
    assert axis_labels(plain(2), 4) == ("past 0", "past 1", "w0", "w1")
    assert axis_labels(plain(2), 1) == ("0",)
