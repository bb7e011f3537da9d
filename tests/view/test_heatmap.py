from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from rich.cells import cell_len
from rich.segment import Segment

from attnx.errors import UsageError
from attnx.view.heatmap import heatmap
from attnx.view.matrix import Matrix, of_attention
from tests.view import samples
from tests.view.screen import plain, segments


def made(pieces: list[str] = samples.ENGLISH, causal: bool = False, head: int = 3) -> Matrix:
    trace = samples.trace(pieces, causal=causal)
    return of_attention(trace, trace.attentions[1], head)


def cells(line: list[Segment]) -> list[tuple[str, tuple[int, int, int] | None, tuple[int, int, int] | None]]:
    """Every cell of a line: its character, its colour, its background."""
    out = []
    for segment in line:
        style = segment.style
        front = tuple(style.color.get_truecolor()) if style and style.color else None
        back = tuple(style.bgcolor.get_truecolor()) if style and style.bgcolor else None
        for char in segment.text:
            out += [(char, front, back)] * cell_len(char)
    return out  # type: ignore[return-value]


def viridis(place: float) -> np.ndarray:
    import matplotlib as mpl

    return np.array(mpl.colormaps["viridis"](min(255, int(place * 256)))[:3]) * 255


def test_every_cell_has_the_colour_of_its_value() -> None:
    matrix = made()
    lines = segments(heatmap(matrix), 80, 40)
    body = [cells(line) for line in lines if any(style.bgcolor for _, style, _ in line if style)][:-1]
    assert len(body) == 16
    for row, line in enumerate(body):
        coloured = [back for _, _, back in line if back]
        assert len(coloured) == 32
        for key in range(16):
            assert coloured[2 * key] == coloured[2 * key + 1]
            wanted = viridis(matrix.values[row, key] / matrix.values.max())
            assert np.abs(wanted - coloured[2 * key]).max() <= 3


def test_half_blocks_hold_two_rows() -> None:
    matrix = made(samples.long(30), head=1)
    lines = segments(heatmap(matrix), 120, 24)
    body = [line for line in lines if any(s.text.strip("▀▄ ") == "" and s.style and s.style.bgcolor for s in line)][:-1]
    assert len(body) == 15
    high = matrix.values.max()
    for pair, line in enumerate(body):
        drawn = [cell for cell in cells(line) if cell[2] is not None]
        assert len(drawn) == 60
        for key in range(30):
            char, front, back = drawn[2 * key]
            upper = front if char == "▀" else back
            assert np.abs(viridis(matrix.values[2 * pair, key] / high) - upper).max() <= 3  # type: ignore[operator]
            assert np.abs(viridis(matrix.values[2 * pair + 1, key] / high) - back).max() <= 3  # type: ignore[operator]


def test_shades_without_colour() -> None:
    matrix = made()
    text = plain(heatmap(matrix), 80).splitlines()
    body = text[-17:-1]
    start = body[0].index("▓▓") - 2
    for row, line in enumerate(body):
        for key in range(16):
            step = min(4, int(matrix.values[row, key] / matrix.values.max() * 5))
            assert line.ljust(80)[start + 2 * key : start + 2 * key + 2] == " ░▒▓█"[step] * 2


def test_hidden_is_unlike_small() -> None:
    matrix = made(causal=True)
    text = plain(heatmap(matrix), 80)
    assert text.count("·") == int(matrix.hidden.sum()) + 1 + 1  # in the title and in the legend
    assert "· hidden by the mask" in text
    assert "hidden" not in plain(heatmap(made()), 80)
    coloured = segments(heatmap(matrix), 80, 40)
    dots = [s for line in coloured[5:-1] for s in line if s.text.startswith("·")]
    assert dots
    assert not any(s.style.bgcolor for s in dots if s.style)


def test_mute_takes_a_sink_off_the_scale() -> None:
    matrix = made(head=0)
    assert matrix.values[:, 0].min() > 0.49
    text = plain(heatmap(matrix, mute=(0,)), 80)
    rest = matrix.values[:, 1:].max()
    assert f"▕ {rest:.2f}" in text
    assert "╱ muted: [CLS]" in text
    assert text.count("╱") == 2 * 16 + 1


def test_axes_are_named() -> None:
    for how in (heatmap(made()), heatmap(made(samples.long()), height=20), heatmap(made(["a", "b"]))):
        text = plain(how, 80)
        assert "query ↓" in text
        assert "key →" in text


@pytest.mark.parametrize("width", [40, 60, 80, 120])
@pytest.mark.parametrize("pieces", [samples.WIDE, samples.HOSTILE, samples.ENGLISH, samples.long(90)])
@pytest.mark.parametrize("causal", [False, True])
def test_pictures_are_straight(pieces: list[str], width: int, causal: bool) -> None:
    for height in (24, 60):
        lines = segments(heatmap(made(pieces, causal=causal)), width, height)
        starts = set()
        for line in lines:
            at = 0
            legend = "".join(s.text for s in line).startswith(("0.00 ", "≤ "))
            for segment in line:
                if segment.style and segment.style.bgcolor and not legend:
                    starts.add(at)
                    break
                at += cell_len(segment.text)
        assert len(starts) == 1


def test_blocks_say_what_they_are_and_show_the_means() -> None:
    matrix = made(samples.long(100), head=2)
    view = heatmap(matrix, height=20)
    text = plain(view, 60)
    reduced = matrix.blocks(14, 51)
    assert "each cell is the mean of up to 8 x 2 (queries x keys)" in text
    assert f"▕ {np.nanmax(reduced.values):.2f}" in text
    assert " 0–6 " in text


def test_window_marks_the_query() -> None:
    text = plain(heatmap(made(samples.long(100)), query=50, height=20), 60)
    assert "▸50 " in text
    assert "round query 50" in text.replace("\n", " ")
    assert "queries 44–55 of 0–99" in text


def test_scale_stays_that_of_the_whole_matrix_in_a_window() -> None:
    matrix = made(samples.long(100))
    assert f"▕ {matrix.values.max():.2f}" in plain(heatmap(matrix, query=50, height=20), 60)


def test_missing_values_are_said() -> None:
    matrix = made(["a", "b", "c"])
    values = matrix.values.copy()
    values[1, 1] = np.nan
    text = plain(heatmap(dataclasses.replace(matrix, values=values)), 60)
    assert "- no value" in text


def test_every_size() -> None:
    for queries, keys in ((1, 1), (1, 200), (200, 1), (2, 3)):
        trace = samples.trace([f"t{at}" for at in range(max(queries, keys))])
        matrix = of_attention(trace, trace.attentions[0], 1)
        part = dataclasses.replace(
            matrix, values=matrix.values[:queries, :keys], hidden=matrix.hidden[:queries, :keys],
            queries=matrix.queries[:queries], keys=matrix.keys[:keys],
        )  # fmt: skip
        for width in (30, 80):
            assert plain(heatmap(part), width)
            assert segments(heatmap(part), width, 24)


def test_refusals() -> None:
    with pytest.raises(UsageError, match="0 to 15"):
        heatmap(made(), query=99)
    with pytest.raises(UsageError, match="not a scale"):
        heatmap(made(), kind="odd")  # type: ignore[arg-type]
