"""What a page is made of: measures a few heads at a time, pronouns and candidates, what is open first."""

import numpy as np
import pytest

import attnx
from attnx.measure import describe_heads
from attnx.study import html_report as paging
from attnx.study import page_heads, page_references
from tests.view import samples

ANIMAL = "The animal didn't cross the street because it was too tired."


@pytest.mark.parametrize("causal", [False, True])
def test_a_few_heads_at_a_time_are_all_of_them(monkeypatch: pytest.MonkeyPatch, causal: bool) -> None:
    trace = samples.trace(samples.long(40), layers=2, heads=5, causal=causal)
    want = describe_heads(trace)
    monkeypatch.setattr(page_heads, "CELLS", 2 * 40 * 40)
    asked: list[int] = []
    monkeypatch.setattr(
        page_heads,
        "describe_heads",
        lambda one, **how: (asked.append(one.attentions[0].weights.shape[1]), describe_heads(one, **how))[1],
    )
    got = paging.contents(trace)
    assert asked == [2, 2, 1]
    assert got.kinds == want.kinds
    assert got.thresholds == want.thresholds
    for one, two in zip(got.measures, want.measures, strict=True):
        assert (one.name, one.axes, one.bounds, one.formula) == (two.name, two.axes, two.bounds, two.formula)
        np.testing.assert_allclose(one.values, two.values, rtol=1e-12, equal_nan=True)
        assert one.notes == two.notes


def test_what_is_open_first() -> None:
    model = attnx.open("minilm")
    trace = model.trace(ANIMAL, quantities=("query", "key", "masked", "weights"))
    shown = paging.contents(trace)
    (one,) = shown.references
    assert len(one.candidates) == 4
    assert shown.chosen[2] == 10
    site, head, _ = shown.chosen
    weights = np.stack([a.need("weights")[0] for a in trace.attentions])
    gathered = weights.sum(2)[..., 1:15] / weights.shape[2]  # special tokens are where weight is parked
    gathered[..., 0] = np.where(trace.tokens.special[0], gathered[..., 0], 0)
    assert gathered[site, head].max() == pytest.approx(gathered.max())
    assert paging.contents(trace, from_="animal", to="street").chosen == (site, head, 2)
    asked = paging.contents(trace, head="5.11", query="street")
    assert asked.chosen == (5, 11, 8)


def test_many_pronouns_and_candidates_are_cut_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_references, "CANDIDATES", 3)
    model = attnx.open("minilm")
    text = "Anna fed him and her and it while they slept near the old barn on the green hill."
    shown = paging.contents(model.trace(text, quantities=("masked", "weights")))
    assert [one.pronoun.text for one in shown.references] == ["him", "her", "it"]
    assert all(len(one.candidates) == 3 for one in shown.references)
    assert any(note.startswith("coreference: the first 3 of 4 pronouns") for note in shown.notes)
    assert any("'her'@5: the 3 nearest of" in note for note in shown.notes)
    # The nearest by tokens between: "fed" and "Anna" before "him", "slept" after it, and so on.
    assert [one.text for one in shown.references[0].candidates] == ["Anna", "fed", "slept"]


def test_words_that_were_asked_for_must_be_there() -> None:
    model = attnx.open("minilm")
    trace = model.trace("Nobody slept.", quantities=("masked", "weights"))
    assert paging.contents(trace).references == ()
    with pytest.raises(attnx.AttnxError, match="zebra"):
        paging.contents(trace, from_="zebra")
    with pytest.raises(attnx.AttnxError):
        paging.contents(trace, to="slept")
