"""Masks of every pattern, read off the data."""

from dataclasses import replace

import numpy as np
import pytest

from attnx.errors import UnsupportedError, UsageError
from attnx.measure.visibility import visibility
from attnx.records import Attention

from .planted import drawn, full, plain, site, tokens, trace, uniform, weighted

N = 6
BEHIND = np.arange(N)[:, None] - np.arange(N)[None, :]


def masked(sees, hides=-np.inf, **more):
    q, k = np.random.default_rng(0).standard_normal((2, 1, *[len(sees), 4]))
    k = np.random.default_rng(1).standard_normal((1, sees.shape[1], 4))
    return full(q, k, k, np.where(sees, 0.0, hides), **more)


@pytest.mark.parametrize("hides", [-np.inf, -1e4, -1e9, float(np.finfo(np.float32).min)])
@pytest.mark.parametrize(
    ("sees", "pattern", "window", "prefix", "hidden"),
    [
        (np.ones((N, N), bool), "bidirectional", None, None, 0),
        (BEHIND >= 0, "causal", None, None, 15),
        ((BEHIND >= 0) & (BEHIND < 3), "sliding window", 3, None, 21),
        (np.abs(BEHIND) <= 1, "sliding window", 3, None, 20),
        ((BEHIND >= 0) | (np.arange(N) < 3)[None, :], "prefix", None, 3, 12),
        ((BEHIND % 2) == 0, "irregular", None, None, 18),
        (BEHIND <= 0, "anti-causal", None, None, 15),
        (BEHIND >= -1, "look-ahead", None, None, 10),
        (BEHIND <= 1, "irregular", None, None, 10),
        ((BEHIND >= 0) & ((BEHIND < 2) | (np.arange(N) % 3 == 0)), "irregular", None, None, 20),
        (np.eye(N, dtype=bool), "sliding window", 1, None, 30),
        (BEHIND >= 1, "irregular", None, None, 21),
        (BEHIND >= 2, "irregular", None, None, 26),
        (BEHIND <= -1, "irregular", None, None, 21),
        ((BEHIND >= 1) & (BEHIND < 3), "irregular", None, None, 27),
        (BEHIND != 0, "irregular", None, None, 6),
    ],
)
def test_patterns(sees, pattern, window, prefix, hidden, hides):
    got = visibility(trace(plain(N), masked(sees, hides)), 0)
    assert (got.pattern, got.window, got.prefix, got.hidden) == (pattern, window, prefix, hidden)
    assert got.matrix.values.tolist() == sees.astype(float).tolist()
    assert got.cells == N * N
    assert got.padding == ()
    assert not got.heads_differ
    assert ("no query sees its own key" in got.notes) == (not sees.diagonal().any())
    if hidden:
        assert got.stand_in == pytest.approx(hides)
        assert f"{hidden} of 36 cells hidden" in got.statement
    else:
        assert got.stand_in is None


def test_a_mask_put_over_the_score():
    base = masked(BEHIND >= 0)
    put = np.where(BEHIND >= 0, base.capped, -10000.0).astype(np.float32)
    got = visibility(trace(plain(N), replace(base, masked=put)), 0)
    assert (got.pattern, got.stand_in) == ("causal", -10000.0)


def test_padding_is_told_from_the_pattern():
    text = tokens("a b c d", pad=2)
    real = np.arange(N) < 4
    both = visibility(trace(text, masked(np.broadcast_to(real, (N, N)), -1e4)), 0)
    assert (both.pattern, both.padding, both.hidden) == ("bidirectional", (4, 5), 12)
    assert both.statement == "bidirectional, padding at 2 keys, 12 of 36 cells hidden, by -10000"
    causal = visibility(trace(text, masked((BEHIND >= 0) & real, -1e4)), 0)
    assert (causal.pattern, causal.padding) == ("causal", (4, 5))
    left = visibility(trace(plain(N), masked((BEHIND >= 0) & (np.arange(N) >= 2))), 0)
    assert (left.pattern, left.padding, left.empty_rows) == ("causal", (0, 1), (0, 1))
    assert "2 queries see nothing at all" in left.notes


def test_cross():
    t = trace(plain(2), masked(np.ones((2, 3), bool), kind="cross", component="decoder"), memory=plain(3))
    assert visibility(t, 0).pattern == "cross"
    assert visibility(t, 0).matrix.axes[1].labels == ("w0", "w1", "w2")


@pytest.mark.parametrize("shift", [0, 2])
def test_causal_over_two_texts(shift):
    sees = np.tri(3, 5, k=shift, dtype=bool)
    t = trace(plain(3), masked(sees, kind="cross", component="decoder", causal=True), memory=plain(5))
    got = visibility(t, 0)
    assert (got.pattern, got.padding) == ("causal", ())


def test_past_keys():
    sees = (np.arange(2)[:, None] + 3 - np.arange(5)[None, :]) >= 0
    got = visibility(trace(plain(2), masked(sees)), 0)
    assert (got.pattern, got.hidden) == ("causal", 1)
    assert got.matrix.axes[1].labels == ("past 0", "past 1", "past 2", "w0", "w1")


def test_what_the_graph_says_and_the_text_does_not_show():
    one = visibility(trace(plain(1), masked(np.ones((1, 1), bool), causal=True)), 0)
    assert (one.pattern, one.notes) == ("causal", ())
    last = visibility(trace(plain(1), masked(np.ones((1, 4), bool), causal=True)), 0)
    assert (last.pattern, last.notes) == ("causal", ())
    unknown = visibility(trace(plain(1), masked(np.ones((1, 4), bool), causal=None)), 0)
    assert unknown.pattern == "bidirectional"
    assert "cannot tell causal from bidirectional" in unknown.notes[0]
    odd = visibility(trace(plain(2), masked(np.ones((2, 2), bool), causal=True)), 0)
    assert odd.pattern == "bidirectional"
    assert "causal by its graph" in odd.notes[0]
    wide = visibility(trace(plain(N), masked(BEHIND >= 0, causal=True, window=64)), 0)
    assert wide.notes == ("the site has a sliding window of 64, wider than this text shows",)


@pytest.mark.parametrize(
    ("sees", "causal", "notes"),
    [
        ((BEHIND >= 0) & (BEHIND % 2 == 0), True, ()),
        (np.abs(BEHIND) <= 1, False, ()),
        ((BEHIND >= 0) & (BEHIND % 2 == 0), False, ("not causal by its graph; on this text it looks irregular",)),
        (BEHIND >= -1, True, ("causal by its graph; on this text it looks look-ahead",)),
    ],
)
def test_what_contradicts_the_graph_is_a_key_that_stands_later(sees, causal, notes):
    assert visibility(trace(plain(N), masked(sees, causal=causal)), 0).notes == tuple(f"the site is {n}" for n in notes)


def test_a_look_ahead_is_counted():
    got = visibility(trace(plain(N), masked(BEHIND >= -2)), 0)
    assert (got.ahead, got.said) == (2, "causal, looking 2 ahead")


def test_keys_that_a_window_left_behind_are_no_padding():
    sees = np.array([[False, False, True, True]])
    got = visibility(trace(plain(1), masked(sees, causal=True, window=2)), 0)
    assert (got.pattern, got.window, got.padding, got.hidden) == ("sliding window", 2, (), 2)


def test_heads_that_differ():
    base = drawn(n=3)
    mask = np.zeros((1, 2, 3, 3))
    mask[0, 1] = np.where(np.tri(3, dtype=bool), 0, -np.inf)
    got = visibility(trace(plain(3), replace(base, masked=(base.capped + mask).astype(np.float32))), 0)
    assert got.heads_differ
    assert got.matrix.values.tolist() == [[1, 0.5, 0.5], [1, 1, 0.5], [1, 1, 1]]
    assert got.hidden == 0


def test_without_masked_scores():
    causal = np.tril(np.ones((3, 3))) / np.array([[1], [2], [3]])
    got = visibility(trace(plain(3), weighted([causal], causal=None)), 0)
    assert (got.pattern, got.stand_in) == ("causal", None)
    assert "not traced" in got.notes[0]
    window = visibility(trace(plain(4), weighted([uniform(4)], causal=True, window=2)), 0)
    assert (window.pattern, window.window) == ("sliding window", 2)
    hidden = visibility(trace(plain(3), weighted([np.zeros((3, 3))], causal=None)), 0)
    assert (hidden.hidden, hidden.pattern, hidden.empty_rows) == (9, "irregular", (0, 1, 2))


def test_errors():
    with pytest.raises(UsageError):
        visibility(trace(plain(3), drawn(n=3)), 1)
    with pytest.raises(UnsupportedError, match="has no weights"):
        visibility(trace(plain(3), Attention(site=site())), 0)
