"""Models and feeds broken at random, from a seed: what the fuzz test feeds to attnx, one mutant a number.

Run as a program, it is the child that works through a range of mutants and says, a line each, how every stage went:

    python -m tests.mutants FOLDER FIRST STOP

A mutant that ends the process is then known by the last line.
"""

from __future__ import annotations

import random
import sys
import time
from functools import cache
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.idioms import Form, build

SEED = 20_260
WIDTH = 16


def fused(op: str, domain: str, inputs: list[str], opset: int = 17, **attributes: object) -> onnx.ModelProto:
    """One fused operator between two projections; inputs by name: x, w (packed weight), b (bias), q, k, v, m (mask)."""
    rng = np.random.default_rng(3)
    weights = {
        "wq": rng.standard_normal((WIDTH, WIDTH)), "wk": rng.standard_normal((WIDTH, WIDTH)),
        "wv": rng.standard_normal((WIDTH, WIDTH)), "w": rng.standard_normal((WIDTH, 3 * WIDTH)),
        "b": rng.standard_normal(3 * WIDTH),
    }  # fmt: skip
    tensors = [numpy_helper.from_array(v.astype(np.float32), k) for k, v in weights.items()]
    tensors += [
        numpy_helper.from_array(np.array([4], np.int32), "last"),
        numpy_helper.from_array(np.array(5, np.int32), "total"),
        numpy_helper.from_array(np.zeros((1, 2, 0, 8), np.float32), "past"),
    ]
    nodes = [helper.make_node("MatMul", ["x", f"w{c}"], [c], name=f"project_{c}") for c in "qkv" if c in inputs]
    outputs = ["a"] if "past" not in inputs else ["a", "present_key", "present_value"]
    nodes.append(helper.make_node(op, inputs, outputs, name="fused", domain=domain, **attributes))
    nodes.append(helper.make_node("Relu", ["a"], ["y"], name="after"))
    used = {n for node in nodes for n in node.input}
    graph = helper.make_graph(
        nodes, "fused", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "seq", WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], [t for t in tensors if t.name in used],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8 if opset < 21 else 10)


def inside_if() -> onnx.ModelProto:
    """The planted attention in both branches of an If whose condition is an input."""
    plain = build(Form())
    branches = {}
    for side in ("then_branch", "else_branch"):
        copy = onnx.ModelProto()
        copy.CopyFrom(plain)
        graph = onnx.GraphProto(name=side)
        graph.node.extend(copy.graph.node)
        graph.initializer.extend(copy.graph.initializer)
        graph.output.append(helper.make_empty_tensor_value_info("y"))
        branches[side] = graph
    node = helper.make_node("If", ["use_cache_branch"], ["out"], name="if", **branches)
    inputs = [plain.graph.input[0], helper.make_tensor_value_info("use_cache_branch", TensorProto.BOOL, [1])]
    graph = helper.make_graph([node], "main", inputs, [helper.make_tensor_value_info("out", TensorProto.FLOAT, None)])
    return helper.make_model(graph, opset_imports=plain.opset_import, ir_version=8)


def in_function() -> onnx.ModelProto:
    """The planted attention as a local function."""
    plain = build(Form(constants="node"))
    function = helper.make_function("own", "Attend", ["x"], ["y"], list(plain.graph.node), list(plain.opset_import))
    node = helper.make_node("Attend", ["x"], ["out"], name="call", domain="own")
    graph = helper.make_graph(
        [node], "main", [plain.graph.input[0]], [helper.make_tensor_value_info("out", TensorProto.FLOAT, None)]
    )
    opsets = [*plain.opset_import, helper.make_opsetid("own", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, functions=[function])


@cache
def seeds() -> tuple[bytes, ...]:
    """The sound models that mutants are made from."""
    forms = [
        Form(), Form(mask="causal_where"), Form(mask="padding", layout="merged"), Form(layout="grouped", kv_heads=2),
        Form(layout="einsum", scale="sqrt"), Form(softmax="written", opset=11),
        Form(softcap=3.0, scale="both_computed"),
        Form(sink=True), Form(constants="node", mask="causal_trilu"), Form(half=True),
    ]  # fmt: skip
    ms = "com.microsoft"
    models = [build(form) for form in forms]
    models += [
        fused("Attention", ms, ["x", "w", "b"], num_heads=2),
        fused("Attention", ms, ["x", "w"], num_heads=2, unidirectional=1),
        fused("MultiHeadAttention", ms, ["q", "k", "v"], num_heads=2),
        fused("GroupQueryAttention", ms, ["q", "k", "v", "past", "past", "last", "total"], num_heads=2, kv_num_heads=2),
        fused("Attention", "", ["q", "k", "v"], opset=23, q_num_heads=2, kv_num_heads=2, is_causal=1),
        inside_if(),
        in_function(),
    ]
    return tuple(model.SerializeToString() for model in models)


def mutant(number: int) -> tuple[str, bytes]:
    """The mutant of that number: what was done, and the file's bytes."""
    rng = random.Random(SEED + number)
    raw = rng.choice(seeds())
    if rng.random() < 0.25:
        data = bytearray(raw)
        for _ in range(rng.choice([1, 1, 3, 20])):
            data[rng.randrange(len(data))] = rng.randrange(256)
        if rng.random() < 0.2:
            del data[rng.randrange(len(data)) :]
        return "bytes", bytes(data)
    model = onnx.ModelProto()
    model.ParseFromString(raw)
    done = [_change(model, rng) for _ in range(rng.choice([1, 1, 1, 2, 4]))]
    return ", ".join(done), model.SerializeToString()


def _nodes(model: onnx.ModelProto, rng: random.Random) -> onnx.GraphProto | onnx.FunctionProto:
    """The main graph, or now and then one inside of it."""
    inner: list[onnx.GraphProto | onnx.FunctionProto] = list(model.functions)
    inner += [a.g for node in model.graph.node for a in node.attribute if a.type == 5]
    return rng.choice(inner) if inner and rng.random() < 0.8 else model.graph


_OPS = (
    "Softmax MatMul Einsum Reshape Attention GroupQueryAttention Split Concat If Loop Expand Gather Div Slice".split()
)
_SIZES = (0, -1, 1, 7, 2**31, 2**40, 2**62)


def _change(model: onnx.ModelProto, rng: random.Random) -> str:
    graph = _nodes(model, rng)
    if not graph.node:
        return "nothing"
    node = rng.choice(graph.node)
    weights = list(graph.initializer) if isinstance(graph, onnx.GraphProto) else []
    weights += [a.t for n in graph.node for a in n.attribute if a.type == 4]
    kind = rng.randrange(15)
    if kind == 0 and node.input:
        node.input[rng.randrange(len(node.input))] = rng.choice([o for n in graph.node for o in n.output] + ["", "x"])
        return "another input"
    if kind == 1:
        node.op_type = rng.choice([n.op_type for n in graph.node] + _OPS)
        return "another operator"
    if kind == 2 and node.input:
        del node.input[rng.randrange(len(node.input)) :]
        return "fewer inputs"
    if kind == 3 and node.attribute:
        del node.attribute[rng.randrange(len(node.attribute))]
        return "no attribute"
    if kind == 4 and node.attribute:
        attribute = rng.choice(node.attribute)
        attribute.type = rng.choice(range(1, 12))
        return "attribute of another type"
    if kind == 5 and node.attribute:
        attribute = rng.choice(node.attribute)
        attribute.i = rng.choice([-5, 0, 1, 3, 2**40])
        attribute.f = rng.choice([0.0, -1.0, float("nan"), float("inf")])
        if attribute.ints:
            attribute.ints[rng.randrange(len(attribute.ints))] = rng.choice([-9, 0, 1, 99, 2**50])
        return "another attribute"
    if kind == 6 and weights:
        tensor = rng.choice(weights)
        if tensor.dims:
            tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice(_SIZES)
        return "another shape"
    if kind == 7 and weights:
        rng.choice(weights).data_type = rng.choice([0, 1, 2, 6, 7, 8, 9, 10, 11, 14, 16, 22, 99])
        return "another data type"
    if kind == 8:
        del graph.node[rng.randrange(len(graph.node))]
        return "no node"
    if kind == 9:
        node.domain = rng.choice(["com.microsoft", "x.y", "", "ai.onnx.ml"])
        return "another domain"
    if kind == 10 and model.graph.input:
        dims = rng.choice(model.graph.input).type.tensor_type.shape.dim
        if dims:
            rng.choice(dims).dim_value = rng.choice([-1, 0, 1, 5, 10**9])
        return "another input shape"
    if kind == 11 and model.opset_import:
        model.opset_import[0].version = rng.choice([0, 1, 7, 11, 13, 18, 23, 28, 999])
        return "another opset"
    if kind == 12:
        node.output[:] = [rng.choice(["", "a", "b", *node.output])]
        return "other outputs"
    if kind == 13 and weights:
        # The numbers behind shapes, axes and scales: 2^40 rows, axis 99, a scale that is not finite.
        tensor = rng.choice(weights)
        if tensor.data_type == 7 and tensor.raw_data:
            values = np.frombuffer(tensor.raw_data, "<i8").copy()
            if values.size:
                values[rng.randrange(values.size)] = rng.choice([-99, -1, 0, 1, 3, 99, 2**31, 2**40])
            tensor.raw_data = values.tobytes()
        elif tensor.data_type == 1 and tensor.raw_data:
            values32 = np.frombuffer(tensor.raw_data, "<f4").copy()
            if values32.size:
                values32[rng.randrange(values32.size)] = rng.choice([np.nan, np.inf, -np.inf, 1e38, 0.0])
            tensor.raw_data = values32.tobytes()
        return "other numbers"
    if kind == 14 and node.output:
        copy = graph.node.add()
        copy.CopyFrom(node)
        copy.output[0] = f"{node.output[0]}_again"
        return "a node twice"
    return "nothing"


def feed(number: int) -> dict[str, np.ndarray]:
    """A feed for a mutant: mostly sound, now and then of another shape, type or name, or with NaN in it."""
    rng = random.Random(SEED * 7 + number)
    x = np.random.default_rng(number).standard_normal((1, 5, WIDTH)).astype(np.float32)
    out: dict[str, np.ndarray] = {"x": x}
    if number % 17 in (3, 4):
        out["x"] = rng.choice([
            x[0], x[:, :0], x.astype(np.float64), x.astype(str), np.full_like(x, np.nan), np.full_like(x, np.inf),
            x[..., :3], np.array(1.0, np.float32), x.astype(np.int8), np.zeros((0, 5, WIDTH), np.float32),
        ])  # fmt: skip
    elif number % 17 == 5:
        out = rng.choice([{}, {"y": x}, {"x": x, "more": x}, {"X": x}])
    return out


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _work(folder: Path, first: int, stop: int) -> None:
    import warnings

    import attnx
    from attnx.errors import AttnxError

    warnings.simplefilter("error")
    path = folder / "mutant.onnx"
    for number in range(first, stop):
        kind, data = mutant(number)
        path.write_bytes(data)
        began = time.process_time()
        stage = "find"
        _say(f"{number} {stage}")
        try:
            model = attnx.open(path, device="cpu")
            names = [slot.name for slot in model.slots()]
            stage = "run"
            _say(f"{number} {stage} {time.process_time() - began:.3f}")
            given = feed(number)
            if number % 17 != 5:
                more = {"attention_mask": np.ones((1, 5), np.int64), "use_cache_branch": np.array([True])}
                given |= {name: more[name] for name in names if name in more}
            trace = model.trace(inputs=given, required=False, outputs=True)
            _say(f"{number} traced {len(trace.attentions)}")
        except AttnxError as error:
            _say(f"{number} refused {type(error).__name__} {str(error)[:120]!r}")
        except Exception as error:
            import traceback

            at = traceback.extract_tb(error.__traceback__)[-1]
            _say(f"{number} BUG {stage} [{kind}] {error!r:.200} at {Path(at.filename).name}:{at.lineno}")


if __name__ == "__main__":
    _work(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
