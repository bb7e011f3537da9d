"""Pictures: preprocessing by plain arithmetic, patches named by place, and found again in the overlay."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import attnx
from attnx.errors import InputError, ModelError, UsageError
from attnx.feed.patches import Frame, Grid, as_map, find_grid, grid_of, pieces
from attnx.feed.processors import IMAGENET
from attnx.feed.recipes import Recipe, read_recipe
from attnx.feed.vision import fit, image_inputs, load_picture, picture_slot, prepare
from attnx.session.ort import Slot
from attnx.tokens.axes import labelled
from attnx.view.overlay import blend
from tests.cli.conftest import attnx as attnx_command
from tests.pictures.make import picture
from tests.small_senses import SIDE, bright, png, reader, vit

__all__ = ["attnx_command"]

PICTURES = Path(__file__).parent / "pictures"
ANY = Slot("pixel_values", ("batch", 3, "height", "width"), "tensor(float)")
SLOT = Slot("pixel_values", ("batch", 3, 224, 224), "tensor(float)")


def test_a_picture_is_written_without_pillow_as_pillow_reads_it(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
    with Image.open(png(tmp_path / "a.png", pixels)) as read:
        np.testing.assert_array_equal(np.asarray(read), pixels)


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
    recipe = Recipe((SIDE, SIDE), (SIDE, SIDE), None, resample=0)
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
    assert (recipe.wanted, recipe.size, recipe.resize, recipe.crop) == ((224, 224), (224, 224), resize, crop)


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
    with pytest.raises(InputError, match="nothing says how large"):
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
    (tmp_path / "text.png").write_text("not a picture")
    with pytest.raises(InputError, match="not a picture"):
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
    assert pieces(Grid(1, 4, 2))[0][:3] == ["[CLS]", "[DIST]", "c0"]
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


@pytest.mark.parametrize("truth", json.loads((PICTURES / "truth.json").read_text()), ids=lambda t: t["processor"])
@pytest.mark.parametrize("ending", ["ImageProcessor", "ImageProcessorFast", "FeatureExtractor"])
def test_pixels_are_those_of_the_processor_that_is_named(truth: dict[str, Any], ending: str, tmp_path: Path) -> None:
    key = "feature_extractor_type" if ending == "FeatureExtractor" else "image_processor_type"
    recipe = recipe_of({key: truth["processor"] + ending, **truth["config"]}, tmp_path, ANY)
    got = prepare(Image.fromarray(picture()), recipe)
    assert (list(got.shape), recipe.notes) == (truth["shape"], ())
    np.testing.assert_allclose(got.ravel()[truth["at"]], truth["values"], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(got.mean(), truth["mean"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"image_processor_type": "DonutImageProcessor"}, "names Donut, whose preprocessing"),
        ({"feature_extractor_type": "ImageGPTFeatureExtractor"}, "names ImageGPT"),
        ({"image_processor_type": 4}, "image_processor_type is 4, and a text"),
        ({"image_processor_type": "ViTImageProcessor", "do_pad": True}, "do_pad is a step"),
        ({"image_processor_type": "DPTImageProcessor"}, "names DPT"),
        ({"size": 8, "resample": 9}, "resample is 9, and a whole number from 0 to 5"),
        ({"size": 8, "resample": "bicubic"}, "resample is 'bicubic'"),
        ({"size": 8, "image_mean": "0.5"}, "image_mean is '0.5', and one number"),
        ({"size": 8, "image_mean": [0.5, 0.5]}, r"image_mean is \[0.5, 0.5\]"),
        ({"size": 8, "image_std": [0.5, None, 0.5]}, "image_std is"),
        ({"size": 8, "image_std": 0}, "image_std is 0, and a number other than 0"),
        ({"size": 0}, "size is 0, and a number of pixels"),
        ({"size": -8}, "size is -8"),
        ({"size": 10**9}, "size is 1000000000"),
        ({"size": "224"}, "size is '224'"),
        ({"size": [8, 8, 8]}, r"size is \[8, 8, 8\]"),
        ({"size": {}}, r"size is \{\}"),
        ({"size": {"shortest_edge": "8"}}, "size: shortest_edge is '8'"),
        ({"size": {"height": 8}}, "size is"),
        ({"size": {"shortest_edge": 8}, "crop_pct": 0}, "crop_pct is 0, and a part from"),
        ({"size": 8, "rescale_factor": "x"}, "rescale_factor is 'x', and a number"),
        ({"size": 8, "rescale_factor": float("nan")}, "rescale_factor is nan"),
        ({"size": 8, "do_normalize": "yes"}, "do_normalize is 'yes', and true or false"),
        ({"size": 8, "do_center_crop": 1}, "do_center_crop is 1, and true or false"),
    ],
)
def test_what_is_not_here_or_is_no_number_is_refused_by_name(config: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=said):
        recipe_of(config, tmp_path, ANY)


def test_one_number_stands_for_all_colours(tmp_path: Path) -> None:
    recipe = recipe_of({"size": 2, "resample": 0, "image_mean": 0.5, "image_std": [0.25]}, tmp_path, ANY)
    got = prepare(Image.new("RGB", (2, 2), (255, 0, 51)), recipe)
    np.testing.assert_allclose(got[:, 0, 0], [2, -2, -1.2], atol=1e-6)


def test_what_a_configuration_without_a_name_leaves_out_is_said(tmp_path: Path) -> None:
    assert recipe_of({"size": 8, "resample": 2, "image_mean": 0.5, "image_std": 0.5}, tmp_path, ANY).notes == ()
    (note,) = recipe_of({"size": 8, "image_mean": 0.5}, tmp_path, ANY).notes
    assert "names no image_processor_type, and lacks resample, image_std" in note


class Takes:
    """A model as `image_inputs` sees it."""

    name, encoder = "m", None

    def __init__(self, slot: Slot, path: Path) -> None:
        self.slot, self.path = slot, path

    def slots(self) -> list[Slot]:
        return [self.slot]


@pytest.mark.parametrize("shape", [(1, 3, 4, 4), (1, 4, 4, 3), (1, 1, 4, 4), (1, 4, 4, 1)])
def test_inputs_of_8_bits_take_pixels_as_they_are(shape: tuple[int, ...], tmp_path: Path) -> None:
    Image.new("RGB", (4, 4), (200, 120, 40)).save(tmp_path / "a.png")
    (tmp_path / "preprocessor_config.json").write_text(
        json.dumps({"image_processor_type": "ViTImageProcessor", "size": 4})
    )
    model: Any = Takes(Slot("pixels", shape, "tensor(uint8)"), tmp_path / "model.onnx")
    fed, notes = image_inputs(model, tmp_path / "a.png", {})
    colours = [200, 120, 40] if 3 in shape else [120]
    axis = 3 if shape[3] in (1, 3) else 1
    assert fed["pixels"].dtype == np.uint8
    assert fed["pixels"].shape == shape
    assert np.unique(np.moveaxis(fed["pixels"], axis, -1).reshape(-1, len(colours)), axis=0).tolist() == [colours]
    assert "whole numbers from 0 to 255" in notes[0]


def test_a_picture_of_one_height_and_any_width_keeps_its_proportions(tmp_path: Path) -> None:
    slot = Slot("x", ("n", 3, 6, "w"), "tensor(float)")
    recipe = read_recipe(tmp_path / "model.onnx", slot)
    assert (recipe.resize, recipe.wanted) == ((6, None), (6, None))
    assert "resized to a height of 6, in proportion" in recipe.notes[0]
    assert fit(Image.new("RGB", (40, 12)), recipe).size == (20, 6)
    with pytest.raises(InputError, match="would be 0 x 6"):
        fit(Image.new("RGB", (1, 4000)), recipe)


def test_tokens_of_a_line_of_text_are_its_columns() -> None:
    line = Frame("x", 48, 160, line=True)
    assert find_grid(20, line) == Grid(1, 20)
    assert find_grid(21, Frame("x", 48, 163, line=True)) == Grid(1, 21)
    assert find_grid(20, Frame("x", 48, 160)) is None
    assert find_grid(99, line) is None
    names, special = pieces(Grid(1, 20))
    assert (names[:2], names[-1], any(special)) == (["c0", "c1"], "c19", False)
    assert grid_of(labelled(names)) == Grid(1, 20)
    assert as_map(np.arange(20), Grid(1, 20)).shape == (1, 20)


def test_columns_from_the_command_line(attnx_command: Any, tmp_path: Path) -> None:
    reader(tmp_path / "m")
    pixels = np.full((12, 40, 3), 20, np.uint8)
    pixels[:, 24:32] = 255
    Image.fromarray(pixels).save(tmp_path / "a.png")
    done = attnx_command("inspect", "--image", "a.png", "-m", str(tmp_path / "m"), "-q", "c3", "--json")
    assert json.loads(done.out)["tokens"]["pieces"] == [f"c{i}" for i in range(5)]
    done = attnx_command("inspect", "--image", "a.png", "-m", str(tmp_path / "m"), "-q", "c0", "--save", "over.png")
    assert "overlay" in done.err
    with Image.open(tmp_path / "over.png") as opened:
        shown = np.asarray(opened.convert("RGB"), np.float64).sum((0, 2)).reshape(5, -1).sum(1)
    assert shown.argmax() == 3
