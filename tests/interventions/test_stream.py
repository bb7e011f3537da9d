"""The residual stream where it is hard to see: an embedding's sum that comes out beside its norm."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

import attnx
from attnx.interventions.lens import lens
from attnx.interventions.running import Intervening
from tests.interventions import models


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
