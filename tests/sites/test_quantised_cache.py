"""Caches of 8 and 4 bits: against onnxruntime's kernel, and against numpy for 8-bit floats, which are CUDA's alone."""

from __future__ import annotations

import numpy as np
import pytest

from tests.sites.replacing import Array, close, compare, hold, parted, replaced, run
from tests.sites.test_group_query_attention import HKV, D, feed_of, model, with_rotary


def quantised(
    bits: int, kind: str, new: int, past: int, batch: int = 1, capacity: int | None = None
) -> dict[str, Array]:
    r = np.random.default_rng(bits + past)
    feed = with_rotary(feed_of(batch, new, past))
    rows = past if capacity is None else capacity
    for cache, scale in (("pk", "ks"), ("pv", "vs")):
        wide = r.uniform(0.01, 0.04, () if kind == "PER_TENSOR" else (1, HKV, 1, D)) * (10 if bits == 4 else 1)
        feed[scale] = np.atleast_1d(wide).astype(np.float32)
        size, kinds = (D, (-128, 128)) if bits == 8 else (D // 2, (0, 256))
        feed[cache] = r.integers(*kinds, (batch, HKV, rows, size)).astype(np.int8 if bits == 8 else np.uint8)
    return feed


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("kind", ["PER_TENSOR", "PER_CHANNEL"])
@pytest.mark.parametrize(
    ("new", "past", "batch", "capacity"), [(6, 0, 2, None), (1, 5, 2, None), (4, 5, 1, None), (1, 5, 2, 9)]
)
def test_quantised_caches(bits: int, kind: str, new: int, past: int, batch: int, capacity: int | None) -> None:
    feed = quantised(bits, kind, new, past, batch, capacity)
    whole = model(feed, do_rotary=1, k_quant_type=kind, v_quant_type=kind, kv_cache_bit_width=bits)
    finding, s = compare(whole, feed)
    assert "int" in finding.notes[0]
    steps = s["value"] / feed["vs"]
    close(steps, np.rint(steps), 1e-4)


def test_a_float8_cache_which_runs_on_cuda_only() -> None:
    import ml_dtypes

    r = np.random.default_rng(0)
    feed = with_rotary(feed_of(2, 1, 5))
    small = np.dtype(ml_dtypes.float8_e4m3fn)
    feed |= {cache: r.normal(size=(2, HKV, 5, D)).astype(small) for cache in ("pk", "pv")}
    feed |= {scale: np.array([0.5], np.float32) for scale in ("ks", "vs")}
    whole = model(feed, do_rotary=1, k_quant_type="PER_TENSOR", v_quant_type="PER_TENSOR")
    whole.opset_import[0].version = 21
    # numpy arrays of 8-bit floats cannot be fed; the caches become constants of the graph.
    constants = {cache: feed.pop(cache) for cache in ("pk", "pv")}
    for name, array in constants.items():
        tensor = whole.graph.initializer.add()
        tensor.name, tensor.data_type, tensor.raw_data = name, 17, array.tobytes()
        tensor.dims.extend(array.shape)
    kept = [i for i in whole.graph.input if i.name not in constants]
    del whole.graph.input[:]
    whole.graph.input.extend(kept)
    del whole.graph.output[1:]
    tapped, (finding,), _ = replaced(whole)
    assert finding.replacement is not None
    assert finding.replacement.required
    s = hold(finding, run(tapped, feed))
    close(s["value"][:, :, :5], constants["pv"].astype(np.float64) * 0.5, 1e-6)
    new = (parted(feed["v"], HKV) / np.float32(0.5)).astype(small).astype(np.float64) * 0.5
    close(s["value"][:, :, 5:], new, 1e-6)
