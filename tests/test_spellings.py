"""Random spellings of attention, each held against numpy: layouts, scales, masks, softmaxes, opsets, dimensions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attnx
from attnx.records import Attention
from tests.spellings import Spelling, build

COUNT, GROUPS = 240, 8
"""More than these were looked at when the test was written; these run in seconds."""


def differences(spelling: Spelling, path: Path) -> list[str]:
    """What attnx says otherwise of a spelling than numpy does."""
    path.write_bytes(spelling.model.SerializeToString())
    trace = attnx.open(path, device="cpu").trace(inputs=spelling.feed, verify_outputs=True)
    if len(trace.attentions) != 1:
        return [f"{len(trace.attentions)} sites, {[miss.reason for miss in trace.misses]}"]
    (attention,) = trace.attentions
    wrong = [f"{check.name}: {check.difference}" for check in attention.checks if not check.holds]
    for name, want in spelling.site.items():
        got: Any = getattr(attention.site, name)
        same = got == want if isinstance(want, str | bool | int | None) else got is not None and np.allclose(got, want)
        wrong += [] if same else [f"{name}: {got}, not {want}"]
    return wrong + [text for name, want in spelling.want.items() if (text := _array(attention, name, want))]


def _array(attention: Attention, name: str, want: np.ndarray) -> str | None:
    got = getattr(attention, name)
    if got is None:
        return f"{name} is absent"
    if name in ("key", "value"):
        want = np.repeat(want, got.shape[1] // want.shape[1], 1)
    if got.shape != want.shape:
        return f"{name} has shape {got.shape}, not {want.shape}"
    shown = np.isfinite(want)
    if name == "weights" and np.any(got[want == 0] != 0):
        return "hidden cells have weight"
    if name == "masked" and np.any(got[~shown] > -5e3):
        return "hidden cells are no lower in the masked scores"
    gap = np.abs(got[shown] - want[shown]).max(initial=0.0)
    size = max(1.0, float(np.abs(want[shown]).max(initial=0.0)))
    return None if gap <= 2e-4 * size else f"{name} is off by {gap:.2g}"


@pytest.mark.parametrize("group", range(GROUPS))
def test_random_spellings_give_numpys_arrays(group: int, tmp_path: Path) -> None:
    wrong: dict[int, tuple[list[str], dict[str, Any]]] = {}
    for number in range(group, COUNT, GROUPS):
        spelling = build(number)
        if found := differences(spelling, tmp_path / f"{number}.onnx"):
            wrong[number] = found, spelling.choice
    assert wrong == {}
