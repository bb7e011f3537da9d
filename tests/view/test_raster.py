"""PNG figures, against the colours, character tables and tick rules of matplotlib."""

from __future__ import annotations

import dataclasses
import io

import numpy as np
import pytest
from PIL import Image

from attnx.view import fonts
from attnx.view.colour import DIVERGING, SEQUENTIAL
from attnx.view.figure import grid_figure, heatmap_figure
from attnx.view.fonts import Letters
from attnx.view.matrix import Matrix, Side, of_attention
from attnx.view.raster import marks
from attnx.view.scale import Scale
from tests.view import samples


def pixels(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(int)


def longest(black: np.ndarray) -> np.ndarray:
    """The longest run of True in each row."""
    best = run = np.zeros(len(black), int)
    for column in black.T:
        run = (run + 1) * column
        best = np.maximum(best, run)
    return best


def cells_of(picture: np.ndarray) -> np.ndarray:
    """The cells of a heatmap: inside its frame, the first black lines as long as a fifth of the picture."""
    black = (picture == 0).all(-1)
    x = np.flatnonzero(longest(black.T) > 0.2 * len(picture))
    y = np.flatnonzero(longest(black) > 0.2 * picture.shape[1])
    return picture[y[0] + 1 : y[1], x[0] + 1 : x[1]]


def matrix_of(values: np.ndarray, labels: tuple[str, ...] = (), hidden: np.ndarray | None = None) -> Matrix:
    def side(name: str, count: int) -> Side:
        names = labels or tuple(f"t{at}" for at in range(count))
        return Side(name, names[:count], tuple(range(count)), (False,) * count, count)

    rows, columns = values.shape
    none = np.zeros(values.shape, bool)
    return Matrix(
        "weights", "share", values, side("query", rows), side("key", columns), none if hidden is None else hidden
    )


@pytest.mark.parametrize("shape", [(7, 5), (3, 12), (90, 90), (1, 1)])
def test_every_cell_has_the_colour_of_its_value(shape: tuple[int, int]) -> None:
    import matplotlib as mpl

    values = np.random.default_rng(3).random(shape)
    cells = cells_of(pixels(heatmap_figure(matrix_of(values), ".png").data))
    tall, wide = cells.shape[0] // shape[0], cells.shape[1] // shape[1]
    assert cells.shape[:2] == (tall * shape[0], wide * shape[1])
    assert tall == wide
    wanted = mpl.colormaps["viridis"](values / values.max())[..., :3] * 255
    shown = cells.reshape(shape[0], tall, shape[1], wide, 3)
    assert (shown == shown[:, :1, :, :1]).all()
    assert np.abs(shown[:, 0, :, 0] - wanted).max() <= 4


def test_two_sided_values_have_the_colours_of_puor() -> None:
    import matplotlib as mpl

    values = np.linspace(-0.5, 0.5, 25).reshape(5, 5)
    cells = cells_of(pixels(heatmap_figure(matrix_of(values), ".png", diverging=True).data))
    size = len(cells) // 5
    assert np.abs(cells[::size, ::size] - mpl.colormaps["PuOr_r"](values + 0.5)[..., :3] * 255).max() <= 4


def test_hidden_and_muted_cells_are_hatched_and_no_others() -> None:
    hidden = np.triu(np.ones((6, 6), bool), 1)
    cells = cells_of(pixels(heatmap_figure(matrix_of(np.ones((6, 6)), hidden=hidden), ".png", mute=(2,)).data))
    size = len(cells) // 6
    grey = (np.ptp(cells, axis=-1) == 0).reshape(6, size, 6, size)
    wanted = hidden.copy()
    wanted[:, 2] = True
    assert (grey.all((1, 3)) == wanted).all()
    assert (grey.any((1, 3)) == wanted).all()
    tones = [len(np.unique(cells[:size, at * size : (at + 1) * size])) for at in (2, 4)]
    assert min(tones) > 2
    assert cells[:, 2 * size : 3 * size].mean() < cells[:size, 4 * size :].mean()


def test_a_cell_of_the_grid_is_never_dropped() -> None:
    trace = samples.trace(samples.long(100), layers=2, heads=12)
    picture = pixels(grid_figure(trace, ".png").data)
    assert picture.shape[1] > 12 * 100
    matrix = of_attention(trace, trace.attentions[0], 0)
    assert cells_of(pixels(heatmap_figure(dataclasses.replace(matrix, title=""), ".png").data)).shape[0] % 100 == 0


def test_long_labels_leave_room_for_the_cells() -> None:
    labels = tuple("antidisestablishmentarianism" * count for count in (1, 2, 1, 2))
    picture = pixels(heatmap_figure(matrix_of(np.eye(4), labels), ".png").data)
    assert cells_of(picture).shape[1] >= 380
    for edge in (picture[:6], picture[-6:], picture[:, :6], picture[:, -6:]):
        assert (edge == 255).all()


def test_characters_are_found_as_the_fonts_tables_have_them() -> None:
    from matplotlib import font_manager

    table = font_manager.get_font(font_manager.findfont(fonts.OWN)).get_charmap()
    letters = Letters()
    some = [chr(code) for code in (*range(33, 126), *range(161, 3000, 7), 0x2193, 0xAC00, 0x4E00, 0x1F600, 0x12000)]
    some = [char for char in some if char.isprintable() and fonts.safe(char) == char]
    for char in some:
        letters.word(char, 20)
    assert set(letters.missing) == {char for char in some if ord(char) not in table}
    assert len(some) > 300
    assert len(letters.missing) > 20


def test_what_the_font_lacks_comes_from_another(monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib import font_manager

    first, second = (
        font_manager.get_font(font_manager.findfont(name)).get_charmap() for name in (fonts.OWN, "STIXGeneral")
    )
    char = next(chr(code) for code in sorted(second) if code not in first and fonts.safe(chr(code)) == chr(code))
    assert not Letters().missing
    without = Letters()
    box = without.word(f"a{char}b", 20)
    assert list(without.missing) == [char]
    monkeypatch.setattr(fonts, "FALLBACK", ("STIXGeneral",))
    letters = Letters()
    word = letters.word(f"a{char}b", 20)
    assert not letters.missing
    assert word.ink.tobytes() != box.ink.tobytes()
    alone = [letters.word(part, 20).wide for part in ("a", char, "b")]
    assert abs(word.wide - sum(alone)) <= 2
    assert letters.word("", 20).ink is not None  # the sign for nothing
    assert letters.word(" x", 20).wide > letters.word("x", 20).wide


@pytest.mark.parametrize(
    ("low", "high"), [(0.0, 0.81), (0.0, 1.0), (-3.7, 12.2), (0.0, 3e-7), (-0.5, 0.5), (5.0, 5.0), (100.0, 90000.0)]
)
def test_marks_of_a_bar_are_those_of_matplotlib(low: float, high: float) -> None:
    from matplotlib.ticker import MaxNLocator

    high = high if high > low else low + 1
    for most in (3, 5, 9):
        found = marks(Scale("linear", low, high, SEQUENTIAL), most)
        known = MaxNLocator(nbins=most, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
        known = known[(known >= low - 1e-9 * (high - low)) & (known <= high + 1e-9 * (high - low))]
        assert np.allclose([value for value, _ in found], known, atol=1e-9 * (high - low))
        assert np.allclose([low + place * (high - low) for _, place in found], known, atol=1e-9 * (high - low))


def test_marks_of_other_scales() -> None:
    found = marks(Scale("log", 0.0008, 0.8, SEQUENTIAL), 9)
    assert [value for value, _ in found] == pytest.approx([0.001, 0.01, 0.1])
    assert [0.0008 * 1000**place for _, place in found] == pytest.approx([0.001, 0.01, 0.1])
    assert [value for value, _ in marks(Scale("row", 0, 7, SEQUENTIAL), 5)] == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1])
    assert [value for value, _ in marks(Scale("row", -7, 7, DIVERGING), 4)] == pytest.approx([-1, -0.5, 0, 0.5, 1])
