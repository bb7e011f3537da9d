"""What holds for every view: the exact text at three widths, straight lines, nothing raw, no line too long."""

from __future__ import annotations

import re

import pytest
from rich.cells import cell_len

from tests.view.scenes import SCENES, SNAPSHOTS, WIDTHS, path
from tests.view.screen import coloured, plain, segments

SGR = re.compile(r"\x1b\[[0-9;]*m")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", SCENES)
def test_exact_text(name: str, width: int) -> None:
    assert plain(SCENES[name](), width) == path(name, width).read_text(encoding="utf-8"), (
        "if this is wanted: python -m tests.view.scenes --update, then read the diff"
    )


def test_no_snapshot_is_left_over() -> None:
    assert {file.name for file in SNAPSHOTS.glob("*.txt")} == {path(n, w).name for n in SCENES for w in WIDTHS}


@pytest.mark.parametrize("system", ["standard", "256", "truecolor"])
@pytest.mark.parametrize("name", SCENES)
def test_no_line_is_wider_than_the_terminal(name: str, system: str) -> None:
    for width in (40, 60, 80, 160):
        for line in segments(SCENES[name](), width, 24, system):  # type: ignore[arg-type]
            assert sum(cell_len(segment.text) for segment in line) <= width


@pytest.mark.parametrize("name", SCENES)
def test_terminals_get_colours_and_nothing_else(name: str) -> None:
    rest = SGR.sub("", coloured(SCENES[name](), 80))
    assert not [char for char in rest if char != "\n" and (ord(char) < 32 or 0x7F <= ord(char) < 0xA0)]
    assert not set(rest) & set("\u202e\u202d\u2066\u200b\u200d\ufe0f")


@pytest.mark.parametrize("name", SCENES)
def test_ascii_terminals_get_ascii(name: str) -> None:
    assert plain(SCENES[name](), 100, ascii_only=True).isascii()


@pytest.mark.parametrize("name", SCENES)
def test_sixteen_colours_are_the_themes_own(name: str) -> None:
    for code in SGR.findall(coloured(SCENES[name](), 80, system="standard")):
        assert not re.search(r"[34]8;", code)


def test_lines_on_one_screen() -> None:
    for name in ("overview", "overview_wide", "grid", "heatmap"):
        assert len(segments(SCENES[name](), 80, 24)) <= 23, name


def test_markup_and_escapes_are_visible_text() -> None:
    text = plain(SCENES["heatmap_hostile"](), 80)
    for shown in (
        "[bold]",
        "[/b]",
        "<0x1B>[31mred",
        "a↵b",
        "<U+202E>",
        "<0x00>",
        ":smile:",
        "<U+D800>",
        "∅",
        "␣␣",
        "⇥",
    ):
        assert shown in text


@pytest.mark.parametrize("name", SCENES)
def test_a_pipe_that_is_as_wide_as_it_takes_gets_everything_and_no_padding(name: str) -> None:
    text = plain(SCENES[name](), 20_000)
    assert max(cell_len(line) for line in text.splitlines()) < 2000
    for cut in ("do not fit", "not shown", "keys 5", "stre…", "GroupQueryA…", "…self/Softmax"):
        assert cut not in text
