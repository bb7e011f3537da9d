from __future__ import annotations

import dataclasses
import io
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from attnx.errors import UsageError
from attnx.view.drawing import FORMATS
from attnx.view.figure import grid_figure, heatmap_figure
from attnx.view.matrix import Matrix, of_attention
from tests.view import samples

TOKENS = ["[CLS]", "animal", "$x^2$", "a_b", "[bold]", "\x1b[31m", "50%", "\\frac", "été", "[SEP]"]


def made(pieces: list[str] = samples.ENGLISH, causal: bool = False, head: int = 3) -> Matrix:
    trace = samples.trace(pieces, causal=causal)
    return of_attention(trace, trace.attentions[1], head)


def texts(svg: bytes) -> list[str]:
    space = "{http://www.w3.org/2000/svg}"
    return ["".join(node.itertext()).strip() for node in ElementTree.fromstring(svg).iter(f"{space}text")]


@pytest.mark.parametrize("ending", FORMATS)
def test_formats(ending: str) -> None:
    starts = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}
    assert heatmap_figure(made(), ending).data.startswith(starts[ending])
    assert grid_figure(samples.trace(), ending).data.startswith(starts[ending])


def test_axes_have_the_tokens_as_they_are() -> None:
    found = texts(heatmap_figure(made(TOKENS), ".svg").data)
    for shown in ("animal", "$x^2$", "a_b", "[bold]", "<0x1B>[31m", "50%", "\\frac", "été"):
        assert found.count(shown) == 2, shown
    assert "query" in found
    assert "key" in found
    assert "L1 H3 · weights" in found
    assert "weights (share)" in found


def test_cells_have_the_colours_of_their_values() -> None:
    matrix = made()
    picture = np.asarray(Image.open(io.BytesIO(heatmap_figure(matrix, ".png").data)).convert("RGB")).astype(int)
    import matplotlib as mpl

    wanted = np.array(mpl.colormaps["viridis"](0.0)[:3]) * 255
    yellow = np.abs(picture - [253, 231, 36]).max(-1) <= 8
    purple = np.abs(picture - wanted).max(-1) <= 30
    assert yellow.sum() > 500
    assert purple.sum() > 20 * yellow.sum() / 16


def test_vectors_have_a_shape_a_cell() -> None:
    svg = heatmap_figure(made(), ".svg").data.decode()
    assert svg.count("<path") > 256
    assert "<image" not in svg.split('id="QuadMesh')[1].split("</g>")[0]


def test_hidden_cells_are_hatched() -> None:
    def coloured(matrix: Matrix) -> int:
        picture = Image.open(io.BytesIO(heatmap_figure(matrix, ".png").data)).convert("RGB")
        pixels = np.asarray(picture).astype(int)[:, : int(picture.width * 0.8)]
        return int((pixels.max(-1) - pixels.min(-1) > 40).sum())

    assert 0.45 < coloured(made(causal=True)) / coloured(made()) < 0.6
    assert "<pattern" in heatmap_figure(made(causal=True), ".svg").data.decode()


@pytest.mark.parametrize("kind", ["linear", "log", "row"])
def test_scales(kind: str) -> None:
    figure = heatmap_figure(made(causal=True), ".svg", kind=kind, mute=(0,))  # type: ignore[arg-type]
    found = texts(figure.data)
    assert not any("mathdefault" in text for text in found)
    assert ("share of the row's largest" in found) == (kind == "row")


def test_differences_have_two_sides() -> None:
    one, two = made(head=3), made(head=2)
    matrix = dataclasses.replace(one, values=one.values - two.values)
    picture = Image.open(io.BytesIO(heatmap_figure(matrix, ".png", diverging=True).data)).convert("RGB")
    pixels = np.asarray(picture).astype(int)
    orange = (pixels[..., 0] > pixels[..., 2] + 60).sum()
    purple = (pixels[..., 2] > pixels[..., 1] + 40).sum()
    assert orange > 1000
    assert purple > 1000


def test_characters_without_a_font_are_said() -> None:
    lost = "\U00012000"  # cuneiform: no font of a test machine has it
    for ending, drawn in ((".png", "boxes"), (".pdf", "boxes"), (".svg", "viewer's fonts")):
        notes = heatmap_figure(made(["a", lost, "b"]), ending).notes
        assert any(lost in note and drawn in note for note in notes)
    assert lost in texts(heatmap_figure(made(["a", lost, "b"]), ".svg").data)
    assert heatmap_figure(made(), ".png").notes == ()


def test_two_runs_give_the_same_bytes() -> None:
    for ending in FORMATS:
        assert heatmap_figure(made(), ending).data == heatmap_figure(made(), ending).data


def test_long_texts_have_every_so_many_tokens() -> None:
    found = texts(heatmap_figure(made(samples.long(150)), ".svg").data)
    assert "3 on" in found or "3 sat" in found
    assert not any(text.startswith("1 ") for text in found)


def test_grid_names_layers_heads_and_blocks() -> None:
    found = texts(grid_figure(samples.trace(layers=3, heads=5), ".svg").data)
    assert found[:5] == list("01234")
    assert [text for text in found if text.startswith("L")] == ["L0", "L1", "L2"]
    assert "layer" in found
    assert any("query ↓, key →" in text for text in found)
    figure = grid_figure(samples.trace(samples.long(300), layers=1, heads=1), ".png")
    assert figure.notes == ("each cell is the mean of up to 3 x 3 (queries x keys)",)


def test_grid_leaves_missing_heads_empty() -> None:
    trace = samples.trace(layers=2)
    gone = dataclasses.replace(trace.attentions[1], weights=None)
    assert grid_figure(dataclasses.replace(trace, attentions=(trace.attentions[0], gone)), ".png", shared=True).data
    with pytest.raises(UsageError, match="no site has weights"):
        grid_figure(dataclasses.replace(trace, attentions=(gone,)), ".png")


def test_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="not a format"):
        heatmap_figure(made(), ".gif")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UsageError, match="matplotlib") as caught:
        heatmap_figure(made(), ".png")
    assert "[figures]'" in caught.value.hint


def test_nothing_is_imported_before_it_is_used() -> None:
    code = (
        "import sys, attnx.view.figure, attnx.view.save; print('PIL' in sys.modules, 'pyarrow' in sys.modules)\n"
        "from tests.view.test_figure import grid_figure, heatmap_figure, made, samples\n"
        "heatmap_figure(made(), '.png'), grid_figure(samples.trace(), '.png'); print('matplotlib' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["False", "False", "False"]


def test_the_grid_leaves_out_what_a_mask_of_finite_numbers_hides() -> None:
    one = samples.trace(causal=True)
    finite = samples.finite(one)
    for ending in (".svg", ".png"):
        assert grid_figure(finite, ending, stage="masked").data == grid_figure(one, ending, stage="masked").data


def test_figures_of_several_threads_leave_settings_and_warnings_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    save, begun, both, over = Figure.savefig, Event(), Event(), Event()

    def slow(*args: Any, **named: Any) -> None:
        if begun.is_set():
            both.set()
            over.wait(5)  # the first to begin ends first
        else:
            begun.set()
            both.wait(0.2)  # both draw at once, if anything lets them
        save(*args, **named)

    def first() -> bytes:
        made_first = heatmap_figure(made(), ".svg").data
        over.set()
        return made_first

    def second() -> bytes:
        begun.wait(5)
        return heatmap_figure(made(), ".svg").data

    monkeypatch.setattr(Figure, "savefig", slow)
    before, filters = dict(mpl.rcParams), list(warnings.filters)
    with ThreadPoolExecutor(2) as pool:
        one, two = [asked.result() for asked in (pool.submit(first), pool.submit(second))]
    assert one == two
    assert dict(mpl.rcParams) == before
    assert list(warnings.filters) == filters


def test_a_filter_of_warnings_set_while_a_figure_is_drawn_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.figure import Figure

    save = Figure.savefig

    def saved(*args: Any, **named: Any) -> None:
        warnings.filterwarnings("ignore", message="of another thread")
        save(*args, **named)

    monkeypatch.setattr(Figure, "savefig", saved)
    with warnings.catch_warnings():
        filters = list(warnings.filters)
        heatmap_figure(made(), ".svg")
        kept = list(warnings.filters)
    assert kept[0][1].pattern == "of another thread"
    assert kept[1:] == filters


def test_a_head_without_values_is_drawn_without_a_warning() -> None:
    trace = samples.trace()
    for attention in trace.attentions:
        attention.weights[:, 0] = np.nan
    assert grid_figure(trace, ".svg").data.startswith(b"<?xml")  # warnings are errors in the tests
