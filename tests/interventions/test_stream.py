"""The residual stream where it is hard to see: an embedding's sum that comes out beside its norm."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import attnx
from attnx.errors import UnsupportedError
from attnx.interventions.lens import lens
from attnx.interventions.norms import norm_of, normed
from attnx.interventions.plan import Edit, Intervention
from attnx.interventions.running import Intervening
from attnx.interventions.stream import Streams
from tests import graphs
from tests.interventions import models
from tests.sites.replacing import graph_of


def test_an_embedding_that_gives_its_sum_beside_its_norm(tmp_path: Path) -> None:
    """onnxruntime's EmbedLayerNormalization: the first layer reads its norm, and the stream is its third output."""
    kind = models.KINDS["skip"]
    w = models.weights(kind)
    path = models.build(kind, w, tmp_path)
    proto = onnx.load(path)
    first = next(n for n in proto.graph.node if n.op_type == "LayerNormalization")
    stream, normed = first.input[0], first.output[0]
    weights = {"words": w["table"], "spots": w["places"], "gamma": w["0ing"], "beta": w["0inb"]}
    for name, array in weights.items():
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    inputs = ["ids32", "", "words", "spots", "", "gamma", "beta"]
    embed = helper.make_node(
        "EmbedLayerNormalization", inputs, [normed, "", stream], domain=models.MS, epsilon=1e-5, name="embed"
    )
    cast = helper.make_node("Cast", ["input_ids"], ["ids32"], to=onnx.TensorProto.INT32)
    nodes = [cast, embed, *(n for n in proto.graph.node if n is not first and stream not in n.output)]
    copies = [onnx.NodeProto.FromString(n.SerializeToString()) for n in nodes]
    del proto.graph.node[:]
    proto.graph.node.extend(copies)
    onnx.save(proto, path)
    feed = models.feeds(kind)[0]
    all_ = Intervening(attnx.open(path, device="cpu"), {"inputs": feed})
    known = models.recorded(kind, w, feed["input_ids"], feed["attention_mask"])
    states = [known["given", 0], *(known["residual", layer] for layer in range(kind.layers))]
    np.testing.assert_allclose(lens(all_).hidden, states, atol=2e-5)


def test_a_stream_that_is_subtracted_from_something_is_lost_in_words(tmp_path: Path) -> None:
    """Also in the layer before, and in the last: what is known of it is not the stream after the layer."""
    kind = models.Kind(parallel=True, joined="turned")
    path = models.build(kind, models.weights(kind), tmp_path)
    all_ = Intervening(attnx.open(path, device="cpu"), {"inputs": models.feeds(kind)[0]})
    for layer in range(kind.layers):
        edit = Edit("patch", layers=(layer,), quantity="residual", source="inputs")
        with pytest.raises(UnsupportedError, match="is subtracted in Sub"):
            list(all_.run([Intervention("one", (edit,))]))


def test_a_norm_is_of_what_it_reduces_alone(tmp_path: Path) -> None:
    """Not two norms in a row, the square of a norm, nor a norm that is added to its input."""
    kind = models.Kind(written=True)
    g = models.Graph(kind, models.weights(kind))
    once = g.norm("0in", "x")
    twice = g.norm("1in", once)
    half = g.op("Sub", once, g.op("ReduceMean", once, axes=[-1]))
    others = [half, g.op("Mul", once, once), g.op("Add", "x", once)]
    shape = ["b", "q", models.WIDTH]
    values = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, shape) for n in ("x", twice, *others)]
    tensors = [numpy_helper.from_array(a, n) for n, a in g.tensors.items()]
    proto = helper.make_model(
        helper.make_graph(g.nodes, "g", values[:1], values[1:], tensors), opset_imports=[helper.make_opsetid("", 17)]
    )
    graph = graph_of(proto)
    assert normed(graph, once) == "x"
    assert normed(graph, twice) == once
    assert [normed(graph, other) for other in others] == [None, None, None]
    assert norm_of(graph, "x") == once


@pytest.mark.parametrize(
    "form", ["folded", "unit", "unit of absolute values", "unit over positions", "folded of another"]
)
def test_norms_whose_scale_is_multiplied_into_one_tensor_or_that_one_operator_makes(form: str) -> None:
    """x (g r) + (b - mean g r), and LpNormalization over features; not what is scaled by another tensor's numbers."""
    kind = models.Kind()
    g = models.Graph(kind, models.weights(kind))
    gain, shift = g.w["0ing"], g.w["0inb"]
    if form.startswith("folded"):
        mean = g.op("ReduceMean", "y" if "another" in form else "x", axes=[-1])
        spread = g.op("Sub", g.op("ReduceMean", g.op("Mul", "x", "x"), axes=[-1]), g.op("Mul", mean, mean))
        scale = g.op("Mul", g.op("Reciprocal", g.op("Sqrt", g.op("Add", spread, np.float32(1e-5)))), gain)
        out = g.op("Add", g.op("Mul", "x", scale), g.op("Sub", shift, g.op("Mul", mean, scale)))
    else:
        how = {"axis": 1 if "positions" in form else -1, "p": 1 if "absolute" in form else 2}
        unit = g.op("LpNormalization", "x", **how)
        out = g.op("Mul", g.op("Mul", unit, np.float32(models.WIDTH**0.5)), gain)
    shape = ["b", "q", models.WIDTH]
    values = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, shape) for n in ("x", "y", out)]
    tensors = [numpy_helper.from_array(a, n) for n, a in g.tensors.items()]
    proto = helper.make_model(
        helper.make_graph(g.nodes, "g", values[:2], values[2:], tensors), opset_imports=[helper.make_opsetid("", 17)]
    )
    graph = graph_of(proto)
    known = form in ("folded", "unit", "unit of absolute values")
    assert normed(graph, out) == ("x" if known else None)
    assert norm_of(graph, "x") == (out if known else None)


def test_a_decoder_whose_stream_is_lost_costs_the_encoder_nothing(tmp_path: Path) -> None:
    """The encoder's stream ends where the decoder reads it, whatever the decoder's is subtracted from."""
    g = graphs.G()

    def mlp(x: str) -> str:
        return g.linear(str(g.op("Relu", g.linear(x, 24))), 16, 24)

    x, y = (g.input(name, [1, f"{name}_length", 16]) for name in ("source", "target"))
    ends = []
    for _ in range(2):
        x = str(g.op("Add", x, graphs.plain(g, x)))
        x = str(g.op("Add", x, mlp(x)))
        ends.append(x)
    for _ in range(2):
        y = str(g.op("Add", y, graphs.plain(g, y)))
        y = str(g.op("Add", y, graphs.plain(g, y, x)))
        y = str(g.op("Sub", mlp(y), y))
    path = g.save(tmp_path, y)
    rng = np.random.default_rng(0)
    feed = {name: rng.standard_normal((1, n, 16)).astype(np.float32) for name, n in (("source", 5), ("target", 4))}
    streams = Intervening(attnx.open(path, device="cpu"), {"inputs": feed}).points.streams
    (stack,) = streams.stacks
    assert [layer.out.value for layer in stack.layers if layer.out is not None] == ends
    assert len(streams.lost) == 4
    assert all("is subtracted in Sub" in why for why in streams.lost.values())


@pytest.mark.parametrize("at", [0, 1, 2])
def test_an_attention_that_is_lost_is_never_counted_as_an_mlp(at: int, tmp_path: Path) -> None:
    """Its heads change places before W_O: what it adds is no MLP of the layer in front, nor part of the embeddings."""
    g = graphs.G()
    x = g.input("x", [1, "length", 16])
    for layer in range(3):
        q, k, v = graphs.qkv(g, x)
        context = g.op("MatMul", g.softmax(g.scores(q, k)), v)
        if layer == at:
            context = g.op("Gather", context, g.const([1, 0, 3, 2], np.int64), axis=1)
        x = str(g.op("Add", x, g.out(str(context))))
        x = str(g.op("Add", x, g.linear(str(g.op("Relu", g.linear(x, 24))), 16, 24)))
    path = g.save(tmp_path, x)
    feed = {"x": np.random.default_rng(0).standard_normal((1, 5, 16)).astype(np.float32)}
    all_ = Intervening(attnx.open(path, device="cpu"), {"inputs": feed})
    patch = Intervention("one", (Edit("patch", layers=((at + 2) % 3,), quantity="mlp", source="inputs"),))
    why = "found: its output projection was not found with certainty"
    if at:
        with pytest.raises(UnsupportedError, match=f"its MLP output was not {why}"):
            list(all_.run([patch]))
    else:
        list(all_.run([patch]))
        why = "found only behind an attention: its output projection"
    with pytest.raises(UnsupportedError, match=why):
        lens(all_)


def streams_of(end: Callable[[graphs.G, str, str, list[str]], str], folder: Path, layers: int = 3) -> Streams:
    """The streams of layers without norms; `end` makes a layer's end of the stream behind attention and the layers'."""
    g = graphs.G()
    x = g.input("source", [1, "length", 16])
    ends = [x]
    for _ in range(layers):
        a = str(g.op("Add", x, graphs.plain(g, x)))
        x = end(g, x, a, ends)
        ends.append(x)
    path = g.save(folder, g.linear(x, 8))
    feed = {"source": np.random.default_rng(0).standard_normal((1, 5, 16)).astype(np.float32)}
    return Intervening(attnx.open(path, device="cpu"), {"inputs": feed}).points.streams


def mlp(g: graphs.G, x: str) -> str:
    return str(g.linear(str(g.op("Relu", g.linear(x, 24))), 16, 24))


def at_the_end(join: Callable[[graphs.G, str, str], str]) -> Callable[[graphs.G, str, str, list[str]], str]:
    """Layers that add their MLP, the last of them in another way."""

    def end(g: graphs.G, _x: str, a: str, ends: list[str]) -> str:
        return join(g, a, mlp(g, a)) if len(ends) == 3 else str(g.op("Add", a, mlp(g, a)))

    return end


def stacked(g: graphs.G, a: str, m: str, by: str = "ReduceSum") -> str:
    axis = g.const(np.array([0]))
    both = g.op("Concat", g.op("Unsqueeze", a, axis), g.op("Unsqueeze", m, axis), axis=0)
    if by == "Einsum":
        return str(g.op("Einsum", both, g.const(np.ones(2, np.float32)), equation="sbqd,s->bqd"))
    return str(g.op("ReduceSum", both, axis, keepdims=0))


JOINS: dict[str, Callable[[graphs.G, str, str], str]] = {
    "stacked": stacked,
    "stacked, by einsum": lambda g, a, m: stacked(g, a, m, "Einsum"),
    "larger": lambda g, a, m: str(g.op("Max", a, m)),
    "less": lambda g, a, m: str(g.op("Sub", m, a)),
    "kept in part": lambda g, a, m: str(g.op("Add", g.op("Mul", a, g.const(np.float32(0.9))), m)),
}


@pytest.mark.parametrize("how", JOINS)
def test_a_last_layer_that_ends_in_an_unknown_way_is_lost_in_words(how: str, tmp_path: Path) -> None:
    """Never taken to end before its MLP: that would be another tensor than in the layers before."""
    streams = streams_of(at_the_end(JOINS[how]), tmp_path)
    assert not streams.stacks
    assert all("cannot be told" in why or "is subtracted" in why for why in streams.lost.values()), streams.lost


def test_what_an_attention_is_added_to_for_the_mlp_alone_is_no_stream(tmp_path: Path) -> None:
    """x + mlp(x + attention)."""
    streams = streams_of(lambda g, x, a, _ends: str(g.op("Add", x, mlp(g, a))), tmp_path)
    assert not streams.stacks
    assert len(streams.lost) == 3


def test_a_long_skip_belongs_to_no_layer(tmp_path: Path) -> None:
    """U-ViT: an earlier stream is added between two layers; it is no MLP, and no layer's end includes it."""
    made: list[str] = []

    def end(g: graphs.G, _x: str, a: str, ends: list[str]) -> str:
        made.append(str(g.op("Add", a, mlp(g, a))))
        return str(g.op("Add", made[-1], ends[1])) if len(ends) == 3 else made[-1]

    (stack,) = streams_of(end, tmp_path, layers=4).stacks
    assert [layer.out.value for layer in stack.layers if layer.out is not None] == made
    assert [len(layer.mlps) for layer in stack.layers] == [1, 1, 1, 1]
    assert not stack.plain


def test_many_sums_behind_the_last_attention_are_all_found(tmp_path: Path) -> None:
    def end(g: graphs.G, _x: str, a: str, _ends: list[str]) -> str:
        for _ in range(30):
            a = str(g.op("Add", a, mlp(g, a)))
        return a

    (stack,) = streams_of(end, tmp_path, layers=2).stacks
    assert [len(layer.mlps) for layer in stack.layers] == [30, 30]


def test_a_factor_before_one_of_several_readers_is_no_part_of_a_norm() -> None:
    """DeepNorm, written out: the norm is multiplied where the next sublayer is added to it, and read as it is by it."""
    kind = models.Kind(written=True)
    g = models.Graph(kind, models.weights(kind))
    norm = g.norm("0in", "x")
    kept = g.op("Mul", norm, np.float32(1.7))
    out = g.op("Add", kept, g.op("Relu", norm))
    shape = ["b", "q", models.WIDTH]
    values = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, shape) for n in ("x", out)]
    tensors = [numpy_helper.from_array(a, n) for n, a in g.tensors.items()]
    proto = helper.make_model(
        helper.make_graph(g.nodes, "g", values[:1], values[1:], tensors), opset_imports=[helper.make_opsetid("", 17)]
    )
    assert norm_of(graph_of(proto), "x") == norm


@pytest.mark.parametrize("width", [16, 1])
def test_a_gate_behind_attention_belongs_to_what_it_adds(width: int, tmp_path: Path) -> None:
    """x + attention(x) * sigmoid(W x), as an MLP's gate does."""
    made: list[tuple[str, str]] = []
    g = graphs.G()
    x = g.input("source", [1, "length", 16])
    for _ in range(2):
        a = graphs.plain(g, x)
        made.append((a, str(g.op("Mul", a, g.op("Sigmoid", g.linear(x, width))))))
        x = str(g.op("Add", x, made[-1][1]))
        x = str(g.op("Add", x, mlp(g, x)))
    path = g.save(tmp_path, g.linear(x, 8))
    feed = {"source": np.random.default_rng(0).standard_normal((1, 5, 16)).astype(np.float32)}
    streams = Intervening(attnx.open(path, device="cpu"), {"inputs": feed}).points.streams
    terms = [streams.term(site.index) for site in streams.sites]
    assert [(t.projected and t.projected.value, t.place.value) for t in terms] == made
