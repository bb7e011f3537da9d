"""Integer products as processors make them, in numpy, and what onnxruntime gives for a file's own tensors here."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

Arrays = Mapping[str, np.ndarray]


def exact(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The product of integers [..., M, K] and [K, N] in int32."""
    return a.astype(np.int32) @ b.astype(np.int32)


def saturated(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The same of uint8 and int8 where two neighbours along K are added in 16 bits (VPMADDUBSW).

    Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, PMADDUBSW.
    """
    odd = a.shape[-1] % 2
    a = np.pad(a.astype(np.int32), [(0, 0)] * (a.ndim - 1) + [(0, odd)])
    b = np.pad(b.astype(np.int32), [(0, odd), (0, 0)])
    pairs = a[..., 0::2, None] * b[0::2] + a[..., 1::2, None] * b[1::2]
    return np.clip(pairs, -(1 << 15), (1 << 15) - 1).sum(-2, dtype=np.int32)


def can_saturate(b: np.ndarray) -> bool:
    """Whether int8 weights [K,N] saturate with some uint8 activations: of a pair both are 255, or one is."""
    a = np.tile(np.array([[255, 255], [255, 0], [0, 255]], np.uint8), -(-len(b) // 2))[:, : len(b)]
    return not np.array_equal(saturated(a, b), exact(a, b))


def saturates() -> bool:
    """Whether onnxruntime's product of uint8 and int8 saturates on this processor."""
    values = [helper.make_tensor_value_info(n, t, None) for n, t in (("a", TensorProto.UINT8), ("b", TensorProto.INT8))]
    out = helper.make_tensor_value_info("y", TensorProto.INT32, None)
    graph = helper.make_graph([helper.make_node("MatMulInteger", ["a", "b"], ["y"])], "g", values, [out])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    a, b = np.full((1, 8), 255, np.uint8), np.full((8, 8), 127, np.int8)
    (got,) = session.run(None, {"a": a, "b": b})
    assert np.array_equal(got, exact(a, b)) or np.array_equal(got, saturated(a, b)), got
    return not np.array_equal(got, exact(a, b))


def own_tensors(path: Path, feed: Arrays, names: Collection[str]) -> dict[str, np.ndarray]:
    """Tensors of a graph by name, as onnxruntime makes them on this machine without optimising anything."""
    model = onnx.load(path)
    held = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    wanted = [name for name in dict.fromkeys(names) if name not in held]
    there = {output.name for output in model.graph.output}
    model.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in wanted if name not in there)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    made = dict(zip(wanted, session.run(wanted, dict(feed)), strict=True))
    return {name: held[name] if name in held else made[name] for name in names}
