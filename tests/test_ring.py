"""A cache that is a ring of the window's length, as onnxruntime-genai builds Gemma 2: written on without it."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import attnx
from attnx.tokens import from_ids

WIDTH, HEADS, SIZE, WORDS, WINDOW = 16, 2, 8, 24, 4


def ring(path: Path) -> Path:
    """Ids, one GroupQueryAttention with a ring for its cache, logits."""
    rng = np.random.default_rng(3)
    weights = {
        "table": rng.standard_normal((WORDS, WIDTH)),
        "qkv": rng.standard_normal((WIDTH, 3 * WIDTH)) * 0.6,
        "head": rng.standard_normal((WIDTH, WORDS)),
    }
    names = ["past_key_values.0.key", "past_key_values.0.value"]
    presents = [n.replace("past_key_values", "present") for n in names]
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["x"], name="embed"),
        helper.make_node("MatMul", ["x", "qkv"], ["packed"], name="project"),
        helper.make_node("ReduceSum", ["attention_mask", "one"], ["sum"], keepdims=1, name="count"),
        helper.make_node("Sub", ["sum", "one"], ["last"], name="last"),
        helper.make_node("Cast", ["last"], ["seqlens"], to=TensorProto.INT32, name="lengths"),
        helper.make_node("Shape", ["attention_mask"], ["shape"], start=1, end=2, name="shape"),
        helper.make_node("Squeeze", ["shape"], ["size"], name="squeeze"),
        helper.make_node("Cast", ["size"], ["total"], to=TensorProto.INT32, name="total"),
        helper.make_node(
            "GroupQueryAttention", ["packed", "", "", *names, "seqlens", "total"], ["seen", *presents],
            name="attention", domain="com.microsoft", num_heads=HEADS, kv_num_heads=HEADS, local_window_size=WINDOW,
            sliding_window_cache=1,
        ),
        helper.make_node("Add", ["x", "seen"], ["y"], name="residual"),
        helper.make_node("MatMul", ["y", "head"], ["logits"], name="logits"),
    ]  # fmt: skip
    cache = ["batch", HEADS, "past_sliding_length", SIZE]
    grown = ["batch", HEADS, "total_sliding_length", SIZE]
    value = helper.make_tensor_value_info
    inputs = [
        value("input_ids", TensorProto.INT64, ["batch", "sequence"]),
        value("attention_mask", TensorProto.INT64, ["batch", "total"]),
        *(value(n, TensorProto.FLOAT, cache) for n in names),
    ]
    outputs = [value("logits", TensorProto.FLOAT, ["batch", "sequence", WORDS])]
    outputs += [value(n, TensorProto.FLOAT, grown) for n in presents]
    constants = [numpy_helper.from_array(w.astype(np.float32), n) for n, w in weights.items()]
    constants.append(numpy_helper.from_array(np.array([1]), "one"))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def through_the_ring(session: Any, ids: list[int], count: int) -> list[int]:
    """Greedy decoding by onnxruntime, a call a token, through the model's own ring."""
    past = {s.name: np.zeros((1, HEADS, WINDOW, SIZE), np.float32) for s in session.get_inputs() if "past" in s.name}
    chunk = ids
    for _ in range(count):
        feed = {"input_ids": np.array([chunk]), "attention_mask": np.ones((1, len(ids)), np.int64), **past}
        names = [o.name for o in session.get_outputs()]
        got = dict(zip(names, session.run(None, feed), strict=True))
        past = {n.replace("present", "past_key_values"): a for n, a in got.items() if n != "logits"}
        ids = [*ids, int(got["logits"][0, -1].argmax())]
        chunk = ids[-1:]
    return ids


@pytest.mark.parametrize("prompt", [[3, 7], [1, 2, 3, 4, 5, 6, 7], [9, 9, 20, 4]])
def test_it_writes_what_the_ring_writes(prompt: list[int], tmp_path: Path) -> None:
    path = ring(tmp_path / "model.onnx")
    try:
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    except Exception as error:
        pytest.skip(f"this onnxruntime has no such cache: {str(error)[:80]}")
    want = through_the_ring(session, prompt, 6)
    trace = attnx.open(path, device="cpu").trace(tokens=from_ids(prompt), generate=6)
    assert trace.tokens.ids.tolist() == want
    assert len(set(want[len(prompt) :])) > 1
    weights = trace.attentions[0].need("weights")[0]
    behind = np.subtract.outer(np.arange(len(want)), np.arange(len(want)))
    assert not weights[:, (behind < 0) | (behind >= WINDOW)].any()
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)
    assert any("recomputed" in note for note in trace.notes)
