"""Python: layers counted from the end, alone and of heads."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attnx
from attnx.errors import UsageError
from attnx.model import Model
from attnx.records import Site
from attnx.study.layer_names import from_the_end, layers_and_heads
from tests.cli.analysed import two_sided

TEXT = "The cat sat. The cat"


@pytest.fixture(scope="module")
def model() -> Model:
    return attnx.open("tiny-gpt", device="cpu")


def test_a_trace_of_the_last_layer(model: Model) -> None:
    last, third = model.trace(TEXT, layers=[-1]), model.trace(TEXT, layers=[3])
    assert last.labels == third.labels == ("L3",)
    np.testing.assert_array_equal(last.attentions[0].need("weights"), third.attentions[0].need("weights"))
    assert model.trace(TEXT, layers={0, -2}).labels == ("L0", "L2")
    assert model.rows(TEXT, [1], layers=[-1]).labels == ("L3",)
    assert model.heads(TEXT, layers=[-4]).measures[0].axes[0].labels == ("L0",)
    assert [trace.labels for trace in model.trace_many([TEXT, "a"], layers=[-1])] == [("L3",)] * 2


def test_heads_of_the_last_layer_are_ablated(model: Model) -> None:
    def effects(**asked: Any) -> list[tuple[str, float]]:
        return [(one.place.label, one.change.moved) for one in model.ablate(TEXT, **asked).effects]

    want = effects(heads=[(3, 1), (3, 2)])
    assert want[0][1] > 0
    for heads in ([(-1, 1), (-1, 2)], [np.array([3, 1]), (-1, 2)]):
        assert effects(heads=heads) == want
    assert effects(layers=[-1]) == effects(layers=[3])


def test_patches_and_paths_count_from_the_end(model: Model) -> None:
    other = TEXT.replace("cat", "dog")

    def labels(found: Any) -> list[str]:
        return [one.spot.label for one in found.effects]

    assert labels(model.patch(TEXT, other, layers=[-1])) == labels(model.patch(TEXT, other, layers=[3]))
    assert labels(model.patch(TEXT, other, heads=[(-1, 0)])) == ["L3 H0"]
    one = model.patch_paths(TEXT, other, from_=[(-4, 3)], to=[(-1, 5)])
    two = model.patch_paths(TEXT, other, from_=[(0, 3)], to=[(3, 5)])
    assert one.path == two.path
    assert [e.value for e in one.effects] == [e.value for e in two.effects]


@pytest.mark.parametrize(
    ("asked", "said", "hint"),
    [
        ({"layers": [-5]}, "there is no layer -5", "The layers are 0 to 3, or -4 to -1."),
        ({"heads": [(-5, 0)]}, "there is no layer -5", "-4 to -1"),
        ({"layers": 3}, "layers are whole numbers in a list", "layers=[5]"),
        ({"layers": ["last"]}, "layers are whole numbers", "layers=[5]"),
        ({"layers": [True]}, "layers are whole numbers", "layers=[5]"),
    ],
)
def test_what_is_no_layer_and_no_head(model: Model, asked: dict[str, Any], said: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        model.ablate(TEXT, **asked)
    assert said in str(caught.value)
    assert hint in (caught.value.hint or "")


def test_where_two_sides_differ_the_last_is_not_known(tmp_path: Path) -> None:
    def site(at: int, layer: int, component: str) -> Site:
        return Site(at, layer, component, "self", "Softmax", "s", 2, 2, 4, 1.0)  # type: ignore[arg-type]

    sites = [site(0, 0, "encoder"), site(1, 1, "encoder"), site(2, 0, "decoder")]
    with pytest.raises(UsageError, match="the last layer is not the same everywhere"):
        from_the_end([-1], sites)
    assert from_the_end([-1], sites, "encoder") == [1]
    assert layers_and_heads([(-1, 0)], lambda: sites, "decoder") == [(0, 0)]
    case = two_sided(tmp_path / "m")
    opened = attnx.open(case.model, device="cpu")
    with np.load(case.feed) as feed:
        arrays = dict(feed)
    trace = opened.trace(inputs=arrays, layers=[-1])
    assert {a.site.layer for a in trace.attentions} == {1}
