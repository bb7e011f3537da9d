"""A detector as DETR is one: learnt queries among themselves, then over the picture's encoding."""

from pathlib import Path

import numpy as np
from onnx import numpy_helper

import attnx
from tests import small_models as small

OBJECTS = 5


def detector(folder: Path, **config: object) -> Path:
    """One encoder layer over a 4 x 4 map; one decoder layer, its keys shaped by a size read off the queries."""
    w = small.weights(2)
    rng = np.random.default_rng(5)
    g = small.Graph(w)
    g.constants["objects"] = numpy_helper.from_array(
        rng.standard_normal((1, OBJECTS, small.WIDTH)).astype(np.float32), "objects"
    )
    g.constants["lift"] = numpy_helper.from_array(rng.standard_normal((3, small.WIDTH)).astype(np.float32), "lift")
    flat = g.op("Reshape", "pixel_values", g.const([0, 3, -1]))
    x = g.op("MatMul", g.op("Transpose", flat, perm=[0, 2, 1]), "lift")
    memory = g.attend("e0", x, *g.keys_values("e0", x), None)
    batch = g.op("Slice", g.op("Shape", memory), g.const([0]), g.const([1]), g.const([0]))
    y = g.op("Expand", "objects", g.op("Concat", batch, g.const([OBJECTS]), g.const([small.WIDTH]), axis=0))
    y = g.attend("d0", y, *g.keys_values("d0", y), None)
    size = g.op("Slice", g.op("Shape", y), g.const([0]), g.const([1]), g.const([0]))
    shape = g.op("Concat", size, g.const([-1]), g.const([small.HEADS]), g.const([small.SIZE]), axis=0)
    sides = (g.op("Reshape", g.op("MatMul", memory, g.weight(f"c0{n}")), shape) for n in "kv")
    key, value = (g.op("Transpose", side, perm=[0, 2, 1, 3]) for side in sides)
    g.op("Identity", g.attend("c0", y, key, value, None), to="found")
    inputs = [small.info("pixel_values", small.F, ["batch", 3, 4, 4])]
    outputs = [small.info("found", small.F, ["batch", OBJECTS, small.WIDTH])]
    return small.save(folder, config=config, model=g.model(inputs, outputs))


def test_learnt_queries_are_the_decoders_and_objects_look_at_patches(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).standard_normal((1, 3, 4, 4)).astype(np.float32)
    trace = attnx.open(detector(tmp_path / "m"), device="cpu").trace(inputs={"pixel_values": pixels})
    sorts = [(a.site.component, a.site.kind, a.site.layer) for a in trace.attentions]
    assert sorts == [("encoder", "self", 0), ("decoder", "self", 0), ("decoder", "cross", 0)]
    encoder, own, cross = trace.attentions
    assert trace.queries_of(encoder).pieces[:2] == ("r0c0", "r0c1")
    assert trace.keys_of(cross).pieces == trace.queries_of(encoder).pieces
    assert trace.queries_of(cross).pieces == trace.keys_of(own).pieces == tuple("01234")  # not [CLS] and 2 x 2 patches


def test_a_configuration_names_objects(tmp_path: Path) -> None:
    pixels = np.zeros((1, 3, 4, 4), np.float32)
    trace = attnx.open(detector(tmp_path / "m", num_queries=OBJECTS), device="cpu").trace(
        inputs={"pixel_values": pixels}
    )
    assert trace.queries_of(trace.attentions[2]).pieces == tuple(f"object {i}" for i in range(OBJECTS))
