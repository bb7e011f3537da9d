"""Looks, gathering and mass, on weights small enough to add up by hand."""

from dataclasses import replace

import numpy as np
import pytest

from attnx.measure.combine import combine
from attnx.measure.looks import gathered, looks, mass, strongest_pair
from attnx.records import Attention, Site, Tokens, Trace

SITE = Site(0, 0, "encoder", "self", "Softmax", "n", 2, 2, 4, 0.5)
WEIGHTS = np.array(
    [
        [[0.7, 0.1, 0.1, 0.1], [0.5, 0.1, 0.3, 0.1], [0.2, 0.6, 0.1, 0.1], [0.9, 0.1, 0.0, 0.0]],
        [[0.1, 0.8, 0.1, 0.0], [0.1, 0.6, 0.2, 0.1], [0.1, 0.5, 0.2, 0.2], [0.0, 1.0, 0.0, 0.0]],
    ],
    np.float32,
)
"""[H,Q,K] over "[S] a b .": special, word, word, punctuation."""


def trace(weights: np.ndarray = WEIGHTS, first_special: bool = True, masked: tuple[bool, ...] = (True,) * 4) -> Trace:
    special = (first_special, False, False, False)
    tokens = Tokens(np.arange(4), ("[S]", "a", "b", "."), ((0, 0),) * 4, (None, 0, 1, 2), special, masked)
    return Trace("m", "cpu", tokens, None, (Attention(SITE, weights=weights[None]),))


def test_looks_leave_out_special_tokens_and_the_token_itself() -> None:
    found = [[(look.query, look.key, look.head, round(look.value, 6)) for look in group] for group in looks(trace(), 0)]
    assert found == [
        [(1, 2, 0, 0.3), (1, 3, 0, 0.1)],
        [(2, 1, 0, 0.6), (2, 3, 1, 0.2)],
        [(3, 1, 1, 1.0)],
    ]


def test_looks_leave_out_padding() -> None:
    found = looks(trace(masked=(True, True, True, False)), 0)
    assert [[look.key for look in group] for group in found] == [[2], [1]]


def test_a_causal_first_token_looks_nowhere() -> None:
    weights = np.tril(np.ones((1, 4, 4), np.float32))
    weights /= weights.sum(-1, keepdims=True)
    found = looks(trace(weights, first_special=False), 0)
    assert [(group[0].query, group[0].key) for group in found] == [(1, 0), (2, 0), (3, 0)]


def test_strongest_pair() -> None:
    pair = strongest_pair(trace(), 0, 0)
    assert pair is not None
    assert (pair.query, pair.key, round(pair.value, 6)) == (2, 1, 0.6)
    assert strongest_pair(trace(np.tile(np.eye(4, dtype=np.float32), (1, 1, 1))), 0, 0) is None


def test_gathered_is_the_share_of_all_weight() -> None:
    words = [(look.head, look.key, look.value) for look in gathered(trace(), special=False)]
    assert words == [(1, 1, pytest.approx(2.9 / 4)), (0, 1, pytest.approx(0.9 / 4))]
    parked = [(look.head, look.key, look.value) for look in gathered(trace(), special=True)]
    assert parked == [(0, 0, pytest.approx(2.3 / 4)), (1, 0, pytest.approx(0.3 / 4))]


def test_the_first_token_counts_as_parked_even_where_it_is_no_special_one() -> None:
    assert {look.key for look in gathered(trace(first_special=False), special=True)} == {0}


def test_mass_by_kind() -> None:
    found = mass(trace())
    shares = dict(zip(found.axes[0].labels, found.values, strict=True))
    assert shares == pytest.approx({"[S] (parked)": 2.6 / 8, "other tokens": 4.8 / 8, "punctuation": 0.6 / 8}, abs=1e-6)
    one = trace()
    text = replace(one, tokens=replace(one.tokens, offsets=tuple((at, at + 1) for at in range(len(one.tokens)))))
    assert set(mass(text).axes[0].labels) == {"[S] (parked)", "words", "punctuation"}  # these have a text
    assert found.values.sum() == pytest.approx(1)
    assert found.axes[0].labels[0] == "[S] (parked)"
    renamed = mass(trace(first_special=False))
    assert renamed.axes[0].labels[0] == "first token (parked)"


def test_mass_leaves_out_rows_of_padding() -> None:
    found = mass(trace(masked=(True, True, True, False)))
    shares = dict(zip(found.axes[0].labels, found.values, strict=True))
    assert shares["[S]"] == pytest.approx(1.7 / 6)


def test_combine() -> None:
    one, two = np.array([[1.0, -np.inf]], np.float32), np.array([[3.0, -np.inf]], np.float32)
    assert combine([one, two], "mean").tolist() == [[2.0, -np.inf]]
    assert combine([one, two], "max").tolist() == [[3.0, -np.inf]]
    with pytest.raises(Exception, match="1x2 and 2x2"):
        combine([one, np.zeros((2, 2))], "mean")
