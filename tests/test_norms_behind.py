"""||v W_O|| made inside the graph, against the value and W_O themselves."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import quantize_dynamic

import attnx
from attnx.session.ort import open_session
from attnx.sites.recognise import find
from attnx.taps.tap import tap
from tests.graph.test_projections import D, E, H, Q, graph

RNG = np.random.default_rng(8)


def tapped_norms(path: Path, **feed: np.ndarray) -> dict[str, Any]:
    """What is tapped of the first site."""
    tapped = tap(find(path), {0: ("norms", "norms_left", "value")}, outputs=())
    values = open_session(tapped.model, tapped.folder, "cpu").run(feed)
    return {name: values[tap] for name, tap in tapped.taps[0].items()}


@pytest.mark.parametrize(
    "form", [{}, {"packed": True}, {"gemm": True}, {"cast": True}, {"bias": False, "gemm": True, "cast": True}], ids=str
)
def test_norms_behind_the_output_projection(tmp_path: Path, form: dict[str, bool]) -> None:
    path, w = graph(tmp_path, **form)  # type: ignore[arg-type]
    got = tapped_norms(path, x=RNG.standard_normal((1, Q, E)).astype(np.float32))
    output = w["o"].astype(np.float64).reshape(H, D, E)
    want = np.stack([np.linalg.norm(got["value"][0, head] @ output[head], axis=-1) for head in range(H)])
    assert got["norms"].shape == (1, H, Q)
    np.testing.assert_allclose(got["norms"][0], want, rtol=1e-5)
    assert got["norms_left"].shape == (1, H)
    assert (got["norms_left"] > 0).all()


@pytest.mark.parametrize("per_channel", [False, True])
def test_norms_behind_a_quantised_output_projection(tmp_path: Path, per_channel: bool) -> None:
    path, _ = graph(tmp_path)
    quantize_dynamic(path, tmp_path / "int8.onnx", per_channel=per_channel)
    held = {t.name: numpy_helper.to_array(t) for t in onnx.load(tmp_path / "int8.onnx").graph.initializer}
    output = (held["w_o_quantized"].astype(float) - held["w_o_zero_point"].astype(float)) * held["w_o_scale"]
    got = tapped_norms(tmp_path / "int8.onnx", x=RNG.standard_normal((1, Q, E)).astype(np.float32))
    parts = output.reshape(H, D, E)
    want = np.stack([np.linalg.norm(got["value"][0, head] @ parts[head], axis=-1) for head in range(H)])
    np.testing.assert_allclose(got["norms"][0], want, rtol=1e-5)


def test_what_cancels_behind_it_is_told(tmp_path: Path) -> None:
    path, w = graph(tmp_path, bias=False)
    model = onnx.load(path)
    x = RNG.standard_normal((1, Q, E)).astype(np.float32)
    first = x[0, 0] @ w["v"][:, :D]
    output = w["o"].reshape(H, D, E).astype(np.float64)
    output[0] -= np.outer(first, first @ output[0]) / (first @ first)  # nothing is left of the first token's value
    tensors = [t for t in model.graph.initializer if t.name != "w_o"]
    del model.graph.initializer[:]
    model.graph.initializer.extend([*tensors, numpy_helper.from_array(output.reshape(H * D, E).astype("f"), "w_o")])
    onnx.save(model, path)
    left = tapped_norms(path, x=x)["norms_left"][0]
    assert left[0] < 0 < min(left[1:])


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_one_value_head_for_several_query_heads(tmp_path: Path, groups: int) -> None:
    heads, size, width, n = 4, 3, 8, 5
    kv = heads // groups
    w = {"q": RNG.standard_normal((width, heads * size)), "k": RNG.standard_normal((width, kv * size))}
    w |= {"v": RNG.standard_normal((width, kv * size)), "o": RNG.standard_normal((heads * size, width))}
    arrays: dict[str, Any] = {name: value.astype(np.float32) for name, value in w.items()}
    arrays |= {"qs": np.array([1, n, heads, size]), "ks": np.array([1, n, kv, size]), "two": np.array([2])}
    arrays |= {"wide": np.array([1, kv, groups, n, size]), "all": np.array([1, heads, n, size])}
    arrays |= {"flat": np.array([1, n, heads * size]), "root": np.float32(np.sqrt(size))}
    nodes = []

    def op(kind: str, *inputs: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(kind, list(inputs), [f"o{len(nodes)}"], name=f"n{len(nodes)}", **attributes))
        return f"o{len(nodes) - 1}"

    def split(name: str, shape: str) -> str:
        return op("Transpose", op("Reshape", op("MatMul", "x", name), shape), perm=[0, 2, 1, 3])

    def repeated(x: str) -> str:
        return op("Reshape", op("Expand", op("Unsqueeze", x, "two"), "wide"), "all")

    q, k, v = split("q", "qs"), repeated(split("k", "ks")), repeated(split("v", "ks"))
    scores = op("Div", op("MatMul", q, op("Transpose", k, perm=[0, 1, 3, 2])), "root")
    context = op("Transpose", op("MatMul", op("Softmax", scores, axis=-1), v), perm=[0, 2, 1, 3])
    nodes.append(helper.make_node("MatMul", [op("Reshape", context, "flat"), "o"], ["y"]))
    made = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, n, width])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in arrays.items()],
    )  # fmt: skip
    onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    x = RNG.standard_normal((1, n, width)).astype(np.float32)
    got = tapped_norms(tmp_path / "m.onnx", x=x)["norms"][0]
    value = (x[0] @ w["v"]).reshape(n, kv, size)
    output = w["o"].reshape(heads, size, width)
    want = [np.linalg.norm(value[:, head // groups] @ output[head], axis=-1) for head in range(heads)]
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_without_a_sure_output_projection_the_value_is_tapped(tmp_path: Path) -> None:
    path, _ = graph(tmp_path, order="dh")
    assert tapped_norms(path, x=RNG.standard_normal((1, Q, E)).astype(np.float32)).keys() == {"value"}


def test_the_map_of_a_text_is_that_of_its_arrays() -> None:
    """Norms that the graph makes and those of the fetched values are one map, whatever the text's length."""
    from attnx.run.prompt import Prompt
    from attnx.study.antecedents import ARRAYS, maps
    from attnx.study.coref_rows import point

    model = attnx.open("minilm", device="cpu")
    tokens = model.encode(" ".join(["The animal didn't cross the street because it was too tired."] * 25))
    assert len(tokens) > 300
    reduced = point(model, Prompt(tokens=tokens), "it@10")
    assert all(a.value is None for a in reduced.trace.attentions)
    whole, said = maps(model, model.trace(tokens=tokens, quantities=ARRAYS), None)
    assert not said
    np.testing.assert_allclose(reduced.maps["value norms"][0], whole["value norms"][10], atol=2e-6)
    np.testing.assert_allclose(reduced.maps["rollout"][0], whole["rollout"][10], atol=2e-6)


@pytest.mark.parametrize(("name", "text", "from_", "to"), [
    ("minilm", "The animal didn't cross the street because it was too tired.", "it", "animal,street"),
    ("minilm", "The dog saw the cat and it ran, so he followed it.", None, None),
    ("tiny-gpt", "The cat sat on the mat. The cat saw it.", "it", "cat@2,mat"),
])  # fmt: skip
def test_the_rollout_of_a_long_text_is_followed_to_its_candidates(
    name: str, text: str, from_: str | None, to: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the first layer up, where no layer's matrix waits for the last; held to the product of the layers' means."""
    from attnx.run.prompt import Prompt
    from attnx.study import coref_rows
    from attnx.study.mentioned import candidates, pronouns

    model = attnx.open(name, device="cpu")
    weights = [a.need("weights")[0].astype(np.float64) for a in model.trace(text).attentions]
    rolled = np.eye(weights[0].shape[1])
    for layer in weights:
        rolled = (layer.mean(0) + np.eye(len(rolled))) / 2 @ rolled
    monkeypatch.setattr(coref_rows, "ROOM", 0)
    found = coref_rows.point(model, Prompt(text), from_, to)
    words = pronouns(found.trace.tokens, from_)
    ends = sorted({at for word in words for one in candidates(found.trace.tokens, to, word) for at in one.pieces})
    rows = sorted({at for word in words for at in word.pieces})
    np.testing.assert_allclose(found.maps["rollout"][:, ends], rolled[np.ix_(rows, ends)], atol=1e-6)
    assert np.isnan(np.delete(found.maps["rollout"], ends, axis=1)).all()
