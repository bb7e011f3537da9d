"""What nodes hold is read once, and what is known of a node is known of all like it: never of one that differs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from attnx.errors import ModelError
from attnx.graph.fact import Fact, Inferred, fact_of
from attnx.graph.load.load import load
from attnx.graph.load.outline import Outlines
from attnx.graph.load.soundness import check_nodes
from attnx.graph.shapes import infer
from attnx.sites.recognise import find
from attnx.sites.strided.signatures import signatures
from tests.sites.replacing import graph_of

BUNDLED = Path(__file__).parents[2] / "models"
FILES = [BUNDLED / "tiny-gpt" / "model.onnx", Path(__file__).parents[1] / "sites" / "bands" / "model.onnx"]
FLOATS = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])


def model(nodes: Sequence[onnx.NodeProto], out: str, tensors: Sequence[onnx.TensorProto] = ()) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", [FLOATS], [helper.make_empty_tensor_value_info(out)], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def same(one: Fact, two: Fact) -> bool:
    numbers = [None if v is None else (v.dtype, v.shape, v.tobytes()) for v in (one.value, two.value)]
    return (one.shape, one.dtype) == (two.shape, two.dtype) and numbers[0] == numbers[1]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.parent.name)
def test_what_is_remembered_is_what_each_node_gives_by_itself(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = find(path).graph
    worked_out: list[str] = []
    own = infer._node

    def counted(graph: Any, node: Any, *rest: Any) -> Any:
        worked_out.append(node.name)
        return own(graph, node, *rest)

    monkeypatch.setattr(infer, "_node", counted)
    graph.loaded.inferred = Inferred()
    remembered = infer.infer(graph, graph.sizes)
    assert len(worked_out) < len(graph.steps)
    worked_out.clear()
    monkeypatch.setattr(Inferred, "made", lambda self, how, inputs, make: make())
    alone = infer.infer(graph, graph.sizes)
    assert len(worked_out) == len(graph.steps)
    assert remembered.keys() == alone.keys()
    assert all(same(remembered[name], alone[name]) for name in alone)


def test_nodes_that_differ_are_not_taken_for_one_another() -> None:
    """In an attribute, in an input that is left out, in the number of outputs, in what is known of an input."""
    least, most = (numpy_helper.from_array(np.array(value, np.float32), name) for name, value in (("lo", 0), ("hi", 2)))
    held = numpy_helper.from_array(np.array([-1.0, 1.0, 3.0], np.float32), "held")
    nodes = [
        helper.make_node("Clip", ["held", "lo"], ["from below"]),
        helper.make_node("Clip", ["held", "", "hi"], ["from above"]),
        helper.make_node("Clip", ["held", "lo", "hi"], ["both"]),
        helper.make_node("Concat", ["x", "x"], ["long"], axis=0),
        helper.make_node("Concat", ["x", "x"], ["wide"], axis=1),
        helper.make_node("Concat", ["long", "x"], ["longer"], axis=0),
        helper.make_node("Split", ["x"], ["half", "other"], axis=1),
        helper.make_node("Split", ["x"], ["all"], axis=1),
    ]
    graph = graph_of(model(nodes, "all", [least, most, held]))
    n = graph.sizes["n"]
    values = {name: graph.known(name) for name in ("from below", "from above", "both")}
    assert {name: None if v is None else v.tolist() for name, v in values.items()} == {
        "from below": [0, 1, 3], "from above": [-1, 1, 2], "both": [0, 1, 2],
    }  # fmt: skip
    shapes = {name: graph.shape(name) for name in ("long", "wide", "longer", "half", "all")}
    assert shapes == {"long": (2 * n, 4), "wide": (n, 8), "longer": (3 * n, 4), "half": (n, 2), "all": (n, 4)}


def test_kinds_and_what_a_node_reads() -> None:
    outlines = Outlines()
    inner = helper.make_graph(
        [helper.make_node("Add", ["outside", "one"], ["y"])], "b", [], [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(np.float32(1), "one")],
    )  # fmt: skip
    holding = outlines.of(helper.make_node("If", ["c"], ["z"], then_branch=inner, else_branch=inner))
    assert holding.kind is None
    assert set(holding.reads) == {"c", "outside"}
    one, two, three, four, constant = (
        outlines.of(node)
        for node in (
            helper.make_node("Cast", ["a"], ["b"], to=1),
            helper.make_node("Cast", ["c"], ["d"], name="another", to=1),
            helper.make_node("Cast", ["a"], ["b"], to=7),
            helper.make_node("Cast", ["a"], ["b"], to=1, domain="other"),
            helper.make_node("Constant", [], ["k"], value_int=1),
        )
    )
    assert one.kind == two.kind
    assert len({one.kind, three.kind, four.kind}) == 3
    assert [one.stored, constant.stored] == [False, True]
    left_out = outlines.of(helper.make_node("Clip", ["x", "", "hi"], ["y"]))
    assert (left_out.inputs, left_out.reads) == (("x", "", "hi"), ("x", "hi"))


def test_a_fact_of_which_there_is_no_room_is_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnx.graph.fact._KEPT", 20)
    inferred = Inferred()
    small, large = (fact_of(np.arange(count)) for count in (2, 3))
    assert inferred.one(fact_of(np.arange(2))) is inferred.one(small)
    assert inferred.one(large) is large
    asked: list[int] = []
    for _ in range(2):
        inferred.made((1,), [large], lambda: asked.append(1) or [large])  # type: ignore[func-returns-value]
    assert len(asked) == 2


@pytest.mark.parametrize("broken", [["x"], ["x", ""]])
def test_a_malformed_node_behind_a_sound_one_of_its_kind_is_found(broken: list[str]) -> None:
    nodes = [helper.make_node("Add", ["x", "x"], ["a"]), helper.make_node("Add", broken, ["b"], name="second")]
    with pytest.raises(ModelError, match=r"'second' .* lacks its input 1"):
        check_nodes(nodes, 17, Outlines())
    with pytest.raises(ModelError, match="has no output"):
        check_nodes([nodes[0], helper.make_node("Add", ["x", "x"], [""])], 17, Outlines())


def test_a_name_that_is_no_text_behind_a_sound_node_of_its_kind_is_found(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Relu", ["a"], ["bad!"])]
    raw = model(nodes, "a").SerializeToString().replace(b"bad!", b"ba\xff\xfe")
    (tmp_path / "m.onnx").write_bytes(raw)
    with pytest.raises(ModelError, match=r"an? output of a node is not valid text"):
        load(tmp_path / "m.onnx")


def test_equal_numbers_stored_at_different_places_are_the_same_in_a_signature(tmp_path: Path) -> None:
    """Large ones are left in the file, so that the nodes which hold them differ in where these are."""
    rows = [np.arange(400, dtype=np.float32).reshape(100, 4) + add for add in (0, 0, 1)]
    nodes: list[onnx.NodeProto] = []
    for i, array in enumerate(rows):
        nodes.append(helper.make_node("Constant", [], [f"k{i}"], value=numpy_helper.from_array(array)))
        nodes.append(helper.make_node("Mul", ["x", f"k{i}"], [f"y{i}"]))
    onnx.save(model(nodes, "y2"), tmp_path / "m.onnx")
    graph = find(tmp_path / "m.onnx").graph
    one, two, three = signatures(graph, ["y0", "y1", "y2"], ["x"])
    assert one == two
    assert one != three
