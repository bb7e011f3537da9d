from __future__ import annotations

import dataclasses
from itertools import pairwise

import numpy as np
import pytest
from rich.cells import cell_len

from attnx.errors import UsageError
from attnx.records import Trace
from attnx.view.grid import grid
from tests.view import samples
from tests.view.screen import plain, segments


def dots(char: str) -> list[list[bool]]:
    """A braille character as 4 rows of 2."""
    code = ord(char) - 0x2800 if char != " " else 0
    bits = [[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]]
    return [[bool(code & bit) for bit in row] for row in bits]


@pytest.mark.parametrize(
    ("layers", "heads", "width", "height"),
    [
        (6, 12, 80, 24),
        (12, 12, 80, 24),
        (30, 9, 80, 24),
        (12, 12, 160, 50),
        (30, 9, 160, 50),
        (1, 1, 80, 24),
        (2, 4, 60, 20),
    ],
)
@pytest.mark.parametrize("system", ["truecolor", "standard"])
def test_every_head_fits_on_one_screen(layers: int, heads: int, width: int, height: int, system: str) -> None:
    lines = segments(grid(samples.trace(layers=layers, heads=heads)), width, height, system)  # type: ignore[arg-type]
    texts = ["".join(segment.text for segment in line) for line in lines]
    assert len(texts) < height
    names = {word for text in texts for word in text.split() if word.startswith("L")}
    assert {f"L{at}" for at in range(layers)} <= {name.rstrip("▸") for name in names}
    header = texts[1].split()
    assert set(header) == {f"H{at}" for at in range(heads)}


def test_many_heads_go_on_below_and_none_is_lost() -> None:
    lines = plain(grid(samples.trace(layers=2, heads=40)), 60).splitlines()
    headers = [line for line in lines if line.split()[:1] and line.split()[0].lstrip("H").isdigit()]
    found = [word.lstrip("H") for line in headers for word in line.split()]
    assert found == [str(at) for at in range(40)]


def test_dots_are_the_blocks_of_a_third_of_the_heads_largest() -> None:
    trace = samples.trace(layers=1, heads=2)
    weights = trace.attentions[0].weights
    assert weights is not None
    lines = plain(grid(trace), 80).splitlines()
    body = [line[3:].ljust(80) for line in lines[2:6]]  # 16 tokens: 8 columns and 4 lines of dots, one row too few
    wide = 8
    for head in range(2):
        drawn = np.array([
            [dot for char in line[head * (wide + 1) : head * (wide + 1) + wide] for dot in dots(char)[row]]
            for line in body for row in range(4)
        ])  # fmt: skip
        edges = [int(16 * at / 15) for at in range(15)] + [16]
        means = np.array([weights[0, head, a:b].mean(axis=0) for a, b in pairwise(edges)])
        np.testing.assert_array_equal(drawn[:15], means >= means.max() / 3)
        assert not drawn[15].any()


def test_colours_show_the_pattern() -> None:
    trace = samples.trace(samples.ENGLISH, layers=1, heads=4)
    lines = segments(grid(trace), 80, 40)
    sink = [s for s in lines[2] if s.style and s.style.bgcolor]
    bright = [sum(s.style.color.get_truecolor()) for s in sink if s.style.color]  # type: ignore[union-attr]
    assert max(bright) > 400


def test_hidden_stays_empty_and_is_said() -> None:
    trace = samples.trace(layers=1, heads=1, causal=True)
    lines = segments(grid(trace), 80, 40)
    styles = [[bool(s.style and (s.style.bgcolor or s.style.color)) for s in ln for _ in s.text] for ln in lines[2:6]]
    assert styles[0][3]  # first query sees the first key
    assert not any(styles[0][5:])  # and nothing else
    assert any(styles[3][8:])
    assert "blank: hidden" in "".join(s.text for line in lines for s in line)
    assert "hidden" not in plain(grid(samples.trace()), 80)


def test_legend_says_scale_blocks_and_mute() -> None:
    trace = samples.trace(samples.long(100), layers=2, heads=3)
    text = plain(grid(trace, shared=True, mute=(0,), height=30), 80)
    assert "1 key muted" in text
    assert "a block is the mean of up to" in text
    assert "of each head's largest" in plain(grid(trace), 80)
    assert "row's largest" in plain(grid(trace, kind="row"), 80)
    assert ", log" in plain(grid(trace, kind="log"), 80)


def test_shared_scale_ends_at_the_largest_block() -> None:
    trace = samples.trace(layers=2, heads=3)
    lines = plain(grid(trace, shared=True), 160).splitlines()
    edges = [int(16 * at / 15) for at in range(15)] + [16]
    high = max(
        float(a.weights[0, h, top:bottom].mean(axis=0).max())  # type: ignore[index]
        for a in trace.attentions
        for h in range(3)
        for top, bottom in pairwise(edges)
    )
    assert f"≥ 1/3 of {high:.2f}" in lines[-2]


def test_a_site_without_the_stage_is_left_blank_and_named() -> None:
    trace = samples.trace(layers=3)
    gone = dataclasses.replace(trace.attentions[1], weights=None)
    trace = dataclasses.replace(trace, attentions=(trace.attentions[0], gone, trace.attentions[2]))
    assert "no weights: L1" in plain(grid(trace), 80)
    bare: Trace = dataclasses.replace(trace, attentions=(gone,))
    with pytest.raises(UsageError, match="no site has weights"):
        grid(bare)


def test_cross_attention_has_its_own_shape() -> None:
    trace = samples.trace(layers=2)
    wide = dataclasses.replace(trace.attentions[1], weights=np.full((1, 2, 3, 40), 1 / 40, np.float32))
    trace = dataclasses.replace(trace, attentions=(trace.attentions[0], wide))
    assert plain(grid(trace), 80)
    for line in segments(grid(trace), 80, 24):
        assert sum(cell_len(s.text) for s in line) <= 80


def test_marks_point_at_heads() -> None:
    text = plain(grid(samples.trace(layers=2, heads=3), mark=[(0, 0), (1, 2)]), 80)
    assert text.count("▸") == 2
    assert "L0▸" in text


def test_log_of_negative_values_is_refused() -> None:
    with pytest.raises(UsageError, match="never negative"):
        plain(grid(samples.trace(), "scaled", kind="log"), 80)
    assert plain(grid(samples.trace(), "scaled"), 80)
    with pytest.raises(UsageError, match="not a scale"):
        grid(samples.trace(), kind="x")  # type: ignore[arg-type]


def test_a_mask_of_finite_numbers_hides_as_minus_infinity_does() -> None:
    """Else the scale would run down to -3.4e38, and all that is seen would look alike."""
    one = samples.trace(causal=True)
    finite = samples.finite(one)
    drawn = plain(grid(one, stage="masked"), 60)
    assert plain(grid(finite, stage="masked"), 60) == drawn
    heads = [line[3:].split() for line in drawn.splitlines() if line.startswith("L0")]
    assert len({word for line in heads for word in line}) > 1
