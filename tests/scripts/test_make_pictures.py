"""The pictures of README.md: the ones that the script makes, all there, all shown, none too large."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("textual", reason="the extra `explore` is not installed")
Image = pytest.importorskip("PIL.Image", reason="the extra `vision` is not installed")

from scripts.make_pictures import FOLDER, LARGEST, PICTURES, written  # noqa: E402

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
README = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)


def test_readme_shows_every_picture_that_the_script_makes_and_no_other() -> None:
    shown = re.findall(r"(?:!\[[^\]]*\]\(|<img [^>]*src=\")(?:\.\./|docs/)*(pictures/[^)\"]+)", README)
    assert sorted(set(shown)) == sorted(f"pictures/{picture.name}.png" for picture in PICTURES)
    assert sorted(path.name for path in FOLDER.iterdir()) == sorted(f"{picture.name}.png" for picture in PICTURES)


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.name)
def test_a_picture_is_small_and_whole(picture: object) -> None:
    path = FOLDER / f"{picture.name}.png"  # type: ignore[attr-defined]
    assert path.stat().st_size <= LARGEST
    with Image.open(path) as one:
        one.load()
        assert min(one.size) >= 200


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.name)
def test_readme_names_the_command_of_each(picture: object) -> None:
    verb, *options = picture.command  # type: ignore[attr-defined]
    assert f"attnx {verb}" in README
    for option in options:
        if option.startswith("--"):
            assert option in README


def test_pictures_are_written_small() -> None:
    drawn = Image.fromarray(np.tile(np.arange(256, dtype=np.uint8)[None, :, None], (200, 1, 3)))
    content = written(drawn)
    with Image.open(io.BytesIO(content)) as one:
        assert one.size == (256, 200)
    noise = np.random.default_rng(0).integers(0, 256, (600, 600, 3), dtype=np.uint8)
    with pytest.raises(AssertionError, match="bytes"):
        written(Image.fromarray(noise))
