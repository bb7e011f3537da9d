"""Which products can saturate, read off the graph, against products of numpy and of this processor's kernels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from attnx.graph.shapes.kernels import kernels
from attnx.records import Kernels
from attnx.run.exact import in_uint8
from attnx.session.ort import open_session
from attnx.sites.recognise import find
from tests.integers import exact, saturated, saturates
from tests.processors.made import Case, K, N, model, of, sides

PRODUCTS = (
    "MatMulInteger", "MatMulInteger of two inputs", "MatMulInteger in a branch", "QLinearMatMul", "QLinearConv",
    "ConvInteger", "QGemm", "QGemm turned", "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "QAttention",
    "DynamicQuantizeLSTM",
)  # fmt: skip
FLOAT = ("MatMul", "Gemm")


def ran(path: Path, case: Case, *, in_unsigned: bool, fused: bool = False) -> np.ndarray:
    found = find(path)
    proto = found.loaded.proto.SerializeToString()
    made = in_uint8(proto, found) if in_unsigned else proto
    session = open_session(made, found.loaded.folder(), "cpu", fused=fused)
    return session.run(case.feed)["y"]


def moved(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The product of int8 and int8 as onnxruntime fuses it: the left side in uint8, its zero point with it."""
    return saturated((a.astype(np.int16) + 128).astype(np.uint8), b) - 128 * b.astype(np.int32).sum(0)


def close(got: np.ndarray, want: np.ndarray) -> bool:
    size = max(1.0, float(np.abs(want).max()))
    return got.shape == want.shape and bool(np.abs(got.astype(np.float64) - want).max() <= 1e-5 * size)


@pytest.mark.parametrize("op", PRODUCTS)
def test_a_product_that_can_saturate_is_found_and_made_exact(op: str, tmp_path: Path) -> None:
    """As it is it gives what this processor's kernel gives; with the int8 side in uint8 it is exact everywhere."""
    case = of(op, *sides())
    path = case.save(tmp_path, external=True)
    ((name, count),) = kernels(find(path).graph).products.items()
    assert (name, count) == (op.split()[0], 2 if "branch" in op else 1)
    assert not close(case.want(saturated), case.want(exact)), "the case does not tell them apart"
    assert close(ran(path, case, in_unsigned=True), case.want(exact))
    assert close(ran(path, case, in_unsigned=False), case.want(saturated if saturates() else exact))


@pytest.mark.parametrize("op", FLOAT)
@pytest.mark.parametrize("left", [np.uint8, np.int8])
def test_products_of_floats_that_onnxruntime_fuses(op: str, left: type, tmp_path: Path) -> None:
    case = of(op, *sides(left))
    path = case.save(tmp_path)
    assert kernels(find(path).graph) == Kernels(fused={op: 1})
    assert close(ran(path, case, in_unsigned=False), case.want(exact)), "attnx fuses nothing"
    assert close(ran(path, case, in_unsigned=True), case.want(exact)), "nor changes what floats there are"
    assert close(ran(path, case, in_unsigned=True, fused=True), case.want(exact))
    want = case.want(moved if left == np.int8 else saturated)
    assert close(ran(path, case, in_unsigned=False, fused=True), want if saturates() else case.want(exact))


@pytest.mark.parametrize(("left", "right"), [(np.uint8, np.uint8), (np.int8, np.int8)])
@pytest.mark.parametrize("op", ["MatMulInteger", "QLinearMatMul", "QGemm", "MatMulIntegerToFloat"])
def test_products_of_one_type_cannot(op: str, left: type, right: type, tmp_path: Path) -> None:
    case = of(op, *sides(left, right))
    path = case.save(tmp_path)
    assert kernels(find(path).graph) == Kernels()
    assert close(ran(path, case, in_unsigned=False), case.want(exact))


@pytest.mark.parametrize("op", [*PRODUCTS[3:5], *PRODUCTS[6:], *FLOAT, "MatMulInteger"])
def test_weights_of_seven_bits_cannot(op: str, tmp_path: Path) -> None:
    a, b = sides(most=64)
    assert np.abs(b.astype(int)).max() == 64
    case = of(op, a, b)
    path = case.save(tmp_path)
    assert kernels(find(path).graph) == Kernels()
    assert close(ran(path, case, in_unsigned=False), case.want(exact))


@pytest.mark.parametrize(
    ("column", "can"),
    [
        ([64, 64], False), ([65, 64], True), ([-64, -64], False), ([-65, -64], True), ([127, 2], True),
        ([127, 1], False), ([127, -127], False), ([0, 127, 127, 0], False), ([127, 0, 127, 0], False),
        ([0, 0, 127, 127], True), ([-128, 0], False), ([-128, -1], True), ([1, 1, 127], False),
    ],
)  # fmt: skip
def test_neighbours_decide(column: list[int], can: bool, tmp_path: Path) -> None:
    """Weights 2i and 2i + 1 along K, of one sign, beyond 128 together: numpy and the kernel agree."""
    b = np.array(column, np.int8)[:, None].repeat(N, 1)
    a = np.full((2, len(column)), 255, np.uint8)
    case = of("MatMulInteger", a, b)
    path = case.save(tmp_path)
    assert bool(kernels(find(path).graph).products) is can
    assert np.array_equal(saturated(a, b), exact(a, b)) is not can
    assert close(ran(path, case, in_unsigned=False), exact(a, b) if not saturates() else saturated(a, b))
    turned = of("QGemm turned", a, b).save(tmp_path)
    assert bool(kernels(find(turned).graph).products) is can


def convolution(weights: np.ndarray, group: int = 1) -> onnx.ModelProto:
    held = {"w": weights, "one": np.float32(1), "zx": np.uint8(0), "zw": np.int8(0), "step": np.float32(1e3)}
    node = helper.make_node("QLinearConv", ["x", "one", "zx", "w", "one", "zw", "step", "zx"], ["y"], group=group)
    return model([node], {"x": np.zeros((1, 1, 1, 1), np.uint8)}, held)


@pytest.mark.parametrize(
    ("shape", "axis", "column", "group", "can"),
    [
        ((2, 4, 2, 2), 1, [127, 0, 127, 0], 1, False), ((2, 4, 2, 2), 1, [0, 127, 127, 0], 1, False),
        ((2, 4, 2, 2), 1, [0, 0, 127, 127], 1, True), ((2, 4, 2, 2), 3, [127, 0], 1, True),
        ((2, 3, 2, 2), 1, [127, 0, 127], 1, True), ((2, 3, 1, 1), 1, [127, 0, 127], 1, False),
        ((4, 1, 3, 3), 3, [127, 127, 127], 4, False), ((4, 2, 3, 3), 1, [127, 127], 2, True),
    ],
)  # fmt: skip
def test_filters_channel_by_channel(
    shape: tuple[int, ...], axis: int, column: list[int], group: int, can: bool, tmp_path: Path
) -> None:
    """A kernel takes all channels of one pixel before the next pixel; single channels have a kernel that adds in 32."""
    w = np.zeros(shape, np.int8) + np.array(column, np.int8).reshape([-1 if i == axis else 1 for i in range(4)])
    proto = convolution(w, group)
    proto.graph.initializer[4].CopyFrom(
        onnx.numpy_helper.from_array(np.float32(np.abs(w[0].astype(int)).sum() * 2), "step")
    )
    onnx.save(proto, tmp_path / "m.onnx")
    found = find(tmp_path / "m.onnx")
    assert kernels(found.graph) == Kernels(products={"QLinearConv": 1} if can else {})
    feed = {"x": np.full((1, shape[1] * group, *shape[2:]), 255, np.uint8)}
    per_filter = w.transpose(0, 2, 3, 1).reshape(len(w), -1)
    ones = np.full((1, per_filter.shape[1]), 255, np.uint8)
    product = saturated if saturates() and shape[1] > 1 else exact
    assert np.array_equal(saturated(ones, per_filter.T), exact(ones, per_filter.T)) is not can or shape[1] == 1
    got = open_session(proto.SerializeToString(), device="cpu").run(feed)["y"].ravel()
    want = product(ones, per_filter.T)[0] / (np.abs(w[0].astype(int)).sum() * 2)
    assert np.abs(got - want).max() <= 0.5 + 1e-6


def laid_out(filters: int, channels: int) -> onnx.ModelProto:
    """A convolution as onnxruntime saves it, padded to whole blocks."""
    held = {"w": np.zeros((filters, 3, 2, 2), np.float32)}
    domain = "com.microsoft.nchwc"
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], domain=domain, kernel_shape=[2, 2]),
        helper.make_node("MaxPool", ["c"], ["p"], domain=domain, kernel_shape=[1, 1]),
        helper.make_node("ReorderOutput", ["p"], ["y"], domain=domain, channels=channels),
    ]
    proto = model(nodes, {"x": np.zeros((1, 3, 4, 4), np.float32)}, held)
    proto.opset_import.append(helper.make_opsetid(domain, 1))
    return proto


@pytest.mark.parametrize(
    ("filters", "channels", "blocks"),
    [(32, 32, (8, 16)), (24, 20, (8,)), (32, 20, (16,)), (32, 30, (8, 16)), (9, 9, ())],
)
def test_blocks_of_channels(filters: int, channels: int, blocks: tuple[int, ...], tmp_path: Path) -> None:
    onnx.save(laid_out(filters, channels), tmp_path / "m.onnx")
    assert kernels(find(tmp_path / "m.onnx").graph) == Kernels(blocked=3, blocks=blocks)


def test_large_weights_are_read_to_the_first_pair_that_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In pieces of an even number of rows, whatever their width; a file that is missing tells nothing."""
    monkeypatch.setattr("attnx.graph.shapes.kernels._AT_ONCE", 3 * N)
    b = np.full((K, N), 64, np.int8)
    case = of("MatMulInteger", sides()[0], b)
    assert kernels(find(case.save(tmp_path, external=True)).graph) == Kernels()
    b[-1, -1] = 65
    (tmp_path / "weights").unlink()
    path = of("MatMulInteger", sides()[0], b).save(tmp_path, external=True)
    assert kernels(find(path).graph).products == {"MatMulInteger": 1}
    (tmp_path / "weights").unlink()
    assert kernels(find(path).graph) == Kernels()
