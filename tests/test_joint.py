"""Text and picture in one attention: the order is the graph's, and patches are called by what the shapes say."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import attnx
from attnx.feed.patches import Frame, find_frames, find_grid
from attnx.run.joint import States, find_states, joint_tokens
from attnx.session.ort import Slot
from attnx.tokens.config import Config

WIDTH, TEXT, SIDE = 8, 3, 2


def joined(folder: Path, first: str, latent: bool) -> Path:
    """One attention over a text's states and patches: a row of them, or a latent that is cut into single cells."""
    rng = np.random.default_rng(0)
    weights = {n: rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) for n in "tpqkv"}
    nodes, patches = [], "hidden_states"
    if latent:
        nodes += [
            helper.make_node("Reshape", ["hidden_states", "flat"], ["rows"], name="cut"),
            helper.make_node("Transpose", ["rows"], ["patches"], perm=[0, 2, 1], name="turn"),
        ]
        patches = "patches"
    nodes += [
        helper.make_node("MatMul", ["encoder_hidden_states", "t"], ["text"], name="text"),
        helper.make_node("MatMul", [patches, "p"], ["picture"], name="picture"),
        helper.make_node("Concat", ["text", "picture"] if first == "text" else ["picture", "text"], ["x"], axis=1),
        *(helper.make_node("MatMul", ["x", n], [f"x{n}"], name=f"to_{n}") for n in "qkv"),
        helper.make_node("Transpose", ["xk"], ["xkt"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["xq", "xkt"], ["scores"]),
        helper.make_node("Mul", ["scores", "scale"], ["scaled"]),
        helper.make_node("Softmax", ["scaled"], ["weights"], axis=-1, name="attention"),
        helper.make_node("MatMul", ["weights", "xv"], ["out"]),
    ]
    count = SIDE * SIDE
    shape = [1, WIDTH, SIDE, SIDE] if latent else [1, count, WIDTH]
    inputs = [
        helper.make_tensor_value_info("hidden_states", TensorProto.FLOAT, shape),
        helper.make_tensor_value_info("encoder_hidden_states", TensorProto.FLOAT, [1, TEXT, WIDTH]),
    ]
    constants = [numpy_helper.from_array(w, n) for n, w in weights.items()]
    constants += [
        numpy_helper.from_array(np.array([1, WIDTH, count]), "flat"),
        numpy_helper.from_array(np.array(WIDTH**-0.5, np.float32), "scale"),
    ]
    outputs = [helper.make_tensor_value_info("out", TensorProto.FLOAT, [1, TEXT + count, WIDTH])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
    folder.mkdir()
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "model.onnx"
    )
    return folder


@pytest.mark.parametrize("first", ["text", "picture"])
@pytest.mark.parametrize("latent", [True, False])
def test_the_order_is_that_of_the_graph(first: str, latent: bool, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    model = attnx.open(joined(tmp_path / "m", first, latent), device="cpu")
    shape = (1, WIDTH, SIDE, SIDE) if latent else (1, SIDE * SIDE, WIDTH)
    feed = {
        "hidden_states": rng.standard_normal(shape).astype(np.float32),
        "encoder_hidden_states": rng.standard_normal((1, TEXT, WIDTH)).astype(np.float32),
    }
    text = tuple(f"text {i}" for i in range(TEXT))
    places = ("r0c0", "r0c1", "r1c0", "r1c1") if latent else tuple(f"patch {i}" for i in range(4))
    assert model.trace(inputs=feed).tokens.pieces == (text + places if first == "text" else places + text)


def test_positions_that_are_fed_say_where_patches_lie() -> None:
    rows, columns = np.divmod(np.arange(6), 3)
    feed = {
        "hidden_states": np.zeros((1, 6, 4), np.float32),
        "encoder_hidden_states": np.zeros((1, 2, 5), np.float32),
        "img_ids": np.stack([np.zeros(6), rows, columns], -1).astype(np.float32),
    }
    slots = [Slot(n, a.shape, "tensor(float)") for n, a in feed.items()]
    states = find_states(slots, feed)
    assert states == States("encoder_hidden_states", 2, "hidden_states")

    class Text:
        nodes = (helper.make_node("Concat", ["encoder_hidden_states", "hidden_states"], ["x"]),)

    found = joint_tokens(states, feed, (), Text)  # type: ignore[arg-type]
    tokens = found(8)
    assert tokens is not None
    assert tokens.pieces == ("text 0", "text 1", "r0c0", "r0c1", "r0c2", "r1c0", "r1c1", "r1c2")
    assert found(7) is None
    feed["img_ids"] = feed["img_ids"][::-1]
    shuffled = joint_tokens(states, feed, (), Text)(8)  # type: ignore[arg-type]
    assert shuffled is not None
    assert shuffled.pieces[2:] == tuple(f"patch {i}" for i in range(6))


def test_a_latent_has_nothing_but_patches() -> None:
    slot = Slot("sample", (1, 4, 8, 8), "tensor(float)")
    (frame,) = find_frames([slot], {"sample": np.zeros((1, 4, 8, 8), np.float32)}, Config())
    assert frame.latent
    assert find_grid(16, frame) is not None
    assert find_grid(6, frame) is None
    assert find_grid(6, Frame("pixel_values", 8, 8)) is not None
