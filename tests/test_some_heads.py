"""The matrices of some heads of a site: bit for bit those of all heads, made for these alone where they can be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

import attnx
from attnx.records import QUANTITIES, STAGES, Attention
from attnx.run.pipeline import execute
from attnx.run.prompt import Prompt
from attnx.session.protocol import OpenModel, Section, Wanted
from attnx.taps.some_heads import PICKED
from tests.interventions import models


def built(name: str, folder: Path, layers: int = 2) -> tuple[models.Kind, OpenModel, Prompt]:
    kind = replace(models.KINDS[name], layers=layers)
    path = models.build(kind, models.weights(kind), folder)
    return kind, attnx.open(path, device="cpu"), Prompt(inputs=models.feeds(kind)[0])


def alone(model: OpenModel) -> list[str]:
    """The stages that the last session computed for some heads alone."""
    taps = list(model.sessions._sessions.values())[-1].tapped.taps
    return sorted(q for names in taps.values() for q, name in names.items() if name.startswith(PICKED))


def same(part: Attention, whole: Attention, heads: tuple[int, ...]) -> None:
    assert part.site.heads == len(heads)
    for quantity in QUANTITIES:
        one, all_ = getattr(part, quantity), getattr(whole, quantity)
        assert (one is None) == (all_ is None)
        if one is not None:
            wide = np.repeat(all_, models.HEADS // all_.shape[1], axis=1)  # each query head with the key it reads
            np.testing.assert_array_equal(one, wide[:, list(heads)])


@pytest.mark.parametrize("name", models.KINDS)
def test_some_heads_are_those_of_all(name: str, tmp_path: Path) -> None:
    kind, model, prompt = built(name, tmp_path)
    last = kind.layers - 1
    whole = execute(model, prompt, Wanted((last,), QUANTITIES)).attentions[0]
    for heads in ((0,), (3, 1)):
        # With the context all heads are computed anyway; without it these alone.
        for quantities in (QUANTITIES, ("query", "key", *STAGES)):
            got = execute(model, prompt, Wanted((last,), quantities, heads={last: heads}))
            (part,) = got.attentions
            kept = {q: None for q in QUANTITIES if q not in quantities}
            same(part, replace(whole, **kept), heads)
            assert part.trusted
            if quantities is QUANTITIES or "merged" in name:
                assert alone(model) == []
    if kind.spelling == "plain" and not kind.fused and not kind.sink and not kind.places:
        assert alone(model) == ["masked", "scaled", "scores", "weights"]


def test_one_session_serves_all_heads(tmp_path: Path) -> None:
    _, model, prompt = built("pre", tmp_path)
    for head in range(models.HEADS):
        execute(model, prompt, Wanted((1,), STAGES, heads={1: (head,)}))
    assert len(model.sessions._sessions) == 1


def test_a_mask_of_each_head_is_picked_too(tmp_path: Path) -> None:
    """ALiBi: what is added differs from head to head, so that it is cut like query and key."""
    _, _, prompt = built("pre", tmp_path)
    proto = onnx.load(tmp_path / "model.onnx")
    slopes = np.linspace(0.1, 2, models.HEADS).astype(np.float32).reshape(models.HEADS, 1, 1)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(slopes, "slopes"))
    for at, node in reversed(list(enumerate(proto.graph.node))):
        if node.op_type == "Add" and node.input[1] == "bias":
            name = f"{node.output[0]}_own"
            proto.graph.node.insert(at, onnx.helper.make_node("Add", ["bias", "slopes"], [name]))
            proto.graph.node[at + 1].input[1] = name
    onnx.save(proto, tmp_path / "model.onnx")
    model = attnx.open(tmp_path / "model.onnx", device="cpu")
    whole = execute(model, prompt, Wanted((1,), ("query", "key", *STAGES))).attentions[0]
    part = execute(model, prompt, Wanted((1,), ("query", "key", *STAGES), heads={1: (2, 0)})).attentions[0]
    assert "masked" in alone(model)
    same(part, whole, (2, 0))
    gap = (part.need("masked") - part.need("scaled"))[0, :, 3, 1]
    np.testing.assert_allclose(gap, slopes[[2, 0], 0, 0], atol=1e-6)


def test_where_all_heads_are_needed_they_are_not_computed_twice(tmp_path: Path) -> None:
    """For the layers behind, or for the stream that is returned, all heads are computed; some are picked of these."""
    _, model, prompt = built("pre", tmp_path)
    both = execute(model, prompt, Wanted(None, STAGES, heads={0: (1,)}))
    assert alone(model) == []
    assert both.attentions[0].need("weights").shape[1] == 1
    proto = model.sessions.graph().graph
    end = next(n.output[0] for n in proto.nodes if n.op_type == "MatMul" and n.input[1] in proto.initializers)
    execute(model, prompt, Wanted((1,), STAGES, heads={1: (1,)}, section=Section(end=end)))
    assert "masked" in alone(model)  # what is returned is upstream of the layer
    end = proto.outputs[0]
    execute(model, prompt, Wanted((1,), STAGES, heads={1: (1,)}, section=Section(end=end)))
    assert alone(model) == []
