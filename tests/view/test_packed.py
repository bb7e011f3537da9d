"""What a page rebuilds from packed arrays, held against the trace by a reader written here from the format alone."""

import base64
import zlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from attnx.records import Attention, Site
from attnx.view import packed
from attnx.view.codes import COARSE, Blobs
from attnx.view.packed import pack

Q, K, D = 24, 24, 4


def site(**told: Any) -> Site:
    base: dict[str, Any] = {
        "index": 0, "layer": 0, "component": "decoder", "kind": "self", "op": "Softmax", "node": "s", "heads": 4,
        "kv_heads": 4, "head_size": D, "scale": D**-0.5,
    }  # fmt: skip
    return Site(**(base | told))


def plain_softmax(logits: np.ndarray, sink: np.ndarray | None = None) -> np.ndarray:
    """float64; rows without a visible key are 0."""
    top = np.where(np.isneginf(logits.max(-1, keepdims=True)), 0, logits.max(-1, keepdims=True))
    parts = np.exp(logits - top)
    total = parts.sum(-1, keepdims=True) + (0 if sink is None else np.exp(sink.reshape(-1, 1, 1) - top))
    return parts / np.where(total == 0, 1, total)


def attention(
    *,
    queries: int = Q,
    keys: int = K,
    size: int = D,
    kv_heads: int = 4,
    scale: Any = D**-0.5,
    softcap: float | None = None,
    mask: np.ndarray | float = 0.0,
    sink: np.ndarray | None = None,
    given: tuple[str, ...] = ("query", "key", "scores", "scaled", "capped", "masked", "weights"),
    **told: Any,
) -> Attention:
    """A site with all its arrays, made in float64."""
    draw = np.random.default_rng(7)
    query, key = draw.normal(size=(4, queries, size)) * 2, draw.normal(size=(kv_heads, keys, size)) * 2
    scores = np.einsum("hqd,hkd->hqk", query, np.repeat(key, 4 // kv_heads, axis=0))
    scaled = scores * np.reshape(scale, (-1, 1, 1))
    capped = scaled if softcap is None else softcap * np.tanh(scaled / softcap)
    masked = np.broadcast_to(capped + mask, scores.shape)
    arrays = {
        "query": query, "key": key, "scores": scores, "scaled": scaled, "capped": capped, "masked": masked,
        "weights": plain_softmax(masked, sink),
    }  # fmt: skip
    return Attention(
        site(scale=scale, softcap=softcap, kv_heads=kv_heads, head_size=size, sink=sink is not None, **told),
        **{name: array[None].astype(np.float32) for name, array in arrays.items() if name in given},
    )


def raw(blobs: Blobs, number: int) -> np.ndarray:
    return np.frombuffer(zlib.decompress(base64.b64decode(blobs.texts[number]), -15), np.uint8)


def read(blobs: Blobs, at: list[float]) -> np.ndarray:
    """Low bytes, then high bytes, times a step; -32768 is NaN."""
    number, step = at
    low, high = raw(blobs, int(number)).reshape(2, -1).astype(np.int64)
    codes = low + 256 * high
    codes = np.where(codes >= 32768, codes - 65536, codes)
    return np.where(codes == -32768, np.nan, codes * step)


def rebuild(a: Attention, got: packed.Packed, blobs: Blobs) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
    """Weights, masked (None where they are not kept) and hidden cells [H,Q,K], as the page does it."""
    assert a.weights is not None
    heads, queries, keys = a.weights.shape[1:]
    weights, masked, cells = np.zeros((heads, queries, keys)), np.zeros((heads, queries, keys)), []
    for head in range(heads):
        blob = got.fields.get("hidden", [None] * heads)[head]
        hidden = np.zeros((queries, keys), bool)
        if blob is not None:
            hidden = np.unpackbits(raw(blobs, blob))[: queries * keys].reshape(queries, keys).astype(bool)
        cells.append(hidden)
        if got.base in ("weights", "roots"):
            if got.base == "roots":
                codes, top = raw(blobs, int(got.fields["weights"][head][0])), got.fields["weights"][head][1]
                weights[head] = ((codes / 254) ** 2 * top).reshape(queries, keys)
            else:
                weights[head] = read(blobs, got.fields["weights"][head]).reshape(queries, keys)
            continue
        if got.base == "qk":
            own = head * len(got.fields["key"]) // heads
            query = read(blobs, got.fields["query"][head]).reshape(queries, -1)
            start = query @ read(blobs, got.fields["key"][own]).reshape(keys, -1).T
        else:
            start = read(blobs, got.fields[got.base][head]).reshape(queries, keys)
        if got.base != "masked":
            scale = np.broadcast_to(np.asarray(a.site.scale, float), (heads,))[head]
            start = start * scale
            start = start if not a.site.softcap else a.site.softcap * np.tanh(start / a.site.softcap)
        if got.fields["bias"][head] is not None:
            start = start + read(blobs, got.fields["bias"][head]).reshape(queries, keys)
        masked[head] = np.where(hidden, -np.inf, start)
        sink = got.fields["sink"][head]
        weights[head] = plain_softmax(masked[head][None], None if sink is None else np.array([sink]))[0]
    return weights, None if got.base in ("weights", "roots") else masked, np.array(cells)


CAUSAL = np.where(np.arange(K)[None] > np.arange(Q)[:, None], -np.inf, 0.0)
FINITE = np.where(np.isneginf(CAUSAL), -1e9, 0.0)
ALIBI = -np.abs(np.arange(K)[None] - np.arange(Q)[:, None]) * np.array([1.0, 0.5, 0.25, 0.125]).reshape(-1, 1, 1)


@pytest.mark.parametrize(
    ("told", "base"),
    [
        ({}, "qk"),
        ({"size": 32}, "scores"),
        ({"mask": CAUSAL}, "qk"),
        ({"mask": FINITE}, "qk"),
        ({"mask": CAUSAL + ALIBI}, "qk"),
        ({"mask": CAUSAL, "sink": np.array([0.5, -1.0, 2.0, 0.0])}, "qk"),
        ({"softcap": 2.0}, "qk"),
        ({"kv_heads": 2}, "qk"),
        ({"scale": (0.5, 0.25, 1.0, 2.0)}, "qk"),
        ({"scale": 1.0}, "qk"),
        ({"given": ("query", "key", "masked", "weights"), "mask": CAUSAL}, "qk"),
        ({"given": ("query", "key", "masked", "weights"), "size": 32, "softcap": 3.0}, "scores"),
        ({"given": ("scores", "masked", "weights")}, "scores"),
        ({"queries": 3, "keys": 40}, "scores"),
        (
            {"given": ("masked", "weights"), "kind": "additive", "mask": np.where(np.isneginf(CAUSAL), -1e9, 0)},
            "masked",
        ),
        ({"given": ("weights",)}, "weights"),
        ({"given": ("query", "key", "weights"), "mask": CAUSAL}, "weights"),
        ({"given": ("query", "key", "weights"), "mask": ALIBI}, "weights"),
    ],
)
def test_what_is_rebuilt_is_what_was_traced(told: dict[str, Any], base: str) -> None:
    a, blobs = attention(**told), Blobs()
    got = pack(a, blobs)
    assert got.base == base
    assert a.weights is not None
    weights, masked, hidden = rebuild(a, got, blobs)
    error = np.abs(weights - a.weights[0]).max()
    assert error < 5e-4
    assert error == pytest.approx(got.error, rel=0.05, abs=2e-6)
    if a.masked is None:
        assert got.off is None
        assert not hidden.any()
        return
    want = a.masked[0].astype(float)
    assert (hidden == (want < -1e8)).all()
    assert masked is not None
    off = np.abs(masked[~hidden] - want[~hidden]).max()
    assert off < 5e-3
    assert off == pytest.approx(got.off, rel=0.05, abs=1e-5)


def test_without_masked_scores_the_weights_tell_that_there_is_no_mask() -> None:
    whole, blobs = attention(), Blobs()
    got = pack(replace(whole, scores=None, scaled=None, capped=None, masked=None), blobs)
    assert got.base == "qk"
    weights, masked, hidden = rebuild(whole, got, blobs)
    assert not hidden.any()
    assert whole.masked is not None
    assert whole.weights is not None
    assert masked is not None
    assert np.abs(weights - whole.weights[0]).max() == pytest.approx(got.error, rel=0.05, abs=2e-6)
    assert np.abs(masked - whole.masked[0]).max() == pytest.approx(got.off, rel=0.05, abs=1e-5)


def test_bias_and_sink_are_kept_only_where_there_are_any() -> None:
    plain, blobs = pack(attention(), Blobs()), Blobs()
    assert plain.fields["bias"] == [None] * 4
    assert plain.fields["hidden"] == [None] * 4
    assert plain.fields["sink"] == [None] * 4
    sunk = pack(attention(sink=np.array([0.5, -1.0, 2.0, 0.0])), blobs)
    assert sunk.fields["sink"] == pytest.approx([0.5, -1.0, 2.0, 0.0], abs=1e-3)
    biased = pack(attention(mask=ALIBI), blobs)
    got = read(blobs, biased.fields["bias"][1]).reshape(Q, K)
    assert got == pytest.approx(ALIBI[1], abs=1e-3)


def test_weights_that_do_not_follow_are_kept_as_they_are() -> None:
    a = attention()
    assert a.weights is not None
    other = np.roll(a.weights, 1, axis=-1)
    a, blobs = replace(a, weights=other), Blobs()
    got = pack(a, blobs)
    assert got.base == "weights"
    weights, masked, _ = rebuild(a, got, blobs)
    assert masked is None
    assert weights == pytest.approx(other[0], abs=1e-4)
    # Nothing of the ways that failed is left behind.
    used = {number for number, _ in got.fields["weights"]} | {n for n in got.fields["hidden"] if n is not None}
    assert used == set(range(len(blobs.texts)))


def test_many_weights_take_a_byte_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "MANY", 100)
    a, blobs = attention(given=("weights",)), Blobs()
    got = pack(a, blobs)
    assert got.base == "roots"
    assert a.weights is not None
    weights, _, _ = rebuild(a, got, blobs)
    error = np.abs(weights - a.weights[0]).max()
    assert error == pytest.approx(got.error, abs=1e-6)
    assert error <= 1 / 254


def test_a_row_that_sees_nothing_and_a_nan_are_kept() -> None:
    blind = np.zeros((Q, K))
    blind[3] = -np.inf
    a, blobs = attention(mask=blind), Blobs()
    got = pack(a, blobs)
    weights, _, hidden = rebuild(a, got, blobs)
    assert hidden[:, 3].all()
    assert (weights[:, 3] == 0).all()
    a = attention(given=("weights",))
    assert a.weights is not None
    a.weights[0, 1, 2] = np.nan
    got = pack(a, blobs)
    found = read(blobs, got.fields["weights"][1]).reshape(Q, K)
    assert np.isnan(found[2]).all()
    assert not np.isnan(found[3]).any()


def test_the_same_bytes_are_kept_once() -> None:
    blobs = Blobs()
    got = pack(attention(mask=CAUSAL), blobs)
    assert len(set(got.fields["hidden"])) == 1
    before = len(blobs.texts)
    again = pack(attention(mask=CAUSAL), blobs)
    assert len(blobs.texts) == before
    assert again.fields == got.fields


def test_coarse_steps_are_smaller_and_say_that_they_are_further_off() -> None:
    fine, coarse = Blobs(), Blobs()
    a = attention(queries=300, keys=300, size=16, scale=0.05)
    one, two = pack(a, fine), pack(a, coarse, COARSE)
    assert coarse.size < 0.85 * fine.size
    assert one.base == two.base == "qk"
    assert one.error < two.error < packed.LIMIT


def test_steps_that_are_too_coarse_are_made_finer() -> None:
    a = attention(queries=60, keys=60, size=16, scale=4.0)
    got = pack(a, Blobs(), 40)
    assert got.base == "qk"
    assert got.fields == pack(a, Blobs()).fields
