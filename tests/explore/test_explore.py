"""The explorer, driven by Textual's pilot: each key does what the help says, and the numbers shown are true."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest

import attnx
from attnx.errors import RunError

pytest.importorskip("textual", reason="the extra `explore` is not installed")

from textual.pilot import Pilot
from textual.strip import Strip
from textual.widgets import Static

from attnx.explore import panes
from attnx.explore.app import Explorer
from attnx.explore.desk import UNSCALED, Desk
from attnx.explore.pane import Pane
from attnx.explore.reader import Reader
from attnx.interventions.plan import Edit, Intervention

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


def test_every_head_is_ablated_on_a_key(model: attnx.Model) -> None:
    edits = [Intervention(f"{n}.{h}", (Edit("ablate", (n,), (h,)),)) for n, h in ((5, 11), (2, 3))]
    results = model.run_with(edits, TEXT)
    (name,) = results.unedited["inputs"]
    base = results.unedited["inputs"][name][0].mean(0).astype(float)
    seen: list[attnx.Measurement] = []

    async def steps(app: Explorer, pilot: Pilot[None]) -> None:
        before = len(app.desk.table.measures)
        await pilot.press("a")
        await settled(app, pilot)
        assert app.desk.measurement.name == "effect"
        assert len(app.desk.table.measures) == before + 1
        assert "effect" in screen(app)
        seen.append(app.desk.measurement)
        await pilot.press("a")  # once more: in place of the first
        await settled(app, pilot)
        assert len(app.desk.table.measures) == before + 1

    drive(Desk(model, TEXT), steps)
    for edit in edits:
        layer, head = map(int, edit.id.split("."))
        other = results.effects[edit.id].outputs[name][0].mean(0).astype(float)
        apart = 1 - base @ other / np.linalg.norm(base) / np.linalg.norm(other)
        assert seen[0].values[layer, head] == pytest.approx(apart, abs=2e-6)


def test_the_view_is_saved(model: attnx.Model, tmp_path: Path) -> None:
    path = tmp_path / "v.txt"

    async def steps(app: Explorer, pilot: Pilot[None]) -> None:
        await pilot.press("s")
        app.query_one("#ask").value = str(path)  # type: ignore[attr-defined]
        await pilot.press("enter")

    drive(Desk(model, TEXT), steps)
    assert "animal" in path.read_text(encoding="utf-8")


def still(app: Explorer) -> str:
    """The screen as it is kept beside this test."""
    return "".join(f"{line.rstrip()}\n" for line in screen(app).splitlines())


SCREENS: dict[str, tuple[tuple[int, int], list[str]]] = {
    "first-80": ((80, 24), []),
    "head-80": ((80, 24), [*["down"] * 5, *["right"] * 11, "slash", "i", "t", "enter"]),
    "head-160": ((160, 50), [*["down"] * 5, *["right"] * 11, "slash", "i", "t", "enter"]),
    "lines-100": ((100, 30), [*["down"] * 5, *["right"] * 11, "slash", "i", "t", "enter", "v"]),
    "numbers-100": ((100, 30), ["2", "v", "v"]),
    "words-mute-80": ((80, 24), ["w", "x", "c"]),
    "help-80": ((80, 24), ["question_mark"]),
}


@pytest.mark.parametrize("name", SCREENS)
def test_screens_are_exactly_these(model: attnx.Model, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With UPDATE_SCREENS=1 they are written anew; look at them, and at them in a terminal, before they are kept."""
    size, keys = SCREENS[name]
    path = Path(__file__).parent / "snapshots" / f"{name}.txt"

    async def steps(app: Explorer, pilot: Pilot[None]) -> None:
        for key in keys:
            await pilot.press(key)
            await settled(app, pilot)
        if os.environ.get("UPDATE_SCREENS"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(still(app), encoding="utf-8")
        assert still(app) == path.read_text(encoding="utf-8")

    drive(Desk(model, TEXT), steps, size)


def test_only_lines_that_changed_are_drawn_again(model: attnx.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[str | None, int]] = []
    before = Pane.render_line

    def noted(self: Pane, y: int) -> Strip:
        drawn.append((self.id, y))
        return before(self, y)

    monkeypatch.setattr(Pane, "render_line", noted)

    async def steps(app: Explorer, pilot: Pilot[None]) -> None:
        drawn.clear()
        await pilot.press("up")  # already at the first layer
        await settled(app, pilot)
        assert drawn == []
        await pilot.press("n")
        await settled(app, pilot)
        panes_drawn = {pane for pane, _ in drawn}
        assert panes_drawn == {"head", "looks", "status"}
        # In the heatmap two labels change: the token that was marked and the one that is.
        assert len([y for pane, y in drawn if pane == "head"]) == 2

    drive(Desk(model, TEXT), steps, (160, 50))


def test_keys_are_answered_while_the_model_runs(model: attnx.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer that is not in memory: the grid moves at once, the matrix follows; what waits for it is done then."""
    go = threading.Event()
    read = Reader.read

    def slowly(self: Reader, site: int) -> None:
        go.wait(60)
        read(self, site)

    monkeypatch.setattr(Reader, "read", slowly)
    desk = Desk(model, TEXT)

    async def run() -> None:
        app = Explorer(desk)
        async with app.run_test(size=(80, 24)) as pilot:
            await pilot.pause()
            await pilot.press("down", "right", "3")
            await pilot.pause()
            assert (desk.site, desk.head, desk.stage) == (1, 1, "weights")
            assert "running the model for L1 H1" in screen(app)
            assert "▸L1" in screen(app)
            go.set()
            await settled(app, pilot)
            assert desk.stage == "scores"
            assert "L1 H1 · scores" in screen(app)

    asyncio.run(run())


def test_a_run_that_fails_is_said_and_the_rest_goes_on(model: attnx.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Reader.read

    def broken(self: Reader, site: int) -> None:
        if site == 1:
            raise RunError("out of memory", "Use a shorter text.")
        read(self, site)

    monkeypatch.setattr(Reader, "read", broken)
    monkeypatch.setattr("attnx.explore.reader.STRETCH", 1)

    async def steps(app: Explorer, pilot: Pilot[None]) -> None:
        await pilot.press("down")
        await settled(app, pilot)
        assert "out of memory" in screen(app)
        await pilot.press("down")
        await settled(app, pilot)
        assert "L2 H0 · weights" in screen(app)

    drive(Desk(model, TEXT), steps)


def test_another_size_is_drawn_as_if_it_had_been_the_first(model: attnx.Model) -> None:
    first: list[str] = []

    async def note(app: Explorer, pilot: Pilot[None]) -> None:
        first.append(still(app))

    async def resize(app: Explorer, pilot: Pilot[None]) -> None:
        for size in ((140, 44), (50, 14), (80, 24)):
            await pilot.resize_terminal(*size)
            await settled(app, pilot)
            await settled(app, pilot)
            assert len(screen(app).splitlines()) == size[1]
            assert screen(app).splitlines()[-1].rstrip().endswith("? help")
            assert "L5 H11 · weights" in screen(app)
        first.append(still(app))

    drive(Desk(model, TEXT, site=5, head=11), note, (80, 24))
    drive(Desk(model, TEXT, site=5, head=11), resize, (80, 24))
    assert first[0] == first[1]
