"""The table of fused operators: complete, lazy, and the same numbers whatever the model's opset."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import onnx
import pytest

from attnx.graph.load.nodes import op_name
from attnx.records import Miss
from attnx.sites.emit import GIVEN, Emit, is_fixed, prefix_of
from attnx.sites.fused.refused import REASONS
from attnx.sites.fused.registry import FUSED, REWRITES
from tests.sites import test_decoder_masked as decoder_masked
from tests.sites import test_dynamic_sparse as dynamic_sparse
from tests.sites import test_group_query_attention as gqa
from tests.sites import test_longformer as longformer
from tests.sites import test_ms_attention as ms
from tests.sites import test_multi_head_attention as mha
from tests.sites import test_packed as packed
from tests.sites import test_paged as paged
from tests.sites import test_quantised_cache as quantised_cache
from tests.sites import test_sparse_attention as sparse
from tests.sites.replacing import (
    Array,
    attention_node,
    close,
    graph_of,
    hold,
    joined,
    model_of,
    numpy_attention,
    parted,
    replaced,
    run,
)


def test_every_attention_operator_of_onnxruntime_and_onnx_is_known() -> None:
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    words = ("Attention", "RelativePositionBias", "DeltaNet", "EPContext", "BiasSoftmax", "Search", "Sampling")
    names = {f"{s.domain}.{s.name}" for s in state.get_all_operator_schema() if s.domain == "com.microsoft"}
    names |= {
        s.name if not s.domain else f"{s.domain}.{s.name}" for s in onnx.defs.get_all_schemas() if "Attention" in s.name
    }
    harmless = {"com.microsoft.LinearAttentionGate"}  # elementwise, no attention
    wanted = {n for n in names if any(w in n for w in words)} - harmless
    assert wanted
    assert wanted - set(FUSED) - set(REWRITES) == set()


def test_operators_are_imported_when_they_are_first_met() -> None:
    code = (
        "import sys; import attnx.sites.fused.registry; "
        "loaded = [m for m in sys.modules if m.startswith('attnx.sites.fused.') or m in ('onnx', 'onnxruntime')]; "
        "print(sorted(loaded))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "['attnx.sites.fused.registry']"


@pytest.mark.parametrize("op", sorted(REASONS))
def test_what_is_refused_says_why(op: str) -> None:
    domain, _, kind = op.rpartition(".")
    node = onnx.helper.make_node(kind, ["x"], ["y"], name="n", domain=domain)
    assert op_name(node) == op
    model = model_of([node], {"x": np.zeros(1, np.float32)}, ["y"])
    answer = FUSED[op](graph_of(model), node)
    assert answer == Miss("n", op, REASONS[op])


def test_a_model_that_imports_no_operators_of_onnx() -> None:
    feed = mha.feed_of()
    model = mha.model(feed)
    del model.opset_import[0]
    tapped, (finding,), _ = replaced(model)
    tapped.opset_import.append(onnx.helper.make_opsetid("", GIVEN))
    hold(finding, run(tapped, feed))


def test_an_opset_that_is_too_old() -> None:
    feed = mha.feed_of()
    model = mha.model(feed)
    model.opset_import[0].version = 10
    _, findings, (miss,) = replaced(model)
    assert not findings
    assert "opset" in miss.reason


def _longformer() -> tuple[onnx.ModelProto, dict[str, Array]]:
    feed = longformer.feed_of([[0], [0, 1]], 3)
    node = attention_node("LongformerAttention", longformer.ORDER, ["y"], num_heads=longformer.N, window=longformer.W)
    return model_of([node], feed, ["y"]), feed


def _packed() -> tuple[onnx.ModelProto, dict[str, Array]]:
    r = np.random.default_rng(1)
    width = packed.N * packed.D
    feed = {x: r.normal(size=(sum(packed.LENGTHS), width)).astype(np.float32) for x in "qkv"} | packed.layout()
    order = ["q", "k", "v", "", "offset", "sums"]
    return model_of([attention_node("PackedMultiHeadAttention", order, ["y"], num_heads=packed.N)], feed, ["y"]), feed


def _cases() -> dict[str, tuple[onnx.ModelProto, dict[str, Array]]]:
    masked = ms.feed_of(past=2) | {"mask": np.ones((ms.B, ms.S + 2), np.int32)}
    pairs = ms.feed_of() | {"mask": ms.MASKS["ends and starts"].astype(np.int32)}
    cross = mha.feed_of(7, bias=True) | {"mask": mha.random_mask(mha.B, 7)}
    step = gqa.with_rotary(gqa.feed_of(2, 1, 5))
    prompt = gqa.with_rotary(gqa.feed_of(packed=True))
    cache = quantised_cache.quantised(4, "PER_CHANNEL", 1, 5, 2)
    slide = gqa.with_rotary(gqa.feed_of(1, 3, 0, capacity=5))
    sparse_feed = sparse.feed_of(1, 40)
    kinds = {"k_quant_type": "PER_CHANNEL", "v_quant_type": "PER_CHANNEL", "kv_cache_bit_width": 4}
    beams = decoder_masked.feed_of(6)
    beams["beams"] = np.zeros((2, 3, decoder_masked.M), np.int32)
    return {
        "Attention": (ms.model(masked, unidirectional=1), masked),
        "Attention, left padding": (ms.model(pairs), pairs),
        "MultiHeadAttention": (mha.model(cross, unidirectional=1), cross),
        "GroupQueryAttention, step": (gqa.model(step, do_rotary=1, local_window_size=3), step),
        "GroupQueryAttention, prompt": (gqa.model(prompt, do_rotary=1, rotary_interleaved=1, softcap=2.0), prompt),
        "GroupQueryAttention, 4 bits": (gqa.model(cache, **kinds), cache),
        "GroupQueryAttention, window": (gqa.model(slide, local_window_size=4, sliding_window_cache=1), slide),
        "DecoderMaskedMultiHeadAttention": (decoder_masked.model(beams), beams),
        "SparseAttention": (sparse.model(sparse_feed), sparse_feed),
        "LongformerAttention": _longformer(),
        "PackedMultiHeadAttention": _packed(),
        "PagedAttention": (paged.model(paged.feed_of(), local_window_size=3), paged.feed_of()),
        "DynamicSparseAttention": (dynamic_sparse.model(dynamic_sparse.feed_of()), dynamic_sparse.feed_of()),
    }


CASES = _cases()


@pytest.mark.parametrize("opset", [11, 12, 13, 14, 15, 18, 21, 24, 25])
@pytest.mark.parametrize("case", sorted(CASES))
def test_every_opset_gives_the_same(case: str, opset: int) -> None:
    model, feed = CASES[case]
    other = onnx.ModelProto()
    other.CopyFrom(model)
    other.opset_import[0].version = opset
    results: list[dict[str, Any]] = []
    for whole in (model, other):
        tapped, findings, misses = replaced(whole)
        assert not misses
        got = run(tapped, feed)
        results.append({**{o.name: got[o.name] for o in whole.graph.output}, **hold(findings[0], got)})
    for name, array in results[0].items():
        close(results[1][name], array, 1e-6, name)


@pytest.mark.parametrize("op", ["MultiHeadAttention", "GroupQueryAttention", "Attention"])
def test_bfloat16_which_the_cpu_has_no_attention_for(op: str) -> None:
    """Inputs are cast to bfloat16 in the graph; numpy has no such type."""
    import ml_dtypes

    feed = {x: mha.feed_of()[x] for x in "qkv"}
    inputs = [f"{x}16" for x in "qkv"]
    attributes: dict[str, Any] = {"num_heads": mha.N}
    if op == "GroupQueryAttention":
        feed |= {"lengths": np.full(mha.B, mha.S - 1, np.int32), "total": np.array(mha.S, np.int32)}
        inputs += ["", "", "lengths", "total"]
        attributes["kv_num_heads"] = mha.N
    elif op == "Attention":
        attributes = {"q_num_heads": mha.N, "kv_num_heads": mha.N}
    kind = onnx.TensorProto.BFLOAT16
    nodes = [onnx.helper.make_node("Cast", [x], [f"{x}16"], name=x, to=kind) for x in "qkv"]
    nodes.append(attention_node(op, inputs, ["y16"], domain="" if op == "Attention" else "com.microsoft", **attributes))
    nodes.append(onnx.helper.make_node("Cast", ["y16"], ["y"], name="y", to=onnx.TensorProto.FLOAT))
    tapped, (finding,), _ = replaced(model_of(nodes, feed, ["y"], 23))
    assert finding.replacement is not None
    assert finding.replacement.required
    got = run(tapped, feed)
    hold(finding, got)
    rounded = (parted(feed[x].astype(ml_dtypes.bfloat16).astype(np.float32), mha.N) for x in "qkv")
    see = np.tri(mha.S, dtype=bool) if op == "GroupQueryAttention" else True
    want = numpy_attention(*rounded, scale=mha.D**-0.5, visible=see)
    close(got["y"], joined(want["context"]), 1e-2)


def test_names_lead_to_one_node_only() -> None:
    feed = {x: np.zeros((1, 2, 4), np.float32) for x in "qkv"}
    nodes = [attention_node("MultiHeadAttention", ["q", "k", "v"], [out], num_heads=1) for out in ("a", "b")]
    graph = graph_of(model_of(nodes, feed, ["a", "b"]))
    assert [prefix_of(graph, n) for n in nodes] == ["attnx/a", "attnx/b"]  # both nodes are called "att"
    nodes[1].name = "other"
    graph = graph_of(model_of(nodes, feed, ["a", "b"]))
    assert [prefix_of(graph, n) for n in graph.nodes] == ["attnx/att", "attnx/other"]


def test_equal_nodes_are_made_once() -> None:
    e = Emit(graph_of(model_of([], {"x": np.zeros((2, 3), np.float32)}, [])), "attnx/n")
    assert e.dim("x", 1) == e.dim("x", 1)
    assert e.op("Relu", "x") != e.op("Relu", "x", out="attnx/n/named")
    assert e.const(1.0, np.float32) != e.const(1.0, np.float64)
    assert [n.op_type for n in e.nodes] == ["Shape", "Gather", "Relu", "Relu"]


def test_sizes_of_symbols_are_no_sizes() -> None:
    assert [is_fixed(n) for n in (1, 8, 768, 4096, 14336, 12288)] == [True] * 6
    assert [is_fixed(n) for n in (None, 1009, 12 * 1009, 1013 * 1019, -1)] == [False] * 5
