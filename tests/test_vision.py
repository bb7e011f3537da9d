"""Pictures: preprocessing by plain arithmetic, patches named by place, and found again in the overlay."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import attnx
from attnx.errors import InputError, UsageError
from attnx.feed.patches import Frame, Grid, as_map, find_grid, grid_of, pieces
from attnx.feed.vision import IMAGENET, Recipe, load_picture, picture_slot, prepare, read_recipe
from attnx.session.ort import Slot
from attnx.view.overlay import blend
from tests.cli.conftest import attnx as attnx_command
from tests.small_senses import SIDE, bright, vit

__all__ = ["attnx_command"]

SLOT = Slot("pixel_values", ("batch", 3, 224, 224), "tensor(float)")


def test_cls_looks_at_the_bright_patch(tmp_path: Path) -> None:
    model = attnx.open(vit(tmp_path / "vit"), device="cpu")
    trace = model.trace(image=bright(tmp_path / "a.png", 2, 1))
    assert trace.tokens.pieces[:3] == ("[CLS]", "r0c0", "r0c1")
    assert trace.tokens.special == (True, *(False,) * 16)
    weights = trace.attentions[0].need("weights")[0, 0]
    levels = np.full(17, 20 / 255)
    levels[0], levels[1 + 2 * 4 + 1] = 0.5, 1.0
    scores = np.exp(9 * np.outer(levels, levels))
    np.testing.assert_allclose(weights, scores / scores.sum(1, keepdims=True), atol=1e-4)
    grid = grid_of(trace.tokens)
    assert grid == Grid(4, 4, 1)
    assert np.unravel_index(as_map(weights[0], grid).argmax(), (4, 4)) == (2, 1)


def test_the_overlay_is_brightest_there(tmp_path: Path) -> None:
    weights = np.zeros(17)
    weights[0], weights[1 + 2 * 4 + 1] = 0.6, 0.4
    recipe = Recipe(SIDE, SIDE, (SIDE, SIDE), None, resample=0)
    grey = Image.new("RGB", (SIDE, SIDE), (128, 128, 128))
    image = np.asarray(blend(grey, recipe, weights, Grid(4, 4, 1), side=160), np.float64)
    assert image.shape == (160, 160, 3)
    lit = image[80:120, 40:80]
    dark = np.ones((160, 160), bool)
    dark[80:120, 40:80] = False
    assert np.ptp(lit, axis=(0, 1)).max() == 0
    np.testing.assert_allclose(lit[0, 0], 0.4 * 128 + 0.6 * np.array([0.993, 0.906, 0.144]) * 255, atol=1)
    np.testing.assert_allclose(image[dark], 0.55 * 128, atol=1)


def test_overlay_and_map_from_the_command_line(attnx_command: Any, tmp_path: Path) -> None:
    vit(tmp_path / "vit")
    bright(tmp_path / "a.png", 2, 1)
    base = ("inspect", "--image", "a.png", "-m", str(tmp_path / "vit"))
    done = attnx_command(*base, "--query", "[CLS]", "--head", "0.0")
    assert "from [CLS]" in done.out
    assert "not on the map: [CLS]" in done.out
    done = attnx_command(*base, "--query", "[CLS]", "--save", "over.png")
    assert "overlay: L0 H0, from [CLS]" in done.err
    with Image.open(tmp_path / "over.png") as opened:
        pixels = np.asarray(opened.convert("RGB"), np.float64)
    step = pixels.shape[0] // 4
    blocks = pixels.reshape(4, step, 4, step, 3).mean(axis=(1, 3))
    assert np.unravel_index(blocks.sum(-1).argmax(), (4, 4)) == (2, 1)
    attnx_command(*base, "--save", "over.png", code=2)
    attnx_command("inspect", "--image", "none.png", "-m", str(tmp_path / "vit"), code=4)
    attnx_command("inspect", "--image", "a.png", code=2)


def recipe_of(config: dict[str, Any], folder: Path, slot: Slot = SLOT) -> Recipe:
    (folder / "preprocessor_config.json").write_text(json.dumps(config))
    return read_recipe(folder / "model.onnx", slot)


@pytest.mark.parametrize(
    ("config", "resize", "crop"),
    [
        ({"size": {"height": 224, "width": 224}}, (224, 224), None),
        ({"size": 224}, (224, 224), None),
        ({"size": {"shortest_edge": 256}, "do_center_crop": True, "crop_size": 224}, 256, (224, 224)),
        ({"size": 256, "do_center_crop": True, "crop_size": {"height": 224, "width": 224}}, 256, (224, 224)),
        ({"size": {"height": 256, "width": 256}, "do_center_crop": True, "crop_size": 224}, (256, 256), (224, 224)),
        ({"do_resize": False}, None, None),
        ({"image_processor": {"size": {"shortest_edge": 224}, "do_center_crop": True}}, 224, (224, 224)),
    ],
)
def test_sizes_as_configurations_write_them(
    config: dict[str, Any], resize: object, crop: object, tmp_path: Path
) -> None:
    recipe = recipe_of(config, tmp_path)
    assert (recipe.height, recipe.width, recipe.resize, recipe.crop) == (224, 224, resize, crop)


def test_pixels_by_hand(tmp_path: Path) -> None:
    config = {
        "size": {"shortest_edge": 4}, "do_center_crop": True, "crop_size": 4, "resample": 0, "rescale_factor": 0.5,
        "image_mean": [1, 2, 3], "image_std": [2, 4, 8],
    }  # fmt: skip
    recipe = recipe_of(config, tmp_path, Slot("pixel_values", (1, 3, 4, 4), "tensor(float)"))
    pixels = np.arange(4 * 8 * 3, dtype=np.uint8).reshape(4, 8, 3)
    got = prepare(Image.fromarray(pixels), recipe)
    want = (pixels[:, 2:6].astype(np.float64) * 0.5 - [1, 2, 3]) / [2, 4, 8]
    np.testing.assert_allclose(got, want.transpose(2, 0, 1), atol=1e-6)


def test_without_a_configuration_it_is_said(tmp_path: Path) -> None:
    recipe = read_recipe(tmp_path / "model.onnx", SLOT)
    assert (recipe.resize, recipe.mean, recipe.std) == ((224, 224), *IMAGENET)
    assert "no preprocessor_config.json" in recipe.notes[0]
    with pytest.raises(InputError, match="written nowhere"):
        read_recipe(tmp_path / "model.onnx", Slot("pixel_values", ("b", 3, "h", "w"), "tensor(float)"))


def test_pictures_of_every_sort(tmp_path: Path) -> None:
    grey = Image.new("L", (3, 2), 7)
    clear = Image.new("RGBA", (3, 2), (255, 0, 0, 0))
    turned = Image.new("RGB", (3, 2), (1, 2, 3))
    exif = turned.getexif()
    exif[0x0112] = 6
    grey.save(tmp_path / "grey.png")
    clear.save(tmp_path / "clear.png")
    turned.save(tmp_path / "turned.jpg", exif=exif)
    assert load_picture(tmp_path / "grey.png").getpixel((0, 0)) == (7, 7, 7)
    assert load_picture(tmp_path / "clear.png").getpixel((0, 0)) == (255, 255, 255)
    assert load_picture(tmp_path / "turned.jpg").size == (2, 3)
    (tmp_path / "text.png").write_text("no picture")
    with pytest.raises(InputError, match="no picture"):
        load_picture(tmp_path / "text.png")


@pytest.mark.parametrize(
    ("length", "frame", "grid"),
    [
        (197, Frame("p", 224, 224), Grid(14, 14, 1)),
        (198, Frame("p", 224, 224), Grid(14, 14, 2)),
        (196, Frame("p", 224, 224), Grid(14, 14, 0)),
        (257, Frame("p", 224, 224, patch=14), Grid(16, 16, 1)),
        (261, Frame("p", 224, 224, registers=4, patch=14), Grid(16, 16, 5)),
        (50, Frame("p", 224, 224), Grid(7, 7, 1)),
        (577, Frame("p", 384, 384), Grid(24, 24, 1)),
        (4096, Frame("z", 64, 64), Grid(64, 64, 0)),
        (16, Frame("z", 8, 8), Grid(4, 4, 0)),
        (300, Frame("p", 320, 480, patch=16), None),
        (600, Frame("p", 320, 480, patch=16), Grid(20, 30, 0)),
        (77, Frame("p", 224, 224), None),
    ],
)
def test_grids_by_length(length: int, frame: Frame, grid: Grid | None) -> None:
    assert find_grid(length, frame) == grid


def test_names_of_what_stands_before_the_patches() -> None:
    assert pieces(Grid(2, 2, 1))[0] == ["[CLS]", "r0c0", "r0c1", "r1c0", "r1c1"]
    assert pieces(Grid(1, 4, 2))[0][:3] == ["[CLS]", "[DIST]", "r0c0"]
    names, special = pieces(Grid(2, 2, 3), 2)
    assert names[:4] == ["[CLS]", "[REG0]", "[REG1]", "r0c0"]
    assert special == [True] * 3 + [False] * 4
    assert Grid(2, 3, 1).place(0) is None
    assert Grid(2, 3, 1).place(5) == (1, 1)


def test_who_takes_pictures() -> None:
    ids = Slot("input_ids", ("b", "s"), "tensor(int64)")
    past = Slot("past_key_values.0.key", ("b", 4, "p", 8), "tensor(float)")
    assert picture_slot([ids, past]) is None
    assert picture_slot([ids, past, SLOT]) is SLOT
    with pytest.raises(UsageError, match="takes no picture"):
        attnx.open("minilm", device="cpu").trace(image="x.png")
