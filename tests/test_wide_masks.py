"""float64 models that mask with the lowest float64: -1.8e308 is no float32, and yet not minus infinity."""

from pathlib import Path

import numpy as np
import onnx
from onnx import parser

import attnx

MODEL = """
<ir_version: 9, opset_import: ["" : 17]>
wide (double[1,1,3,2] q, double[1,1,3,2] k, double[1,1,3,2] v, double[1,1,3,3] mask) => (double[1,1,3,2] out) {
    turned = Transpose<perm = [0, 1, 3, 2]>(k)
    scores = MatMul(q, turned)
    masked = Add(scores, mask)
    weights = Softmax<axis = -1>(masked)
    out = MatMul(weights, v)
}
"""


def test_a_row_that_sees_nothing(tmp_path: Path) -> None:
    """All of its cells are alike, so that its weights are equal; of the other rows the hidden cells are 0."""
    onnx.save(parser.parse_model(MODEL), tmp_path / "wide.onnx")
    drawn, lowest = np.random.default_rng(0), np.finfo(np.float64).min
    q, k, v = drawn.normal(size=(3, 1, 1, 3, 2))
    mask = np.array([[lowest] * 3, [0, 0, lowest], [0, 0, 0]])[None, None]
    attention = attnx.open(tmp_path / "wide.onnx").trace(inputs={"q": q, "k": k, "v": v, "mask": mask}).attentions[0]
    cells = np.exp(q @ k.swapaxes(-1, -2)) * (mask == 0)
    cells[..., 0, :] = 1
    assert attention.trusted, attention.checks
    assert attention.weights is not None
    assert attention.masked is not None
    np.testing.assert_allclose(attention.weights, cells / cells.sum(-1, keepdims=True), atol=1e-6)
    assert np.isfinite(attention.masked).all()
