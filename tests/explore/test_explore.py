"""The explorer, driven by Textual's pilot: each key does what the help says, and the numbers shown are true."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest

import attnx

pytest.importorskip("textual", reason="the extra `explore` is not installed")

from textual.pilot import Pilot
from textual.widgets import Static

from attnx.explore import panes
from attnx.explore.app import Explorer
from attnx.explore.desk import UNSCALED, Desk

TEXT = "The animal didn't cross the street because it was too tired."


@pytest.fixture(scope="module")
def model() -> attnx.Model:
    return attnx.open("minilm", device="cpu")


def drive(
    desk: Desk, steps: Callable[[Explorer, Pilot[None]], Awaitable[None]], size: tuple[int, int] = (80, 24)
) -> None:
    async def run() -> None:
        app = Explorer(desk)
        async with app.run_test(size=size) as pilot:
            await settled(app, pilot)
            await steps(app, pilot)

    asyncio.run(run())


async def settled(app: Explorer, pilot: Pilot[None]) -> None:
    """Wait until the model has run for what is looked at, and it is drawn."""
    await pilot.pause()
    while app.busy:
        await app.workers.wait_for_complete()
        await pilot.pause()
    await pilot.pause()


def screen(app: Explorer) -> str:
    """What stands on the screen, line by line."""
    return "\n".join(
        "".join(segment.text for segment in app.screen._compositor.render_strips()[y]) for y in range(app.size.height)
    )


@pytest.mark.parametrize("size", [(80, 24), (160, 50)])
def test_the_screen_holds_the_grid_the_head_and_the_row(model: attnx.Model, size: tuple[int, int]) -> None:
    async def steps(app: Explorer, pilot: Pilot[None]) -> None:
        await pilot.press(*["down"] * 5, *["right"] * 11, "slash", "i", "t", "enter")
        await settled(app, pilot)
        shown = screen(app)
        assert "L5 H11" in shown
        assert "10 it" in shown
        bar = next(line for line in shown.splitlines() if "animal" in line and "0.67" in line)
        assert "█" in bar
        assert max(len(line) for line in shown.splitlines()) <= size[0]

    drive(Desk(model, TEXT), steps, size)


def test_moves_stop_at_the_ends(model: attnx.Model) -> None:
    desk = Desk(model, TEXT)

    async def steps(app: Explorer, pilot: Pilot[None]) -> None:
        await pilot.press("up", "left", "p")
        assert (desk.site, desk.head, desk.query) == (0, 0, 0)
        await pilot.press(*["j"] * 9, *["l"] * 20, *["n"] * 30)
        assert (desk.site, desk.head, desk.query) == (5, 11, 15)

    drive(desk, steps)


def test_stages_are_those_of_the_trace(model: attnx.Model) -> None:
    desk = Desk(model, TEXT, site=5, head=11, query=10)
    (attention,) = model.trace(TEXT, layers=[5]).attentions
    assert attention.scores is not None
    for stage, array in (("weights", attention.weights), ("scores", attention.scores), ("scaled", attention.scaled)):
        desk.stage = stage
        assert array is not None
        np.testing.assert_allclose(desk.matrix().values, array[0, 11], rtol=1e-4, atol=3e-5)
    desk.stage = UNSCALED
    row = attention.scores[0, 11, 10].astype(np.float64)
    want = np.exp(row - row.max()) / np.exp(row - row.max()).sum()
    np.testing.assert_allclose(desk.matrix().values[10], want, atol=1e-5)


def test_keys_switch_stage_measure_words_mute_and_lines(model: attnx.Model) -> None:
    desk = Desk(model, TEXT, site=5, head=11, query=10)

    async def steps(app: Explorer, pilot: Pilot[None]) -> None:
        await pilot.press("3")
        assert desk.stage == "scores"
        assert "scores" in screen(app).splitlines()[-1]
        await pilot.press("w")
        assert (desk.words, desk.stage) == (True, "weights")
        assert desk.queries().pieces[desk.query].strip() == "it"
        first = desk.measurement.name
        await pilot.press("m")
        assert desk.measurement.name != first
        await pilot.press("M", "x", "v")
        assert (desk.measurement.name, desk.mute, desk.view) == (first, True, "lines")
        assert "[CLS]" not in str(panes.looks(desk, 10)) or desk.muted()

    drive(desk, steps)


def test_a_text_is_edited_and_a_mistake_is_said(model: attnx.Model) -> None:
    desk = Desk(model, TEXT)

    async def steps(app: Explorer, pilot: Pilot[None]) -> None:
        await pilot.press("e", "ctrl+u", *"Kim saw [b]Lee[/b].".replace(" ", "_").replace("_", " "), "enter")
        await settled(app, pilot)
        assert desk.text == "Kim saw [b]Lee[/b]."
        assert "kim" in screen(app)
        await pilot.press("slash", *"zebra", "enter")
        await settled(app, pilot)
        assert "zebra" in screen(app).splitlines()[-1]

    drive(desk, steps, (120, 30))


def test_help_opens_and_closes(model: attnx.Model) -> None:
    async def steps(app: Explorer, pilot: Pilot[None]) -> None:
        await pilot.press("question_mark")
        assert app.query_one("#help", Static).has_class("shown")
        await pilot.press("escape")
        assert not app.query_one("#help", Static).has_class("shown")

    drive(Desk(model, TEXT), steps)


def test_the_view_is_saved(model: attnx.Model, tmp_path: Path) -> None:
    path = tmp_path / "v.txt"

    async def steps(app: Explorer, pilot: Pilot[None]) -> None:
        await pilot.press("s")
        app.query_one("#ask").value = str(path)  # type: ignore[attr-defined]
        await pilot.press("enter")

    drive(Desk(model, TEXT), steps)
    assert "animal" in path.read_text(encoding="utf-8")
