"""What is attention, what is none, and what kind it is: small graphs, each with one thing to tell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import attnx
from attnx.records import Attention
from tests.graphs import RNG, D, G, H, S, plain, qkv, sites, softmax, trace


def classifier(g: G, x: str) -> str:
    return g.softmax(g.linear(x, 7))


def tied_head(g: G, x: str) -> str:
    return g.softmax(str(g.op("MatMul", x, g.op("Transpose", g.weight(11, 16), perm=[1, 0]))))


def router(g: G, x: str) -> str:
    gate = g.softmax(g.linear(x, 4))
    experts = g.op("Concat", *[g.op("Unsqueeze", g.linear(x, 16), g.const([3], np.int64)) for _ in range(4)], axis=3)
    return str(
        g.op("ReduceSum", g.op("Mul", experts, g.op("Unsqueeze", gate, g.const([2], np.int64))), g.const([3], np.int64))
    )


def codebook(g: G, x: str) -> str:
    book = g.weight(9, 16)
    return str(g.op("MatMul", g.softmax(str(g.op("MatMul", x, g.op("Transpose", book, perm=[1, 0])))), book))


def contrast(g: G, x: str) -> str:
    image = g.linear(g.op("ReduceMean", x, axes=[1], keepdims=0), 12)
    text = g.linear(g.op("ReduceMax", x, axes=[1], keepdims=0), 12)
    return g.softmax(str(g.op("MatMul", image, g.op("Transpose", text, perm=[1, 0]))))


def linear_attention(g: G, x: str) -> str:
    k = g.softmax(g.linear(x, 16), axis=1)
    q = g.softmax(g.linear(x, 16), axis=-1)
    return str(g.op("MatMul", q, g.op("MatMul", g.op("Transpose", k, perm=[0, 2, 1]), g.linear(x, 16))))


@pytest.mark.parametrize("make", [classifier, tied_head, router, codebook, contrast, linear_attention])
def test_what_is_no_attention_yields_no_site(make: Callable[[G, str], str], tmp_path: Path) -> None:
    g = G()
    x = g.input("x", ["b", "s", 16])
    y = plain(g, x)  # one true site beside it: the distractor must not hide it, nor add to it
    z = make(g, y)
    assert [s.node for s in sites(g.save(tmp_path, z))] == [next(n.name for n in g.nodes if n.op_type == "Softmax")]


def test_self_and_cross_are_told_apart_by_what_they_are_made_from(tmp_path: Path) -> None:
    g = G()
    x, memory = g.input("x", ["b", "s", 16]), g.input("memory", ["b", "m", 16])
    encoded = str(g.op("Add", memory, plain(g, memory)))
    h = str(g.op("Add", x, plain(g, x)))
    y = plain(g, h, encoded)
    found = sites(g.save(tmp_path, y))
    assert [(s.kind, s.component, s.layer) for s in found] == [
        ("self", "encoder", 0), ("self", "decoder", 0), ("cross", "decoder", 0),
    ]  # fmt: skip


def test_joint_attention_over_two_streams_is_self_attention(tmp_path: Path) -> None:
    g = G()
    text, image = g.input("text", ["b", "s", 16]), g.input("image", ["b", "m", 16])

    def both(perm: Sequence[int]) -> str:
        return str(
            g.op("Concat", *(g.heads(g.linear(x, D * H), perm) for x in (text, image)), axis=3 if perm[3] == 1 else 2)
        )

    y = g.out(str(g.op("MatMul", g.softmax(g.scores(both((0, 2, 1, 3)), both((0, 2, 3, 1)))), both((0, 2, 1, 3)))))
    (site,) = sites(g.save(tmp_path, y))
    assert (site.kind, site.heads, site.causal) == ("self", H, False)


def mixing(g: G, x: str, how: str) -> tuple[str, str]:
    mix = RNG.standard_normal((H, H)).astype(np.float32)
    name = g.const(mix.T.reshape(H, H, 1, 1).copy() if how == "conv" else mix)
    if how == "conv":
        return str(g.op("Conv", x, name)), name
    if how == "einsum":
        return str(g.op("Einsum", x, name, equation="bhij,hg->bgij")), name
    turned = g.op("Transpose", x, perm=[0, 2, 3, 1])
    return str(g.op("Transpose", g.op("MatMul", turned, name), perm=[0, 3, 1, 2])), name


@pytest.mark.parametrize("how", ["conv", "einsum", "matmul"])
def test_talking_heads(how: str, tmp_path: Path) -> None:
    g = G()
    x = g.input("x", ["b", "s", 16])
    q, k, v = qkv(g, x)
    mixed, first = mixing(g, g.scores(q, k), how)
    after, _ = mixing(g, g.softmax(mixed), how)
    path = g.save(tmp_path, g.out(str(g.op("MatMul", after, v))))
    data = RNG.standard_normal((2, S, 16)).astype(np.float32)
    (a,) = trace(path, x=data).attentions
    wq, wk = (g.weights[n.input[1]] for n in g.nodes[:6] if n.op_type == "MatMul")
    heads = [(data @ w).reshape(2, S, H, D).transpose(0, 2, 1, 3) for w in (wq, wk)]
    scores = heads[0] @ heads[1].swapaxes(-1, -2)
    mix = g.weights[first].reshape(H, H).T if how == "conv" else g.weights[first]
    weights = softmax(np.einsum("bhij,hg->bgij", scores * D**-0.5, mix))
    np.testing.assert_allclose(a.scores, scores, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(a.weights, weights, rtol=1e-4, atol=1e-5)
    assert a.context is None, "weights x value is not the context where heads are mixed in between"
    assert a.trusted
    assert "combined" in " ".join(a.site.notes)


def test_differential_attention_is_two_sites_whose_weights_each_sum_to_one(tmp_path: Path) -> None:
    g = G()
    x = g.input("x", ["b", "s", 16])
    one, two = (g.softmax(g.scores(*qkv(g, x)[:2])) for _ in range(2))
    v = g.heads(g.linear(x, D * H))
    both = g.op("Sub", one, g.op("Mul", two, g.const(0.3, np.float32)))
    path = g.save(tmp_path, g.out(str(g.op("MatMul", both, v))))
    found = trace(path, x=RNG.standard_normal((2, S, 16)).astype(np.float32)).attentions
    assert len(found) == 2
    for a in found:
        assert a.weights is not None
        np.testing.assert_allclose(a.weights.sum(-1), 1, rtol=1e-5)
        assert a.context is None
        assert a.trusted


def test_a_gate_on_the_weights_is_said_and_kept_out_of_them(tmp_path: Path) -> None:
    g = G()
    x = g.input("x", ["b", "s", 16])
    q, k, v = qkv(g, x)
    gate = g.const(np.array([0.1, 0.5, 1.0, 2.0], np.float32).reshape(1, H, 1, 1))
    path = g.save(tmp_path, g.out(str(g.op("MatMul", g.op("Mul", g.softmax(g.scores(q, k)), gate), v))))
    (a,) = trace(path, x=RNG.standard_normal((2, S, 16)).astype(np.float32)).attentions
    assert a.weights is not None
    np.testing.assert_allclose(a.weights.sum(-1), 1, rtol=1e-5)
    assert a.site.gated
    assert a.trusted


def test_pooling_additive_and_learned_latents(tmp_path: Path) -> None:
    g = G()
    x = g.input("x", ["b", "s", 16])
    weights = g.softmax(str(g.op("Squeeze", g.op("MatMul", x, g.weight(16, 1)), g.const([2], np.int64))))
    wide = g.op("Unsqueeze", weights, g.const([2], np.int64))
    pooled = str(g.op("ReduceSum", g.op("Mul", x, wide), g.const([1], np.int64), keepdims=0))
    (site,) = sites(g.save(tmp_path, pooled))
    assert (site.kind, site.heads) == ("pooling", 1)

    g = G()
    x, state = g.input("x", ["b", "s", 16]), g.input("state", ["b", 16])
    asked = g.op("Unsqueeze", g.linear(state, 16), g.const([1], np.int64))
    energy = g.op("MatMul", g.op("Tanh", g.op("Add", g.linear(x, 16), asked)), g.weight(16, 1))
    weights = g.softmax(str(g.op("Transpose", energy, perm=[0, 2, 1])))
    path = g.save(tmp_path, str(g.op("MatMul", weights, x)))
    (site,) = sites(path)
    assert (site.kind, site.scale, "scores" in site.places) == ("additive", None, False)
    (a,) = trace(
        path,
        x=RNG.standard_normal((2, S, 16)).astype(np.float32),
        state=RNG.standard_normal((2, 16)).astype(np.float32),
    ).attentions
    assert a.scores is None
    assert a.weights is not None
    assert a.weights.shape == (2, 1, 1, S)

    g = G()
    x = g.input("x", ["b", "s", 16])
    latents = g.weight(1, H, 3, D)
    _, k, v = qkv(g, x)
    path = g.save(tmp_path, g.out(str(g.op("MatMul", g.softmax(g.scores(latents, k)), v))))
    (site,) = sites(path)
    assert (site.kind, site.heads, site.scale) == ("cross", H, pytest.approx(D**-0.5))


def test_sums_that_are_cast_first_are_products(tmp_path: Path) -> None:
    """As torch writes a sum with a type: additive attention whose vector is multiplied and summed."""
    g = G()
    x, state = g.input("x", ["b", "s", 16]), g.input("state", ["b", "t", 16])

    def summed(value: str, axis: int) -> str:
        cast = g.op("Cast", g.op("Cast", value, to=1), to=1)
        return str(g.op("ReduceSum", cast, g.const([axis], np.int64), keepdims=0))

    wide = [g.op("Unsqueeze", y, g.const([i], np.int64)) for y, i in ((state, 2), (x, 1))]
    w = g.weight(16)
    weights = g.softmax(summed(str(g.op("Mul", w, g.op("Tanh", g.op("Add", *wide)))), 3))
    gathered = g.op("Mul", g.op("Unsqueeze", weights, g.const([3], np.int64)), wide[1])
    path = g.save(tmp_path, summed(str(gathered), 2))
    given = {n: RNG.standard_normal((2, t, 16)).astype(np.float32) for n, t in (("x", S), ("state", 3))}
    (a,) = trace(path, **given).attentions
    assert (a.site.kind, a.site.scale) == ("additive", None)
    energy = np.tanh(given["state"][:, :, None] + given["x"][:, None]) @ g.weights[w]
    assert a.weights is not None
    np.testing.assert_allclose(a.weights[:, 0], softmax(energy), atol=1e-6)
    assert a.context is not None
    np.testing.assert_allclose(a.context[:, 0], softmax(energy) @ given["x"], atol=1e-5)


def test_a_position_bias_is_named(tmp_path: Path) -> None:
    g = G()
    x = g.input("x", ["b", "s", 16])
    q, k, v = qkv(g, x)
    length = g.op("Gather", g.op("Shape", x), g.const(1, np.int64))
    count = g.op("Cast", g.op("Range", g.const(0, np.int64), length, g.const(1, np.int64)), to=1)
    slopes = g.const(np.array([0.5, 0.25, 0.125, 0.0625], np.float32).reshape(1, H, 1, 1))
    masked = g.op("Add", g.scores(q, k), g.op("Mul", slopes, count))
    (site,) = sites(g.save(tmp_path, g.out(str(g.op("MatMul", g.softmax(str(masked)), v)))))
    assert site.bias == "by position, one per head"
    assert site.causal is False


def test_a_factor_that_grows_with_the_text_is_no_constant_scale(tmp_path: Path) -> None:
    g = G()
    x = g.input("x", ["b", "s", 16])
    q, k, v = qkv(g, x)
    length = g.op("Cast", g.op("Gather", g.op("Shape", x), g.const(1, np.int64)), to=1)
    q = str(g.op("Mul", q, g.op("Log", length)))
    path = g.save(tmp_path, g.out(str(g.op("MatMul", g.softmax(g.scores(q, k)), v))))
    (a,) = trace(path, x=RNG.standard_normal((1, S, 16)).astype(np.float32)).attentions
    assert a.site.scale == pytest.approx(D**-0.5), "log n belongs to the query, not to the scale"
    assert a.trusted


def test_weights_listed_among_the_inputs_are_not_asked_for(tmp_path: Path) -> None:
    g = G()
    x = g.input("x", ["b", "s", 16])
    first = plain(g, x)
    path = g.save(tmp_path, g.linear(str(g.op("Add", x, first)), 16))
    model = onnx.load(path)
    for tensor in model.graph.initializer:
        kind = helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
        model.graph.input.append(kind)
    onnx.save(model, path)
    found = attnx.open(path, device="cpu").trace(inputs={"x": RNG.standard_normal((1, S, 16)).astype(np.float32)})
    assert [a.site.kind for a in found.attentions] == ["self"]


def test_a_scale_before_a_rotary_embedding_is_found(tmp_path: Path) -> None:
    g = G()
    x = g.input("x", ["b", "s", 16])
    q, k, v = (g.heads(g.linear(x, D * H)) for _ in range(3))
    q = str(g.op("Mul", q, g.const(D**-0.5, np.float32)))
    cos, sin = g.weight(1, 1, S, D), g.weight(1, 1, S, D)

    def turn(y: str) -> str:
        left, right = g.op("Split", y, g.const([D // 2, D // 2], np.int64), outputs=2, axis=3)
        rotated = g.op("Concat", g.op("Neg", right), left, axis=3)
        return str(g.op("Add", g.op("Mul", y, cos), g.op("Mul", rotated, sin)))

    k = str(g.op("Transpose", turn(k), perm=[0, 1, 3, 2]))
    path = g.save(tmp_path, g.out(str(g.op("MatMul", g.softmax(g.scores(turn(q), k, None)), v))))
    (a,) = trace(path, x=RNG.standard_normal((2, S, 16)).astype(np.float32)).attentions
    assert a.site.scale == pytest.approx(D**-0.5)
    assert a.scores is not None
    assert a.scaled is not None
    np.testing.assert_allclose(a.scaled, a.scores * D**-0.5, rtol=1e-4, atol=1e-5)
    assert a.trusted


def test_a_scale_before_a_bias_per_head_is_found(tmp_path: Path) -> None:
    """As in relative attention with two biases (Transformer-XL, Funnel): one for the keys, one for positions."""
    g = G()
    x = g.input("x", ["b", "s", 16])
    w, (u, v), places = g.weight(16, D * H), (g.weight(H, 1, D), g.weight(H, 1, D)), g.weight(1, H, D, S)
    head = g.op("Mul", g.heads(str(g.op("MatMul", x, w))), g.const(0.25, np.float32))
    k, value = g.heads(g.linear(x, D * H), (0, 2, 3, 1)), g.heads(g.linear(x, D * H))
    content = g.op("MatMul", g.op("Add", head, u), k)
    moved = g.op("MatMul", g.op("Add", head, v), places)
    path = g.save(tmp_path, g.out(str(g.op("MatMul", g.softmax(g.op("Add", content, moved)), value))))
    given = RNG.standard_normal((2, S, 16)).astype(np.float32)
    (a,) = trace(path, x=given).attentions
    assert a.site.scale == pytest.approx(0.25)
    projected = (given @ g.weights[w]).reshape(2, S, H, D).transpose(0, 2, 1, 3)
    assert a.query is not None
    assert a.key is not None
    assert a.scores is not None
    np.testing.assert_allclose(a.query, projected + g.weights[u] / 0.25, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(a.scores, a.query @ a.key.transpose(0, 1, 3, 2), rtol=1e-4, atol=1e-4)
    assert a.trusted


def test_a_factor_before_a_bias_of_a_projection_is_the_projections(tmp_path: Path) -> None:
    g = G()
    x = g.input("x", ["b", "s", 16])
    q, k, v = qkv(g, x)
    scaled = g.op("Mul", g.linear(x, D * H), g.const(0.01, np.float32))  # an integer weight's step, say
    q = g.heads(str(g.op("Add", scaled, g.weight(D * H))))
    path = g.save(tmp_path, g.out(str(g.op("MatMul", g.softmax(g.scores(q, k)), v))))
    (a,) = trace(path, x=RNG.standard_normal((2, S, 16)).astype(np.float32)).attentions
    assert a.site.scale == pytest.approx(D**-0.5)


def check_of(a: Attention, name: str) -> bool:
    return next(c.holds for c in a.checks if c.name == name)


def test_a_weights_only_site_has_no_context(tmp_path: Path) -> None:
    g = G()
    x = g.input("x", ["b", "s", 16])
    q, k, _ = qkv(g, x)
    path = g.save(tmp_path, g.softmax(g.scores(q, k)))
    (a,) = trace(path, x=RNG.standard_normal((2, S, 16)).astype(np.float32)).attentions
    assert a.context is None
    assert a.value is None
    assert check_of(a, "weights = softmax(masked)")


def test_a_softmax_written_with_a_floored_maximum_and_reshapes_is_one(tmp_path: Path) -> None:
    """As jax.nn.softmax comes out: max(-inf, reduce_max), both reductions without their axis, reshaped and expanded."""
    g = G()
    x = g.input("x", [2, S, 16])
    q, k, v = qkv(g, x)
    scores = g.scores(q, k)
    axis, column = g.const([3], np.int64), g.const([2, H, S, 1], np.int64)
    whole = g.const([2, H, S, S], np.int64)
    top = g.op("Max", g.const(-np.inf, np.float32), g.op("ReduceMax", scores, axes=[3], keepdims=0))
    top = g.op("Identity", g.op("Expand", g.op("Reshape", top, column), whole))
    powers = g.op("Exp", g.op("Sub", scores, top))
    total = g.op("Expand", g.op("Reshape", g.op("ReduceSum", powers, axis, keepdims=0), column), whole)
    path = g.save(tmp_path, g.out(str(g.op("MatMul", g.op("Div", powers, total), v))))
    (a,) = trace(path, x=RNG.standard_normal((2, S, 16)).astype(np.float32)).attentions
    assert a.trusted
    assert a.weights is not None
    assert a.scaled is not None
    assert np.allclose(a.weights, softmax(a.scaled), atol=1e-5)
    assert a.site.scale == pytest.approx(D**-0.5)


@pytest.mark.parametrize(("keys", "kind"), [(S, "self"), (S + 2, "cross")])
def test_given_queries_and_keys_of_one_length_behind_a_triangle_are_self(keys: int, kind: str, tmp_path: Path) -> None:
    g = G()
    q, k, v = (g.input(n, [2, length, H, D]) for n, length in (("q", S), ("k", keys), ("v", keys)))
    query, key, value = (
        g.op("Transpose", t, perm=p) for t, p in ((q, [0, 2, 1, 3]), (k, [0, 2, 3, 1]), (v, [0, 2, 1, 3]))
    )
    seen = g.const(np.tril(np.ones((S, keys), bool)))
    masked = g.op("Where", seen, g.scores(str(query), str(key)), g.const(-np.inf, np.float32))
    (site,) = sites(g.save(tmp_path, str(g.op("MatMul", g.softmax(str(masked)), value))))
    assert (site.kind, site.causal, site.bias) == (kind, True, None)


def pooled(g: G, x: str) -> str:
    """The mean of every two neighbours, by slices that are added up."""
    parts = [g.op("Slice", x, *(g.const([n], np.int64) for n in (i, 1000, 1, 2))) for i in (0, 1)]
    return str(g.op("Mul", g.op("Add", *parts), g.const(0.5, np.float32)))


def gathered(g: G, x: str) -> str:
    """A sum of three that are gathered and masked, as an adaptive pooling is exported."""
    keep = g.const(np.arange(6).reshape(1, 6, 1) < 4)
    parts = [
        g.op("Where", keep, g.op("Gather", x, g.const(np.arange(i, i + 6), np.int64), axis=1), g.const(0, np.float32))
        for i in range(3)
    ]
    return str(g.op("Add", g.op("Add", parts[0], parts[1]), parts[2]))


def branched(g: G, x: str) -> str:
    """A sum of two projections of the same states."""
    return str(g.op("Add", g.linear(x, 16), g.op("Tanh", g.linear(x, 16))))


@pytest.mark.parametrize("make", [pooled, gathered, branched], ids=lambda f: f.__name__)
def test_sums_of_parts_and_of_branches_of_one_stream_are_of_that_stream(
    make: Callable[[G, str], str], tmp_path: Path
) -> None:
    g = G()
    x = g.input("x", ["b", 8, 16])
    h = g.op("Mul", x, g.op("Sigmoid", x))
    y = plain(g, str(h), make(g, str(h)))
    (site,) = sites(g.save(tmp_path, y))
    assert (site.kind, site.component) == ("self", "encoder")


def test_a_sum_of_two_streams_is_neither(tmp_path: Path) -> None:
    g = G()
    x, memory = g.input("x", ["b", "s", 16]), g.input("memory", ["b", "s", 16])
    h = g.op("Mul", x, g.op("Sigmoid", x))
    y = plain(g, str(h), str(g.op("Add", g.linear(str(h), 16), g.linear(memory, 16))))
    (site,) = sites(g.save(tmp_path, y))
    assert site.kind == "cross"
