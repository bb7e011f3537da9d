from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from rich.cells import cell_len
from rich.style import Style

from attnx.errors import UsageError
from attnx.view.cells import cut, safe
from attnx.view.lines import lines
from attnx.view.matrix import Matrix, of_attention
from attnx.view.strokes import Canvas
from tests.view import samples
from tests.view.screen import plain, segments


def made(head: int = 3, pieces: list[str] = samples.ENGLISH, causal: bool = False, stage: str = "weights") -> Matrix:
    trace = samples.trace(pieces, causal=causal)
    return of_attention(trace, trace.attentions[1], head, stage)  # type: ignore[arg-type]


def dots(char: str) -> int:
    return bin(ord(char) - 0x2800).count("1") if "\u2800" <= char <= "\u28ff" else 0


def test_counts_what_it_draws() -> None:
    matrix = made()
    for least in (0.05, 0.1, 0.5):
        count = int((matrix.values >= least).sum())
        assert f"{count} lines of 256: weights of at least {least:.2f}" in plain(lines([matrix], least=least), 80)
    assert "16 lines of 256" in plain(lines([matrix], least=0, top=1), 80)


def test_one_query_joins_its_keys() -> None:
    matrix = made()
    text = plain(lines([matrix], query=10, least=0.5), 80).splitlines()
    assert "1 line of 256" in text[-1]
    assert "query 10 alone" in text[-1]
    body = text[2:18]
    assert dots(body[10][8]) > 0  # leaves from `it`
    assert dots(body[2].rstrip().removesuffix("animal").rstrip()[-1]) > 0  # and comes to `animal`
    assert not any(dots(char) for line in body[:2] + body[11:] for char in line)


def test_heavier_is_thicker() -> None:
    counts = []
    for value in (0.2, 0.5, 0.9):
        matrix = made(pieces=["a", "b", "c"])
        matrix.values[...] = 0
        matrix.values[1, 1] = value
        counts.append(sum(dots(char) for char in plain(lines([matrix]), 80)))
    assert counts[1] == 2 * counts[0]
    assert counts[2] == 3 * counts[0]


def test_a_curve_has_no_gaps_and_ends_where_it_should() -> None:
    for start in range(12):
        for stop in range(12):
            canvas = Canvas(20, 12)
            canvas.curve(start + 0.5, stop + 0.5, 1.0, 1, Style())
            dotted = canvas._dots
            columns = [np.flatnonzero(dotted[:, x]) for x in range(40)]
            assert all(len(column) for column in columns)
            assert columns[0][0] // 4 == start
            assert columns[-1][0] // 4 == stop
            for left, right in pairwise(columns):
                gap = max(right.min() - left.max(), left.min() - right.max())
                assert gap <= 1


def test_the_stronger_stroke_has_the_colour() -> None:
    canvas = Canvas(4, 1)
    weak, strong = Style(color="red"), Style(color="blue")
    canvas.curve(0.5, 0.5, 0.9, 1, strong)
    canvas.curve(0.5, 0.5, 0.1, 3, weak)
    assert {str(span.style) for span in canvas.line(0).spans} == {"blue"}


def test_heads_have_colours_of_their_own() -> None:
    heads = [made(head) for head in (0, 2, 3)]
    drawn = segments(lines(heads, query=10), 100, 40)
    colours = {s.style.color.get_truecolor() for line in drawn[2:18] for s in line if s.style and s.style.color}
    legend = [s.style.color.get_truecolor() for s in drawn[18] if s.style and s.style.color]
    assert len(legend) == 3
    assert colours == set(legend)
    assert "L1 H0" in plain(lines(heads), 100)
    assert "no" not in plain(lines([made()]), 100).splitlines()[-1]
    assert "told apart by colour" in plain(lines(heads), 100)


@pytest.mark.parametrize("pieces", [samples.WIDE, samples.HOSTILE])
@pytest.mark.parametrize("width", [40, 60, 100])
def test_token_columns_are_straight(pieces: list[str], width: int) -> None:
    drawn = segments(lines([made(pieces=pieces)], least=2.0), width, 40)
    lefts, rights = set(), set()
    for line, piece in zip(drawn[2 : 2 + len(pieces)], pieces, strict=True):
        text = "".join(segment.text for segment in line)
        name = cut(safe(piece), min(16, width // 4))
        assert text.strip().startswith(name.strip())
        assert text.endswith(name)
        lefts.add(cell_len(text[: text.index(name)]) + cell_len(name))
        rights.add(cell_len(text) - cell_len(name))
    assert len(lefts) == len(rights) == 1


def test_hidden_and_muted_get_no_line() -> None:
    matrix = made(1, causal=True)
    text = plain(lines([matrix], least=0, mute=(0,)), 100)
    query, key = np.indices(matrix.values.shape)
    assert f"{int(((key <= query) & (key != 0)).sum())} lines of {int((key <= query).sum())}" in text
    assert "muted: [CLS]" in text


def test_scores_draw_the_largest() -> None:
    assert "16 lines of 256: scaled, the largest of each query" in plain(lines([made(stage="scaled")]), 100)


def test_long_texts_are_cut_round_the_query() -> None:
    text = plain(lines([made(pieces=samples.long(90))], query=45, height=20), 80)
    assert len(text.splitlines()) <= 20
    assert "round query 45" in text


def test_refusals() -> None:
    with pytest.raises(UsageError, match="no head"):
        lines([])
    with pytest.raises(UsageError, match="different tokens"):
        lines([made(), made(pieces=samples.WIDE)])
    with pytest.raises(UsageError, match="0 to 15"):
        lines([made()], query=16)


def test_more_heads_than_colours_are_said() -> None:
    matrix = made()

    def text(heads: int) -> str:
        return "".join(s.text for line in segments(lines([matrix] * heads), 100, 60, "truecolor") for s in line)

    assert "Colours repeat after 7 heads" in text(8)
    assert "Colours repeat" not in text(7)
    assert "Colours repeat" not in plain(lines([matrix] * 8), 100)
    assert "Heads are told apart by colour" in plain(lines([matrix] * 8), 100)
