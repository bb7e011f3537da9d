"""What a model must have to be read at all, and what must not be run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.capi import onnxruntime_pybind11_state as state

import attnx
from attnx.errors import ModelError
from attnx.graph.load import soundness
from attnx.graph.load.contrib import CONTRIB, TYPES, contrib_demand
from attnx.sites.recognise import find

X = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b", "s", 16])
Y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)


def saved(
    folder: Path, nodes: list[onnx.NodeProto], weights: list[onnx.TensorProto] | None = None, opset: int = 17
) -> Path:
    graph = helper.make_graph(nodes, "g", [X], [Y], weights or [])
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    path = folder / "m.onnx"
    path.write_bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())
    return path


def test_the_table_of_contrib_operators_is_what_onnxruntime_says() -> None:
    schemas = {s.name: s for s in state.get_all_operator_schema() if s.domain == "com.microsoft"}
    names = {"FLOAT": "f", "INT": "i", "STRING": "s", "GRAPH": "g", "INTS": "is", "FLOATS": "fs", "STRINGS": "ss"}
    for name in CONTRIB:
        demand, schema = contrib_demand(name), schemas[name]
        assert demand is not None
        assert list(demand.inputs) == [i for i, p in enumerate(schema.inputs) if p.option.name == "Single"], name
        assert dict(demand.attributes) == {
            k: (TYPES[names[a.type.name]], a.required) for k, a in schema.attributes.items()
        }, name


def broken(kind: str) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="n")
    weight = numpy_helper.from_array(np.eye(16, dtype=np.float32), "w")
    if kind == "no input":
        del node.input[1]
    elif kind == "input without a name":
        node.input[1] = ""
    elif kind == "no output":
        node.output[0] = ""
    elif kind == "no attribute":
        node = helper.make_node("Concat", ["x", "w"], ["y"], name="n")
    elif kind == "attribute of another type":
        node = helper.make_node("Softmax", ["x"], ["y"], name="n", axis=1.5)
    elif kind == "attribute twice":
        node = helper.make_node("Softmax", ["x"], ["y"], name="n", axis=1)
        node.attribute.append(node.attribute[0])
    elif kind == "fused without heads":
        node = helper.make_node("MultiHeadAttention", ["x", "x", "x"], ["y"], name="n", domain="com.microsoft")
    elif kind == "fused without lengths":
        node = helper.make_node(
            "GroupQueryAttention", ["x"], ["y"], name="n", domain="com.microsoft", num_heads=2, kv_num_heads=2
        )
    elif kind == "unknown type":
        weight.data_type = 99
    elif kind == "negative size":
        weight.dims[0] = -16
    elif kind == "size that its bytes do not fill":
        weight = numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")
        weight.dims[0] = 1 << 40
    elif kind == "loop of a function":
        node = helper.make_node("f", ["x"], ["y"], name="n", domain="own")
    return [node], [weight]


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("no input", "'n' .* lacks its input 1"),
        ("input without a name", "'n' .* lacks its input 1"),
        ("no output", "no output"),
        ("no attribute", "'n' .* lacks its attribute axis"),
        ("attribute of another type", "attribute axis is of the wrong type"),
        ("attribute twice", "twice"),
        ("fused without heads", "lacks its attribute num_heads"),
        ("fused without lengths", "lacks its input 5"),
        ("unknown type", "unknown data type 99"),
        ("negative size", "negative size"),
        ("size that its bytes do not fill", "needs .* bytes"),
    ],
)
def test_what_is_broken_is_named(tmp_path: Path, kind: str, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        find(saved(tmp_path, *broken(kind)))


@pytest.mark.parametrize("field", ["name", "op_type", "domain", "input", "output", "initializer", "graph", "dimension"])
def test_names_that_are_no_text(tmp_path: Path, field: str) -> None:
    nodes, weights = broken("")
    mark = "NOTTEXT!"
    if field in ("input", "output"):
        getattr(nodes[0], field)[0] = mark
    elif field == "initializer":
        weights[0].name = mark
    elif field not in ("graph", "dimension"):
        setattr(nodes[0], field, mark)
    path = saved(tmp_path, nodes, weights)
    model = onnx.load(path)
    if field == "graph":
        model.graph.name = mark
    elif field == "dimension":
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = mark
    path.write_bytes(model.SerializeToString().replace(mark.encode(), b"NOT\xff\xfeXT!"))
    with pytest.raises(ModelError, match="not valid text"):
        find(path)


def with_functions(folder: Path, *functions: onnx.FunctionProto) -> Path:
    path = saved(folder, [helper.make_node("f0", ["x"], ["y"], name="n", domain="own")])
    model = onnx.load(path)
    model.functions.extend(functions)
    model.opset_import.append(helper.make_opsetid("own", 1))
    path.write_bytes(model.SerializeToString())
    return path


def calling(name: str, other: str, times: int) -> onnx.FunctionProto:
    nodes = [helper.make_node(other, ["a" if i == 0 else f"t{i}"], [f"t{i + 1}"], domain="own") for i in range(times)]
    return helper.make_function("own", name, ["a"], [f"t{times}"], nodes, [helper.make_opsetid("own", 1)])


def test_functions_that_multiply_are_refused_before_they_are_written_out(tmp_path: Path) -> None:
    chain = [calling(f"f{i}", f"f{i + 1}", 10) for i in range(30)]  # 10^30 nodes
    last = helper.make_function(
        "own", "f30", ["a"], ["b"], [helper.make_node("Relu", ["a"], ["b"])], [helper.make_opsetid("", 17)]
    )
    with pytest.raises(ModelError, match="multiply to more than"):
        find(with_functions(tmp_path, *chain, last))


def test_functions_that_call_themselves_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="calls itself"):
        find(with_functions(tmp_path, calling("f0", "f1", 1), calling("f1", "f0", 1)))


@pytest.mark.parametrize("op", ["ConstantOfShape", "Expand", "Tile", "Range", "Pad", "Resize", "EyeLike"])
def test_a_few_numbers_that_ask_for_a_huge_tensor_allocate_nothing(tmp_path: Path, op: str) -> None:
    """In a process of 3 GB: recognition must not make a tensor of 2^40 elements because a constant says so."""
    big = numpy_helper.from_array(np.array([1 << 20, 1 << 20]), "big")
    one = numpy_helper.from_array(np.ones((1, 1), np.float32), "one")
    last = numpy_helper.from_array(np.array(1 << 50), "last")
    zero, step = (numpy_helper.from_array(np.array(n), f"n{n}") for n in (0, 1))
    pads = numpy_helper.from_array(np.array([0, 0, 1 << 20, 1 << 20]), "pads")
    axes = numpy_helper.from_array(np.array([0, 1]), "axes")
    scales = numpy_helper.from_array(np.array([1 << 20, 1 << 20], np.float32), "scales")
    names = {
        "ConstantOfShape": ["big"], "Expand": ["one", "big"], "Tile": ["one", "big"], "Range": ["n0", "last", "n1"],
        "Pad": ["one", "pads", "", "axes"], "Resize": ["one", "", "scales"], "EyeLike": ["huge"],
    }  # fmt: skip
    nodes = [helper.make_node("ConstantOfShape", ["big"], ["huge"], name="first")] if op == "EyeLike" else []
    nodes += [helper.make_node(op, names[op], ["t"], name="n"), helper.make_node("Identity", ["x"], ["y"], name="out")]
    path = saved(tmp_path, nodes, [big, one, last, zero, step, pads, axes, scales], opset=18)
    code = (
        "import resource, sys\nfrom pathlib import Path\nfrom attnx.sites.recognise import find\n"
        "resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))\n"
        "found = find(Path(sys.argv[1]))\nfound.graph.facts\nprint(len(found.sites))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr


def test_a_loop_over_constants_is_not_run(tmp_path: Path) -> None:
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["c_out"]), helper.make_node("Add", ["v", "v"], ["v_out"])], "body",
        [helper.make_tensor_value_info("i", 7, []), helper.make_tensor_value_info("c", 9, []),
         helper.make_tensor_value_info("v", 1, [])],
        [helper.make_tensor_value_info("c_out", 9, []), helper.make_tensor_value_info("v_out", 1, [])],
    )  # fmt: skip
    nodes = [
        helper.make_node("Loop", ["trips", "go", "start"], ["t"], name="loop", body=body),
        helper.make_node("Mul", ["x", "t"], ["y"], name="out"),
    ]
    weights = [
        numpy_helper.from_array(np.array(1 << 60), "trips"),
        numpy_helper.from_array(np.array(True), "go"),
        numpy_helper.from_array(np.array(1.0, np.float32), "start"),
    ]
    assert find(saved(tmp_path, nodes, weights)).sites == ()


def attention_without_bias(inside: bool) -> list[onnx.NodeProto]:
    node = helper.make_node("Attention", ["x", "w"], ["z"], name="fused", domain="com.microsoft", num_heads=2)
    if not inside:
        node.output[0] = "y"
        return [node]
    branch = helper.make_graph([node], "branch", [], [helper.make_tensor_value_info("z", 1, None)])
    other = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["z2"])], "other", [], [helper.make_tensor_value_info("z2", 1, None)]
    )
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["c_out"]),
         helper.make_node("If", ["c"], ["v_out"], name="if", then_branch=branch, else_branch=other)], "body",
        [helper.make_tensor_value_info("i", 7, []), helper.make_tensor_value_info("c", 9, []),
         helper.make_tensor_value_info("v", 1, None)],
        [helper.make_tensor_value_info("c_out", 9, []), helper.make_tensor_value_info("v_out", 1, None)],
    )  # fmt: skip
    return [  # as many steps as the input says: such a loop stays a loop
        helper.make_node("ReduceMax", ["x"], ["top"], name="top", keepdims=0),
        helper.make_node("Cast", ["top"], ["trips"], name="trips", to=7),
        helper.make_node("Loop", ["trips", "", "x"], ["y"], name="loop", body=body),
    ]


WEIGHTS = [
    numpy_helper.from_array(np.concatenate([np.zeros((16, 32)), np.eye(16)], 1).astype(np.float32), "w"),
]


def test_attention_without_a_bias_runs_replaced(tmp_path: Path) -> None:
    """Run as it is, onnxruntime 1.31 would end this very process."""
    path = saved(tmp_path, attention_without_bias(inside=False), WEIGHTS)
    feed = np.random.default_rng(0).standard_normal((1, 3, 16)).astype(np.float32)
    trace = attnx.open(path, device="cpu").trace(inputs={"x": feed}, quantities=(), outputs=True)
    mean = feed.mean(1, keepdims=True)  # queries and keys are zero, so every key weighs the same; values are the input
    np.testing.assert_allclose(trace.outputs["y"], np.broadcast_to(mean, (1, 3, 16)), atol=1e-6)


def test_attention_without_a_bias_that_cannot_be_replaced_is_not_run(tmp_path: Path) -> None:
    path = saved(tmp_path, attention_without_bias(inside=True), WEIGHTS)
    assert [miss.node for miss in find(path).misses] == ["loop"]
    feed = np.zeros((1, 3, 16), np.float32)
    with pytest.raises(ModelError, match=r"'fused' .* has no bias"):
        attnx.open(path, device="cpu").trace(inputs={"x": feed}, required=False, outputs=True)


def test_a_walk_that_trips_on_damage_is_told_as_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def trip(*_: object) -> None:
        raise IndexError

    monkeypatch.setattr("attnx.sites.spelled.softmax.recognise", trip)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["t"], name="n"),
        helper.make_node("Softmax", ["t"], ["y"], name="s"),
    ]
    with pytest.raises(IndexError):  # nothing is wrong with the model: a bug, and it shows
        find(saved(tmp_path, nodes, [numpy_helper.from_array(np.eye(16, dtype=np.float32), "w")]))
    with pytest.raises(ModelError, match="contradicts itself"):
        find(saved(tmp_path, nodes, [numpy_helper.from_array(np.eye(7, dtype=np.float32), "w")]))


def test_sound_nodes_pass() -> None:
    node = helper.make_node("Attention", ["q", "k", "v"], ["y"], name="n")
    assert soundness.fault_of(node, 23) == ""
    assert soundness.fault_of(helper.make_node("Anything", [], ["y"], domain="own"), 17) == ""
