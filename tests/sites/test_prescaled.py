"""A scale that stands before a fused operator is the site's: query, key and scores are given without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import attnx
from attnx.records import Attention
from tests.sites.replacing import Array, attention_node, close, model_of, parted, softmax

B, S, H, KV, D = 2, 5, 4, 2, 16
DRAWN = np.random.default_rng(8)
X = DRAWN.standard_normal((B, S, 16)).astype(np.float32)
W = {n: DRAWN.standard_normal((16, k * D)).astype(np.float32) / 3 for n, k in (("wq", H), ("wk", H), ("wg", KV))}
BIAS = DRAWN.standard_normal(3 * H * D).astype(np.float32)
ROOT = 0.37


def site_of(
    op: str, before: dict[str, float | Array], folder: Path, *, late: bool = False, **attributes: Any
) -> Attention:
    """The one site of a model that multiplies the inputs "q" and "k" of an operator by `before`; opened and run."""
    grouped = op in ("GroupQueryAttention", "SparseAttention")
    nodes = [onnx.helper.make_node("MatMul", ["x", "wq"], ["q0"], name="q"),
             onnx.helper.make_node("MatMul", ["x", "wg" if grouped else "wk"], ["k0"], name="k")]  # fmt: skip
    weights: dict[str, Array] = {**W, "bias": BIAS}
    names = {"q": "q0", "k": "k0"}
    for side, factor in before.items():
        weights[f"by_{side}"] = np.asarray(factor, np.float32)
        nodes.append(onnx.helper.make_node("Mul", [names[side], f"by_{side}"], [f"{side}1"], name=f"scale/{side}"))
        names[side] = f"{side}1"
    value = names["k"] if late else "k0"
    feed: dict[str, Array] = {"x": X}
    domain = "com.microsoft"
    inputs = [names["q"], names["k"], value]
    if op == "Attention":
        domain, attributes = "", {"q_num_heads": H, "kv_num_heads": H, **attributes}
    elif op == "MultiHeadAttention":
        attributes = {"num_heads": H, **attributes}
        inputs += ["bias"] if attributes.pop("bias", False) else []
    elif op == "GroupQueryAttention":
        weights |= {
            "lengths": np.full(B, S - 1, np.int32),
            "total": np.array(S, np.int32),
            "gain": np.ones(D, np.float32),
        }
        weights |= {
            n: f(np.outer(np.arange(S), 10.0 ** -np.arange(D // 2))).astype(np.float32)
            for n, f in (("cos", np.cos), ("sin", np.sin))
        }
        inputs += ["", "", "lengths", "total"]
        inputs += ["cos", "sin"] if attributes.get("do_rotary") else ["", ""]
        inputs += ["", "", "", "", "", "gain", "gain"] if attributes.pop("norms", False) else []
        attributes = {"num_heads": H, "kv_num_heads": KV, **attributes}
    nodes.append(attention_node(op, inputs, ["y"], domain=domain, **attributes))
    path = folder / "model.onnx"
    onnx.save(model_of(nodes, feed, ["y"], 23, weights), path)
    (attention,) = attnx.open(path, device="cpu").trace(inputs=feed, verify_outputs=True).attentions
    assert all(check.holds for check in attention.checks)
    return attention


def plain(heads: int = H) -> tuple[Array, Array]:
    """Query and key without any scale."""
    return parted(X @ W["wq"], H), parted(X @ W["wk" if heads == H else "wg"], heads)


@pytest.mark.parametrize("op", ["Attention", "MultiHeadAttention", "GroupQueryAttention"])
@pytest.mark.parametrize("before", [{"q": ROOT}, {"k": ROOT}, {"q": ROOT, "k": 0.5}, {"q": -0.5}])
@pytest.mark.parametrize("own", [1.0, None])
def test_a_scale_before_the_operator(op: str, before: dict[str, float], own: float | None, tmp_path: Path) -> None:
    at = site_of(op, before, tmp_path, **({} if own is None else {"scale": own}))
    query, key = plain(KV if op == "GroupQueryAttention" else H)
    whole = np.prod(list(before.values())) * (D**-0.5 if own is None else own)
    assert at.site.scale == pytest.approx(whole, rel=1e-6)
    close(at.need("query"), query, 1e-5)
    close(at.need("key"), key, 1e-5)
    scores = query @ np.repeat(key, H // key.shape[1], 1).swapaxes(-1, -2)
    close(at.need("scores"), scores, 1e-4)
    see = np.tri(S, dtype=bool) if op == "GroupQueryAttention" else np.ones((S, S), bool)
    close(at.need("weights"), softmax(np.where(see, scores * whole, -np.inf)), 1e-4)
    said = at.site.scale_place.partition(", and inside")[0]
    assert ("query" in said, "key" in said) == ("q" in before, "k" in before)


def test_a_rotation_inside_leaves_the_scale_a_scale(tmp_path: Path) -> None:
    bare = site_of("GroupQueryAttention", {}, tmp_path, scale=1.0, do_rotary=1)
    at = site_of("GroupQueryAttention", {"q": ROOT}, tmp_path, scale=1.0, do_rotary=1)
    assert at.site.scale == pytest.approx(ROOT)
    close(at.need("query"), bare.need("query"), 1e-5)


@pytest.mark.parametrize("what", ["norms", "bias", "value"])
def test_what_is_no_scale_of_the_product_stays_where_it_is(what: str, tmp_path: Path) -> None:
    """Behind a norm nothing is left of it; a bias inside is not scaled with it; a value is what it is."""
    if what == "norms":
        at = site_of("GroupQueryAttention", {"q": ROOT}, tmp_path, scale=1.0, norms=True)
        query = plain()[0]
        query = query / np.sqrt((query**2).mean(-1, keepdims=True) + 1e-6 / ROOT**2)
    elif what == "bias":
        at = site_of("MultiHeadAttention", {"q": ROOT}, tmp_path, scale=1.0, bias=True)
        query = plain()[0] * ROOT + BIAS[: H * D].reshape(1, H, 1, D)
    else:
        at = site_of("Attention", {"k": ROOT}, tmp_path, late=True, scale=1.0)
        query = plain()[0]
        close(at.need("key"), plain()[1] * ROOT, 1e-5)
        close(at.need("value"), plain()[1] * ROOT, 1e-5)
    assert at.site.scale == pytest.approx(1.0)
    close(at.need("query"), query, 1e-4)
