"""Make the pictures of README.md with the commands that README names. Each is looked at by eye before it is kept.

    python scripts/make_pictures.py [NAME ...]

Needs the extras `figures`, `explore` and `vision`, and Chromium for the report's page and the explorer's screen.
"""

from __future__ import annotations

import asyncio
import io
import os
import re
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from PIL import Image

import attnx
from attnx.cli import app as cli
from attnx.explore.app import Explorer
from attnx.explore.desk import Desk
from tests.view.browser import Browser, chromium

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "pictures"
TEXT = "The animal didn't cross the street because it was too tired."
LARGEST = 60_000
"""Bytes of a picture."""


@dataclass(frozen=True)
class Picture:
    """One picture."""

    name: str
    command: tuple[str, ...]
    """What makes it, without the file."""
    make: Callable[[Picture, Path], Image.Image]


def saved(picture: Picture, folder: Path) -> Image.Image:
    """What `--save` writes."""
    path = folder / f"{picture.name}.png"
    command = [word.replace("examples/", f"{folder}/") for word in picture.command]
    assert cli.run([*command, "--save", str(path)]) == 0
    return Image.open(path)


def page(picture: Picture, folder: Path) -> Image.Image:
    """The page that `attnx report` writes, in Chromium."""
    path = folder / "report.html"
    assert cli.run([*picture.command, "-o", str(path)]) == 0
    return _shot(path.as_uri(), folder, 1080, 1000)


def screen(picture: Picture, folder: Path) -> Image.Image:
    """The explorer's screen in a terminal of 24-bit colours, after some keys."""
    os.environ |= {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
    found: list[str] = []

    async def look() -> None:
        app = Explorer(Desk(attnx.open("minilm", device="cpu"), picture.command[1]))
        async with app.run_test(size=(132, 40)) as pilot:
            for key in [*["down"] * 5, *["right"] * 11, "slash", "i", "t", "enter"]:
                await pilot.press(key)
                while app.busy:
                    await app.workers.wait_for_complete()
                await pilot.pause()
            found.append(app.export_screenshot(title="attnx explore"))

    asyncio.run(look())
    drawn = found[0][: found[0].index("@font-face")] + found[0][found[0].rindex("@font-face") :].partition("}")[2]
    path = folder / "explore.html"
    style = "<style>body { margin: 0 } svg { width: 1400px; height: auto; display: block }"
    style += " text { font-family: 'DejaVu Sans Mono', monospace !important }</style>"
    path.write_text(f"<!DOCTYPE html><meta charset=utf-8>{style}{drawn}", encoding="utf-8")
    _, _, wide, tall = map(float, re.search(r'viewBox="([^"]+)"', drawn).group(1).split())
    return _shot(path.as_uri(), folder, 1400, round(1400 * tall / wide))


def _shot(address: str, folder: Path, wide: int, tall: int) -> Image.Image:
    program = chromium()
    assert program is not None, "no Chromium here: apt-get install chromium, or ATTNX_CHROMIUM=PATH"
    browser = Browser(program, folder / "profile")
    try:
        browser.open(address, width=wide, height=tall, ready="report" in address)
        browser.picture(folder / "shot.png", whole=False)
    finally:
        browser.close()
    return Image.open(folder / "shot.png")


PICTURES = (
    Picture("grid", ("inspect", TEXT, "--view", "grid"), saved),
    Picture("heatmap", ("inspect", TEXT, "--head", "5.11", "--view", "heatmap"), saved),
    Picture("lines", ("inspect", TEXT, "--head", "5.11", "--view", "lines", "--query", "it"), saved),
    Picture("overlay", ("inspect", "--image", "examples/picture.png", "-m", "examples/eyes", "--query", "r2c1"), saved),
    Picture("report", ("report", TEXT, "--head", "5.11", "--query", "it"), page),
    Picture("explore", ("explore", TEXT), screen),
)


def written(picture: Image.Image) -> bytes:
    """The picture as PNG, in as many colours of its own as it takes to be small."""
    picture = picture.convert("RGB")
    for colours in (256, 128, 64, 32, 16):
        out = io.BytesIO()
        picture.quantize(colours, dither=Image.Dither.NONE).save(out, "png", optimize=True)
        if out.tell() <= LARGEST:
            break
    assert out.tell() <= LARGEST, f"{out.tell()} bytes"
    return out.getvalue()


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sys.argv, wanted = [sys.argv[0], str(folder)], sys.argv[1:]
        from scripts import make_examples

        make_examples.main()
        for picture in PICTURES:
            if wanted and picture.name not in wanted:
                continue
            content = written(picture.make(picture, folder))
            (FOLDER / f"{picture.name}.png").write_bytes(content)
            print(f"{picture.name}.png: {len(content) / 1e3:.0f} kB   attnx {' '.join(picture.command)}")


if __name__ == "__main__":
    main()
