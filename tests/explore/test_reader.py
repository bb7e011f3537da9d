"""What the explorer reads: stretches of layers that fit, one head taken out of a group, sinks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import attnx
from attnx.explore import reader as reading
from attnx.explore.desk import Desk
from attnx.explore.panes import grid, grid_width, status
from attnx.explore.reader import Reader, only_head, size, stretches
from attnx.explore.saving import save_view
from attnx.records import STAGES, Site, Trace

TEXT = "The animal didn't cross the street because it was too tired."


@pytest.fixture(scope="module")
def model() -> attnx.Model:
    return attnx.open("minilm", device="cpu")


def site(index: int, layer: int | None, heads: int) -> Site:
    return Site(index, layer, "decoder", "self", "Softmax", f"n{index}", heads, heads, 8, 1.0)


def test_layers_are_cut_into_stretches_that_fit() -> None:
    sites = tuple(site(i, i, 2) for i in range(5))
    layer = 2 * 10 * 10 * len(STAGES) * 4
    assert stretches(sites, 10, 2 * layer) == ((0, 1), (2, 3), (4,))
    assert stretches(sites, 10, 10 * layer) == ((0, 1, 2, 3, 4),)
    assert stretches(sites, 10, 1) == ((0,), (1,), (2,), (3,), (4,))
    crossed = (site(0, 0, 2), site(1, 0, 2), site(2, 1, 2))
    assert stretches(crossed, 10, 3 * layer) == ((0, 1),)
    assert stretches((site(0, None, 2), site(1, 1, 2)), 10, layer) == (None,)


def test_a_stretch_is_read_once_and_old_ones_are_let_go(model: attnx.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = model.encode(TEXT)
    layer = 12 * len(tokens) ** 2 * len(STAGES) * 4
    monkeypatch.setattr(reading, "STRETCH", 2 * layer)
    monkeypatch.setattr(reading, "KEPT", 4 * layer)
    runs: list[tuple[int, ...] | None] = []

    class Counting:
        def trace(self, *, layers: tuple[int, ...] | None, **more: object) -> Trace:
            runs.append(layers)
            return model.trace(layers=layers, **more)  # type: ignore[arg-type]

    found = reading.prepare(model, {"tokens": tokens})
    one = Reader(Counting(), found.told, found.table, found.bare)  # type: ignore[arg-type]
    assert not one.has(0)
    assert one.near(0) is None  # nothing is in memory yet
    for at in (0, 1, 0):
        assert one.trace(at, 3).attentions[0].site.index == at
    assert runs == [(0, 1)]
    assert one.near(0) is None
    assert one.near(1) == 2
    one.read(2)
    one.read(3)
    assert runs == [(0, 1), (2, 3)]
    one.read(5)
    assert (one.has(0), one.has(3), one.has(5)) == (False, True, True)
    assert size(one._read[(4, 5)]) == 2 * layer


def test_one_head_of_a_group_keeps_its_keys(model: attnx.Model) -> None:
    rng = np.random.default_rng(0)
    (attention,) = model.trace(TEXT, layers=[0]).attentions
    count = len(model.encode(TEXT))
    keys = rng.normal(size=(1, 3, count, 32)).astype(np.float32)
    grouped = replace(attention, site=replace(attention.site, kv_heads=3), key=keys, value=keys)
    for head in (0, 3, 4, 11):
        one = only_head(grouped, head)
        np.testing.assert_array_equal(one.key, keys[:, head // 4 : head // 4 + 1])
        np.testing.assert_array_equal(one.weights, attention.need("weights")[:, head : head + 1])
        assert (one.site.heads, one.site.kv_heads) == (1, 1)
    scales = tuple(float(i) for i in range(12))
    assert only_head(replace(grouped, site=replace(grouped.site, scale=scales)), 7).site.scale == 7.0


def test_every_head_unscaled_is_the_softmax_of_its_scores(model: attnx.Model) -> None:
    desk = Desk(model, TEXT, site=2, stage="unscaled softmax")
    (attention,) = model.trace(TEXT, layers=[2]).attentions
    assert attention.scores is not None
    scores = attention.scores[0].astype(np.float64)
    want = np.exp(scores - scores.max(-1, keepdims=True))
    want /= want.sum(-1, keepdims=True)
    for desk.head in range(12):
        np.testing.assert_allclose(desk.matrix().values, want[desk.head], atol=2e-4)
        assert desk.matrix().title == f"L2 H{desk.head}"


def test_sinks_are_the_keys_that_an_average_query_looks_at(model: attnx.Model) -> None:
    desk = Desk(model, TEXT, site=4, head=5, sinks=True)
    weights = model.trace(TEXT, layers=[4]).attentions[0].need("weights")[0, 5]
    want = tuple(int(at) for at in np.flatnonzero(weights.mean(axis=0) > 0.3))
    assert desk.muted() == want == (0,)
    desk.head = 0
    mean = model.trace(TEXT, layers=[4]).attentions[0].need("weights")[0, 0].mean(axis=0)
    assert desk.muted() == tuple(int(at) for at in np.flatnonzero(mean > 0.3))
    desk.mute = True
    assert {0, 15} <= set(desk.muted())


def test_scores_have_no_log_scale(model: attnx.Model) -> None:
    desk = Desk(model, TEXT)
    seen = []
    for _ in range(3):
        desk.next_scale()
        seen.append(desk.scale)
    assert seen == ["log", "row", "linear"]
    desk.scale = "log"
    desk.show("scores")
    assert desk.scale == "linear"
    desk.next_scale()
    assert desk.scale == "row"


@pytest.mark.parametrize("view", ["heatmap", "lines", "numbers"])
@pytest.mark.parametrize("ending", [".txt", ".svg", ".html", ".png", ".pdf", ".csv", ".npz"])
def test_a_head_is_saved_in_every_format(model: attnx.Model, tmp_path: Path, view: str, ending: str) -> None:
    pytest.importorskip("matplotlib")
    desk = Desk(model, TEXT, site=5, head=11, query=10, view=view)
    path = tmp_path / f"head{ending}"
    save_view(desk, str(path))
    assert desk.note.startswith(f"wrote {path}")
    content = path.read_bytes()
    if ending in (".txt", ".html", ".csv"):
        assert "animal" in content.decode()
    if ending == ".txt":
        assert "0.673" in content.decode()
    if ending == ".npz":
        want = model.trace(TEXT, layers=[5]).attentions[0].need("weights")[0, 11]
        with np.load(path) as found:
            np.testing.assert_allclose(found["values"], want, atol=1e-5)


def test_a_home_that_does_not_exist_is_no_traceback(model: attnx.Model) -> None:
    desk = Desk(model, TEXT, site=5, head=11, query=10)
    with pytest.raises(attnx.AttnxError, match="no-such-user-here"):
        save_view(desk, "~no-such-user-here/head.txt")


@pytest.mark.parametrize(("width", "height"), [(20, 8), (32, 15), (60, 33), (64, 60)])
@pytest.mark.parametrize("depth", ["true", "256", "16", "none"])
def test_the_grid_fits_and_marks_the_head(model: attnx.Model, width: int, height: int, depth: str) -> None:
    desk = Desk(model, TEXT, site=5, head=11)
    lines = grid(desk, width, height, depth)  # type: ignore[arg-type]
    assert len(lines) <= height
    texts = ["".join(segment.text for segment in line) for line in lines]
    assert max(map(len, texts)) <= max(width, 24)
    assert any(text.startswith("▸L5") for text in texts)
    assert sum("▐▌" in text or "◆" in text for text in texts) in (1, 2)
    assert grid_width(desk, width, height) <= width
    assert sum(len(segment.text) for segment in status(desk, 80)) == 80
