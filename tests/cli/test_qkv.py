"""`attnx qkv`: every step from q and k to the layer's output, against onnxruntime's own tensors."""

import re
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.cli.analysed import bundled, causal, two_sided, values
from tests.cli.conftest import ANIMAL, Run

IT, AT = 10, 2


def test_steps_of_one_pair(attnx: Run) -> None:
    got = attnx("qkv", ANIMAL, "-q", "it", "--key", "animal", "-H", "5.11", "--json").document
    b = bundled(ANIMAL)
    q, k, v = b.query[5, 11, IT], b.key[5, 11, AT], b.value[5, 11, AT]
    weight, context = b.weights[5, 11, IT, AT], b.context[5, 11, IT]
    want = {
        "|q|": np.linalg.norm(q), "|k|": np.linalg.norm(k),
        "cosine": q @ k / np.linalg.norm(q) / np.linalg.norm(k),
        "q·k": q @ k, "scaled": q @ k / np.sqrt(32), "masked": q @ k / np.sqrt(32), "weight": weight,
        "|v|": np.linalg.norm(v), "|weight v|": weight * np.linalg.norm(v),
        "share of context": weight * v @ context / (context @ context), "|context|": np.linalg.norm(context),
    }  # fmt: skip
    assert dict(zip(got["steps"]["axes"][0]["labels"], values(got["steps"]), strict=True)) == pytest.approx(
        want, rel=1e-4
    )
    np.testing.assert_allclose(values(got["products"]), q * k, atol=1e-4)
    assert values(got["products"]).sum() == pytest.approx(q @ k, rel=1e-4)
    np.testing.assert_allclose(values(got["vectors"]), np.stack([q, k, v]), atol=1e-4)
    assert got["largest"][:4] == np.argsort(-np.abs(q * k))[:4].tolist()


def test_heads_add_up_to_what_the_layer_writes(attnx: Run) -> None:
    got = attnx("qkv", ANIMAL, "-q", "it", "--key", "animal", "-H", "5.11", "--json").document
    b = bundled(ANIMAL)
    written = b.written[5, IT]  # what the graph's own output projection makes of all heads
    shares = values(got["heads"])
    assert shares.sum() == pytest.approx(1, abs=1e-6)
    from tests.cli.analysed import _opened

    w = _opened()[3]["encoder.layer.5.attention.output.dense.weight"].astype(np.float64)
    parts = np.stack([b.context[5, h, IT] @ w[32 * h : 32 * (h + 1)] for h in range(12)])
    np.testing.assert_allclose(parts.sum(0), written, atol=1e-3)
    np.testing.assert_allclose(shares, parts @ written / (written @ written), atol=1e-4)


def test_shapes_of_the_matrices(attnx: Run) -> None:
    got = attnx("qkv", ANIMAL, "-q", "it", "--key", "animal", "-H", "5.11", "--json").document["projections"]
    assert {name: (p["rows"], p["columns"], p["packed"]) for name, p in got.items()} == dict.fromkeys(
        ("query", "key", "value", "output"), (384, 384, False)
    )
    assert got["output"]["weight"] == "encoder.layer.5.attention.output.dense.weight"
    text = attnx("qkv", ANIMAL, "-q", "it", "--key", "animal", "-H", "5.11", "--all").out
    assert re.search(r"^X +tokens x 384", text, re.MULTILINE)
    assert re.search(r"^W_O +384 x 384", text, re.MULTILINE)
    assert "12 of 32 side by side" in text


def test_tables(attnx: Run) -> None:
    text = attnx("qkv", ANIMAL, "-q", "it", "--key", "animal", "-H", "5.11", "-k", "2").out
    b = bundled(ANIMAL)
    products = b.query[5, 11, IT] * b.key[5, 11, AT]
    first, second = np.argsort(-np.abs(products))[:2]
    assert re.search(rf"^{first} .* {products[first]:.3f} +█", text, re.MULTILINE)
    assert re.search(rf"^{second} .* {products[second]:.3f} +█", text, re.MULTILINE)
    assert f"30 more dimensions, {products.sum() - products[[first, second]].sum():.1f}" in text
    assert "Vaswani" not in text
    assert len(text.splitlines()) < 24, "what --top asks for fits a screen: the bars give way"
    assert "products by dimension" not in text
    explained = attnx("qkv", ANIMAL, "-q", "it", "--key", "animal", "-H", "5.11", "--all", "--explain").out
    assert explained.count("Vaswani et al. 2017") >= 3
    assert all(len(line) <= 80 for line in text.splitlines())


def test_it_chooses_the_strongest_pair(attnx: Run) -> None:
    a = bundled(ANIMAL).weights[5][:, 1:15, 1:15].copy()
    for at in range(14):
        a[:, at, at] = 0
    head, query, key = np.unravel_index(a.argmax(), a.shape)
    got = attnx("qkv", ANIMAL, "--json").document
    assert (got["head"]["layer"], got["head"]["head"]) == (5, head)
    assert (got["query"]["position"], got["key"]["position"]) == (query + 1, key + 1)
    everywhere = bundled(ANIMAL).weights[:, :, IT, AT]
    got = attnx("qkv", ANIMAL, "-q", "it", "--key", "animal", "--json").document
    layer, head = np.unravel_index(everywhere.argmax(), everywhere.shape)
    assert (got["head"]["layer"], got["head"]["head"]) == (layer, head)


def test_a_hidden_key_is_said_to_be_hidden(attnx: Run, tmp_path: Path) -> None:
    case = causal(tmp_path / "m")
    got = attnx("qkv", *case.args, "-q", "2", "--key", "4", "-H", "1.1", "--json").document
    steps = dict(zip(got["steps"]["axes"][0]["labels"], got["steps"]["values"], strict=True))
    scores = case.ran.decoder[1]["scores"][0, 1, 2, 4]
    assert steps["weight"] == 0
    assert steps["q·k"] == pytest.approx(scores, rel=1e-4)
    assert any("hidden" in note for note in got["notes"])


def test_a_softmax_whose_input_is_not_masked_is_said(attnx: Run, tmp_path: Path) -> None:
    """Padding is taken out of the weights behind the softmax: its input is no stage of this graph."""
    case = causal(tmp_path / "m")
    model = onnx.load(case.model)
    axes = onnx.numpy_helper.from_array(np.array([1, 2]), "axes")
    real = [
        onnx.helper.make_node("Cast", ["attention_mask"], ["real"], to=onnx.TensorProto.FLOAT),
        onnx.helper.make_node("Unsqueeze", ["real", "axes"], ["real_keys"]),
    ]
    nodes = [*real]
    for node in model.graph.node:
        nodes.append(node)
        if node.op_type == "Softmax":
            (out,) = node.output
            node.output[0] = f"{out}_all"
            nodes.append(onnx.helper.make_node("Mul", [f"{out}_all", "real_keys"], [out]))
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    model.graph.initializer.append(axes)
    onnx.save(model, case.model)
    told = ("qkv", *case.args, "-q", "4", "--key", "2", "-H", "1.1")
    lines = attnx(*told).out.splitlines()
    (masked,) = [line for line in lines if line.startswith("masked")]
    assert masked.split(maxsplit=2)[1:] == ["-", "softmax's input: not found in this graph"]
    got = attnx(*told, "--json").document["steps"]
    steps = dict(zip(got["axes"][0]["labels"], got["values"], strict=True))
    assert steps["masked"] is None
    assert steps["weight"] == pytest.approx(case.ran.decoder[1]["weights"][0, 1, 4, 2], rel=1e-4)


def test_an_encoder_decoder(attnx: Run, tmp_path: Path) -> None:
    case = two_sided(tmp_path / "m")
    got = attnx("qkv", *case.args, "-q", "1", "--key", "4", "-H", "0.1", "--json").document
    layer = case.ran.cross[0]
    q, k = layer["query"][0, 1, 1], layer["key"][0, 1, 4]
    np.testing.assert_allclose(values(got["products"]), q * k, atol=1e-4)
    assert got["head"]["label"] == "cross L0 H1"
    w = case.weights["c0o"].astype(np.float64).reshape(2, 8, 16)
    parts = np.einsum("hd,hde->he", layer["context"][0, :, 1], w)
    total = parts.sum(0)
    np.testing.assert_allclose(values(got["heads"]), parts @ total / (total @ total), atol=1e-4)


@pytest.mark.parametrize(("text", "code"), [("\u200b", 0), ("a", 0), ("word " * 600, 0)])
def test_empty_short_and_long_texts(attnx: Run, text: str, code: int) -> None:
    assert "the score" in attnx("qkv", text, "-H", "5.0", code=code).out


@pytest.mark.parametrize("args", [("--key", "dog"), ("-q", "dog"), ("-H", "8.0"), ("-H", "x"), ("--site", "cross")])
def test_misuse(attnx: Run, args: tuple[str, ...]) -> None:
    attnx("qkv", ANIMAL, *args, code=2)
