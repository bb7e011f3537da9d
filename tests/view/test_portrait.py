"""A view drawn as a terminal shows it: every cell has the colour that the view gave it, where the view put it."""

from __future__ import annotations

import io

import numpy as np
import pytest
from rich.text import Text

pytest.importorskip("matplotlib", reason="the extra `figures` is not installed")

from PIL import Image

from attnx.errors import UsageError
from attnx.view.portrait import portrait

GROUND = (41, 41, 41)


def pixels(view: Text, columns: int, rows: int) -> tuple[np.ndarray, float, float]:
    """The picture [height,width,3], and the size of a cell in pixels."""
    drawn = np.asarray(Image.open(io.BytesIO(portrait(view).data)).convert("RGB"))
    inside = drawn[10:-10, 10:-10]
    assert tuple(drawn[10, 10]) == GROUND
    return drawn, inside.shape[1] / (columns + 2), drawn.shape[0] / (rows + 1.6)


def cell(drawn: np.ndarray, at: tuple[float, float], columns: int, rows: int) -> tuple[int, ...]:
    """The colour at a place in cells, from the upper left of the first one."""
    margin = 0.03 * 200  # matplotlib's padding, white
    height, width = drawn.shape[0] - 2 * margin, drawn.shape[1] - 2 * margin
    x = margin + (1 + at[0]) / (columns + 2) * width
    y = margin + (0.8 + at[1]) / (rows + 1.6) * height
    return tuple(int(part) for part in drawn[int(y), int(x)])


def test_grounds_blocks_and_dots_are_where_they_belong() -> None:
    view = Text()
    view.append("  ", "on #ff0000")
    view.append("▀", "#00ff00 on #0000ff")
    view.append("█▌", "#ffff00")
    view.append("\n")
    view.append("▂", "#ff00ff")
    view.append("⣿", "#00ffff")
    view.append("   x")
    drawn, _, _ = pixels(view, 6, 2)
    assert cell(drawn, (0.5, 0.5), 6, 2) == (255, 0, 0)
    assert cell(drawn, (1.5, 0.9), 6, 2) == (255, 0, 0)
    assert cell(drawn, (2.5, 0.25), 6, 2) == (0, 255, 0)
    assert cell(drawn, (2.5, 0.75), 6, 2) == (0, 0, 255)
    assert cell(drawn, (3.5, 0.5), 6, 2) == (255, 255, 0)
    assert cell(drawn, (4.2, 0.5), 6, 2) == (255, 255, 0)
    assert cell(drawn, (4.8, 0.5), 6, 2) == GROUND
    assert cell(drawn, (0.5, 1.5), 6, 2) == GROUND
    assert cell(drawn, (0.5, 1.9), 6, 2) == (255, 0, 255)
    assert cell(drawn, (1.25, 1.125), 6, 2) == (0, 255, 255)
    assert cell(drawn, (1.5, 1.25), 6, 2) == GROUND


@pytest.mark.parametrize(("ending", "start"), [(".png", b"\x89PNG"), (".pdf", b"%PDF"), (".svg", b"<?xml")])
def test_formats_repeat(ending: str, start: bytes) -> None:
    view = Text("weights ▁▂▃ ⠶⠶ $x$ [b] ▏", "bold")
    first = portrait(view, ending)
    assert first.data.startswith(start)
    assert first.data == portrait(view, ending).data


def test_letters_are_text_in_svg_and_what_no_font_has_is_said() -> None:
    found = portrait(Text("[bold]the $x^2$ <b> \U0001f9ff"), ".svg")
    assert b"[bold]the" in found.data
    assert b"&lt;b&gt;" in found.data
    boxed = portrait(Text("it \U0010fffd"), ".png")
    assert boxed.notes == () or "No installed font has" in boxed.notes[0]


def test_another_format_is_refused() -> None:
    with pytest.raises(UsageError, match="not a format"):
        portrait(Text("x"), ".gif")
