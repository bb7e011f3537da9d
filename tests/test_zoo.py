"""Files that real exporters, optimisers and quantisers made (scripts/make_test_zoo.py), and what they must say."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import attnx
from attnx.records import QUANTITIES

ZOO = Path(__file__).parent / "zoo"


@pytest.mark.parametrize("case", sorted(p.name for p in ZOO.iterdir()))
def test_attention_is_what_the_framework_computed(case: str) -> None:
    folder = ZOO / case
    about = json.loads((folder / "about.json").read_text())
    truth = np.load(folder / "truth.npz")
    found = attnx.open(folder / "model.onnx", device="cpu").trace(
        inputs=dict(np.load(folder / "inputs.npz")), verify_outputs=True
    )
    assert len(found.attentions) == len(about["sites"])
    for i, (a, site) in enumerate(zip(found.attentions, about["sites"], strict=True)):
        assert (a.site.kind, a.site.causal, a.site.heads) == (site["kind"], site["causal"], site["heads"])
        assert a.site.scale == pytest.approx(site["scale"], rel=1e-5)
        assert a.trusted, [c for c in a.checks if not c.holds]
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


def test_int8_weights_move_the_attention_and_attnx_shows_by_how_much() -> None:
    """The quantised file is read as it is: its weights differ from the float file's and follow from its own scores."""
    models = [attnx.open(ZOO / name / "model.onnx", device="cpu") for name in ("eager-ts17", "int8-dynamic-ts17")]
    feed = dict(np.load(ZOO / "eager-ts17" / "inputs.npz"))
    plain, quantised = (m.trace(inputs=feed).attentions[0].weights for m in models)
    assert plain is not None
    assert quantised is not None
    assert 1e-4 < np.abs(plain - quantised).max() < 0.2
