"""Shapes of onnxruntime's own operators: a rule for each, held to what onnxruntime infers where it can be asked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper
from onnxruntime.capi import onnxruntime_pybind11_state as native

from attnx.graph.load.load import Loaded
from attnx.graph.shapes import contrib_more, contrib_sequences
from attnx.graph.shapes import contrib_rules as shapes_ort
from attnx.graph.shapes import node_facts as shapes
from attnx.graph.shapes.index import Graph
from attnx.graph.shapes.infer import Fact
from attnx.session.outside import facts_by_onnxruntime
from attnx.sites.recognise import find
from attnx.sites.recurrent import describe
from tests.graphs import RNG, G, softmax, trace

MS, F, I8, U8, I32, I64 = "com.microsoft", 1, 3, 2, 6, 7
In = tuple[int, Sequence[int]] | np.ndarray | None
ELSEWHERE = {"EPContext", "Snpe"}
"""Stand for what another program computes."""


def s(value: float = 0.1) -> np.ndarray:
    return np.array(value, np.float32)


def z(dtype: Any = np.uint8) -> np.ndarray:
    return np.array(0, dtype)


ONE = {  # one operator: inputs (type, shape; or the numbers), attributes, and the shapes of what comes out by hand
    "DynamicQuantizeLSTM": (
        [(F, [5, 2, 8]), (I8, [2, 8, 24]), (I8, [2, 6, 24]), None, None, None, None, None, (F, [2]), (I8, [2]),
         (F, [2]), (I8, [2])],
        {"hidden_size": 6, "direction": "bidirectional"}, [(5, 2, 2, 6), (2, 2, 6), (2, 2, 6)],
    ),
    "AttnLSTM": (
        [(F, [5, 2, 8]), (F, [1, 24, 8]), (F, [1, 24, 6])],
        {"hidden_size": 6}, [(5, 1, 2, 6), (1, 2, 6), (1, 2, 6)],
    ),
    "QLinearConv": (
        [(U8, [1, 8, 9, 4]), s(), z(), (U8, [6, 4, 3, 3]), s(), z(), s(), z()],
        {"channels_last": 1, "strides": [2, 2], "pads": [1, 1, 1, 1]}, [(1, 4, 5, 6)],
    ),
    "QLinearAveragePool": (
        [(U8, [1, 4, 8, 9]), s(), z(), s(), z()],
        {"kernel_shape": [2, 3], "strides": [2, 2]}, [(1, 4, 4, 4)],
    ),
    "QLinearGlobalAveragePool": ([(U8, [1, 8, 9, 4]), s(), z(), s(), z()], {"channels_last": 1}, [(1, 1, 1, 4)]),
    "QLinearConcat": ([s(), z(), (U8, [2, 3]), s(), z(), (U8, [2, 4]), s(), z()], {"axis": 1}, [(2, 7)]),
    "QLinearReduceMean": ([(U8, [2, 3, 4]), s(), z(), s(), z()], {"axes": [1], "keepdims": 0}, [(2, 4)]),
    "QLinearLeakyRelu": ([(U8, [2, 3]), s(), z(), s(), z()], {"alpha": 0.1}, [(2, 3)]),
    "QLinearWhere": ([(9, [2, 1]), (U8, [2, 3]), s(), z(), (U8, [3]), s(), z(), s(), z()], {}, [(2, 3)]),
    "QGemm": ([(U8, [2, 3]), s(), z(), (U8, [5, 3]), s(), z()], {"transB": 1}, [(2, 5)]),
    "MatMulBnb4": (
        [(F, [2, 7, 32]), (U8, [256]), (F, [16])],
        {"K": 32, "N": 16, "block_size": 32, "quant_type": 1}, [(2, 7, 16)],
    ),
    "MatMulFpQ4": ([(F, [2, 32]), (U8, [400]), np.array([32, 16], np.int64)], {}, [(2, 16)]),
    "GatherBlockQuantized": (
        [(U8, [9, 16]), (I64, [2, 5]), (F, [9, 2])],
        {"bits": 4, "block_size": 16, "quantize_axis": 1}, [(2, 5, 32)],
    ),
    "ExpandDims": ([(F, [2, 3]), np.array(-1, np.int32)], {}, [(2, 3, 1)]),
    "CDist": ([(F, [4, 3]), (F, [6, 3])], {"metric": "euclidean"}, [(4, 6)]),
    "GridSample": ([(F, [1, 2, 5, 6]), (F, [1, 3, 4, 2])], {}, [(1, 2, 3, 4)]),
    "CropAndResize": ([(F, [1, 2, 8, 8]), (F, [3, 4]), (I32, [3]), np.array([4, 5], np.int32)], {}, [(3, 2, 4, 5)]),
    "UnfoldTensor": ([(F, [2, 9, 3])], {"dim": 1, "size": 3, "step": 2}, [(2, 4, 3, 3)]),
    "FusedConv": ([(F, [1, 3, 8, 8]), (F, [6, 3, 3, 3])], {"activation": "Relu", "pads": [1, 1, 1, 1]}, [(1, 6, 8, 8)]),
    "NhwcFusedConv": ([(10, [1, 8, 8, 3]), (10, [6, 3, 3, 3])], {}, [(1, 6, 6, 6)]),
    "NhwcConv": ([(F, [1, 8, 9, 3]), (F, [6, 3, 3, 3])], {"strides": [2, 2]}, [(1, 3, 4, 6)]),
    "NhwcMaxPool": ([(I8, [1, 8, 9, 3])], {"kernel_shape": [2, 2], "strides": [2, 2]}, [(1, 4, 4, 3)]),
    "MaxpoolWithMask": (
        [(F, [1, 3, 8, 8]), (I32, [1, 3, 8, 8])],
        {"kernel_shape": [2, 2], "strides": [2, 2]}, [(1, 3, 4, 4)],
    ),
    "Rfft": ([(F, [2, 3, 8])], {"signal_ndim": 1, "onesided": 1, "normalized": 0}, [(2, 3, 5, 2)]),
    "Irfft": ([(F, [2, 3, 5, 2])], {"signal_ndim": 1, "onesided": 1, "normalized": 0}, [(2, 3, 8)]),
    "BiasSplitGelu": ([(F, [2, 4, 16]), (F, [16])], {}, [(2, 4, 8)]),
    "BiasAdd": ([(F, [2, 4, 16]), (F, [16]), (F, [2, 4, 16])], {}, [(2, 4, 16)]),
    "SkipGroupNorm": (
        [(10, [1, 4, 4, 8]), (F, [8]), (F, [8]), (10, [1, 4, 4, 8])],
        {"groups": 2, "activation": 0}, [(1, 4, 4, 8)],
    ),
    "Inverse": ([(F, [2, 3, 3])], {}, [(2, 3, 3)]),
    "ComplexMul": ([(F, [2, 3, 2]), (F, [3, 2])], {}, [(2, 3, 2)]),
    "MurmurHash3": ([(I32, [2, 3])], {}, [(2, 3)]),
    "NGramRepeatBlock": ([(I64, [2, 5]), (F, [2, 11])], {"ngram_size": 2}, [(2, 11)]),
    "Unique": ([(F, [7])], {}, [(None,), (7,), (None,)]),
    "WordConvEmbedding": ([(I32, [2, 6, 5]), (F, [9, 1, 3, 4]), (F, [9]), (F, [30, 4])], {}, [(2, 6, 9)]),
    "Tokenizer": ([(8, [2, 3])], {"mark": 0, "mincharnum": 1, "pad_value": "#", "separators": [" "]}, [(2, 3, None)]),
    "TorchEmbedding": ([(F, [9, 4]), (I64, [2, 3])], {}, [(2, 3, 4)]),
    "IsAllFinite": ([(F, [2, 3])], {}, [()]),
    "MoE": ([(F, [2, 3, 8]), (F, [6, 4]), (F, [4, 16, 8]), None, (F, [4, 8, 16])], {"k": 1}, [(2, 3, 8)]),
    "GatedRelativePositionBias": (
        [(F, [2, 5, 8]), (F, [8]), (F, [1, 2, 5, 5]), (F, [4, 8]), (F, [8]), (F, [1, 2, 1, 1])],
        {"num_heads": 2}, [(2, 2, 5, 5)],
    ),
    "RelativePositionBias": (
        [(F, [32, 4]), np.array([6], np.int64), np.array([7], np.int64)],
        {"max_distance": 128}, [(1, 4, 6, 7)],
    ),
    "RemovePadding": ([(F, [2, 5, 8]), (I32, [2])], {}, [(None, 8), (2, 5), (3,), (1,)]),
    "RestorePadding": ([(F, [7, 8]), (I32, [2, 5])], {}, [(2, 5, 8)]),
    "PackedAttention": ([(F, [7, 8]), (F, [8, 24]), (F, [24]), (I32, [2, 5]), (I32, [3])], {"num_heads": 2}, [(7, 8)]),
    "DecoderMaskedSelfAttention": (
        [(F, [1, 1, 8]), (F, [8, 24]), (F, [24]), None, (F, [2, 1, 2, 5, 4]), None, (I32, [1])],
        {"num_heads": 2, "past_present_share_buffer": 1}, [(1, 1, 8), (2, 1, 2, 5, 4)],
    ),
    "DecoderAttention": (
        [(F, [5, 2, 8]), (F, [5, 2, 8]), (F, [8, 8]), (F, [8, 16]), (F, [24]), None, None, None, (9, [1]),
         (9, [1]), (9, [1]), (9, [1])],
        {"num_heads": 2}, [(5, 2, 8), (2, 2, None, 4), (2, 2, None, 4)],
    ),
    "LinearAttention": (
        [(F, [2, 5, 16]), (F, [2, 5, 8]), (F, [2, 5, 12])],
        {"q_num_heads": 4, "kv_num_heads": 2}, [(2, 5, 24), (2, 2, 4, 6)],
    ),
    "CausalConvWithState": ([(F, [2, 8, 5]), (F, [8, 1, 4])], {"ndim": 1}, [(2, 8, 5), (2, 8, 3)]),
    "PagedAttention": (
        [(10, [7, 32]), None, None, (10, [4, 16, 1, 8]), (10, [4, 16, 1, 8]), (I32, [3]), (I32, [2]), (I32, [2, 2])],
        {"num_heads": 2, "kv_num_heads": 1}, [(7, 16), (4, 16, 1, 8), (4, 16, 1, 8)],
    ),
    "MatMulNBitsQkv": (
        [(F, [1, 3, 32]), None, (F, [32]), (U8, [64, 1, 16]), (F, [64, 1]), None, (U8, [32, 1, 16]),
         (F, [32, 1]), None, (U8, [32, 1, 16]), (F, [32, 1])],
        {"K": 32, "Nq": 64, "Nkv": 32, "bits": 4, "block_size": 32}, [(1, 3, 64), (1, 3, 32), (1, 3, 32)],
    ),
    "BeamSearch": (
        [(I32, [2, 5]), np.array([20], np.int32), None, np.array([4], np.int32), np.array([3], np.int32)],
        {}, [(2, 3, 20), (2, 3)],
    ),
    "GreedySearch": ([(I32, [2, 5]), np.array([20], np.int32)], {}, [(2, 20)]),
    "NGramHashMapping": (
        [(I64, [2, 5]), (I64, [3]), (I64, [4])],
        {"max_ngram_size": 3, "n_head_per_ngram": 2, "pad_id": 0}, [(2, 5, 4), (2, 2)],
    ),
}  # fmt: skip
# What the CPU's own onnxruntime cannot be asked: no kernel there, or no inference of its own.
SILENT = {
    "BeamSearch", "BiasAdd", "BiasSplitGelu", "ComplexMul", "DecoderAttention", "DecoderMaskedSelfAttention",
    "GatedRelativePositionBias", "GreedySearch", "Irfft", "IsAllFinite", "MatMulFpQ4", "MatMulNBitsQkv", "NhwcConv",
    "NhwcFusedConv", "PackedAttention", "PagedAttention", "QLinearReduceMean", "RelativePositionBias", "RemovePadding",
    "RestorePadding", "Rfft", "SkipGroupNorm", "TorchEmbedding",
}  # fmt: skip


def one(op: str, inputs: Sequence[In], attributes: dict[str, Any], count: int) -> tuple[onnx.NodeProto, list[Fact]]:
    names = ["" if value is None else f"i{at}" for at, value in enumerate(inputs)]
    node = helper.make_node(op, names, [f"o{i}" for i in range(count)], domain=MS, **attributes)
    facts = []
    for value in inputs:
        if value is None:
            facts.append(Fact())
        elif isinstance(value, np.ndarray):
            facts.append(Fact(value.shape, int(helper.np_dtype_to_tensor_dtype(value.dtype)), value))
        else:
            facts.append(Fact(tuple(value[1]), value[0]))
    return node, facts


def opsets() -> list[onnx.OperatorSetIdProto]:
    return [helper.make_opsetid("", 17), helper.make_opsetid(MS, 1)]


def graph_of(node: onnx.NodeProto) -> Graph:
    model = helper.make_model(helper.make_graph([node], "g", [], []), opset_imports=opsets())
    return Graph(Loaded(Path("m.onnx"), model, {}), model, [node])


def test_every_operator_of_onnxruntimes_own_has_a_rule() -> None:
    own = {schema.name for schema in native.get_all_operator_schema() if schema.domain == MS}
    known = {name for table in (shapes, contrib_more, shapes_ort, contrib_sequences) for name in table.SHAPES}
    assert own - known == ELSEWHERE
    blocked = {schema.name for schema in native.get_all_operator_schema() if schema.domain == f"{MS}.nchwc"}
    assert blocked - known - set(contrib_more.BLOCKED) == set()


@pytest.mark.parametrize("op", ONE)
def test_a_rule_gives_the_shapes_of_what_comes_out(op: str) -> None:
    inputs, attributes, shape = ONE[op]
    node, facts = one(op, inputs, attributes, len(shape))
    assert [fact.shape for fact in shapes.infer_shape(graph_of(node), node, facts)] == shape


@pytest.mark.parametrize("op", [op for op in ONE if op not in SILENT])
def test_a_rule_contradicts_onnxruntime_nowhere(op: str) -> None:
    inputs, attributes, shape = ONE[op]
    node, facts = one(op, inputs, attributes, len(shape))
    theirs = facts_by_onnxruntime(node, facts, opsets())
    assert theirs is not None
    ours = shapes.infer_shape(graph_of(node), node, facts)
    for mine, other in zip(ours, theirs, strict=True):
        for a, b in zip(mine.shape or (), other.shape or (), strict=False):
            assert a == b or None in (a, b)
        assert other.shape is None or mine.shape is None or len(mine.shape) == len(other.shape)
    assert ours[0].dtype == theirs[0].dtype


@pytest.mark.parametrize("unknown", [False, True])
def test_attention_behind_an_operator_without_a_rule(
    unknown: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cell in integers, and any operator at all whose shape only onnxruntime knows."""
    g = G()
    x = g.input("x", [5, "b", 8])
    if unknown:
        monkeypatch.delitem(contrib_more.SHAPES, "Inverse")
        scaled = g.op("Mul", g.const(np.eye(8, dtype=np.float32)), g.const(2.0, np.float32))
        states = g.op("MatMul", x, g.op("Inverse", scaled, domain=MS))
        width = 8
    else:
        cell = [g.const(RNG.integers(-90, 90, (1, n, 64)), np.int8) for n in (8, 16)]
        more = [v for _ in cell for v in (g.const([0.01], np.float32), g.const([0], np.int8))]
        steps, *_ = g.op(
            "DynamicQuantizeLSTM", x, *cell, "", "", "", "", "", *more, outputs=3, hidden_size=16, domain=MS
        )
        states, width = g.op("Squeeze", steps, g.const([1], np.int64)), 16
    y = g.op("Transpose", states, perm=[1, 0, 2])
    q, k, v = (g.linear(y, 8, width) for _ in range(3))
    weights = g.softmax(g.scores(q, g.op("Transpose", k, perm=[0, 2, 1])))
    path = g.save(tmp_path, str(g.op("MatMul", weights, v)), q, k)
    model = onnx.load(path)
    model.opset_import.append(helper.make_opsetid(MS, 1))
    onnx.save(model, path)
    found = find(path, outside=facts_by_onnxruntime)
    assert [site.kind for site in found.sites] == ["self"]
    assert (describe(found.graph) is not None) is not unknown
    if not unknown:
        feed = {"x": RNG.standard_normal((5, 2, 8)).astype(np.float32)}
        got = trace(path, **feed).attentions[0]
        query, key = (got.need(name)[:, 0] for name in ("query", "key"))
        # Kernels of a cell in integers round at knife's edges: they give this processor's numbers, nearly the same.
        plain = ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run([q], feed)[0]
        np.testing.assert_allclose(query, plain, atol=0.05)
        weights = got.need("weights")
        np.testing.assert_allclose(weights[:, 0], softmax(query @ key.transpose(0, 2, 1) * 8**-0.5), atol=1e-5)


def test_what_onnxruntime_does_not_know_stays_unknown() -> None:
    node, facts = one("NoSuchOperator", [(F, [2, 3])], {}, 1)
    assert facts_by_onnxruntime(node, facts, opsets()) is None
    node, facts = one("Inverse", [(F, [2, 3, 3])], {}, 1)
    assert facts_by_onnxruntime(node, [Fact((None, 3, 3), 1)], opsets()) is None
    assert facts_by_onnxruntime(node, facts, opsets()) == [Fact((2, 3, 3), 1)]
