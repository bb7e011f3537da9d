from __future__ import annotations

import numpy as np
import pytest
from rich.cells import cell_len

from attnx.errors import UsageError
from attnx.records import Axis, Measurement
from attnx.view.matrix import Matrix, of_attention
from attnx.view.table import matrix_table, table
from tests.view import samples
from tests.view.screen import plain, segments


def made(pieces: list[str] = samples.ENGLISH, causal: bool = False, stage: str = "weights") -> Matrix:
    trace = samples.trace(pieces, causal=causal)
    return of_attention(trace, trace.attentions[1], 3, stage)  # type: ignore[arg-type]


def numbers(line: str) -> list[str]:
    return [word.rstrip("░▒▓█-=≡#") for word in line.split()]


def test_all_numbers_where_there_is_room() -> None:
    matrix = made()
    body = plain(matrix_table(matrix), 160).splitlines()[2:18]
    for row, line in enumerate(body):
        assert numbers(line)[-16:] == [f"{value:.2f}" for value in matrix.values[row]]
        assert numbers(line)[:2] == [str(row), samples.ENGLISH[row]]


def test_stages_before_the_softmax() -> None:
    matrix = made(causal=True, stage="masked")
    body = plain(matrix_table(matrix), 200).splitlines()[2:18]
    for row, line in enumerate(body):
        shown = numbers(line)[-16:]
        assert shown[: row + 1] == [f"{value:.2f}".replace("-0.00", "0.00") for value in matrix.values[row, : row + 1]]
        assert set(shown[row + 1 :]) <= {"·"}


@pytest.mark.parametrize("width", [40, 60, 80, 100, 160])
@pytest.mark.parametrize("pieces", [samples.ENGLISH, samples.WIDE, samples.HOSTILE, samples.long(60)])
def test_rows_never_wrap_and_columns_are_straight(pieces: list[str], width: int) -> None:
    matrix = made(pieces, causal=True)
    lines = segments(matrix_table(matrix, query=7, decimals=3), width, 24)
    body = lines[2 : 2 + len(pieces)]
    assert {sum(cell_len(segment.text) for segment in line) for line in body} == {
        sum(cell_len(segment.text) for segment in lines[1])
    }
    edges = set()
    for line in body:
        at, filled = 0, set()
        for segment in line:
            if segment.style and segment.style.bgcolor:
                filled.add(at)
            at += cell_len(segment.text)
        edges |= filled
    step = np.diff(sorted(edges))
    assert len(set(step)) <= 1


def test_what_does_not_fit_is_said_and_is_round_the_query() -> None:
    text = plain(matrix_table(made(samples.long(60)), query=30, rows=5), 60)
    assert "▸30 " in text
    assert "queries 28–32 of 0–59" in text
    assert "of 0–59, round query 30" in text.replace("\n", " ")


def test_colours_follow_the_values() -> None:
    matrix = made()
    lines = segments(matrix_table(matrix), 160, 40)[2:18]
    ranked = []
    for row, line in enumerate(lines):
        filled = [segment for segment in line if segment.style and segment.style.bgcolor]
        assert len(filled) == 16
        ranked += [(matrix.values[row, key], sum(s.style.bgcolor.get_truecolor())) for key, s in enumerate(filled)]  # type: ignore[union-attr]
    ranked.sort(key=lambda item: item[0])
    low, high = ranked[0][1], ranked[-1][1]
    assert low < 200 < high


def test_muted_columns_have_numbers_and_no_colour() -> None:
    lines = segments(matrix_table(made(), mute=(0, 15)), 160, 40)[2:18]
    for line in lines:
        assert len([s for s in line if s.style and s.style.bgcolor]) == 14


def test_measurements_of_each_rank() -> None:
    m = samples.by_head(3, 4)
    text = plain(table(m), 80)
    for row in range(3):
        line = next(line for line in text.splitlines() if line.startswith(f"L{row} "))
        assert numbers(line)[1:] == [f"{value:.2f}" for value in m.values[row]]
    assert "Source: Clark et al. 2019, section 3.3" in text
    assert "mean over queries of -sum a ln a" in text
    assert "entropy (nats)" in text
    text = plain(table(samples.by_candidate(), decimals=3), 80)
    assert [numbers(line) for line in text.splitlines()[2:7]] == [
        ["animal", "0.670"], ["street", "0.100"], ["고양이", "0.030"], ["[/b]", "0.200"], ["none", ""],
    ]  # fmt: skip
    cube = Measurement(
        "x", "", (Axis("kind", ("a", "b")), Axis("layer", ("L0",)), Axis("head", ("H0", "H1"))),
        np.arange(4.0).reshape(2, 1, 2),
    )  # fmt: skip
    text = plain(table(cube, shaded=False), 80)
    assert [line.split() for line in text.splitlines() if line.startswith("L0")] == [
        ["L0", "0.00", "1.00"], ["L0", "2.00", "3.00"],
    ]  # fmt: skip
    assert "a · x" in text
    assert "b · x" in text


def test_measurements_too_wide_go_on_below() -> None:
    text = plain(table(samples.by_head(2, 40)), 60)
    heads = [word for line in text.splitlines() if line.startswith("layer") for word in line.split() if word[0] == "H"]
    assert heads == [f"H{at}" for at in range(40)]


def test_refusals() -> None:
    values = np.zeros((1, 1, 1, 1))
    four = Measurement("x", "", tuple(Axis(name, ("0",)) for name in "abcd"), values)
    with pytest.raises(UsageError, match="4 axes"):
        table(four)
    with pytest.raises(UsageError, match="0 to 15"):
        matrix_table(made(), query=-1)
