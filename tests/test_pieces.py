"""One softmax over score products that are joined: over keys, over keys and queries, alike or not in either."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

import attnx
from attnx.measure.pair import pair
from attnx.records import Trace
from tests.graphs import D, G, H, softmax

WORDS, ENTITIES = 5, 3
TOTAL = WORDS + ENTITIES


def split(g: G, x: str) -> str:
    return g.heads(g.linear(x, D * H))


def cut(g: G, x: str, start: int, stop: int) -> str:
    return str(g.op("Slice", x, g.const([start], np.int64), g.const([stop], np.int64), g.const([2], np.int64)))


def product(g: G, q: str, k: str) -> str:
    return str(g.op("MatMul", q, g.op("Transpose", k, perm=[0, 1, 3, 2])))


def attended(g: G, scores: str, value: str, causal: bool = False) -> tuple[str, str]:
    scaled = str(g.op("Mul", scores, g.const(D**-0.5, np.float32)))
    if causal:
        scaled = str(g.op("Where", g.const(np.tri(TOTAL, dtype=bool)), scaled, g.const(-np.inf, np.float32)))
    weights = g.softmax(scaled)
    return g.out(str(g.op("MatMul", weights, value))), weights


def traced(
    g: G, folder: Path, out: str, names: dict[str, str], **feed: np.ndarray
) -> tuple[Trace, dict[str, np.ndarray]]:
    path = g.save(folder, out, *names.values())
    arrays = ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run(list(names.values()), feed)
    trace = attnx.open(path, device="cpu").trace(inputs=feed, verify_outputs=True)
    assert all(check.holds for a in trace.attentions for check in a.checks)
    return trace, dict(zip(names, arrays, strict=True))


def fed(*sizes: int) -> list[np.ndarray]:
    drawn = np.random.default_rng(9)
    return [drawn.standard_normal((2, size, 16)).astype(np.float32) for size in sizes]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kinds", [4, 1])
def test_words_and_entities(kinds: int, causal: bool, tmp_path: Path) -> None:
    """LUKE: a query of its own for each pair of kinds, or one for all; keys and values are those of both kinds."""
    g = G()
    x, y = g.input("x", ["b", WORDS, 16]), g.input("y", ["b", ENTITIES, 16])
    both = str(g.op("Concat", x, y, axis=1))
    key, value = split(g, both), split(g, both)
    words, entities = cut(g, key, 0, WORDS), cut(g, key, WORDS, TOTAL)
    if kinds == 4:
        asks = [[split(g, x), split(g, x)], [split(g, y), split(g, y)]]
    else:
        asks = [[q, q] for q in (split(g, x), split(g, y))]
    rows = [g.op("Concat", product(g, a, words), product(g, b, entities), axis=3) for a, b in asks]
    scores = str(g.op("Concat", *rows, axis=2))
    out, weights = attended(g, scores, value, causal)
    names = {"key": key, "value": value, "scores": scores, "weights": weights}
    names |= {f"q{i}{j}": name for i, row in enumerate(asks) for j, name in enumerate(row)}
    one, two = fed(WORDS, ENTITIES)
    trace, arrays = traced(g, tmp_path, out, names, x=one, y=two)
    (at,) = trace.attentions
    for name in ("key", "value", "scores", "weights"):
        np.testing.assert_allclose(at.need(name), arrays[name], atol=1e-5, err_msg=name)  # type: ignore[arg-type]
    np.testing.assert_allclose(at.need("scaled"), arrays["scores"] * D**-0.5, atol=1e-5)
    np.testing.assert_allclose(at.need("context"), arrays["weights"] @ arrays["value"], atol=1e-5)
    assert (at.site.kind, at.site.causal, at.site.heads) == ("self", causal, H)
    assert at.site.scale == pytest.approx(D**-0.5)
    if kinds == 1:
        query = np.concatenate([arrays["q00"], arrays["q10"]], axis=2)
        np.testing.assert_allclose(at.need("query"), query, atol=1e-5)
        return
    assert at.query is None
    assert "query differ" in " ".join(at.site.notes)
    found = pair(trace, 0, 1, TOTAL - 1, 2)
    steps = dict(zip(found.steps.axes[0].labels, found.steps.values, strict=True))
    assert steps["q·k"] == pytest.approx(float(arrays["scores"][0, 1, TOTAL - 1, 2]), abs=1e-5)
    assert np.isnan(steps["|q|"])
    assert steps["|k|"] == pytest.approx(float(np.linalg.norm(arrays["key"][0, 1, 2])), abs=1e-5)


def test_cached_and_new_keys_side_by_side(tmp_path: Path) -> None:
    """Scores over what comes in beside those over what is new, and one product with both values."""
    g = G()
    x, old, held = g.input("x", ["b", "s", 16]), g.input("k", ["b", H, "p", D]), g.input("v", ["b", H, "p", D])
    query, key = split(g, x), split(g, x)
    value = str(g.op("Concat", held, split(g, x), axis=2))
    scores = str(g.op("Concat", product(g, query, old), product(g, query, key), axis=3))
    out, weights = attended(g, scores, value)
    drawn = np.random.default_rng(2)
    feed = {n: drawn.standard_normal((2, H, 4, D)).astype(np.float32) for n in "kv"}
    (new,) = fed(3)
    names = {"query": query, "new": key, "value": value, "scores": scores, "weights": weights}
    trace, arrays = traced(g, tmp_path, out, names, x=new, **feed)
    (at,) = trace.attentions
    arrays["key"] = np.concatenate([feed["k"], arrays["new"]], axis=2)
    for name in ("query", "key", "value", "scores", "weights"):
        np.testing.assert_allclose(at.need(name), arrays[name], atol=1e-5, err_msg=name)  # type: ignore[arg-type]
    np.testing.assert_allclose(softmax(at.need("masked")), arrays["weights"], atol=1e-5)


def test_pieces_that_are_scaled_apart_have_no_common_scores(tmp_path: Path) -> None:
    g = G()
    x, y = g.input("x", ["b", WORDS, 16]), g.input("y", ["b", ENTITIES, 16])
    query, one, two = split(g, x), split(g, x), split(g, y)
    parts = [g.op("Mul", product(g, query, k), g.const(s, np.float32)) for k, s in ((one, 0.5), (two, 0.25))]
    weights = g.softmax(str(g.op("Concat", *parts, axis=3)))
    value = str(g.op("Concat", split(g, x), split(g, y), axis=2))
    first, second = fed(WORDS, ENTITIES)
    trace, arrays = traced(
        g, tmp_path, g.out(str(g.op("MatMul", weights, value))), {"weights": weights}, x=first, y=second
    )
    (at,) = trace.attentions
    np.testing.assert_allclose(at.need("weights"), arrays["weights"], atol=1e-6)
    assert at.scores is None
    assert at.key is None
