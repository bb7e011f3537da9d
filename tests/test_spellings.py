"""Random spellings of attention, each held against numpy: layouts, scales, masks, softmaxes, opsets, dimensions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

import attnx
from attnx.records import Attention
from attnx.run.read import measure_causal
from tests.spellings import Spelling, build
from tests.spellings.passing import in_integers, optimised, rounded

COUNT, GROUPS = 240, 16
"""More than these were looked at when the test was written; these run in seconds."""


def differences(spelling: Spelling, path: Path) -> list[str]:
    """What attnx says otherwise of a spelling than numpy does."""
    path.write_bytes(spelling.model.SerializeToString())
    return compared(spelling, path)


def compared(spelling: Spelling, path: Path, *, merged: bool = False, integers: bool = False) -> list[str]:
    """What attnx says otherwise of a model than numpy does of the spelling that was made into it.

    Args:
        spelling: The spelling.
        path: The model.
        merged: Whether a scale may have become part of a stored query or projection, where no graph tells it.
        integers: Whether weights are rounded to int8: arrays then only have the shapes and about the size of numpy's.
    """
    trace = attnx.open(path, device="cpu").trace(inputs=spelling.feed, verify_outputs=True)
    if len(trace.attentions) != 1:
        return [f"{len(trace.attentions)} sites, {[miss.reason for miss in trace.misses]}"]
    (attention,) = trace.attentions
    wrong = [f"{check.name}: {check.difference}" for check in attention.checks if not check.holds]
    untold = ("kind", "scale", "query", "scores") if merged else ()
    for name, want in spelling.site.items():
        got: Any = getattr(attention.site, name)
        same = got == want if isinstance(want, str | bool | int | None) else got is not None and np.allclose(got, want)
        wrong += [] if same or name in untold else [f"{name}: {got}, not {want}"]
    read = _rounded if integers else _array
    names = [n for n in spelling.want if n not in untold and not (merged and getattr(attention, n) is None)]
    return wrong + [text for name in names if (text := read(attention, name, spelling.want[name]))]


def _rounded(attention: Attention, name: str, want: np.ndarray) -> str | None:
    got = getattr(attention, name)
    if name in ("key", "value"):
        want = np.repeat(want, got.shape[1] // want.shape[1], 1)
    if got is None or got.shape != want.shape:
        return f"{name} is {got if got is None else got.shape}, not {want.shape}"
    shown = np.isfinite(want)
    if name == "weights" and np.any(got[want == 0] != 0):
        return "hidden cells have weight"
    off = float(np.linalg.norm(got[shown] - want[shown]) / np.linalg.norm(want[shown]))
    return None if off < 0.5 else f"{name} is off by {off:.2g} of its size"


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


OPTIMISED = {
    "all": (8, 38, 41, 51, 63, 67, 90, 101, 110, 114, 116, 146, 302, 411),
    "extended": (450, 453, 471, 493, 505),
    "basic": (700, 711, 729, 735),
}
"""Where the optimiser of onnxruntime puts the softcap's division, or a scale, into a product; others by chance."""


@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize("level", OPTIMISED)
def test_what_onnxruntime_makes_of_a_spelling_is_the_same_attention(level: str, half: int, tmp_path: Path) -> None:
    wrong: dict[int, tuple[list[str], dict[str, Any]]] = {}
    for number in OPTIMISED[level][half::2]:
        spelling, path = build(number), tmp_path / f"{number}.onnx"
        path.write_bytes(spelling.model.SerializeToString())
        c = spelling.choice
        merged = c["query"] == "latent" or (c["scale"] == "query_early" and c["project"].startswith("conv"))
        if found := compared(spelling, optimised(path, level), merged=merged):
            wrong[number] = found, c
    assert wrong == {}


INTEGERS = (8, 35, 38, 41, 61, 66, 72, 97, 149, 204, 384, 443, 452, 460, 475)
"""Matrices of a head each, learned queries, convolutions and transposed weights in integers; others by chance."""


def test_a_spelling_with_weights_in_int8_keeps_its_heads_and_scale(tmp_path: Path) -> None:
    wrong: dict[int, tuple[list[str], dict[str, Any]]] = {}
    for number in INTEGERS:
        spelling, path = build(number), tmp_path / f"{number}.onnx"
        path.write_bytes(spelling.model.SerializeToString())
        if found := compared(spelling, in_integers(path), integers=True):
            wrong[number] = found, spelling.choice
    assert wrong == {}


@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize("everywhere", [False, True])
def test_rounding_between_the_steps_hides_neither_heads_nor_scale(everywhere: bool, half: int, tmp_path: Path) -> None:
    """Repeated key heads, stacked heads and rotations are followed through QuantizeLinear and DequantizeLinear."""
    wrong: dict[int, list[str]] = {}
    numbers = (11, 19, 25, 47, 59, 76, 98, 117) if everywhere else (0, 2, 6, 35, 41, 47, 51, 78, 91, 114)
    for number in numbers[half::2]:
        spelling, path = build(number), tmp_path / f"{number}.onnx"
        path.write_bytes(spelling.model.SerializeToString())
        quantised = rounded(path, spelling.feed, everywhere=everywhere)
        (attention,) = attnx.open(quantised, device="cpu").trace(inputs=spelling.feed).attentions
        for name, want in spelling.site.items():
            got: Any = getattr(attention.site, name)
            same = got == want if isinstance(want, str | bool | int | None) else np.allclose(got, want, rtol=0.02)
            if not same:
                wrong.setdefault(number, []).append(f"{name}: {got}, not {want}")
        for name in ("query", "scores", "weights", "context"):
            if getattr(attention, name).shape != spelling.want[name].shape:
                wrong.setdefault(number, []).append(f"{name}: {getattr(attention, name).shape}")
    assert wrong == {}


def test_a_flat_softmax_over_rounded_scores_is_laid_out_again(tmp_path: Path) -> None:
    for number in (13, 276):
        spelling, path = build(number), tmp_path / f"{number}.onnx"
        path.write_bytes(spelling.model.SerializeToString())
        quantised = rounded(path, spelling.feed, everywhere=True)
        (attention,) = attnx.open(quantised, device="cpu").trace(inputs=spelling.feed).attentions
        assert attention.weights is not None
        assert attention.weights.shape == spelling.want["weights"].shape


@pytest.mark.parametrize(("weight", "causal"), [(0.0, None), (float("nan"), None), (0.25, False)])
def test_weights_that_show_nothing_tell_of_no_order(weight: float, causal: bool | None) -> None:
    """A mask of -inf has no size in int8: all scores are NaN then, and a guard makes all weights 0."""
    assert measure_causal({"weights": np.full((1, 2, 4, 4), weight)}) is causal


def test_a_flat_softmax_between_casts_is_laid_out_again(tmp_path: Path) -> None:
    """As in a half-precision graph that is brought to float32 for the softmax alone."""
    spelling, path = build(43), tmp_path / "43.onnx"
    graph = spelling.model.graph
    (at,) = [i for i, node in enumerate(graph.node) if node.op_type == "Softmax"]
    softmax = graph.node[at]
    wide, out = helper.make_node("Cast", [softmax.input[0]], ["wide"], to=11), softmax.output[0]
    softmax.input[0], softmax.output[0] = "wide", "weights_wide"
    graph.node.insert(at, wide)
    graph.node.insert(at + 2, helper.make_node("Cast", ["weights_wide"], [out], to=1))
    assert differences(spelling, path) == []
