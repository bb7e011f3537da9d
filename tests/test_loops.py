"""Attention in a Loop or Scan that runs as often as the run says: one query a step, held to numpy step by step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import attnx
from attnx.errors import InputError
from attnx.records import Trace
from attnx.study.output_weights import output_projection
from tests.graphs import softmax

FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
B, K, W, H, D = 2, 6, 8, 2, 4
DRAWN = np.random.default_rng(12)
WEIGHTS = {
    n: DRAWN.standard_normal((W, W)).astype(np.float32) / 2 for n in ("Wq", "Wk", "Wv", "Wo", "Wh", "Wq2", "Wk2")
}
MEMORY = DRAWN.standard_normal((B, K, W)).astype(np.float32)
NUMBERS = {
    "scale": np.float32(D**-0.5), "heads": np.array([0, -1, H, D]), "flat": np.array([0, W]), "one": np.array(1),
    "axis1": np.array([1]), "most": np.array(2**31), "zero": np.array(0),
}  # fmt: skip


def op(kind: str, inputs: list[str], out: str | list[str], **a: Any) -> onnx.NodeProto:
    outs = [out] if isinstance(out, str) else out
    return helper.make_node(kind, inputs, outs, name=f"n/{outs[0]}", **a)


def info(name: str, kind: int = FLOAT, shape: list[Any] | None = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def attend(h: str, key: str, value: str, p: str = "", q: str = "Wq") -> list[onnx.NodeProto]:
    """What a state [B,W] takes from keys and values [B,H,K,D]: "{p}c" [B,W]."""
    return [
        op("MatMul", [h, q], f"{p}q0"), op("Unsqueeze", [f"{p}q0", "axis1"], f"{p}q1"),
        op("Reshape", [f"{p}q1", "heads"], f"{p}q2"), op("Transpose", [f"{p}q2"], f"{p}q", perm=[0, 2, 1, 3]),
        op("Transpose", [key], f"{p}kt", perm=[0, 1, 3, 2]), op("MatMul", [f"{p}q", f"{p}kt"], f"{p}s"),
        op("Mul", [f"{p}s", "scale"], f"{p}scaled"), op("Softmax", [f"{p}scaled"], f"{p}w", axis=-1),
        op("MatMul", [f"{p}w", value], f"{p}c4"), op("Transpose", [f"{p}c4"], f"{p}c3", perm=[0, 2, 1, 3]),
        op("Reshape", [f"{p}c3", "flat"], f"{p}c"),
    ]  # fmt: skip


def split(x: str, weight: str, out: str) -> list[onnx.NodeProto]:
    return [
        op("MatMul", [x, weight], f"{out}/p"), op("Reshape", [f"{out}/p", "heads"], f"{out}/h"),
        op("Transpose", [f"{out}/h"], out, perm=[0, 2, 1, 3]),
    ]  # fmt: skip


def step(h: str, c: str, out: str) -> list[onnx.NodeProto]:
    """The next state: tanh(c Wo + h Wh)."""
    made = [op("MatMul", [c, "Wo"], f"{out}/1"), op("MatMul", [h, "Wh"], f"{out}/2")]
    return [*made, op("Add", [f"{out}/1", f"{out}/2"], f"{out}/3"), op("Tanh", [f"{out}/3"], out)]


def save(nodes: list[onnx.NodeProto], folder: Path, outputs: list[str], **inputs: tuple[int, list[Any]]) -> Path:
    held = [numpy_helper.from_array(np.asarray(v), n) for n, v in {**WEIGHTS, **NUMBERS}.items()]
    infos = [info(name, *what) for name, what in inputs.items()]
    graph = helper.make_graph(nodes, "g", infos, [helper.make_empty_tensor_value_info(o) for o in outputs], held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx"


def loop(body: list[onnx.NodeProto], carried: dict[str, str], outs: list[str], name: str = "steps") -> onnx.NodeProto:
    """A Loop that runs `limit` times: carried name -> what it is at first; its body makes "{name} next"."""
    nodes = [*body, op("Add", ["i", "one"], "i next"), op("Less", ["i next", "limit"], "go")]
    names = [*carried, "i"]
    inputs = [info("it", INT, []), info("on", BOOL, []), *(info(n, INT if n == "i" else FLOAT) for n in names)]
    results = [info("go", BOOL), *(info(f"{n} next", INT if n == "i" else FLOAT) for n in names)]
    graph = helper.make_graph(nodes, "body", inputs, results)
    return helper.make_node(
        "Loop", ["most", "on0", *carried.values(), "zero"], [*outs, f"{name}/count"], name=name, body=graph
    )


def split_np(x: np.ndarray, w: str) -> np.ndarray:
    return (x @ WEIGHTS[w]).reshape(B, -1, H, D).transpose(0, 2, 1, 3)


def ran(
    h: np.ndarray, key: np.ndarray, value: np.ndarray, steps: int, q: str = "Wq"
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The same by numpy: stages over steps, [B,H,steps,...], and the state at the end."""
    rows: dict[str, list[np.ndarray]] = {"query": [], "scores": [], "weights": [], "context": []}
    for _ in range(steps):
        query = split_np(h[:, None], q)
        scores = query @ key.swapaxes(-1, -2)
        weights = softmax(scores * D**-0.5)
        context = weights @ value
        for name, array in zip(rows, (query, scores, weights, context), strict=True):
            rows[name].append(array)
        h = np.tanh(context.transpose(0, 2, 1, 3).reshape(B, W) @ WEIGHTS["Wo"] + h @ WEIGHTS["Wh"])
    return {name: np.concatenate(parts, axis=2) for name, parts in rows.items()}, h


def held(trace: Trace, at: int, want: dict[str, np.ndarray]) -> None:
    attention = trace.attentions[at]
    for name, array in want.items():
        np.testing.assert_allclose(attention.need(name), array, atol=1e-5, err_msg=name)  # type: ignore[arg-type]
    assert all(check.holds for check in attention.checks)


def traced(path: Path, **feed: np.ndarray) -> Trace:
    return attnx.open(path, device="cpu").trace(inputs=feed, outputs=True, verify_outputs=True)


START = np.zeros((B, W), np.float32) + 0.3
STATE = (FLOAT, ["b", W])
X = (FLOAT, ["b", "k", W])
LIMIT = (INT, [])
GO = op("Less", ["zero", "limit"], "on0")


@pytest.mark.parametrize("steps", [1, 3, 7])
@pytest.mark.parametrize("where", ["outside", "carried", "inside"])
def test_steps_of_a_loop_are_queries(where: str, steps: int, tmp_path: Path) -> None:
    """Keys and values made before the loop, carried through it as they are, or made of the memory at every step."""
    made = [*split("x", "Wk", "key"), *split("x", "Wv", "value")]
    carried = {"h": "h0"}
    if where == "carried":
        carried |= {"k": "key", "v": "value"}
        body = [*attend("h", "k", "v"), op("Identity", ["k"], "k next"), op("Identity", ["v"], "v next")]
    elif where == "inside":
        body, made = [*made, *attend("h", "key", "value")], []
    else:
        body = attend("h", "key", "value")
    outs = ["end", *(f"{n} end" for n in list(carried)[1:])]
    nodes = [GO, *made, loop([*body, *step("h", "c", "h next")], carried, outs)]
    path = save(nodes, tmp_path, ["end"], x=X, h0=STATE, limit=LIMIT)
    trace = traced(path, x=MEMORY, h0=START, limit=np.array(steps))
    (site,) = (a.site for a in trace.attentions)
    assert (site.kind, site.heads, site.causal, site.head_size) == ("cross", H, False, D)
    assert site.scale == pytest.approx(D**-0.5)
    key, value = split_np(MEMORY, "Wk"), split_np(MEMORY, "Wv")
    want, end = ran(START, key, value, steps)
    held(trace, 0, {**want, "key": key, "value": value})
    np.testing.assert_allclose(trace.outputs["end"], end, atol=1e-5)


def test_a_loop_that_runs_no_step_attends_to_nothing(tmp_path: Path) -> None:
    """Beside attention that does, it is left out with a note; alone, there is nothing to show."""
    made = [*split("x", "Wk", "key"), *split("x", "Wv", "value")]
    inside = loop([*attend("h", "key", "value"), *step("h", "c", "h next")], {"h": "h0"}, ["end"])
    path = save([GO, *made, inside], tmp_path, ["end"], x=X, h0=STATE, limit=LIMIT)
    given = {"x": MEMORY, "h0": START, "limit": np.array(0)}
    with pytest.raises(InputError, match="nothing attends in this run: L0 has no query, or no key to look at"):
        attnx.open(path, device="cpu").trace(inputs=given)
    before = attend("h0", "key", "value", "first ")
    path = save([GO, *made, *before, inside], tmp_path, ["end", "first c"], x=X, h0=STATE, limit=LIMIT)
    trace = attnx.open(path, device="cpu").trace(inputs=given)
    assert [a.need("weights").shape[2:] for a in trace.attentions] == [(1, MEMORY.shape[1])]
    assert any(note.startswith("left out, L") and "no query in this run" in note for note in trace.notes)


def test_the_output_projection_is_not_looked_for_inside(tmp_path: Path) -> None:
    """A batch and a head of 1 inside the loop are axes whose size no shape says."""
    attended = [
        op("MatMul", ["h", "memory"], "s"), op("Softmax", ["s"], "w", axis=-1), op("MatMul", ["w", "x"], "c"),
    ]  # fmt: skip
    body = [*attended, op("Tanh", ["c"], "h next")]
    nodes = [GO, op("Transpose", ["x"], "memory", perm=[0, 2, 1]), loop(body, {"h": "h0"}, ["end"])]
    path = save(nodes, tmp_path, ["end"], x=(FLOAT, [1, 6, W]), h0=(FLOAT, [1, 1, W]), limit=LIMIT)
    opened = attnx.open(path, device="cpu")
    (site,) = opened.sites
    assert "1" in site.places["context"].layout.split(" ")
    assert output_projection(opened, site) is None


def test_two_layers_in_a_step_are_two_layers(tmp_path: Path) -> None:
    body = [
        *attend("h", "key", "value"),
        op("Add", ["h", "c"], "m"),
        *attend("m", "key2", "value", "b/", "Wq2"),
        *step("m", "b/c", "h next"),
    ]
    nodes = [
        GO,
        *split("x", "Wk", "key"),
        *split("x", "Wk2", "key2"),
        *split("x", "Wv", "value"),
        loop(body, {"h": "h0"}, ["end"]),
    ]
    trace = traced(save(nodes, tmp_path, ["end"], x=X, h0=STATE, limit=LIMIT), x=MEMORY, h0=START, limit=np.array(4))
    assert [(a.site.layer, a.site.kind, a.need("weights").shape) for a in trace.attentions] == [
        (0, "cross", (B, H, 4, K)), (1, "cross", (B, H, 4, K)),
    ]  # fmt: skip
    h, rows = START, []
    for _ in range(4):
        one, _ = ran(h, split_np(MEMORY, "Wk"), split_np(MEMORY, "Wv"), 1)
        m = h + one["context"].transpose(0, 2, 1, 3).reshape(B, W)
        two, h = ran(m, split_np(MEMORY, "Wk2"), split_np(MEMORY, "Wv"), 1, "Wq2")
        rows.append((one["weights"], two["weights"]))
    for at in (0, 1):
        held(trace, at, {"weights": np.concatenate([row[at] for row in rows], axis=2)})


def test_additive_attention_in_a_loop(tmp_path: Path) -> None:
    """Bahdanau in a recogniser that writes in the graph."""
    body = [
        op("MatMul", ["h", "Wq"], "asked"), op("Unsqueeze", ["asked", "axis1"], "asked1"),
        op("Add", ["asked1", "keys"], "both"),
        op("Tanh", ["both"], "active"), op("MatMul", ["active", "vector"], "e"), op("Softmax", ["e"], "w", axis=1),
        op("Mul", ["w", "x"], "shares"),
        op("ReduceSum", ["shares", "axis1"], "c", keepdims=0), *step("h", "c", "h next"),
    ]  # fmt: skip
    vector = WEIGHTS["Wo"][:, :1]
    first = [GO, op("Slice", ["Wo", "starts", "ends", "axis1"], "vector"), op("MatMul", ["x", "Wk"], "keys")]
    NUMBERS["starts"], NUMBERS["ends"] = np.array([0]), np.array([1])
    trace = traced(save([*first, loop(body, {"h": "h0"}, ["end"])], tmp_path, ["end"], x=X, h0=STATE, limit=LIMIT),
                   x=MEMORY, h0=START, limit=np.array(3))  # fmt: skip
    h, rows = START, []
    for _ in range(3):
        e = (np.tanh((h @ WEIGHTS["Wq"])[:, None] + MEMORY @ WEIGHTS["Wk"]) @ vector)[..., 0]
        rows.append(softmax(e))
        c = (rows[-1][..., None] * MEMORY).sum(1)
        h = np.tanh(c @ WEIGHTS["Wo"] + h @ WEIGHTS["Wh"])
    assert trace.attentions[0].site.kind == "additive"
    held(trace, 0, {"weights": np.stack(rows, axis=1)[:, None]})


@pytest.mark.parametrize("backward", [0, 1])
def test_steps_of_a_scan_are_queries_in_the_order_of_what_it_reads(backward: int, tmp_path: Path) -> None:
    """Over tokens of a length that only the run knows; read from the end, the queries still stand in their order."""
    body = helper.make_graph(
        [op("Add", ["h", "t"], "m"), *attend("m", "key", "value"), *step("m", "c", "h next"),
         op("Identity", ["h next"], "y")],
        "body", [info("h"), info("t")], [info("h next", FLOAT, [B, W]), info("y", FLOAT, [B, W])],
    )  # fmt: skip
    scan = helper.make_node(
        "Scan",
        ["h0", "tokens"],
        ["end", "all"],
        name="scan",
        body=body,
        num_scan_inputs=1,
        scan_input_directions=[backward],
    )
    nodes = [*split("x", "Wk", "key"), *split("x", "Wv", "value"), scan]
    tokens = DRAWN.standard_normal((5, B, W)).astype(np.float32)
    path = save(nodes, tmp_path, ["end", "all"], x=X, h0=STATE, tokens=(FLOAT, ["n", "b", W]))
    trace = traced(path, x=MEMORY, h0=START, tokens=tokens)
    h, rows = START, []
    for t in tokens[::-1] if backward else tokens:
        one, h = ran(h + t, split_np(MEMORY, "Wk"), split_np(MEMORY, "Wv"), 1)
        rows.append(one)
    rows = rows[::-1] if backward else rows
    held(
        trace,
        0,
        {name: np.concatenate([row[name] for row in rows], axis=2) for name in ("weights", "query", "context")},
    )


@pytest.mark.parametrize(("outer", "growing"), [("Loop", False), ("Loop", True), ("Scan", False)])
def test_loops_within_loops(outer: str, growing: bool, tmp_path: Path) -> None:
    """Every step of the outer one runs the inner one: twice, or as often as its own count says."""
    inner_steps = op("Add", ["i", "one"], "times") if growing else op("Add", ["one", "one"], "times")
    inner_body = [
        *attend("g", "key", "value"),
        *step("g", "c", "g next"),
        op("Add", ["j", "one"], "j next"),
        op("Less", ["j next", "times"], "more"),
    ]
    inner = helper.make_graph(
        inner_body, "inner", [info("it2", INT, []), info("on2", BOOL, []), info("g"), info("j", INT)],
        [info("more", BOOL), info("g next"), info("j next", INT)],
    )  # fmt: skip
    run_inner = helper.make_node("Loop", ["most", "yes", "h", "zero"], ["h next", "ran"], name="inner", body=inner)
    NUMBERS["yes"] = np.array(True)
    first = [GO, *split("x", "Wk", "key"), *split("x", "Wv", "value")]
    feed: dict[str, np.ndarray] = {"x": MEMORY, "h0": START}
    if outer == "Loop":
        nodes = [*first, loop([inner_steps, run_inner], {"h": "h0"}, ["end"])]
        path = save(nodes, tmp_path, ["end"], x=X, h0=STATE, limit=LIMIT)
        feed["limit"] = np.array(3)
    else:
        body = helper.make_graph(
            [inner_steps, run_inner], "body", [info("h"), info("t")], [info("h next", FLOAT, [B, W])]
        )
        scan = helper.make_node("Scan", ["h0", "tokens"], ["end"], name="scan", body=body, num_scan_inputs=1)
        path = save([*first[1:], scan], tmp_path, ["end"], x=X, h0=STATE, tokens=(FLOAT, ["n", 1]))
        feed["tokens"] = np.zeros((3, 1), np.float32)
    trace = traced(path, **feed)
    steps = 1 + 2 + 3 if growing else 6
    want, end = ran(START, split_np(MEMORY, "Wk"), split_np(MEMORY, "Wv"), steps)
    held(trace, 0, {name: want[name] for name in ("weights", "query", "scores", "context")})
    np.testing.assert_allclose(trace.outputs["end"], end, atol=1e-5)


def test_a_scan_within_a_loop(tmp_path: Path) -> None:
    inner = helper.make_graph(
        [*attend("g", "key", "value"), *step("g", "c", "g next")],
        "inner",
        [info("g"), info("t")],
        [info("g next", FLOAT, [B, W])],
    )
    scan = helper.make_node("Scan", ["h", "tokens"], ["h next"], name="scan", body=inner, num_scan_inputs=1)
    nodes = [GO, *split("x", "Wk", "key"), *split("x", "Wv", "value"), loop([scan], {"h": "h0"}, ["end"])]
    path = save(nodes, tmp_path, ["end"], x=X, h0=STATE, tokens=(FLOAT, ["n", 1]), limit=LIMIT)
    trace = traced(path, x=MEMORY, h0=START, tokens=np.zeros((3, 1), np.float32), limit=np.array(2))
    want, _ = ran(START, split_np(MEMORY, "Wk"), split_np(MEMORY, "Wv"), 6)
    held(trace, 0, {name: want[name] for name in ("weights", "query")})


def test_keys_that_grow_are_refused_by_name(tmp_path: Path) -> None:
    body = [*split("past", "Wk", "key"), *split("past", "Wv", "value"), *attend("h", "key", "value"),
            *step("h", "c", "h next"), op("Unsqueeze", ["h next", "axis1"], "new"),
            op("Concat", ["past", "new"], "past next", axis=1)]  # fmt: skip
    nodes = [GO, loop(body, {"h": "h0", "past": "x"}, ["end", "all"])]
    model = attnx.open(save(nodes, tmp_path, ["end"], x=X, h0=STATE, limit=LIMIT), device="cpu")
    assert model.sites == ()
    (miss,) = model.misses
    assert "grows from step to step" in miss.reason


def test_what_changes_at_every_step_is_no_one_key(tmp_path: Path) -> None:
    """A cache of fixed size that each step writes to: rows are shown, and keys are said to be others at every step."""
    body = [
        *split("room", "Wk", "key"), *split("room", "Wv", "value"), *attend("h", "key", "value"),
        *step("h", "c", "h next"),
        op("Unsqueeze", ["h next", "axis1"], "new"), op("Add", ["room", "new"], "room next"),
    ]  # fmt: skip
    nodes = [GO, loop(body, {"h": "h0", "room": "x"}, ["end", "all"])]
    trace = traced(save(nodes, tmp_path, ["end"], x=X, h0=STATE, limit=LIMIT), x=MEMORY, h0=START, limit=np.array(3))
    h, room, rows = START, MEMORY, []
    for _ in range(3):
        one, h = ran(h, split_np(room, "Wk"), split_np(room, "Wv"), 1)
        room = room + h[:, None]
        rows.append(one["weights"])
    held(trace, 0, {"weights": np.concatenate(rows, axis=2)})
    assert trace.attentions[0].key is None
    assert "others at every step" in " ".join(trace.attentions[0].site.notes)
