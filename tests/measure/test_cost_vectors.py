"""Cost from sizes, words in two contexts."""

import math

import numpy as np
import pytest

from attnx.errors import InputError, UnsupportedError, UsageError
from attnx.measure.cost import cost
from attnx.measure.vectors import contexts
from attnx.study.mentioned import mentions as find

from .planted import site, tokens


def test_cost_by_hand():
    # MiniLM's sizes: 6 layers of 12 heads of 32; a block multiplies 4 x 384 x 384 + 2 x 384 x 1536 weights
    sites = [site(at, heads=12, head_size=32) for at in range(6)]
    parameters = 6 * (4 * 384 * 384 + 2 * 384 * 1536)
    got = cost(sites, [1, 64, 512], parameters=parameters)
    row = got.attention.values[1].tolist()
    assert row[0] == 64 * 64 * 72
    assert row[1] == 64 * 64 * 72 * 4
    # Q K^T: for each of 72 heads and 64 x 64 cells 32 multiplications and 32 additions; weights x V as many
    assert row[2] == 72 * 64 * 64 * (32 + 32) * 2
    assert row[3] == 2 * parameters * 64
    assert row[4] == pytest.approx(row[2] / (row[2] + row[3]))
    at = got.crossover
    assert 4 * at**2 * 72 * 32 == pytest.approx(2 * parameters * at)
    assert got.paths.values[2].tolist() == [[1, 1], [512, 512]]


def test_cost_without_parameters_or_sizes():
    got = cost([site(), site(1, heads=None)], [8])
    assert np.isnan(got.attention.values[0, 3:]).all()
    assert math.isnan(got.crossover)
    assert got.attention.values[0, 0] == 64
    assert any("1 of 2 sites" in note for note in got.notes)
    with pytest.raises(UnsupportedError):
        cost([site(heads=None)], [8])
    for lengths in ([], [0]):
        with pytest.raises(UsageError):
            cost([site()], lengths)


ONE = tokens("the bank of the river", cls=True)
TWO = tokens("the bank lends money", cls=True, split={"bank": 2})


def vectors(text, table):
    return np.array([table.get(piece, [0.0, 0.0, 1.0]) for piece in text.pieces], np.float32)


def test_word_in_two_contexts_by_hand():
    one = vectors(ONE, {"the": [1, 0, 0], "bank": [1, 1, 0], "of": [0, 1, 0], "river": [0, 1, 0]})
    two = vectors(TWO, {"the": [1, 1, 0], "ba": [2, 0, 0], "nk": [0, 0, 2], "lends": [0, 0, 1], "money": [0, 0, 1]})
    got = contexts({"L0": one}, {"L0": two}, (ONE, TWO), (find(ONE, "bank")[0], find(TWO, "bank")[0]))
    half = 1 / math.sqrt(2)
    # bank: [1,1,0] against the mean of its pieces [1,0,1]
    assert got.values[0, 0] == pytest.approx(0.5)
    # the same words: both "the" of the first with the "the" of the second
    assert got.values[0, 1] == pytest.approx(half)
    # different: the-lends, the-money (twice) 0; of, river with "the" 1/sqrt2 each, with lends and money 0
    assert got.values[0, 2] == pytest.approx(2 * half / 10)
    assert got.axes[1].labels[0] == "the word"


def test_the_same_text_is_the_same_word():
    table = np.random.default_rng(0).standard_normal((len(ONE), 8))
    word = find(ONE, "bank")[0]
    got = contexts({"L0": table, "out": table * 2}, {"L0": table, "out": table * 2}, (ONE, ONE), (word, word))
    assert got.values[:, 0] == pytest.approx(1)
    assert got.axes[0].labels == ("L0", "out")


def test_no_other_words_and_zero_vectors():
    text = tokens("bank")
    word = find(text, "bank")[0]
    got = contexts({"L0": np.zeros((1, 3))}, {"L0": np.ones((1, 3))}, (text, text), (word, word))
    assert np.isnan(got.values).all()


def test_vectors_that_do_not_fit():
    word = find(ONE, "bank")[0]
    with pytest.raises(InputError, match="different layers"):
        contexts({"L0": np.zeros((7, 2))}, {"L1": np.zeros((7, 2))}, (ONE, ONE), (word, word))
    with pytest.raises(InputError, match="for 7 tokens"):
        contexts({"L0": np.zeros((6, 2))}, {"L0": np.zeros((7, 2))}, (ONE, ONE), (word, word))
