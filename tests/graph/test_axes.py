"""Axes are followed through reshapes by their sizes, and layouts bring tensors back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnx.graph.axes.atoms import fresh, leaves, split_to
from attnx.layout import arrange, axis_of, parse, read_place
from attnx.records import Place


def test_a_split_is_known_wherever_the_axis_occurs() -> None:
    axes = fresh([24, 7, 8])
    merged, q, d = (axis[0] for axis in axes)
    after = split_to(axes, [2, 12, 7, 8])
    assert after is not None
    assert [leaf.size for leaf in leaves([merged])] == [2, 12]
    assert [leaves(axis) for axis in after] == [[merged.parts[0]], [merged.parts[1]], [q], [d]]


def test_ones_come_and_go_freely() -> None:
    axes = fresh([1, 6, 1, 5])
    after = split_to(axes, [6, 1, 5, 1, 1])
    assert after is not None
    assert [len(axis) for axis in after] == [1, 0, 1, 0, 0]


def test_sizes_that_do_not_fit_are_not_guessed() -> None:
    assert split_to(fresh([6, 5]), [4, 7]) is None
    assert split_to(fresh([6, 5]), [6, 5, 2]) is None


def test_an_unknown_size_is_matched_from_both_ends() -> None:
    axes = fresh([3, None, 8])
    after = split_to(axes, [3, None, 2, 4])
    assert after is None or [len(leaves(axis)) for axis in after] == [1, 1, 1, 1]
    same = split_to(axes, [3, None, 8])
    assert same is not None
    assert [leaves(a) for a in same] == [leaves(a) for a in axes]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5), st.randoms())
def test_reshape_keeps_every_atom_in_order(sizes: list[int], random: object) -> None:
    axes = fresh(sizes)
    flat = split_to(axes, [int(np.prod(sizes))])
    assert flat is not None
    back = split_to(flat, sizes)
    assert back is not None
    assert [leaves(a) for a in back] == [leaves(a) for a in axes]


@pytest.mark.parametrize(
    ("layout", "order", "shape"),
    [
        ("b h q k", "bhqk", (2, 3, 4, 5)),
        ("(b h:3) q k", "bhqk", (6, 4, 5)),
        ("(h:3 b) q k", "bhqk", (6, 4, 5)),
        ("b h k q", "bhqk", (2, 3, 5, 4)),
        ("b h0:1 h1:3 q k", "bhqk", (2, 1, 3, 4, 5)),
        ("q (b h:3) d", "bhqd", (4, 6, 7)),
        ("b q (h:3 d)", "bhqd", (2, 4, 21)),
        ("b 1 k d", "bhkd", (2, 1, 5, 7)),
        ("q k", "bhqk", (4, 5)),
        ("(b0 b1) h:3 q k", "bhqk", (6, 3, 4, 5)),
    ],
)
def test_arrange_agrees_with_plain_indexing(layout: str, order: str, shape: tuple[int, ...]) -> None:
    array = np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)
    got = arrange(array, layout, order)
    sizes = {"b": 6 if "b1" in layout else 2, "h": 3, "q": 4, "k": 5, "d": 7}
    letters = {name[0] for axis in parse(layout) for name, _ in axis}
    assert got.shape == tuple(sizes[x] if x in letters else 1 for x in order)
    for index in np.ndindex(*got.shape):
        at = dict(zip(order, index, strict=True))
        where = []
        for axis in parse(layout):
            place = 0
            for name, size in axis:
                if name == "b1":
                    continue
                n = size or (sizes[name[0]] if name != "h0" else 1)
                place = place * n + (0 if name == "h0" else at[name[0]])
            where.append(place)
        assert got[index] == array[tuple(where)]


def test_factors_and_windows_are_taken_off() -> None:
    array = np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4)
    got = read_place(array, Place("v", "b h q k", (2.0, (1.0, 4.0)), (0, -1)), "scores")
    np.testing.assert_allclose(got[0, 0], array[0, 0, :, :3] / 2)
    np.testing.assert_allclose(got[0, 1], array[0, 1, :, :3] / 8)


def test_axis_of_a_letter() -> None:
    assert axis_of("b h q k", "q") == 2
    assert axis_of("(b h:4) q k", "h") is None
    assert axis_of("b q", "k") is None


def test_an_array_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        arrange(np.zeros((2, 3)), "b h q k", "bhqk")
    with pytest.raises(ValueError, match="does not divide"):
        arrange(np.zeros((7, 3, 3)), "(b h:4) q k", "bhqk")
