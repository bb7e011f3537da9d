"""The methods of a model give what the commands' studies give; tokens may be named by their text."""

from pathlib import Path

import pytest

import attnx
from attnx.errors import UsageError

CAT, DOG = "The cat sat on the mat. The cat", "The dog ran on the mat. The dog"


@pytest.fixture(scope="module")
def gpt() -> attnx.Model:
    return attnx.open("tiny-gpt", device="cpu")


def test_a_head_that_is_needed(gpt: attnx.Model) -> None:
    found = gpt.ablate(CAT, heads=[(0, 3), (2, 2)])
    assert [effect.place.label for effect in found.ranked][-1] == "L2 H2"
    there = gpt.ablate(CAT, heads=[(0, 3)], queries=["cat@9"])
    assert there.effects[0].change == gpt.ablate(CAT, heads=[(0, 3)], queries=[9]).effects[0].change
    assert not there.effects[0].change.kept
    cut = gpt.ablate(CAT, heads=[(0, 3)], edges=[("cat@9", "cat@2")])
    assert 0 < cut.effects[0].change.moved < there.effects[0].change.moved


def test_a_patch_and_a_path(gpt: attnx.Model) -> None:
    found = gpt.patch(CAT, DOG, heads=[(0, 3), (1, 0)], answer="sat", foil="did")
    assert found.ranked[0].spot.label == "L0 H3"
    assert found.ranked[0].share > 0.5
    row = gpt.patch(CAT, DOG, quantity="residual", layers=[3], at=["cat@9", 2], answer="sat", foil="did")
    assert [one.share for one in row.effects] == pytest.approx([1, 0], abs=1e-3)
    sent = gpt.patch_paths(CAT, DOG, from_=[(0, 3)], to=[(2, 2)], into="value", answer="sat", foil="did")
    assert 0 < abs(sent.effects[0].share) < found.ranked[0].share
    with pytest.raises(UsageError, match="10 tokens and the corrupt one 2"):
        gpt.patch(CAT, "The")


def test_what_layers_say_and_what_parts_add(gpt: attnx.Model) -> None:
    seen = gpt.lens(CAT, at="all")
    assert seen.positions == tuple(range(10))
    parts = gpt.attribute(CAT, at="cat@9")
    assert parts.readout.answer == seen.answers[9]
    assert parts.what == "logit(sat)"
    assert gpt.lens(CAT, at=[9], top=2).top[-1, 0, 0] == seen.answers[9]


def test_arrays_in_place_of_a_text(tmp_path: Path) -> None:
    from tests.interventions import models

    kind = models.KINDS["pre"]
    one, two = models.feeds(kind)
    model = attnx.open(models.build(kind, models.weights(kind), tmp_path), device="cpu")
    found = model.patch(
        {name: array[:1] for name, array in one.items()}, {name: array[:1] for name, array in two.items()},
        quantity="residual", layers=[1], at=[6], answer="3", foil="5",
    )  # fmt: skip
    assert found.effects[0].share == pytest.approx(1, abs=1e-4)
