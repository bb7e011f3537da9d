"""The logit lens and direct logit attribution, against numpy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import attnx
from attnx.errors import InputError, UnsupportedError
from attnx.interventions.attribute import attribute
from attnx.interventions.lens import lens
from attnx.interventions.running import Intervening
from tests import graphs
from tests.interventions import models

Array = np.ndarray
KINDS = models.KINDS | models.MORE
PLAIN = [
    name
    for name, kind in KINDS.items()
    if not any(kind.posts) and name != "conformer" and kind.kept == 1 and kind.joined not in ("late", "early")
]


def opened(kind: models.Kind, folder: Path) -> tuple[Intervening, dict[str, Array], dict[str, Array]]:
    w = models.weights(kind)
    feed = models.feeds(kind)[0]
    return Intervening(attnx.open(models.build(kind, w, folder), device="cpu"), {"inputs": feed}), w, feed


@pytest.mark.parametrize("name", KINDS)
def test_the_lens_reads_the_stream_after_every_layer(name: str, tmp_path: Path) -> None:
    kind = KINDS[name]
    all_, w, feed = opened(kind, tmp_path)
    known = models.recorded(kind, w, feed["input_ids"], feed["attention_mask"])
    states = [known["given", 0], *(known["residual", layer] for layer in range(kind.layers))]
    found = lens(all_)
    np.testing.assert_allclose(found.hidden, states, atol=2e-5)
    wide = {n: a.astype(np.float64) for n, a in w.items()}
    assert found.logits is not None
    np.testing.assert_allclose(found.logits, [models.head(kind, wide, x) for x in states], atol=5e-5)
    np.testing.assert_allclose(found.logits[-1], all_.base("inputs")["logits"], atol=2e-5)
    assert found.output == "logits"
    if kind.cap is None:
        assert found.uncapped is None
    else:
        bare = [models.head(replace(kind, cap=None), wide, x) for x in states]
        np.testing.assert_allclose(found.uncapped, bare, atol=5e-5)


def parts(
    kind: models.Kind, w32: dict[str, Array], feed: dict[str, Array], target: tuple[int, int, int]
) -> dict[str, Array]:
    """A logit taken apart in numpy, the norms frozen."""
    row, at, token = target
    known = models.recorded(kind, w32, feed["input_ids"], feed["attention_mask"])
    w = {n: a.astype(np.float64) for n, a in w32.items()}

    def frozen(name: str, x: Array) -> models.Hook:
        """The norm as it was at x, of other vectors; without its bias."""
        centred = x if kind.rms else x - x.mean()
        size = 1 / np.sqrt((centred**2).mean() + 1e-5)

        def of(_n: str, _l: int, v: Array) -> Array:
            return (v if kind.rms else v - v.mean(-1, keepdims=True)) * size * w[f"{name}g"]

        return of

    end = frozen("end", known["residual", kind.layers - 1][row, at])
    column = w["head"][:, token]

    def logit(v: Array) -> Array:
        return np.asarray(end("", 0, v) @ column)

    heads, mlps, biases = [], [], []
    for layer in range(kind.layers):
        each = np.einsum(
            "hd,hde->he", known["context", layer][row, :, at], w[f"{layer}o"].reshape(models.HEADS, models.SIZE, -1)
        )
        bias, mlp = w[f"{layer}ob"], known["mlp", layer][row, at]
        if kind.norm == "sandwich":
            inner = frozen(f"{layer}behind1", known["attention", layer][row, at])
            each, bias = inner("", 0, each), inner("", 0, bias)
            mlp = frozen(f"{layer}behind2", mlp)("", 0, mlp)
        plus, times = models.signs(kind)
        plus, times = plus * models.factor(kind, w, layer, 0), times * models.factor(kind, w, layer, 1)
        heads.append(logit(plus * each))
        biases.append(logit(plus * bias))
        first = 0.5 * known["first mlp", layer][row, at] if kind.macaron else np.zeros(models.WIDTH)
        mlps.append(logit(times * mlp + first))
    bare = models.run(replace(kind, cap=None, every=True), w32, feed["input_ids"], feed["attention_mask"])
    constant = w["headb"][token] + (0.0 if kind.rms else w["endb"] @ column)
    return {
        "heads": np.array(heads), "mlps": np.array(mlps), "attention_biases": np.array(biases),
        "embedding": logit(known["given", 0][row, at]), "constant": constant, "logit": bare[row, at, token],
    }  # fmt: skip


@pytest.mark.parametrize("name", PLAIN)
def test_a_logit_is_the_sum_of_its_parts(name: str, tmp_path: Path) -> None:
    kind = KINDS[name]
    all_, w, feed = opened(kind, tmp_path)
    targets = [(0, 6, 3), (1, 6, 12)] if not kind.every else [(0, 6, 3), (0, 2, 0), (1, 4, 12)]
    found = attribute(all_, targets)
    for i, target in enumerate(targets):
        want = parts(kind, w, feed, target)
        for key, array in want.items():
            np.testing.assert_allclose(getattr(found, key)[i], array, atol=5e-5, err_msg=f"{key} {target}")
    whole = (
        found.heads.sum((1, 2)) + found.mlps.sum(1) + found.attention_biases.sum(1) + found.embedding + found.constant
    )
    np.testing.assert_allclose(whole + found.missed, found.logit, atol=1e-9)
    assert np.abs(found.missed).max() <= 1e-4


def test_a_stream_that_is_itself_multiplied_is_refused_by_name(tmp_path: Path) -> None:
    all_, _, _ = opened(KINDS["kept in part"], tmp_path)
    with pytest.raises(UnsupportedError, match="more than the sum of what attention and MLP add"):
        attribute(all_, [(0, 1, 2)])


@pytest.mark.parametrize("name", ["post", "conformer"])
def test_norms_on_the_stream_itself_are_refused_by_name(name: str, tmp_path: Path) -> None:
    all_, _, _ = opened(KINDS[name], tmp_path)
    with pytest.raises(UnsupportedError, match="norms stand on the residual stream"):
        attribute(all_, [(0, 1, 2)])


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("pattern", ["front", "behind", "other shapes"])
def test_only_a_pattern_that_repeats_begins_a_layer(pattern: str, layers: int, tmp_path: Path) -> None:
    """An MLP in front of the first attention alone, behind the last alone, or made with other weights than the rest."""
    g = graphs.G()

    def mlp(x: str, inner: int = 24) -> str:
        return str(g.op("Add", x, g.linear(str(g.op("Relu", g.linear(x, inner))), 16, inner)))

    x = start = g.input("x", [1, "length", 16])
    x = x if pattern == "behind" else mlp(x, 20 if pattern == "other shapes" else 24)
    given = x
    for layer in range(layers):
        x = str(g.op("Add", x, graphs.plain(g, x)))
        x = x if pattern == "other shapes" and layer + 1 == layers else mlp(x)
    path = g.save(tmp_path, x)
    feed = {"x": np.random.default_rng(0).standard_normal((1, 5, 16)).astype(np.float32)}
    (stack,) = Intervening(attnx.open(path, device="cpu"), {"inputs": feed}).points.streams.stacks
    assert stack.layers[0].given.value == given
    assert (given == start) is (pattern == "behind")
    assert [layer.out.value for layer in stack.layers if layer.out is not None][-1] == x


@pytest.mark.parametrize(
    ("target", "said"),
    [((2, 0, 0), "no row 2"), ((0, 7, 0), "no position 7"), ((0, 0, 99), "no token 99"), ((0, -1, 0), "-1")],
)
def test_targets_that_are_not_there(target: tuple[int, int, int], said: str, tmp_path: Path) -> None:
    all_, _, _ = opened(models.KINDS["pre"], tmp_path)
    with pytest.raises(InputError, match=said):
        attribute(all_, [target])


def test_a_position_whose_logits_are_not_given_is_refused(tmp_path: Path) -> None:
    all_, _, _ = opened(models.KINDS["last"], tmp_path)
    with pytest.raises(UnsupportedError, match=r"more than one position|one position"):
        attribute(all_, [(0, 2, 3)])
