"""Put a decomposition in the place of a fused node, run both, and hold the stages against plain numpy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from attnx.graph.load.flatten import sort_nodes
from attnx.graph.load.load import Loaded
from attnx.graph.load.nodes import op_name
from attnx.graph.shapes.index import Graph
from attnx.records import Miss, Place
from attnx.sites.finding import Finding, Replacement
from attnx.sites.fused.registry import FUSED, REWRITES

Array = NDArray[Any]
MS = "com.microsoft"


def model_of(
    nodes: Sequence[onnx.NodeProto],
    feed: Mapping[str, Array],
    outputs: Sequence[str],
    opset: int = 17,
    weights: Mapping[str, Array] | None = None,
    shapes: Mapping[str, Sequence[Any]] | None = None,
    types: Mapping[str, Any] | None = None,
    opsets: Mapping[str, int] | None = None,
) -> onnx.ModelProto:
    """A model of these nodes whose inputs are the feed's arrays, shapes fixed unless given; outputs typed on wish."""
    shapes, types = shapes or {}, types or {}
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), shapes.get(name, list(x.shape)))
        for name, x in feed.items()
    ]
    outs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(types[name])), None)
        if name in types
        else helper.make_empty_tensor_value_info(name)
        for name in outputs
    ]
    inits = [numpy_helper.from_array(np.asarray(x), name) for name, x in (weights or {}).items()]
    graph = helper.make_graph(list(nodes), "g", inputs, outs, inits)
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(MS, 1)]
    imports += [helper.make_opsetid(domain, version) for domain, version in (opsets or {}).items()]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def graph_of(model: onnx.ModelProto) -> Graph:
    known = {t.name for t in model.graph.initializer} | {i.name for i in model.graph.input}
    return Graph(Loaded(Path("model.onnx"), model, {}), model, sort_nodes(model.graph.node, known))


def run(model: onnx.ModelProto, feed: Mapping[str, Array], folder: Path | None = None) -> dict[str, Array]:
    """The model's outputs on the CPU."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    source: Any = model.SerializeToString()
    session = ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    wanted = {i.name for i in session.get_inputs()}
    return dict(zip(names, session.run(None, {k: v for k, v in feed.items() if k in wanted}), strict=True))


def replaced(model: onnx.ModelProto) -> tuple[onnx.ModelProto, list[Finding], list[Miss]]:
    """The model with every fused node replaced, each place declared as an output; its sites in order."""
    graph = graph_of(model)
    nodes: list[onnx.NodeProto] = []
    findings: list[Finding] = []
    misses: list[Miss] = []
    fresh: list[onnx.TensorProto] = []
    for node in graph.nodes:
        instead: Replacement | None = None
        if op_name(node) in FUSED:
            answer = FUSED[op_name(node)](graph, node)
            if isinstance(answer, Finding):
                findings += [answer, *answer.also]
                instead = answer.replacement
            elif answer is not None:
                misses.append(answer)
        elif op_name(node) in REWRITES:
            rewritten = REWRITES[op_name(node)](graph, node)
            if isinstance(rewritten, Replacement):
                instead = rewritten
            elif rewritten is not None:
                misses.append(rewritten)
        nodes += instead.nodes if instead else [node]
        fresh += instead.initializers if instead else []
    tapped = onnx.ModelProto()
    tapped.CopyFrom(model)
    del tapped.graph.node[:], tapped.graph.value_info[:]
    tapped.graph.node.extend(nodes)
    tapped.graph.initializer.extend(fresh)
    declared = {o.name for o in tapped.graph.output}
    for finding in findings:
        for place in finding.places.values():
            if place.value not in declared:
                declared.add(place.value)
                tapped.graph.output.append(helper.make_empty_tensor_value_info(place.value))
    return tapped, findings, misses


def read(place: Place, arrays: Mapping[str, Array]) -> Array:
    """The quantity at a place; the layouts that decompositions use need no rearranging."""
    assert place.layout in ("b h q d", "b h k d", "b h q k"), place.layout
    assert not place.factors
    x = arrays[place.value]
    return x if place.window is None else x[..., slice(*place.window)]


def stages(finding: Finding, arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {quantity: read(place, arrays) for quantity, place in finding.places.items()}


def softmax(x: Array, sink: Array | float | None = None) -> Array:
    """Over the last axis; rows that are -inf throughout give 0; a sink [H] or number joins the denominator."""
    with np.errstate(invalid="ignore"):
        top = x.max(-1, keepdims=True)
        logit = None if sink is None else np.asarray(sink, dtype=np.float64).reshape(-1, 1, 1)
        top = top if logit is None else np.maximum(top, logit)
        top = np.where(np.isfinite(top), top, 0)
        e = np.exp(x - top)
        total = e.sum(-1, keepdims=True) + (0 if logit is None else np.exp(logit - top))
    return np.where(total > 0, e / np.where(total > 0, total, 1), 0)


def hold(
    finding: Finding, arrays: Mapping[str, Array], *, sink: Any = None, tolerance: float = 2e-5
) -> dict[str, Array]:
    """Hold the identities of a site on its arrays; returns them in float64."""
    s = {k: v.astype(np.float64) for k, v in stages(finding, arrays).items()}
    heads = s["query"].shape[1]
    assert finding.heads in (None, heads)
    assert finding.kv_heads in (None, s["key"].shape[1])
    if finding.head_size is not None:
        assert finding.head_size == s["query"].shape[3]
    k, v = (np.repeat(s[q], heads // s[q].shape[1], axis=1) for q in ("key", "value"))
    close(s["scores"], s["query"] @ k.swapaxes(-1, -2), tolerance, "scores")
    if finding.scale is not None:
        close(s["scaled"], s["scores"] * finding.scale, tolerance, "scaled")
    cap = finding.softcap
    close(s["capped"], cap * np.tanh(s["scaled"] / cap) if cap else s["scaled"], tolerance, "capped")
    close(s["weights"], softmax(s["masked"], sink), tolerance, "weights")
    close(s["context"], s["weights"] @ v, tolerance, "context")
    if not finding.sink:
        sums = s["weights"].sum(-1)
        assert np.all((abs(sums - 1) < 1e-5) | (sums == 0))
    return s


def close(got: Array, want: Array, tolerance: float, what: str = "") -> None:
    """Equal shapes, equal infinities, and numbers equal relative to the larger of 1 and the reference's own size."""
    assert got.shape == want.shape, f"{what}: shape {got.shape}, not {want.shape}"
    finite = np.isfinite(want)
    assert np.array_equal(np.isfinite(got), finite), f"{what}: other cells are finite"
    if finite.any():
        got64, want64 = got[finite].astype(np.float64), want[finite].astype(np.float64)
        off = abs(got64 - want64).max() / max(1.0, abs(want64[abs(want64) < 1e30]).max(initial=0.0))
        assert off <= tolerance, f"{what}: off by {off}"


def compare(
    model: onnx.ModelProto, feed: Mapping[str, Array], *, tolerance: float = 1e-5, sink: Any = None,
    runner: Callable[[onnx.ModelProto, Mapping[str, Array]], dict[str, Array]] = run,
) -> tuple[Finding, dict[str, Array]]:  # fmt: skip
    """Replace the one site of a model; its outputs must be those of the fused node, and its identities must hold."""
    tapped, findings, misses = replaced(model)
    assert not misses, misses
    assert len(findings) == 1
    want, got = runner(model, feed), runner(tapped, feed)
    for name in want:
        assert got[name].dtype == want[name].dtype, name
        close(got[name], want[name], tolerance, name)
    return findings[0], hold(findings[0], got, sink=sink)


def attention_node(
    op: str, inputs: Sequence[str], outputs: Sequence[str], domain: str = MS, **attributes: Any
) -> onnx.NodeProto:
    return helper.make_node(op, list(inputs), list(outputs), name="att", domain=domain, **attributes)


FLOAT = TensorProto.FLOAT


def numpy_attention(
    q: Array, k: Array, v: Array, *, scale: float, softcap: float = 0.0, add: Any = 0.0, visible: Any = True,
    hidden: float = -np.inf, sink: Any = None,
) -> dict[str, Array]:  # fmt: skip
    """Attention of [B,H,Q,D], [B,Hkv,K,D], [B,Hkv,K,Dv] in float64, written apart from the code under test."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    scores = np.einsum("bhqd,bhkd->bhqk", q, k)
    capped = softcap * np.tanh(scores * scale / softcap) if softcap else scores * scale
    masked = np.where(visible, capped + add, hidden)
    weights = softmax(masked, sink)
    return {"scores": scores, "capped": capped, "masked": masked, "weights": weights,
            "context": np.einsum("bhqk,bhkd->bhqd", weights, v)}  # fmt: skip


def joined(x: Array) -> Array:
    """[B,H,S,D] -> [B,S,H*D]."""
    return x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1)


def parted(x: Array, heads: int) -> Array:
    """[B,S,H*D] -> [B,H,S,D]."""
    return x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)
