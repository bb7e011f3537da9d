"""Shapes and types by inference, against what onnxruntime gives at the probe sizes."""

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from attnx.graph.shapes import infer
from tests.graphs import G
from tests.sites.replacing import graph_of

K = numpy_helper.from_array(np.array([3], np.int64), "k")
DEPTH = numpy_helper.from_array(np.array(7, np.int64), "depth")
VALUES = numpy_helper.from_array(np.array([0.0, 1.0], np.float32), "values")


@pytest.mark.parametrize("node", [
    helper.make_node("TopK", ["x", "k"], ["a", "b"], axis=-1),
    helper.make_node("TopK", ["x", "k"], ["a", "b"], axis=1, largest=0),
    helper.make_node("ArgMax", ["x"], ["a"], axis=1, keepdims=0),
    helper.make_node("ArgMin", ["x"], ["a"], axis=-1),
    helper.make_node("OneHot", ["ids", "depth", "values"], ["a"], axis=-1),
    helper.make_node("OneHot", ["ids", "depth", "values"], ["a"], axis=1),
], ids=lambda node: f"{node.op_type}-{node.attribute[0].i}")  # fmt: skip
def test_rare_operators_by_their_schema(node) -> None:  # type: ignore[no-untyped-def]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4, 5]),
        helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", 4]),
    ]
    outputs = [helper.make_empty_tensor_value_info(name) for name in node.output]
    held = [t for t in (K, DEPTH, VALUES) if t.name in node.input]
    inputs = [i for i in inputs if i.name in node.input]
    model = helper.make_model(
        helper.make_graph([node], "one", inputs, outputs, held),
        opset_imports=[helper.make_opsetid("", 17)], ir_version=8,
    )  # fmt: skip
    graph = graph_of(model)
    batch = graph.sizes["batch"]
    feed = {"x": np.zeros((batch, 4, 5), np.float32), "ids": np.ones((batch, 4), np.int64)}
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found = session.run(None, {i.name: feed[i.name] for i in inputs})
    for name, array in zip(node.output, found, strict=True):
        fact = graph.facts[name]
        assert fact.shape == array.shape
        assert fact.dtype == helper.np_dtype_to_tensor_dtype(array.dtype)


def test_nothing_is_known_of_a_value_with_more_axes_than_an_array_can_have() -> None:
    axes = numpy_helper.from_array(np.arange(65), "axes")
    wide = [helper.make_node("Unsqueeze", ["x", "axes"], ["a"]), helper.make_node("Add", ["a", "a"], ["b"])]
    x, b = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"]), helper.make_empty_tensor_value_info("b")
    graph = graph_of(
        helper.make_model(helper.make_graph(wide, "one", [x], [b], [axes]), opset_imports=[helper.make_opsetid("", 17)])
    )
    assert graph.facts["a"].shape is None
    assert graph.shape("b") is None


@pytest.mark.parametrize(
    ("held", "want"),
    [
        ({"value_float": 0.5}, np.array(0.5, np.float32)),
        ({"value_ints": [3, 4]}, np.array([3, 4])),
        ({"value": numpy_helper.from_array(np.arange(6.0).reshape(2, 3))}, np.arange(6.0).reshape(2, 3)),
    ],
)
def test_stored_numbers_are_known_without_a_walk(
    held: dict[str, Any], want: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A third of the nodes of a graph as TorchScript writes it are Constants, which no walk need visit."""
    g = G()
    x = g.input("x", ["n"])
    one = g.op("Constant", **held)
    both = g.op("Mul", one, one)
    own = g.op("Constant", x, domain="other")  # of that name, but it computes
    last = g.op("Add", own, x)
    info = helper.make_tensor_value_info(x, 1, ["n"])
    outs = [helper.make_empty_tensor_value_info(name) for name in (both, last)]
    model = helper.make_model(helper.make_graph(g.nodes, "g", [info], outs))
    graph = graph_of(model)
    walked: list[str] = []
    node_of = infer._node

    def counted(graph: Any, node: Any, *rest: Any) -> Any:
        walked.append(node.output[0])
        return node_of(graph, node, *rest)

    monkeypatch.setattr(infer, "_node", counted)
    for name, numbers in ((one, want), (both, want * want)):
        value = graph.known(name)
        assert value is not None
        assert (value.dtype, graph.shape(name)) == (want.dtype, want.shape)
        np.testing.assert_array_equal(value, numbers)
    assert walked == [both, own, last]
    assert graph.dynamic == {x, own, last}
    assert graph.consumers(one) == [graph.producer(both)]
    assert graph.consumers(x) == [graph.producer(own), graph.producer(last)]
