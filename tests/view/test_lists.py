"""Rows, bars, sparklines."""

from __future__ import annotations

import numpy as np
import pytest

from attnx.errors import UsageError
from attnx.records import Axis, Measurement
from attnx.view.bars import bars
from attnx.view.heatmap import heatmap
from attnx.view.matrix import Matrix, of_attention
from attnx.view.page import Page
from attnx.view.row import row
from attnx.view.sparkline import sparklines
from attnx.view.strokes import bar, spark
from attnx.view.table import matrix_table
from tests.view import samples
from tests.view.screen import plain

PAGE = Page(80, 24, "none", False)


def made(causal: bool = False, stage: str = "weights") -> Matrix:
    trace = samples.trace(causal=causal)
    return of_attention(trace, trace.attentions[1], 3, stage)  # type: ignore[arg-type]


@pytest.mark.parametrize(("share", "drawn"), [
    (0.0, ""), (1e-6, "▏"), (0.25, "██▌"), (0.5, "█████"), (0.99, "█████████▉"), (1.0, "█" * 10), (7.0, "█" * 10),
    (float("nan"), ""), (-1.0, ""),
])  # fmt: skip
def test_bar(share: float, drawn: str) -> None:
    assert bar(share, 10, PAGE).plain == drawn.ljust(10)


@pytest.mark.parametrize("share", np.linspace(0.01, 1, 37))
def test_bars_are_as_long_as_they_say(share: float) -> None:
    text = bar(share, 20, PAGE).plain.rstrip()
    length = sum({"█": 8, "▉": 7, "▊": 6, "▋": 5, "▌": 4, "▍": 3, "▎": 2, "▏": 1}[char] for char in text) / 8
    assert abs(length - 20 * share) <= 1 / 16 + 1e-9


def test_spark() -> None:
    assert spark([0, 0.5, 1, float("nan"), 2], 0, 1, PAGE).plain == "▁▄▇ ▇"
    assert spark([3, 3], 3, 3, PAGE, width=2).plain == "▁▁▁▁"


def test_row_is_ranked_and_the_rest_is_counted() -> None:
    matrix = made()
    text = plain(row(matrix, 10, top=5), 80)
    weights = matrix.values[10].astype(float)
    order = np.argsort(-weights, kind="stable")
    lines = text.splitlines()[1:6]
    for line, key in zip(lines, order, strict=False):
        assert line.split()[:3] == [str(key), samples.ENGLISH[key], f"{weights[key]:.3f}"]
    assert f"11 more, {weights[order[5:]].sum():.3f} together" in text
    assert "query 10 it → key" in text


def test_row_without_top_keeps_the_texts_order_and_leaves_out_what_is_hidden() -> None:
    text = plain(row(made(causal=True), 4, top=None), 80)
    assert [line.split()[0] for line in text.splitlines()[1:6]] == ["0", "1", "2", "3", "4"]
    assert "11 hidden by the mask" in text


def test_tokens_are_shown_without_the_spaces_that_tokenizers_keep() -> None:
    plainly, spaced = (
        of_attention(one, one.attentions[1], 3)
        for one in (samples.trace(["<s>", "The", "cat", "sat"]), samples.trace(["<s>", " The", " cat", " sat"]))
    )
    assert plain(row(spaced, 2), 80) == plain(row(plainly, 2), 80)
    assert "query 2 cat → key" in plain(row(spaced, 2), 80)
    assert plain(heatmap(spaced), 80) == plain(heatmap(plainly), 80)
    assert plain(matrix_table(spaced), 80) == plain(matrix_table(plainly), 80)


def test_row_mutes() -> None:
    text = plain(row(made(), 10, mute=(2,)), 80)
    assert "animal" not in text.splitlines()[1]
    assert "muted: animal" in text


def test_row_refuses() -> None:
    with pytest.raises(UsageError):
        row(made(), 16)
    with pytest.raises(UsageError, match="`top=0` shows nothing"):
        row(made(), 1, top=0)


def test_bars_of_a_measurement() -> None:
    text = plain(bars(samples.by_candidate()), 80)
    assert [line.split()[:2] for line in text.splitlines()[1:6]] == [
        ["animal", "0.67"], ["street", "0.10"], ["고양이", "0.03"], ["[/b]", "0.20"], ["none", "-"],
    ]  # fmt: skip
    text = plain(bars(samples.by_candidate(), top=2), 80)
    assert [line.split()[0] for line in text.splitlines()[1:3]] == ["animal", "[/b]"]
    assert "3 more" in text
    with pytest.raises(UsageError, match="2 axes"):
        bars(samples.by_head())


def test_bars_of_negative_values_start_at_the_smallest() -> None:
    m = Measurement("x", "", (Axis("a", ("p", "q", "r")),), np.array([-1.0, 0.0, 1.0]))
    lines = plain(bars(m), 80).splitlines()
    assert lines[1].split() == ["p", "-1.00"]
    assert lines[2].count("█") == 25
    assert lines[3].count("█") == 50
    assert "bars: -1.00 to 1.00" in lines[4]


def test_sparklines_along_either_axis() -> None:
    m = samples.by_head(6, 4)
    by_layer = plain(sparklines(m, along="layer"), 80).splitlines()
    assert [line.split()[0] for line in by_layer[2:6]] == ["H0", "H1", "H2", "H3"]
    at = int(m.values[:, 1].argmax())
    assert f"{m.values[:, 1].min():.2f}–{m.values[:, 1].max():.2f}, most at L{at}" in by_layer[3]
    by_head = plain(sparklines(m), 80).splitlines()
    assert [line.split()[0] for line in by_head[2:8]] == [f"L{at}" for at in range(6)]
    assert "height: 0.00 to" in by_layer[6]


def test_sparklines_say_what_does_not_fit() -> None:
    text = plain(sparklines(samples.by_head(2, 80)), 60)
    assert "of 80 do not fit" in text


def test_sparklines_refuse() -> None:
    with pytest.raises(UsageError, match="no axis 'token'"):
        sparklines(samples.by_head(), along="token")
    cube = Measurement("x", "", tuple(Axis(name, ("0",)) for name in "abc"), np.zeros((1, 1, 1)))
    with pytest.raises(UsageError, match="3 axes"):
        sparklines(cube)


def test_nothing_measured() -> None:
    empty = Measurement("x", "", (Axis("a", ("p",)),), np.array([np.nan]))
    assert "no values" in plain(sparklines(empty), 60)
    assert plain(bars(empty), 60)
