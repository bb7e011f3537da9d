"""Files that real exporters, optimisers and quantisers made (scripts/make_test_zoo.py), and what they must say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import attnx
from attnx.records import QUANTITIES
from tests.integers import exact, own_tensors, saturated, saturates

ZOO = Path(__file__).parent / "zoo"
INT8 = ZOO / "int8-dynamic-ts17"


def feed_of(folder: Path) -> dict[str, np.ndarray]:
    return dict(np.load(folder / "inputs.npz"))


def truth_of(folder: Path, sites: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    """What the framework computed; of kernels for integers, what they give here in the file's own tensors."""
    if (folder / "truth.npz").exists():
        return dict(np.load(folder / "truth.npz"))
    names = {f"attention.{i}.{q}": name for i, site in enumerate(sites) for q, name in site["tensors"].items()}
    made = own_tensors(folder / "model.onnx", feed_of(folder), names.values())
    return {key: made[name] for key, name in names.items()}


@pytest.mark.parametrize("case", sorted(p.name for p in ZOO.iterdir()))
def test_attention_is_what_the_framework_computed(case: str) -> None:
    folder = ZOO / case
    about = json.loads((folder / "about.json").read_text())
    truth = truth_of(folder, about["sites"])
    found = attnx.open(folder / "model.onnx", device="cpu").trace(inputs=feed_of(folder), verify_outputs=True)
    assert len(found.attentions) == len(about["sites"])
    for i, (a, site) in enumerate(zip(found.attentions, about["sites"], strict=True)):
        assert (a.site.kind, a.site.causal, a.site.heads) == (site["kind"], site["causal"], site["heads"])
        assert a.site.scale == pytest.approx(site["scale"], rel=1e-5)
        assert a.trusted, [c for c in a.checks if not c.holds]
        assert f"attention.{i}.weights" in truth
        for quantity in QUANTITIES:
            name = f"attention.{i}.{quantity}"
            if name not in truth:
                continue
            want, got = truth[name], getattr(a, quantity)
            assert got is not None, name
            if quantity in ("key", "value"):
                want, got = (np.repeat(x, site["heads"] // x.shape[1], axis=1) for x in (want, got))
            gap = np.abs(got - want).max() / max(1.0, np.abs(want).max())
            assert gap <= about["tolerance"], f"{name} is off by {gap:.2g}"


def test_int8_weights_move_the_attention_a_little() -> None:
    """Read by ONNX's own evaluator, whose integers are exact on every processor, against the float file's truth."""
    model = onnx.load(INT8 / "model.onnx")
    model.opset_import[0].version = 19  # the oldest whose DequantizeLinear it has; nothing in the file changed since
    sites = json.loads((INT8 / "about.json").read_text())["sites"]
    model.graph.output.extend(onnx.helper.make_empty_tensor_value_info(s["tensors"]["weights"]) for s in sites)
    _, *rounded = ReferenceEvaluator(model).run(None, feed_of(INT8))
    plain = truth_of(ZOO / "eager-ts17", sites)
    for i, weights in enumerate(rounded):
        assert 1e-4 < np.abs(weights - plain[f"attention.{i}.weights"]).max() < 0.2


def test_integer_products_are_exact_or_saturate_in_16_bits() -> None:
    """Bit for bit what numpy says of the kernel that this processor has, so that no other difference hides there."""
    nodes = [n for n in onnx.load(INT8 / "model.onnx").graph.node if n.op_type == "MatMulInteger"]
    made = own_tensors(INT8 / "model.onnx", feed_of(INT8), [name for n in nodes for name in (*n.input, *n.output)])
    product = saturated if saturates() else exact
    for node in nodes:
        a, b, a_zero, b_zero = (made[name] for name in node.input)
        assert (a.dtype, b.dtype, int(b_zero)) == (np.uint8, np.int8, 0)
        want = product(a, b) - int(a_zero) * b.astype(np.int32).sum(0)
        np.testing.assert_array_equal(made[node.output[0]], want)
    a, b = np.array([[255, 255, 255, 255]], np.uint8), np.array([[127], [127], [-128], [-1]], np.int8)
    assert (int(exact(a, b)[0, 0]), int(saturated(a, b)[0, 0])) == (31875, 32767 - 32768)
