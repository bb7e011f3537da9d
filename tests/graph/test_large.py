"""A model of 2.5 GB is tapped with a few MB of memory: its weights are never read (the file here is sparse)."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import attnx
from attnx.graph.load.load import load
from attnx.sites.recognise import find
from attnx.taps.tap import tap
from tests.idioms import Form, build

ROWS = 40_000_000
BYTES = ROWS * 16 * 4


@pytest.fixture
def large(tmp_path: Path) -> Path:
    model = build(Form(mask="causal_where"))
    table = TensorProto(name="table", data_type=1, dims=[ROWS, 16], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": "table.bin", "offset": "0", "length": str(BYTES)}.items():
        table.external_data.add(key=key, value=value)
    model.graph.initializer.append(table)
    model.graph.node.insert(0, onnx.helper.make_node("Gather", ["table", "ids"], ["x"], name="embed"))
    del model.graph.input[:]
    model.graph.input.append(onnx.helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "seq"]))
    with (tmp_path / "table.bin").open("wb") as file:
        file.truncate(BYTES)
    onnx.save(model, tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def test_tapping_reads_no_weights(large: Path) -> None:
    find(large)  # imports are not what is measured
    tracemalloc.start()
    found = find(large)
    tapped = tap(found, {0: ("query", "key", "value", "scores", "weights", "context")}, outputs=())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(found.sites) == 1
    assert peak < 5 << 20, f"{peak >> 20} MB of Python memory for a model of {BYTES >> 20} MB"
    assert len(tapped.model) < 1 << 20


def test_the_graph_opens_where_the_weights_are_missing(large: Path) -> None:
    (large.parent / "table.bin").unlink()
    found = find(large)
    (site,) = found.sites
    assert (site.heads, site.causal, site.scale) == (4, True, pytest.approx(0.25))
    assert load(large).missing == {"table.bin": f"{large.parent / 'table.bin'} is missing"}
    assert np.isclose(float(site.scale or 0), 0.25)


def test_one_file_beyond_what_a_message_may_hold_runs(large: Path, tmp_path: Path) -> None:
    """Weights of more than 2 GB in the .onnx file itself, which protobuf refuses: they are read where they lie."""
    model = onnx.load(large, load_external_data=False)
    (table,) = (t for t in model.graph.initializer if t.name == "table")
    head = TensorProto(name="table", data_type=1, dims=[ROWS, 16]).SerializeToString() + b"\x4a" + varint(BYTES)
    model.graph.initializer.remove(table)
    graph = model.graph.SerializeToString()
    inner = b"\x2a" + varint(len(head) + BYTES) + head
    model.ClearField("graph")
    path = tmp_path / "whole.onnx"
    with path.open("wb") as file:
        file.write(model.SerializeToString() + b"\x3a" + varint(len(graph) + len(inner) + BYTES) + graph + inner)
        file.truncate(file.tell() + BYTES)
        file.seek(-BYTES, 2)
        file.write(np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32).tobytes())
    assert path.stat().st_size > 1 << 31
    (large.parent / "table.bin").unlink()
    feed = {"ids": np.array([[3, 1, 4, 1, 5]])}
    (attention,) = attnx.open(path, device="cpu").trace(inputs=feed).attentions
    assert attention.trusted
    weights = attention.need("weights")[0]
    same = weights[:, 3:]  # the second and the fourth token are one word: a key each, of one weight
    np.testing.assert_allclose(same[:, :, 1], same[:, :, 3], atol=1e-6)
    assert np.abs(weights[:, 4, 0] - weights[:, 4, 2]).max() > 1e-3


def varint(number: int) -> bytes:
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])
