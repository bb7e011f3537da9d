"""Graphs of several attentions, each held against numpy: windows, caches, shared keys, cross-attention."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import attnx
from tests.spellings.passing import optimised
from tests.spellings.stacking import Stack, stack


def differences(stacked: Stack, path: Path) -> list[str]:
    """What attnx says otherwise of the layers than numpy does."""
    trace = attnx.open(path, device="cpu").trace(inputs=stacked.feed, verify_outputs=True)
    if len(trace.attentions) != len(stacked.layers):
        return [f"{len(trace.attentions)} sites, {[miss.reason for miss in trace.misses]}"]
    wrong = []
    for i, (attention, layer) in enumerate(zip(trace.attentions, stacked.layers, strict=True)):
        wrong += [f"{i} {check.name}: {check.difference}" for check in attention.checks if not check.holds]
        for name in ("kind", "causal", "heads", "kv_heads"):
            got = getattr(attention.site, name)
            if got != layer[name] and not (name == "causal" and layer[name] is None):
                wrong.append(f"{i} ({layer['drawn']}) {name}: {got}, not {layer[name]}")
        if attention.site.scale is None or not np.isclose(float(np.max(attention.site.scale)), layer["scale"]):
            wrong.append(f"{i} scale: {attention.site.scale}")
        for name in ("weights", "context"):
            got, want = getattr(attention, name), layer[name]
            room = 2e-4 * max(1.0, float(np.abs(want).max()))  # float32, layer upon layer
            if got is None or got.shape != want.shape or np.abs(got - want).max() > room:
                wrong.append(f"{i} {name}: {None if got is None else got.shape}")
    return wrong


@pytest.mark.parametrize("made", ["as drawn", "optimised"])
def test_each_layer_of_a_stack_is_numpys(made: str, tmp_path: Path) -> None:
    wrong: dict[int, list[str]] = {}
    # 33 has two layers side by side, whose order in time the optimiser turns
    for number in range(30) if made == "as drawn" else [n for n in range(30, 45) if n != 33]:
        stacked, path = stack(number), tmp_path / f"{number}.onnx"
        path.write_bytes(stacked.model.SerializeToString())
        if found := differences(stacked, path if made == "as drawn" else optimised(path, "all")):
            wrong[number] = found
    assert wrong == {}


@pytest.mark.parametrize("number", [42, 53, 80, 83, 90, 101])
def test_keys_of_an_earlier_layer_are_of_the_same_sequence(number: int, tmp_path: Path) -> None:
    """As in Gemma 3n and YOCO: behind a residual sum, the query looks at what its own text was before."""
    stacked, path = stack(number), tmp_path / f"{number}.onnx"
    path.write_bytes(stacked.model.SerializeToString())
    assert any(layer["drawn"] == "shared" for layer in stacked.layers[1:])
    assert differences(stacked, path) == []
