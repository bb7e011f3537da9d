"""Sites of one model over different axes, as pictures and words that look at each other: each named by its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from tests.cli.conftest import Run
from tests.graphs import G, plain

Model = tuple[Path, Path, list[np.ndarray]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """Six look at four, then four at six; and the weights, from onnxruntime's own tensors."""
    folder = tmp_path_factory.mktemp("both")
    g, drawn = G(), np.random.default_rng(2)
    g.weight = lambda *shape: g.const(drawn.standard_normal(shape).astype(np.float32))  # type: ignore[method-assign]
    x, y = g.input("x", [1, 6, 16]), g.input("y", [1, 4, 16])
    ends = (plain(g, x, y), plain(g, y, x))
    weights = [n.output[0] for n in g.nodes if n.op_type == "Softmax"]
    path = g.save(folder, *ends, *weights)
    feed = {n: np.random.default_rng(5).standard_normal((1, k, 16)).astype(np.float32) for n, k in (("x", 6), ("y", 4))}
    np.savez(folder / "feed.npz", **feed)
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    return path, folder / "feed.npz", [np.asarray(w) for w in session.run(weights, feed)]


@pytest.mark.parametrize(
    "asked",
    [
        "", "--json", "--view grid", "--view grid --json", "--layer 0", "--layer 1 --view heatmap",
        "--view heatmap --layer 0,1",
        "--view lines --layer 1", "--query 1", "--query 5 --json", "--query 1 --view row",
        "--query 1 --view table --json",
        "--mean layers", "--mean all --json", "--max heads", "--mute", "--words --layer 0", "--head 1 --query 3",
    ],
)  # fmt: skip
def test_every_view_of_sites_over_different_axes(attnx: Run, model: Model, asked: str) -> None:
    ran = attnx("inspect", "-m", str(model[0]), "--inputs", str(model[1]), *asked.split())
    assert ran.document["tokens"] if "--json" in asked else ran.out.strip()


def test_the_overview_names_tokens_by_their_own_site(attnx: Run, model: Model) -> None:
    path, feed, weights = model
    found = attnx("inspect", "-m", str(path), "--inputs", str(feed), "--json").document["overview"]
    assert [w.shape for w in weights] == [(1, 4, 6, 4), (1, 4, 4, 6)]
    seen = set()
    for look in (one for group in found["worth"].values() for one in group if one["key"] is not None):
        weight = weights[look["layer"]][0, look["head"]]
        share = weight.sum(axis=0) / weight.sum()
        assert look["value"] == pytest.approx(share[look["key"]], abs=1e-5)
        assert look["piece"] == str(look["key"])
        seen.add(look["layer"])
    assert seen == {0, 1}
    for look in found["looks"]:
        for target in look["targets"]:
            assert target["value"] == pytest.approx(
                weights[1][0, target["head"], look["query"], target["key"]], abs=1e-5
            )
    assert [look["query"] for look in found["looks"]] == [0, 1, 2, 3]


def test_a_query_is_followed_through_the_sites_that_have_it(attnx: Run, model: Model) -> None:
    """Position 5 is one of the six; the site where the four look has none, and that is said."""
    ran = attnx("inspect", "-m", str(model[0]), "--inputs", str(model[1]), "--query", "5", "--view", "table")
    assert ran.code == 0
    assert "left out, over other queries or keys" in ran.out
    row = model[2][0][0, :, 5]
    found = attnx("inspect", "-m", str(model[0]), "--inputs", str(model[1]), "--query", "5", "--json").document
    assert len(found["ranking"]) == 4
    for one in found["ranking"]:
        assert one["layer"] == 0
        assert one["value"] == pytest.approx(row[one["head"]].max(), abs=1e-5)


def test_a_mean_over_layers_is_of_those_alike(attnx: Run, model: Model) -> None:
    found = attnx("inspect", "-m", str(model[0]), "--inputs", str(model[1]), "--mean", "layers", "--json").document
    for one in found["heads"]:
        np.testing.assert_allclose(one["values"], model[2][0][0, one["head"]], atol=1e-5)
    assert any("left out" in note for note in found["notes"])
