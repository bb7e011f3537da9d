"""Fonts for figures: DejaVu Sans as it comes with matplotlib, and installed ones for what it lacks."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from attnx.errors import UsageError, lacks_memory
from attnx.installed import pip
from attnx.view.cells import safe

OWN = "DejaVu Sans"
FALLBACK = (
    "Noto Sans CJK KR", "Noto Sans CJK JP", "Noto Sans CJK SC", "Noto Sans KR", "Noto Sans JP", "Noto Sans SC",
    "NanumGothic", "Malgun Gothic", "Apple SD Gothic Neo", "Hiragino Sans", "Yu Gothic", "MS Gothic",
    "Microsoft YaHei", "PingFang SC", "WenQuanYi Zen Hei", "Arial Unicode MS", "Noto Sans Devanagari",
    "Noto Sans Arabic", "Noto Sans Thai", "Noto Sans Hebrew", "Noto Sans Symbols 2", "Noto Emoji", "Symbola",
    "Segoe UI Symbol",
)  # fmt: skip
"""Fonts tried in this order after matplotlib's own, if installed."""
BOX = "□"
_NO_CHARACTER = "\U0010ffff"
"""No font has a letter for it: what is drawn in its place is the font's sign for what it lacks."""
_SIZE = 32.0
"""Pixels of the letters that are compared with that sign."""


def not_installed() -> UsageError:
    """The error to raise without matplotlib."""
    return UsageError(
        "figures need matplotlib, which is not installed",
        f"{pip('figures')}; .svg, .html and .txt of the terminal's view work without it.",
    )


def lost_note(missing: Iterable[str], drawn: str) -> str:
    """What is said of characters that no font has."""
    chars = "".join(list(missing)[:20])
    return f"No installed font has {chars}: {drawn}. Noto Sans CJK has Korean, Japanese and Chinese."


def installed() -> dict[str, tuple[str, int]]:
    """The installed fonts by name: file, and which of the fonts in it. matplotlib keeps the list.

    Of a font's styles it is the regular one, or the nearest to it.
    """
    from matplotlib import font_manager

    def away(font: Any) -> tuple[bool, int]:
        weight = font.weight if isinstance(font.weight, int) else font_manager.weight_dict.get(font.weight, 400)
        return font.style != "normal", abs(weight - 400)

    there = sorted(font_manager.fontManager.ttflist, key=away, reverse=True)
    return {font.name: (font.fname, getattr(font, "index", 0)) for font in there}


class Word(NamedTuple):
    """A drawn text."""

    ink: Any
    """Its letters as a picture of grey, 255 where they are; None where there is nothing to see."""
    left: int
    """Pixels from the start of the text to the left edge of the ink."""
    top: int
    """Pixels from the line that letters stand on up to the top edge of the ink."""
    wide: int
    """Pixels to the end of the text."""


class Letters:
    """Texts drawn by Pillow, letter by letter in the first font that has it.

    matplotlib is not imported for it, but to find fonts for what its own one lacks.
    """

    def __init__(self) -> None:
        try:
            from PIL import Image, ImageDraw, ImageFont
        except ImportError as error:
            if lacks_memory(error):
                raise
            raise not_installed() from error
        self._image, self._draw, self._font = Image, ImageDraw, ImageFont
        self._files = [(_own_file(), 0)]
        self._searched = False
        self._fonts: dict[tuple[int, float], Any] = {}
        self._signs: dict[int, bytes] = {}
        self._places: dict[str, int | None] = {}
        self.missing: dict[str, None] = {}
        """Characters that no font has, in the order in which they came."""

    def word(self, text: str, pixels: float) -> Word:
        """Draw a text.

        Args:
            text: Any; made safe, with a box for what no font has.
            pixels: Size of the letters.
        """
        parts, at = [], 0.0
        for place, part in self._runs(self._drawable(text)):
            font = self._at(place, pixels)
            left, top, right, bottom = font.getbbox(part, anchor="ls")
            parts.append((font, part, at, (round(at) + left, top, round(at) + right, bottom)))
            at += font.getlength(part)
        boxes = [box for *_, box in parts if box[2] > box[0] and box[3] > box[1]]
        if not boxes:
            return Word(None, 0, 0, round(at))
        left, top = (int(min(box[i] for box in boxes)) for i in (0, 1))
        right, bottom = (int(max(box[i] for box in boxes)) for i in (2, 3))
        ink = self._image.new("L", (right - left, bottom - top))
        pen = self._draw.Draw(ink)
        for font, part, start, _ in parts:
            pen.text((round(start) - left, -top), part, fill=255, font=font, anchor="ls")
        return Word(ink, left, -top, round(at))

    def _drawable(self, text: str) -> str:
        """The text made safe, with boxes for what no font has."""
        out = []
        for char in safe(text):
            if self._place(char) is None:
                self.missing[char] = None
                char = BOX
            out.append(char)
        return "".join(out)

    def _runs(self, text: str) -> list[tuple[int, str]]:
        """Cut a text into what one font draws each; white space stays with what is before it."""
        out: list[tuple[int, str]] = []
        for char in text:
            place = out[-1][0] if out and char.isspace() else self._place(char) or 0
            if out and out[-1][0] == place:
                out[-1] = (place, out[-1][1] + char)
            else:
                out.append((place, char))
        return out

    def _place(self, char: str) -> int | None:
        """Which font has a character; None for none."""
        if char not in self._places:
            self._places[char] = 0 if char.isspace() else self._find(char)
        return self._places[char]

    def _find(self, char: str) -> int | None:
        at = 0
        while True:
            if at == len(self._files):
                if self._searched:
                    return None
                self._searched = True
                there = installed()
                self._files += [there[name] for name in FALLBACK if name in there]
                continue
            if self._looks(at, char) != self._signs.setdefault(at, self._looks(at, _NO_CHARACTER)):
                return at
            at += 1

    def _looks(self, place: int, char: str) -> bytes:
        """How a font draws a character; without shaping, so that nothing but the character is drawn."""
        key = (place, -1.0)
        if key not in self._fonts:
            file, index = self._files[place]
            plain = self._font.Layout.BASIC
            self._fonts[key] = self._font.truetype(file, _SIZE, index=index, layout_engine=plain)
        page = self._image.new("L", (64, 64))
        self._draw.Draw(page).text((16, 44), char, fill=255, font=self._fonts[key], anchor="ls")
        return bytes(page.tobytes())

    def _at(self, place: int, pixels: float) -> Any:
        if (place, pixels) not in self._fonts:
            file, index = self._files[place]
            self._fonts[place, pixels] = self._font.truetype(file, pixels, index=index)
        return self._fonts[place, pixels]


def _own_file() -> str:
    """The file of `OWN` in matplotlib's folder; a system that keeps its fonts elsewhere is asked through matplotlib."""
    spec = find_spec("matplotlib")
    if spec is None:
        raise not_installed()
    for folder in spec.submodule_search_locations or ():
        file = Path(folder, "mpl-data", "fonts", "ttf", "DejaVuSans.ttf")
        if file.is_file():
            return str(file)
    from matplotlib import font_manager

    return str(font_manager.findfont(OWN))
