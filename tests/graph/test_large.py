"""A model of 2.5 GB is tapped with a few MB of memory: its weights are never read (the file here is sparse)."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

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
