"""The measures of a batch are those of each text alone; where they cannot be had so, it is said."""

from dataclasses import replace

import numpy as np
import pytest

import attnx
from attnx.measure import describe_heads, sinks
from attnx.model import Model
from attnx.records import Attention
from attnx.run import batch as batching
from attnx.run.batch import Batch
from attnx.session.protocol import Wanted
from attnx.study.batch_head_stats import LONG, NAMES, REST_NAMES, measure
from attnx.study.head_table import REST

WORDS = "the animal did not cross a wide street , because it was too tired to walk ; and so it sat .".split()
TEXTS = ["", "it", "it it", ". , .", *(" ".join(WORDS[at % 7 :] + WORDS[: at * 5 % 19]) for at in range(12))]


@pytest.fixture(scope="module")
def minilm() -> Model:
    return attnx.open("minilm", device="cpu")


@pytest.fixture(scope="module")
def bidirectional(minilm: Model) -> Batch:
    (batch,) = batching.run(minilm, [minilm.encode(text) for text in TEXTS], Wanted(None, ("masked", "weights")))
    return batch


@pytest.fixture(scope="module")
def causal(bidirectional: Batch) -> Batch:
    """The same with the future hidden."""

    def hidden(attention: Attention) -> Attention:
        masked = attention.need("masked").copy()
        future = ~np.tri(masked.shape[-1], dtype=bool)
        masked[..., future] = -np.inf
        weights = np.exp(masked - masked.max(axis=-1, keepdims=True))
        site = replace(attention.site, causal=True)
        return replace(attention, site=site, masked=masked, weights=weights / weights.sum(axis=-1, keepdims=True))

    return replace(bidirectional, attentions=tuple(hidden(a) for a in bidirectional.attentions))


@pytest.fixture(params=["bidirectional", "causal"])
def batch(request: pytest.FixtureRequest) -> Batch:
    return request.getfixturevalue(request.param)


def test_each_measure_is_that_of_the_text_alone(batch: Batch) -> None:
    found = measure(batch, (*NAMES, *REST_NAMES))
    assert found is not None
    assert tuple(found) == (*NAMES, *REST_NAMES)
    for at, trace in enumerate(batch.traces()):
        gathered = sinks.sinks(trace)
        whole = describe_heads(trace)
        left = [replace(one, name=f"{REST}{one.name}") for one in whole.rest]
        for one in (*whole.measures, gathered.strongest, gathered.token, *left):
            got = found[one.name][at]
            assert np.array_equal(np.isnan(got), np.isnan(one.values)), (one.name, trace.tokens.text)
            np.testing.assert_allclose(got, one.values, rtol=2e-6, atol=1e-6, err_msg=one.name)


def test_some_measures_are_had_by_themselves(batch: Batch) -> None:
    whole = measure(batch, NAMES)
    assert whole is not None
    for name in NAMES:
        alone = measure(batch, [name])
        assert alone is not None
        np.testing.assert_allclose(alone[name], whole[name], rtol=1e-6, atol=1e-6, err_msg=name)


def test_a_number_by_hand(bidirectional: Batch) -> None:
    found = measure(bidirectional, ["previous", "entropy"])
    assert found is not None
    at = int(np.argmax([len(tokens) for tokens in bidirectional.tokens]))
    n = len(bidirectional.tokens[at])
    weights = bidirectional.attentions[2].need("weights")[at, 7, :n, :n].astype(np.float64)
    assert found["previous"][at, 2, 7] == pytest.approx(np.diag(weights, -1).mean(), rel=1e-5)
    assert found["entropy"][at, 2, 7] == pytest.approx(-(weights * np.log(weights)).sum(axis=1).mean(), rel=1e-5)


def test_what_must_be_measured_one_by_one_is_not_guessed(bidirectional: Batch) -> None:
    first, *others = bidirectional.attentions

    def with_first(changed: Attention) -> Batch:
        return replace(bidirectional, attentions=(changed, *others))

    unseen = first.need("weights").copy()
    unseen[5, 3, 1, 1] = 0.0  # hidden by a mask that nobody knows of, or too small for a float
    broken = first.need("weights").copy()
    broken[5, 3, 1, 1] = np.nan
    for changed in (
        replace(first, site=replace(first.site, causal=None)),
        replace(first, site=replace(first.site, causal=True, window=3)),
        replace(first, site=replace(first.site, kind="cross")),
        replace(first, weights=unseen),
        replace(first, weights=broken),
        replace(first, weights=first.need("weights")[..., :-1]),
    ):
        assert measure(with_first(changed), NAMES) is None
    long = replace(bidirectional.tokens[-1], pieces=("x",) * (LONG + 1), mask=(True,) * (LONG + 1))
    assert measure(replace(bidirectional, tokens=(*bidirectional.tokens[:-1], long)), NAMES) is None
