"""com.microsoft SparseAttention: against onnxruntime's kernel, which wants past and present in one buffer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest

from tests.sites.replacing import Array, attention_node, close, hold, model_of, replaced, run

H, HKV, D, BLOCK, M = 4, 2, 16, 16, 64
ORDER = ("q", "k", "v", "pk", "pv", "rows", "columns", "total", "lengths", "cos", "sin")
LAYOUTS = np.array(
    [
        [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 1, 1, 1]],
        [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 0, 1, 1]],
    ]
)


def compressed(dense: Array) -> dict[str, Array]:
    """The block mask in compressed rows, short layouts filled up with -1."""
    longest = max(int(layout.sum()) for layout in dense)
    rows, columns = [], []
    for layout in dense:
        rows.append([0, *np.cumsum(layout.sum(1))])
        entries = [int(c) for row in layout for c in np.flatnonzero(row)]
        columns.append(entries + [-1] * (longest - len(entries)))
    return {"rows": np.array(rows, np.int32), "columns": np.array(columns, np.int32)}


def feed_of(new: int, past: int, batch: int = 2, packed: bool = False, layouts: int = 2) -> dict[str, Array]:
    r = np.random.default_rng(new)
    q, k, v = (r.normal(size=(batch, new, n * D)).astype(np.float32) for n in (H, HKV, HKV))
    feed = {"q": np.concatenate([q, k, v], -1)} if packed else {"q": q, "k": k, "v": v}
    for cache in ("pk", "pv"):
        feed[cache] = np.zeros((batch, HKV, M, D), np.float32)
        feed[cache][:, :, :past] = r.normal(size=(batch, HKV, past, D))
    feed |= compressed(LAYOUTS[:layouts])
    feed["total"] = np.array([past + new], np.int32)
    feed["lengths"] = np.full(batch, past + new, np.int32)
    return feed


def model(feed: Mapping[str, Array], **attributes: Any) -> onnx.ModelProto:
    inputs = [name if name in feed else "" for name in ORDER]
    while not inputs[-1]:
        inputs.pop()
    node = attention_node(
        "SparseAttention", inputs, ["y", "present_k", "present_v"], num_heads=H, kv_num_heads=HKV,
        sparse_block_size=BLOCK, **attributes,
    )  # fmt: skip
    return model_of([node], feed, ["y", "present_k", "present_v"])


def run_shared(whole: onnx.ModelProto, feed: Mapping[str, Array]) -> dict[str, Array]:
    """The fused node, past and present bound to one buffer, as it asks for."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(whole.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    buffers = {name: feed[name].copy() for name in ("pk", "pv")}  # the values stand on this memory
    shared = {name: ort.OrtValue.ortvalue_from_numpy(buffer) for name, buffer in buffers.items()}
    for name, array in feed.items():
        if name in shared:
            binding.bind_ortvalue_input(name, shared[name])
        else:
            binding.bind_cpu_input(name, array)
    binding.bind_output("y")
    binding.bind_ortvalue_output("present_k", shared["pk"])
    binding.bind_ortvalue_output("present_v", shared["pv"])
    session.run_with_iobinding(binding)
    return {"y": binding.copy_outputs_to_cpu()[0].copy(), "present_k": buffers["pk"], "present_v": buffers["pv"]}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("rotary", [None, 0, 1])
@pytest.mark.parametrize(("new", "past"), [(60, 0), (1, 40), (1, 63)])
@pytest.mark.parametrize("layouts", [1, 2])
def test_it_matches_the_kernel(new: int, past: int, rotary: int | None, packed: bool, layouts: int) -> None:
    feed = feed_of(new, past, packed=packed, layouts=layouts)
    attributes: dict[str, Any] = {}
    if rotary is not None:
        angle = np.arange(M)[:, None] / 10000 ** (np.arange(0, D, 2) / D)
        feed |= {"cos": np.cos(angle).astype(np.float32), "sin": np.sin(angle).astype(np.float32)}
        attributes = {"do_rotary": 1, "rotary_interleaved": rotary}
    whole = model(feed, **attributes)
    tapped, (finding,), _ = replaced(whole)
    assert finding.replacement is not None
    assert finding.replacement.required
    assert (finding.heads, finding.kv_heads, finding.head_size, finding.causal) == (H, HKV, D, True)
    got, want = run(tapped, feed), run_shared(whole, feed)
    s = hold(finding, got)
    for name, array in want.items():
        close(got[name], array, 1e-5)
    i, j = np.indices((new, past + new))
    p = i + past
    for head in range(H):
        blocks = LAYOUTS[head % layouts][p // BLOCK, j // BLOCK].astype(bool)
        assert np.array_equal(s["weights"][0, head] > 0, blocks & (j <= p))


def test_a_ragged_step() -> None:
    """The kernel multiplies the values of every sequence but the first by other rows' weights; each alone is right."""
    feed = feed_of(1, 40)
    feed["lengths"] = np.array([41, 21], np.int32)
    tapped, (finding,), _ = replaced(model(feed))
    got = run(tapped, feed)
    hold(finding, got)
    for row, length in enumerate((41, 21)):
        alone = {k: v[row : row + 1] if k in ("q", "k", "v", "pk", "pv") else v for k, v in feed.items()}
        alone |= {"total": np.array([length], np.int32), "lengths": np.array([length], np.int32)}
        want = run_shared(model(alone), alone)
        close(got["y"][row : row + 1], want["y"], 1e-5)
        close(got["present_v"][row : row + 1], want["present_v"], 1e-7)
