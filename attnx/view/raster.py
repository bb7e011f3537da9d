"""Figures as PNG, by Pillow: every cell the same whole number of pixels, and no wait for matplotlib's imports."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from attnx.records import Array
from attnx.view import drawing as paper
from attnx.view.drawing import DPI, Drawing, Figure, Ticks, on_paper
from attnx.view.fonts import Letters, lost_note
from attnx.view.scale import Scale

_EDGE = 6
"""Pixels round everything."""
_LEAST = 0.4
"""Share of the picture's width and height that the cells keep, however long the labels are."""
_CAPITAL = 0.73
"""Height of a capital letter of the font, as a share of its size."""
_PERIOD, _LINE = 17, 1.1
"""Pixels from one line of a hatch to the next, across, and how thick they are."""
_BAR, _GAP = 0.025, 0.02
"""Width of the colour bar and of the gap before it, as shares of the cells' width."""
_STEPS = (0.5, 1.0, 2.0, 2.5, 5.0, 10.0)
_BLACK = (0, 0, 0)


def px(points: float) -> int:
    """Pixels of a length in points."""
    return round(points * DPI / 72)


def draw(drawing: Drawing) -> Figure:
    """Draw it as PNG.

    Returns:
        The file's content and notes.

    Raises:
        UsageError: matplotlib, with which Pillow and the font come, is not installed.
    """
    letters = Letters()
    sheet = _Sheet(letters)
    cell = _cell(drawing, letters)
    rows, columns = drawing.values.shape
    wide, tall = columns * cell, rows * cell
    sheet.block(0, 0, _cells(drawing, cell))
    down = px(2) if drawing.matrix else 0
    _write_left(sheet, drawing.left, cell, down)
    _write_across(sheet, drawing.across, cell, down, tall, above=not drawing.matrix)
    if drawing.matrix:
        sheet.frame(0, 0, wide, tall)
        title = sheet.words(drawing.title, paper.TITLE)
        sheet.write(title, wide / 2 - title.wide / 2, -px(6), upright=True)
    _write_bar(sheet, drawing, wide, tall)
    notes = drawing.notes
    if letters.missing:
        notes = (*notes, lost_note(letters.missing, "they are drawn as boxes"))
    return Figure(sheet.png(), notes)


@dataclass(slots=True)
class _Sheet:
    """What is drawn and where, in pixels from the upper left corner of the cells; paper is found for it at the end."""

    letters: Letters
    parts: list[tuple[Any, int, int]] = field(default_factory=list)
    """Pictures of ink [L] and of colours [RGB], with their upper left corners."""

    def words(self, text: str, points: float) -> Any:
        """Draw a text, to be put somewhere."""
        return self.letters.word(text, points * DPI / 72)

    def write(self, word: Any, x: float, y: float, *, upright: bool) -> None:
        """Put a text: `upright` from x on a line at y; else turned left, from y upwards with its line at x."""
        if word.ink is None:
            return
        if upright:
            self.parts.append((word.ink, round(x) + word.left, round(y) - word.top))
            return
        from PIL.Image import Transpose

        turned = word.ink.transpose(Transpose.ROTATE_90)
        self.parts.append((turned, round(x) - word.top, round(y) - word.left - turned.height))

    def line(self, x: float, y: float, wide: int, tall: int) -> None:
        """Put a black line."""
        from PIL import Image

        self.parts.append((Image.new("RGB", (max(1, wide), max(1, tall)), _BLACK), round(x), round(y)))

    def frame(self, x: int, y: int, wide: int, tall: int) -> None:
        """Put a thin frame round an area."""
        for at in (y - 1, y + tall):
            self.line(x - 1, at, wide + 2, 1)
        for at in (x - 1, x + wide):
            self.line(at, y - 1, 1, tall + 2)

    def block(self, x: int, y: int, colours: Array) -> None:
        """Put colours [H,W,3]."""
        from PIL import Image

        self.parts.append((Image.fromarray(colours), x, y))

    def png(self) -> bytes:
        """The file: as large as what is on it."""
        from PIL import Image

        left = min(x for _, x, _ in self.parts) - _EDGE
        top = min(y for _, _, y in self.parts) - _EDGE
        right = max(x + part.width for part, x, _ in self.parts) + _EDGE
        bottom = max(y + part.height for part, _, y in self.parts) + _EDGE
        page = Image.new("RGB", (right - left, bottom - top), "white")
        for part, x, y in self.parts:
            place = (x - left, y - top)
            if part.mode == "L":
                page.paste(_BLACK, (*place, place[0] + part.width, place[1] + part.height), part)
            else:
                page.paste(part, place)
        out = io.BytesIO()
        page.save(out, "PNG", dpi=(DPI, DPI))
        return out.getvalue()


def _cell(drawing: Drawing, letters: Letters) -> int:
    """Pixels a side of a cell: what fits beside and under the labels, and at least one."""
    rows, columns = drawing.values.shape
    across, down = (side * DPI for side in drawing.inches)
    beside = max((letters.word(name, px(drawing.left.size)).wide for name in drawing.left.labels), default=0)
    under = px(drawing.across.size)
    if drawing.matrix:
        under = max((letters.word(name, px(drawing.across.size)).wide for name in drawing.across.labels), default=0)
    line, gap = px(paper.TEXT), px(3.5)
    wide = (across - beside - line * 5 - gap * 5 - 2 * _EDGE) / (1 + _BAR + _GAP)
    tall = down - under - line * 2 - gap * 5 - 2 * _EDGE
    return max(1, round(float(min(max(wide, _LEAST * across) / columns, max(tall, _LEAST * down) / rows))))


def _cells(drawing: Drawing, cell: int) -> Array:
    """The cells in colour, with hatches behind and over them: uint8 [H,W,3]."""
    places = drawing.scale.places(drawing.values)
    there = np.isfinite(places)
    small = _coloured(drawing.scale, np.where(there, places, 0.0))
    if not there.all() and not drawing.matrix:
        small[~there] = 255
    out = np.repeat(np.repeat(small, cell, axis=0), cell, axis=1)
    if not there.all() and drawing.matrix:
        behind = _hatched(out, paper.GROUND, paper.HATCH, crossed=False)
        hidden = np.repeat(np.repeat(~there, cell, axis=0), cell, axis=1)
        out[hidden] = behind[hidden]
    for column in drawing.muted:
        over = slice(column * cell, (column + 1) * cell)
        out[:, over] = _hatched(out, paper.MUTED, paper.MUTED_HATCH, crossed=True)[:, over]
    return out


def _coloured(scale: Scale, places: Array) -> Array:
    """Colours of places from 0 to 1: uint8 [...,3]."""
    colours = np.array(on_paper(scale.ramp).colours, np.uint8)
    return np.asarray(colours[np.minimum((places * len(colours)).astype(int), len(colours) - 1)])


def _hatched(like: Array, ground: str, ink: str, *, crossed: bool) -> Array:
    """A ground with slanted lines, smooth at their edges, as large as another picture: uint8 [H,W,3]."""
    tall, wide = like.shape[:2]
    down, across = np.arange(tall)[:, None], np.arange(wide)
    slants = (across + down, across - down) if crossed else (across + down,)
    cover = np.zeros((tall, wide))
    for slant in slants:
        away = np.abs(slant % _PERIOD - _PERIOD // 2) / math.sqrt(2)
        cover = np.maximum(cover, np.clip(0.5 + _LINE / 2 - away, 0, 1))
    low, high = (np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)], float) for colour in (ground, ink))
    return np.asarray(np.rint(low + cover[..., None] * (high - low)), np.uint8)


def _write_left(sheet: _Sheet, ticks: Ticks, cell: int, mark: int) -> None:
    """Labels of the rows, and the axis' name beside them."""
    size, longest = ticks.size, 0
    for at, label in zip(ticks.at, ticks.labels, strict=True):
        word = sheet.words(label, size)
        longest = max(longest, word.wide)
        middle = (at + 0.5) * cell
        sheet.write(word, -mark - px(3.5) - word.wide, middle + px(size) * _CAPITAL / 2, upright=True)
        if mark:
            sheet.line(-1 - mark, middle - 1, mark, 2)
    name = sheet.words(ticks.name, paper.TEXT)
    middle = _middle(ticks, cell)
    sheet.write(name, -mark - px(3.5) - longest - px(6), middle + name.wide / 2, upright=False)


def _write_across(sheet: _Sheet, ticks: Ticks, cell: int, mark: int, tall: int, *, above: bool) -> None:
    """Labels of the columns: turned, below the cells; or upright, above them. The axis' name beyond."""
    size, longest = ticks.size, 0
    for at, label in zip(ticks.at, ticks.labels, strict=True):
        word = sheet.words(label, size)
        middle = (at + 0.5) * cell
        if above:
            sheet.write(word, middle - word.wide / 2, -px(3.5), upright=True)
            longest = px(size)
            continue
        longest = max(longest, word.wide)
        sheet.write(word, middle + px(size) * _CAPITAL / 2, tall + mark + px(3.5) + word.wide, upright=False)
        if mark:
            sheet.line(middle - 1, tall + 1, 2, mark)
    name = sheet.words(ticks.name, paper.TEXT)
    middle = _middle(ticks, cell)
    away = mark + px(3.5) + longest + px(4)
    sheet.write(name, middle - name.wide / 2, -away if above else tall + away + px(paper.TEXT), upright=True)


def _middle(ticks: Ticks, cell: int) -> float:
    """The middle of an axis."""
    return (ticks.at[0] + ticks.at[-1] + 1) * cell / 2 if ticks.at else 0.0


def _write_bar(sheet: _Sheet, drawing: Drawing, wide: int, tall: int) -> None:
    """The colour bar with its numbers and what they stand for."""
    left, thick = wide + max(px(3), round(_GAP * wide)), max(px(3), round(_BAR * wide))
    strip = _coloured(drawing.scale, (np.arange(tall, 0, -1) - 0.5) / tall)
    sheet.block(left, 0, np.ascontiguousarray(np.broadcast_to(strip[:, None], (tall, thick, 3))))
    sheet.frame(left, 0, thick, tall)
    longest = 0
    for value, place in marks(drawing.scale, max(2, min(9, tall // (2 * px(paper.TEXT))))):
        word = sheet.words(f"{value:g}".replace("-", "\u2212"), paper.TEXT)
        longest = max(longest, word.wide)
        at = (1 - place) * tall
        sheet.line(left + thick + 1, at - 1, px(3.5), 2)
        sheet.write(word, left + thick + px(7), at + px(paper.TEXT) * _CAPITAL / 2, upright=True)
    unit = sheet.words(drawing.unit, paper.TEXT)
    sheet.write(unit, left + thick + px(7) + longest + px(4) + px(paper.TEXT), tall / 2 + unit.wide / 2, upright=False)


def marks(scale: Scale, most: int) -> list[tuple[float, float]]:
    """Round numbers for a colour bar, and where each is from 0 to 1.

    Args:
        scale: The scale. Of one that differs by row, shares of the row's largest are marked.
        most: How many there is room for.
    """
    low, high = (-1.0 if scale.ramp.diverging else 0.0, 1.0) if scale.kind == "row" else (scale.low, scale.high)
    if not high > low:
        high = low + 1
    if scale.kind == "log" and low > 0:
        first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
        values = [10.0**power for power in range(first, last + 1)]
        wide = math.log10(high) - math.log10(low)
        return [(value, (math.log10(value) - math.log10(low)) / wide) for value in values]
    unit = 10.0 ** math.floor(math.log10((high - low) / most))
    steps = [unit * one for one in _STEPS]
    at = next(place for place, step in enumerate(steps) if step >= (high - low) / most * (1 - 1e-9))
    for step in reversed(steps[: at + 1]):
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last > first:
            break
    return [(at * step, (at * step - low) / (high - low)) for at in range(first, last + 1)]
