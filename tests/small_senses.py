"""Small models that see and listen, with planted attention; pictures and sounds for them; a tokenizer of letters."""

from __future__ import annotations

import json
import struct
import wave
import zlib
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SIDE, PATCH = 16, 4


def vit(folder: Path) -> Path:
    """One attention over 4 x 4 patches of mean brightness, behind a [CLS] that is fixed and looks at bright ones."""
    rng = np.random.default_rng(0)
    weights = {
        "pool": np.full((1, 3, PATCH, PATCH), 1 / (3 * PATCH * PATCH)),
        "cls": np.full((1, 1, 1), 0.5),
        "zero": np.zeros((1, 16, 1)),
        "lift": np.eye(8)[:1] * 3,
        "out": rng.standard_normal((8, 8)),
    }
    constants = [numpy_helper.from_array(v.astype(np.float32), k) for k, v in weights.items()]
    constants.append(numpy_helper.from_array(np.array([0, 1, -1]), "flat"))
    nodes = [
        helper.make_node("Conv", ["pixel_values", "pool"], ["maps"], strides=[PATCH, PATCH], name="embed"),
        helper.make_node("Reshape", ["maps", "flat"], ["row"], name="flatten"),
        helper.make_node("Transpose", ["row"], ["patches"], perm=[0, 2, 1], name="turn"),
        helper.make_node("Concat", ["cls", "patches"], ["x"], axis=1, name="join"),
        helper.make_node("MatMul", ["x", "lift"], ["q"], name="query"),
        helper.make_node("MatMul", ["x", "lift"], ["k"], name="key"),
        helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 2, 1], name="kt"),
        helper.make_node("MatMul", ["q", "kt"], ["scores"], name="qk"),
        helper.make_node("Softmax", ["scores"], ["weights"], axis=-1, name="soft"),
        helper.make_node("MatMul", ["weights", "k"], ["context"], name="pv"),
        helper.make_node("MatMul", ["context", "out"], ["y"], name="project"),
    ]
    graph = helper.make_graph(
        nodes, "vit", [helper.make_tensor_value_info("pixel_values", TensorProto.FLOAT, [1, 3, SIDE, SIDE])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 17, 8])], constants,
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(model, folder / "model.onnx")
    (folder / "preprocessor_config.json").write_text(
        json.dumps({"size": {"height": SIDE, "width": SIDE}, "do_normalize": False, "resample": 0})
    )
    return folder


def reader(folder: Path) -> Path:
    """One attention over the columns of a line of text, 6 pixels high and of any width: the mean of each 4 pixels."""
    weights = {"pool": np.full((1, 3, 6, 4), 1 / 72), "lift": np.eye(8)[:1] * 3}
    constants = [numpy_helper.from_array(v.astype(np.float32), k) for k, v in weights.items()]
    constants.append(numpy_helper.from_array(np.array([2]), "height"))
    nodes = [
        helper.make_node("Conv", ["x", "pool"], ["maps"], strides=[6, 4], name="embed"),
        helper.make_node("Squeeze", ["maps", "height"], ["row"], name="flatten"),
        helper.make_node("Transpose", ["row"], ["columns"], perm=[0, 2, 1], name="turn"),
        helper.make_node("MatMul", ["columns", "lift"], ["q"], name="query"),
        helper.make_node("MatMul", ["columns", "lift"], ["k"], name="key"),
        helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 2, 1], name="kt"),
        helper.make_node("MatMul", ["q", "kt"], ["scores"], name="qk"),
        helper.make_node("Softmax", ["scores"], ["weights"], axis=-1, name="soft"),
        helper.make_node("MatMul", ["weights", "k"], ["y"], name="pv"),
    ]
    graph = helper.make_graph(
        nodes, "reader", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 6, "width"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", "columns", 8])], constants,
    )  # fmt: skip
    folder.mkdir(parents=True)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "model.onnx"
    )
    return folder


def bright(path: Path, row: int, column: int) -> Path:
    """A dark picture of 4 x 4 patches, one of them white."""
    pixels = np.full((SIDE, SIDE, 3), 20, np.uint8)
    pixels[row * PATCH : (row + 1) * PATCH, column * PATCH : (column + 1) * PATCH] = 255
    return png(path, pixels)


def png(path: Path, pixels: np.ndarray) -> Path:
    """A PNG of pixels [rows,columns,3] of 8 bits, without pillow: a header, the rows unfiltered, an end."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    tall, wide, _ = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    parts = (("IHDR", struct.pack(">IIBBBBB", wide, tall, 8, 2, 0, 0, 0)), ("IDAT", zlib.compress(rows)), ("IEND", b""))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunk(name.encode(), data) for name, data in parts))
    return path


def write(path: Path, frames: bytes, *, width: int = 2, channels: int = 1, rate: int = 16_000) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(frames)
    return path


def listener(folder: Path) -> Path:
    """Attention over the frames of [1,80,50], each its mean level."""
    nodes = [
        helper.make_node("Transpose", ["input_features"], ["levels"], perm=[0, 2, 1], name="turn"),
        helper.make_node("Add", ["levels", "lift"], ["x"], name="lift_silence"),
        helper.make_node("MatMul", ["x", "w"], ["q"], name="query"),
        helper.make_node("MatMul", ["x", "w"], ["k"], name="key"),
        helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 2, 1], name="kt"),
        helper.make_node("MatMul", ["q", "kt"], ["scores"], name="qk"),
        helper.make_node("Softmax", ["scores"], ["weights"], axis=-1, name="soft"),
        helper.make_node("MatMul", ["weights", "x"], ["y"], name="pv"),
    ]
    weight = numpy_helper.from_array(np.full((80, 4), 1 / 80, np.float32), "w")
    lift = numpy_helper.from_array(np.float32(1.5), "lift")  # silence is about -1.4: now the loud is the large
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("input_features", TensorProto.FLOAT, [1, 80, 50])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 50, 80])], [weight, lift],
    )  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "model.onnx"
    )
    return folder


def letters(folder: Path, *, spaced: bool = False) -> None:
    """One token a letter: "a" is 0, "b" 1, ...; <s> 21 and </s> 22 around a text; a space is none if `spaced`."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors

    entries = {chr(97 + i): i for i in range(21)} | {"<s>": 21, "</s>": 22, "<unk>": 23}
    raw = Tokenizer(models.WordLevel(entries, unk_token="<unk>"))
    each = pre_tokenizers.Split(Regex("."), "isolated")
    raw.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), each]) if spaced else each
    raw.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 21), ("</s>", 22)])
    raw.save(str(folder / "tokenizer.json"))
