"""Several sequences in one run, such as the series of a model that reads each by itself: the first is shown."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import attnx as package
from tests.cli.analysed import causal
from tests.cli.conftest import Run
from tests.small_senses import bright, vit

SERIES, PATCHES, WIDE = 3, 5, 4


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Attention over the patches of each series; series are rows of the batch within, [1,S,P,E] -> [S,P,E]."""
    rng = np.random.default_rng(3)
    weights = {name: rng.standard_normal((WIDE, WIDE)).astype(np.float32) for name in ("wq", "wk", "wv")}
    constants = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    constants += [
        numpy_helper.from_array(np.array([-1, PATCHES, WIDE]), "flat"),
        numpy_helper.from_array(np.array(0.5, np.float32), "scale"),
    ]
    nodes = [
        helper.make_node("Reshape", ["past_values", "flat"], ["x"], name="flatten"),
        *(helper.make_node("MatMul", ["x", f"w{n}"], [n], name=n) for n in "qkv"),
        helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 2, 1], name="kt"),
        helper.make_node("MatMul", ["q", "kt"], ["scores"], name="qk"),
        helper.make_node("Mul", ["scores", "scale"], ["scaled"], name="scaling"),
        helper.make_node("Softmax", ["scaled"], ["weights"], axis=-1, name="soft"),
        helper.make_node("MatMul", ["weights", "v"], ["y"], name="pv"),
    ]
    shape = [1, "series", PATCHES, WIDE]
    graph = helper.make_graph(
        nodes, "series", [helper.make_tensor_value_info("past_values", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["series", PATCHES, WIDE])], constants,
    )  # fmt: skip
    path = tmp_path_factory.mktemp("series") / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    np.savez(path.with_name("feed.npz"), past_values=rng.standard_normal((1, SERIES, PATCHES, WIDE), np.float32))
    return path


def test_it_is_said_that_the_first_of_them_is_shown(series: Path, attnx: Run) -> None:
    given = ("-m", str(series), "--inputs", str(series.with_name("feed.npz")))
    said = "3 sequences run side by side (series, windows, rows of a batch): the first is shown and measured"
    for command in ("inspect", "heads", "mask", "scale", "flow"):
        assert said in " ".join(attnx(command, *given).err.split()), command
    assert said in attnx("heads", *given, "--json").document["notes"]


def test_one_of_them_alone_says_nothing(series: Path) -> None:
    model = package.open(series, device="cpu")
    with np.load(series.with_name("feed.npz")) as feed:
        whole = feed["past_values"]
    one, all_of_them = (model.trace(inputs={"past_values": array}) for array in (whole[:, :1], whole))
    assert not any("side by side" in note for note in one.notes)
    assert any("side by side" in note for note in all_of_them.notes)
    first = all_of_them.attentions[0].need("weights")
    assert len(first) == SERIES
    np.testing.assert_allclose(first[:1], one.attentions[0].need("weights"), rtol=1e-6)


def test_headings_name_the_patches_of_a_picture(tmp_path: Path, attnx: Run) -> None:
    vit(tmp_path / "vit")
    picture = bright(tmp_path / "b.png", 1, 2)
    done = attnx("ablate", "--image", str(picture), "-m", str(tmp_path / "vit"))
    assert done.out.splitlines()[:2] == ["vit · 17 tokens · ablated to zero · cpu", "4 × 4 patches of pixel_values"]
    got = attnx("ablate", "--image", str(picture), "-m", str(tmp_path / "vit"), "--json").document
    assert got["tokens"]["pieces"][:2] == ["[CLS]", "r0c0"]


@pytest.mark.parametrize("command", ["inspect", "heads", "flow", "scale", "ablate", "lens", "attribute"])
def test_every_command_says_that_the_first_row_is_shown(attnx: Run, command: str, tmp_path: Path) -> None:
    one = causal(tmp_path / "one", ids=[[3, 5, 7, 2]])
    two = causal(tmp_path / "two", ids=[[3, 5, 7, 2], [9, 5, 3, 3]])
    said = " ".join(attnx(command, *two.args).err.split())
    assert "2 sequences run side by side (series, windows, rows of a batch): the first is shown and measured" in said
    assert "side by side" not in " ".join(attnx(command, *one.args).err.split())
