"""Opening files: weights stay where they are; what is no model, or a hostile one, is refused before it is read."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from attnx.errors import ModelError
from attnx.graph.load.load import SELF, load, read_tensor, tensors

BIG = np.arange(4096, dtype=np.float32).reshape(64, 64)


def model(weight: onnx.TensorProto | None = None) -> onnx.ModelProto:
    tensor = weight if weight is not None else numpy_helper.from_array(BIG, "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="m")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 64])],
        [tensor],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def external(location: str, length: int | None = None, offset: int = 0) -> onnx.TensorProto:
    tensor = TensorProto(name="w", data_type=1, dims=[64, 64], data_location=TensorProto.EXTERNAL)
    entries = {"location": location, "offset": str(offset), "length": str(BIG.nbytes if length is None else length)}
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


def saved(tmp_path: Path, proto: onnx.ModelProto, name: str = "m.onnx") -> Path:
    path = tmp_path / name
    path.write_bytes(proto.SerializeToString())
    return path


def test_large_weights_become_references_and_small_ones_stay(tmp_path: Path) -> None:
    proto = model()
    proto.graph.initializer.append(numpy_helper.from_array(np.arange(4), "small"))
    loaded = load(saved(tmp_path, proto))
    by_name = {t.name: t for t in tensors(loaded.proto)}
    assert by_name["small"].raw_data
    assert not by_name["w"].raw_data
    entries = {e.key: e.value for e in by_name["w"].external_data}
    assert entries["location"] == SELF
    raw = loaded.path.read_bytes()[int(entries["offset"]) :][: int(entries["length"])]
    assert raw == BIG.tobytes()
    assert loaded.proto.ByteSize() < 1000


@pytest.mark.parametrize("field", ["raw_data", "float_data", "double_data"])
def test_every_way_of_storing_floats_is_referenced_alike(tmp_path: Path, field: str) -> None:
    array = BIG.astype(np.float64) if field == "double_data" else BIG
    tensor = numpy_helper.from_array(array, "w")
    if field != "raw_data":
        tensor = TensorProto(name="w", dims=array.shape, data_type=11 if field == "double_data" else 1)
        getattr(tensor, field).extend(array.ravel().tolist())
    loaded = load(saved(tmp_path, model(tensor)))
    (found,) = tensors(loaded.proto)
    assert found.data_location == 1
    np.testing.assert_array_equal(read_tensor(loaded, found), array)


def test_a_location_said_outright_does_not_undo_the_reference(tmp_path: Path) -> None:
    tensor = numpy_helper.from_array(BIG, "w")
    tensor.data_location = TensorProto.DEFAULT  # written after the data: the last word would win
    loaded = load(saved(tmp_path, model(tensor)))
    assert tensors(loaded.proto)[0].data_location == 1


def test_weights_in_subgraphs_and_constants_are_found(tmp_path: Path) -> None:
    inner = helper.make_graph(
        [helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(BIG, "c"))],
        "branch", [], [helper.make_tensor_value_info("c", 1, [64, 64])], [numpy_helper.from_array(BIG + 1, "inner")],
    )  # fmt: skip
    node = helper.make_node("If", ["b"], ["z"], then_branch=inner, else_branch=inner, name="if")
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("b", 9, [])], [helper.make_tensor_value_info("z", 1, None)]
    )
    loaded = load(saved(tmp_path, helper.make_model(graph, ir_version=8)))
    found = tensors(loaded.proto)
    assert len(found) == 4
    assert all(t.data_location == 1 for t in found)
    assert loaded.proto.ByteSize() < 2000


def test_external_data_beside_the_model(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(BIG.tobytes())
    loaded = load(saved(tmp_path, model(external("w.bin"))))
    np.testing.assert_array_equal(read_tensor(loaded, tensors(loaded.proto)[0]), BIG)


def test_the_hubs_cache_layout_of_links_is_followed(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "rev" / "onnx"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    (blobs / "aa").write_bytes(model(external("model.onnx_data")).SerializeToString())
    (blobs / "bb").write_bytes(BIG.tobytes())
    (snapshot / "model.onnx").symlink_to("../../../blobs/aa")
    (snapshot / "model.onnx_data").symlink_to("../../../blobs/bb")
    loaded = load(snapshot / "model.onnx")
    np.testing.assert_array_equal(read_tensor(loaded, tensors(loaded.proto)[0]), BIG)
    assert loaded.folder() == blobs.resolve()


@pytest.mark.parametrize("location", ["/etc/passwd", "../secret", "a/../../secret", "", "C:\\windows"])
def test_external_data_outside_the_folder_is_refused(tmp_path: Path, location: str) -> None:
    (tmp_path / "secret").write_bytes(BIG.tobytes())
    folder = tmp_path / "model"
    folder.mkdir()
    with pytest.raises(ModelError, match=r"outside the model's folder|names no file"):
        load(saved(folder, model(external(location))))


def test_a_link_that_leads_outside_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(BIG.tobytes())
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "w.bin").symlink_to(tmp_path / "secret")
    with pytest.raises(ModelError, match="through a link"):
        load(saved(folder, model(external("w.bin"))))


@pytest.mark.parametrize(("length", "offset"), [(BIG.nbytes, 8), (BIG.nbytes, -4), (1 << 60, 0)])
def test_short_or_absurd_external_data_is_refused(tmp_path: Path, length: int, offset: int) -> None:
    (tmp_path / "w.bin").write_bytes(BIG.tobytes())
    with pytest.raises(ModelError, match=r"needs bytes|negative|stored"):
        load(saved(tmp_path, model(external("w.bin", length, offset))))


def test_a_shape_that_its_bytes_do_not_fill_is_refused(tmp_path: Path) -> None:
    tensor = numpy_helper.from_array(BIG, "w")
    tensor.dims[0] = 1 << 40
    with pytest.raises(ModelError, match=r"needs .* bytes"):
        load(saved(tmp_path, model(tensor)))


def test_missing_external_data_still_opens_the_graph(tmp_path: Path) -> None:
    loaded = load(saved(tmp_path, model(external("gone.bin"))))
    assert "gone.bin is missing" in loaded.missing["gone.bin"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty"),
        (b"GGUF" + b"\0" * 60, "GGUF"),
        (b"PK\x03\x04" + b"\0" * 60, "zip archive"),
        (b"\x80\x02" + b"\0" * 60, "pickle"),
        (b"\x1c\0\0\0ORTM" + b"\0" * 60, "ORT format"),
        ((100).to_bytes(8, "little") + b'{"w":{}}' + b" " * 92, "safetensors"),
        (b'{"model": 1}', "JSON"),
        (b"version https://git-lfs.github.com/spec/v1\n", "LFS pointer"),
        (b"<!DOCTYPE html><html></html>", "web page"),
        (b"\xff" * 64, "not an ONNX model|not a whole"),
        (b"\x08\x08", "no graph"),
    ],
)
def test_other_files_are_called_what_they_are(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=said):
        load(path)


def test_a_missing_file_names_its_neighbours(tmp_path: Path) -> None:
    saved(tmp_path, model(), "near.onnx")
    with pytest.raises(ModelError) as caught:
        load(tmp_path / "far.onnx")
    assert "near.onnx" in caught.value.hint
    with pytest.raises(ModelError, match="folder"):
        load(tmp_path)


@settings(max_examples=150)
@given(cut=st.integers(0, 2**20), flips=st.lists(st.tuples(st.integers(0, 2**20), st.integers(0, 255)), max_size=8))
def test_damaged_files_are_refused_or_read_never_worse(
    tmp_path_factory: pytest.TempPathFactory, cut: int, flips: list[tuple[int, int]]
) -> None:
    data = bytearray(model().SerializeToString())
    for at, value in flips:
        data[at % len(data)] = value
    path = tmp_path_factory.mktemp("damaged") / "m.onnx"
    path.write_bytes(bytes(data[: len(data) - cut % len(data)] if cut % 3 == 0 else data))
    with contextlib.suppress(ModelError):  # refused with a reason, or read; anything else is a failure
        load(path)


def test_deep_nesting_is_refused(tmp_path: Path) -> None:
    def field(number: int, body: bytes) -> bytes:
        size, head = len(body), bytearray([number << 3 | 2])
        while size > 127:
            head.append(size & 127 | 128)
            size >>= 7
        return bytes(head) + bytes([size]) + body

    graph = field(5, numpy_helper.from_array(BIG, "w").SerializeToString())
    for _ in range(80):  # a graph in an attribute in a node in a graph ...
        graph = field(1, field(5, field(6, graph)))
    path = tmp_path / "m.onnx"
    path.write_bytes(b"\x08\x08" + field(7, graph))
    with pytest.raises(ModelError, match="nests subgraphs"):
        load(path)
