"""com.microsoft PagedAttention has no CPU kernel: held against a numpy that goes sequence by sequence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.sites.replacing import Array, attention_node, close, hold, model_of, numpy_attention, replaced, run

H, HKV, D, BLOCK, BLOCKS = 4, 2, 16, 4, 12
NEW, PAST = [3, 1, 2], [5, 0, 6]
TABLE = np.array([[7, 2, 4], [9, -1, -1], [1, 11, 3]], np.int32)
ORDER = (
    "q", "k", "v", "kc", "vc", "sums", "past", "table", "cos", "sin", "slots", "sink", "qn", "kn", "ks", "vs",
)  # fmt: skip


def feed_of(packed: bool = False, dtype: Any = np.float32) -> dict[str, Array]:
    r = np.random.default_rng(0)
    tokens = sum(NEW)
    q, k, v = (r.normal(size=(tokens, n * D)) for n in (H, HKV, HKV))
    feed = {"q": np.concatenate([q, k, v], -1)} if packed else {"q": q, "k": k, "v": v}
    feed |= {c: r.normal(size=(BLOCKS, BLOCK, HKV, D)) for c in ("kc", "vc")}
    feed = {name: x.astype(dtype) for name, x in feed.items()}
    feed["sums"] = np.array([0, *np.cumsum(NEW)], np.int32)
    feed["past"] = np.array(PAST, np.int32)
    feed["table"] = TABLE
    return feed


def model(feed: dict[str, Array], **attributes: Any) -> Any:
    inputs = [name if name in feed else "" for name in ORDER]
    while not inputs[-1]:
        inputs.pop()
    outputs = ["y", "kc_out", "vc_out"] if "vc" in feed else ["y", "kc_out"]
    node = attention_node("PagedAttention", inputs, outputs, num_heads=H, kv_num_heads=HKV, **attributes)
    return model_of([node], feed, outputs)


def slot(row: int, position: int) -> tuple[int, int]:
    return int(TABLE[row, position // BLOCK]), position % BLOCK


def turned(x: Array, position: int, pairs: bool) -> Array:
    """[heads,D] turned to a position."""
    angle = position / 10000 ** (np.arange(0, D, 2) / D)
    z = x[:, ::2] + 1j * x[:, 1::2] if pairs else x[:, : D // 2] + 1j * x[:, D // 2 :]
    z = z * np.exp(1j * angle)
    return np.stack([z.real, z.imag], -1).reshape(x.shape) if pairs else np.concatenate([z.real, z.imag], -1)


def expected(
    feed: dict[str, Array], *, scale: float = D**-0.5, softcap: float = 0.0, window: int = 0, causal: bool = True,
    pairs: bool | None = None,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Output [tokens,H*D], and both caches, one sequence and one token after another."""
    q, k, v = (feed[x] for x in "qkv") if "k" in feed else np.split(feed["q"], [H * D, (H + HKV) * D], -1)
    caches = [feed[c].astype(np.float64).copy() for c in ("kc", "vc")]
    out = np.zeros((sum(NEW), H * D))
    start = 0
    for row, (new, past) in enumerate(zip(NEW, PAST, strict=True)):
        queries = np.zeros((H, new, D))
        for i in range(new):
            one_q, one_k = q[start + i].reshape(H, D), k[start + i].reshape(HKV, D)
            if "qn" in feed:
                one_q, one_k = (
                    x / np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + 1e-6) * feed[w]
                    for x, w in ((one_q, "qn"), (one_k, "kn"))
                )
            if pairs is not None:
                one_q, one_k = turned(one_q, past + i, pairs), turned(one_k, past + i, pairs)
            queries[:, i] = one_q
            caches[0][slot(row, past + i)] = one_k
            caches[1][slot(row, past + i)] = v[start + i].reshape(HKV, D)
        keys, values = (np.stack([c[slot(row, j)] for j in range(past + new)], 1)[None] for c in caches)
        i, j = np.indices((new, past + new))
        see = (j <= i + past) | (not causal)
        if window:
            see = see & (j > i + past - window)
        want = numpy_attention(
            queries[None], keys, values, scale=scale, softcap=softcap, visible=see, sink=feed.get("sink")
        )
        out[start : start + new] = want["context"][0].transpose(1, 0, 2).reshape(new, -1)
        start += new
    return out, caches[0], caches[1]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    "attributes", [{}, {"scale": 0.3, "softcap": 1.5}, {"local_window_size": 3}, {"is_causal": 0}], ids=str
)
def test_options(packed: bool, attributes: dict[str, Any]) -> None:
    feed = feed_of(packed)
    tapped, (finding,), _ = replaced(model(feed, **attributes))
    assert finding.replacement is not None
    assert finding.replacement.required
    assert (finding.heads, finding.kv_heads, finding.head_size) == (H, HKV, D)
    assert finding.causal is bool(attributes.get("is_causal", 1))
    got = run(tapped, feed)
    s = hold(finding, got)
    out, keys, values = expected(
        feed, scale=attributes.get("scale", D**-0.5), softcap=attributes.get("softcap", 0.0),
        window=attributes.get("local_window_size", 0), causal=bool(attributes.get("is_causal", 1)),
    )  # fmt: skip
    close(got["y"], out, 1e-5)
    close(got["kc_out"], keys, 1e-6)
    close(got["vc_out"], values, 1e-6)
    assert s["query"].shape == (3, H, max(NEW), D)
    assert s["key"].shape == (3, HKV, max(p + n for p, n in zip(PAST, NEW, strict=True)), D)
    assert np.all(s["weights"][1, :, 1:] == 0)  # padding of the sequence with one new token
    assert np.all(s["weights"][1, :, 0, 1:] == 0)


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("norms", [False, True])
def test_rotary_norms_and_sinks(pairs: bool, norms: bool) -> None:
    feed = feed_of()
    angle = np.arange(16)[:, None] / 10000 ** (np.arange(0, D, 2) / D)
    feed |= {"cos": np.cos(angle).astype(np.float32), "sin": np.sin(angle).astype(np.float32)}
    feed["sink"] = np.array([-1.0, 0.0, 1.0, 2.0], np.float32)
    if norms:
        r = np.random.default_rng(1)
        feed |= {"qn": r.normal(size=D).astype(np.float32), "kn": r.normal(size=D).astype(np.float32)}
    tapped, (finding,), _ = replaced(model(feed, do_rotary=1, rotary_interleaved=int(pairs)))
    got = run(tapped, feed)
    hold(finding, got, sink=feed["sink"])
    assert finding.sink
    out, keys, _ = expected(feed, pairs=pairs)
    close(got["y"], out, 1e-5)
    close(got["kc_out"], keys, 1e-5)


def test_a_slot_mapping() -> None:
    """The slots that are worked out are given; a slot of -1 leaves what is cached, which is what is read."""
    feed = feed_of()
    out, keys, values = expected(feed)
    given, start = [], 0
    for row, (new, past) in enumerate(zip(NEW, PAST, strict=True)):
        given += [slot(row, past + i)[0] * BLOCK + slot(row, past + i)[1] for i in range(new)]
        start += new
    feed["slots"] = np.array(given, np.int32)
    tapped, (finding,), _ = replaced(model(feed))
    close(run(tapped, feed)["y"], out, 1e-5)
    feed["kc"], feed["vc"] = keys.astype(np.float32), values.astype(np.float32)
    feed["slots"] = np.full(sum(NEW), -1, np.int32)
    got = run(tapped, feed)
    hold(finding, got)
    close(got["y"], out, 1e-5)
    close(got["kc_out"], keys, 1e-6)


def test_a_latent_cache() -> None:
    """One key head; its first channels are the values."""
    r = np.random.default_rng(2)
    width = 12
    feed = {k: v for k, v in feed_of().items() if k not in ("v", "vc")}
    feed["k"] = r.normal(size=(sum(NEW), D)).astype(np.float32)
    feed["kc"] = r.normal(size=(BLOCKS, BLOCK, 1, D)).astype(np.float32)
    inputs = [name if name in feed else "" for name in ORDER[:8]]
    node = attention_node(
        "PagedAttention", inputs, ["y", "kc_out"], num_heads=H, kv_num_heads=1, kv_cache_layout="LATENT",
        v_head_size=width, scale=0.2,
    )  # fmt: skip
    tapped, (finding,), _ = replaced(model_of([node], feed, ["y", "kc_out"]))
    got = run(tapped, feed)
    s = hold(finding, got)
    close(s["value"], s["key"][..., :width], 0)
    assert finding.head_size == D
    cache = feed["kc"].copy()
    start = 0
    for row, (new, past) in enumerate(zip(NEW, PAST, strict=True)):
        for i in range(new):
            cache[slot(row, past + i)] = feed["k"][start + i]
        keys = np.stack([cache[slot(row, j)] for j in range(past + new)], 1)[None]
        queries = feed["q"][start : start + new].reshape(new, H, D).transpose(1, 0, 2)[None]
        i, j = np.indices((new, past + new))
        want = numpy_attention(queries, keys, keys[..., :width], scale=0.2, visible=j <= i + past)["context"]
        close(got["y"][start : start + new], want[0].transpose(1, 0, 2).reshape(new, -1), 1e-5)
        start += new


@pytest.mark.parametrize("channels", [False, True])
def test_an_8_bit_cache(channels: bool) -> None:
    r = np.random.default_rng(3)
    feed = feed_of()
    kind = "PER_CHANNEL" if channels else "PER_TENSOR"
    for cache, scale in (("kc", "ks"), ("vc", "vs")):
        feed[cache] = r.integers(-128, 128, (BLOCKS, BLOCK, HKV, D)).astype(np.int8)
        shape = (HKV, 1, D) if channels else (1,)
        feed[scale] = r.uniform(0.01, 0.03, shape).astype(np.float32)
    tapped, (finding,), _ = replaced(model(feed, k_quant_type=kind, v_quant_type=kind))
    got = run(tapped, feed)
    hold(finding, got)
    wide = {k: v for k, v in feed.items() if k not in ("ks", "vs")}
    for new, cache, scale in (("k", "kc", "ks"), ("v", "vc", "vs")):
        step = feed[scale].reshape(HKV, D) if channels else feed[scale]
        wide[cache] = feed[cache] * step
        tokens = feed[new].reshape(-1, HKV, D)
        wide[new] = (np.clip(np.rint(tokens / step), -128, 127) * step).reshape(len(tokens), -1)
    out, keys, _ = expected(wide)
    close(got["y"], out, 1e-5)
    assert got["kc_out"].dtype == np.int8
    close(got["kc_out"] * (feed["ks"].reshape(HKV, D) if channels else feed["ks"]), keys, 1e-5)


def test_half_precision_and_a_packed_4_bit_cache() -> None:
    feed = feed_of(dtype=np.float16)
    tapped, (finding,), _ = replaced(model(feed))
    got = run(tapped, feed)
    hold(finding, got)
    assert got["y"].dtype == np.float16
    close(got["y"], expected(feed)[0], 2e-3)
    feed["kc"] = feed["vc"] = np.zeros((BLOCKS, BLOCK, HKV, D // 2), np.uint8)
    _, findings, (miss,) = replaced(model(feed, k_cache_dtype="int4", v_cache_dtype="int4"))
    assert not findings
    assert "int4" in miss.reason
