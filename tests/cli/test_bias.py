"""What is added to the scores besides a mask, as a stage of its own."""

from pathlib import Path

import numpy as np
import pytest
from onnx import numpy_helper

from tests import small_models as small
from tests.cli.conftest import Run

LENGTH = 6


class Biased(small.Graph):
    """Adds a bias by distance, one slope a head, between the scaled scores and the mask."""

    def op(self, kind: str, *inputs: str, to: str = "", **attributes: object) -> str:
        out = super().op(kind, *inputs, to=to, **attributes)
        return super().op("Add", out, "slopes") if kind == "Div" else out


def bias() -> np.ndarray:
    """[1,H,Q,K]."""
    behind = np.subtract.outer(np.arange(LENGTH), np.arange(LENGTH))
    return (-np.array([0.5, 0.125])[:, None, None] * behind)[None].astype(np.float32)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    g = Biased(small.weights())
    g.constants["slopes"] = numpy_helper.from_array(bias(), "slopes")
    small._decode(g, cached=False)
    inputs = [small.info(n, small.I, ["batch", LENGTH]) for n in ("input_ids", "attention_mask", "position_ids")]
    return small.save(tmp_path / "m", model=g.model(inputs, small._outputs()[:1]))


def test_the_bias_alone(attnx: Run, model: Path) -> None:
    base = ("inspect", "--ids", "3,7,1,12,5,2", "-m", str(model), "--stage", "bias")
    for head in range(small.HEADS):
        document = attnx(*base, "--head", f"1.{head}", "--json").document
        assert document["stage"] == "bias"
        values = np.array(document["heads"][0]["values"], dtype=float)
        later = np.triu(np.ones((LENGTH, LENGTH), bool), 1)
        np.testing.assert_allclose(values[~later], bias()[0, head][~later], atol=1e-5)
        assert np.isnan(values[later]).all()
    assert "bias" in attnx(*base, "--head", "0.1").out
    assert "bias" in attnx(*base, "--layer", "0").out


def test_a_model_without_one_says_so(attnx: Run) -> None:
    done = attnx("inspect", "It was tired.", "--head", "5.1", "--stage", "bias", code=3)
    assert "no bias" in done.err
