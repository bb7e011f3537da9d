"""The same planted attention in every spelling gives the same arrays, and they are those of a plain float64 oracle."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import attnx
from attnx.records import Trace
from tests.idioms import HEADS, SIZE, Form, build, code, oracle, save, scale_of

FORMS = [
    *(Form(scale=s) for s in ("div", "mul", "query", "key", "sqrt", "both_computed", "alpha", "none")),
    *(Form(mask=m) for m in ("causal_where", "causal_where_swapped", "causal_add", "padding")),
    *(Form(layout=f) for f in ("merged", "einsum", "key_first")),
    *(Form(layout=f, kv_heads=2) for f in ("grouped", "repeated")),
    *(Form(layout="grouped", kv_heads=1, scale=s) for s in ("div", "sqrt")),
    *(Form(softmax=s) for s in ("written", "shifted", "guarded", "cast")),
    *(Form(softmax=s, mask="causal_add", layout=f) for s in ("written", "shifted") for f in ("merged", "key_first")),
    *(Form(softcap=8.0, scale=s) for s in ("mul", "query", "sqrt")),
    Form(sink=True), Form(sink=True, mask="causal_where", scale="query"), Form(sink=True, layout="merged"),
    *(Form(opset=o, mask="causal_add" if o >= 11 else "none") for o in (11, 12, 13, 14, 18, 20, 21)),
    *(Form(constants="node", scale=s, mask="causal_where") for s in ("div", "sqrt", "both_computed")),
    *(Form(layout="einsum", scale=s, mask="padding") for s in ("sqrt", "key", "mul")),
    *(Form(layout="key_first", scale="query", mask=m) for m in ("causal_add", "padding")),
    *(Form(softmax=s, mask=m) for s in ("log", "logsumexp", "reciprocal", "base2") for m in ("none", "causal_add")),
    *(Form(softmax=s, layout="key_first") for s in ("log", "reciprocal")),
    Form(softmax="quiet"), Form(softmax="quiet", mask="causal_where", scale="sqrt"),
    *(Form(layout="stacked", mask=m) for m in ("none", "causal_add")),
    *(Form(half=True, scale=s, softmax=m) for s in ("div", "sqrt") for m in ("op", "cast")),
]  # fmt: skip


def run(
    form: Form, folder: Path, batch: int = 2, length: int = 7, seed: int = 0
) -> tuple[Trace, dict[str, np.ndarray]]:
    x = code(batch, length, seed)
    feed = {"x": x.astype(np.float16) if form.half else x}
    keep = None
    if form.mask == "padding":
        keep = np.ones((batch, length), dtype=np.int64)
        keep[0, -1] = 0
        keep[-1, 0] = 0
        feed["attention_mask"] = keep
    model = attnx.open(save(build(form), folder), device="cpu")
    return model.trace(inputs=feed, verify_outputs=True), oracle(form, feed["x"].astype(np.float64), keep)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_every_spelling_gives_the_oracles_arrays(form: Form, tmp_path: Path) -> None:
    trace, want = run(form, tmp_path)
    (attention,) = trace.attentions
    site = attention.site
    assert (site.kind, site.heads, site.head_size) == ("self", HEADS, SIZE)
    assert site.kv_heads == form.kv_heads
    assert site.causal is form.mask.startswith("causal")
    assert site.sink is (form.sink or form.softmax == "quiet")
    assert site.softcap == (pytest.approx(form.softcap) if form.softcap else None)
    assert isinstance(site.scale, float)
    assert site.scale == pytest.approx(scale_of(form), rel=2e-3 if form.half else 1e-6)
    tolerance = 3e-2 if form.half else 2e-5
    for name, array in want.items():
        got = getattr(attention, name)
        if name in ("key", "value") and got.shape[1] != HEADS:
            got = np.repeat(got, HEADS // got.shape[1], axis=1)
        assert got.shape == array.shape, name
        assert got.dtype == np.float32
        np.testing.assert_allclose(
            got, array, rtol=tolerance, atol=tolerance * max(1, np.abs(array).max()), err_msg=name
        )
    assert attention.trusted
    if form.mask != "none":
        assert (attention.weights[want["weights"] == 0] == 0).all(), "hidden cells are exactly 0"


@pytest.mark.parametrize("form", [Form(), Form(layout="merged"), Form(layout="einsum", scale="sqrt")], ids=str)
def test_planted_heads_do_what_was_planted(form: Form, tmp_path: Path) -> None:
    trace, _ = run(form, tmp_path, batch=1, length=8)
    weights = trace.attentions[0].weights[0]
    rows = np.arange(1, 8)
    assert (weights[0, rows, rows - 1] > 0.95).all(), "previous token"
    assert (weights[1, np.arange(8), np.arange(8)] > 0.95).all(), "itself"
    assert (weights[2, :, 0] > 0.9).all(), "first token"
    assert np.abs(weights[3] - 1 / 8).max() < 0.02, "everything alike"


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    scale=st.sampled_from(["div", "mul", "query", "key", "sqrt", "both_computed", "none"]),
    mask=st.sampled_from(["none", "causal_where", "causal_add", "padding"]),
    layout=st.sampled_from(["bhqd", "merged", "einsum", "key_first", "grouped", "repeated"]),
    softmax=st.sampled_from(["op", "written", "shifted", "guarded"]),
    softcap=st.sampled_from([None, 5.0]),
    batch=st.integers(1, 3),
    length=st.integers(3, 11),
    seed=st.integers(0, 99),
)
def test_any_combination_gives_the_oracles_arrays(
    scale: str, mask: str, layout: str, softmax: str, softcap: float | None, batch: int, length: int, seed: int,
    tmp_path: Path,
) -> None:  # fmt: skip
    kv_heads = 2 if layout in ("grouped", "repeated") else HEADS
    form = Form(scale=scale, mask=mask, layout=layout, softmax=softmax, softcap=softcap, kv_heads=kv_heads)
    trace, want = run(form, tmp_path, batch, length, seed)
    (attention,) = trace.attentions
    assert attention.trusted
    assert attention.site.causal is mask.startswith("causal")
    for name in ("scores", "scaled", "capped", "weights", "context"):
        np.testing.assert_allclose(getattr(attention, name), want[name], rtol=1e-4, atol=1e-3, err_msg=name)
