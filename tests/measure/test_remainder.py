"""What a head does with the weight that its sink leaves, against numpy that takes the first token out of the matrix."""

import dataclasses
import math

import numpy as np
import pytest

import attnx
from attnx.measure import describe_heads, heads, remainder
from attnx.measure.special import is_punctuation
from attnx.model import Model
from attnx.records import Attention, Site, Tokens, Trace
from tests.measure.planted import tokens

COPIES = "a b c d e f g h i a b c d e f g h i ."


def by_hand(weights: np.ndarray, text: Tokens, causal: bool) -> dict[str, list[float]]:
    """Each measure of each head, cell by cell: the first token's column is cut off, then each row is scaled."""
    out: dict[str, list[float]] = {name: [] for name in remainder.FORMULAS}
    dots = [all(not c.isalnum() for c in text.pieces[k]) and not text.special[k] for k in range(len(text))]
    for one in weights.astype(np.float64):
        found: dict[str, list[float]] = {name: [] for name in out}
        repeated = 0
        for i, row in enumerate(one):
            after = [
                j + 1
                for j in range(i - 1)
                if text.ids[j] == text.ids[i] and not text.special[i] and not text.special[j]
            ]
            repeated += bool(after)
            rest = row[1:].sum()
            if not rest > 0.01 * row.sum():
                continue
            scaled = np.array([0.0, *(row[1:] / rest)])
            for name, key in (("previous", i - 1), ("next", i + 1), ("self", i)):
                if 1 <= key < len(row):
                    found[name].append(scaled[key])
            found["punctuation"].append(sum(scaled[k] for k in range(1, len(row)) if dots[k]))
            if after:
                found["induction"].append(scaled[after].sum())
            seen = (i + 1 if causal else len(row)) - 1
            if seen >= 2:
                found["entropy share"].append(-sum(w * math.log(w) for w in scaled if w > 0) / math.log(seen))
        if repeated < 8:
            found["induction"] = []
        for name, values in found.items():
            out[name].append(float(np.mean(values)) if values else math.nan)
    return out


def trace_of(weights: np.ndarray, text: Tokens, causal: bool) -> Trace:
    masked = np.where(weights > 0, np.log(np.maximum(weights, 1e-30)), -np.inf)
    if not causal:
        masked = np.maximum(masked, -80.0)
    site = Site(0, 0, "decoder" if causal else "encoder", "self", "Softmax", "s", len(weights), len(weights), 4, 1.0)
    site = dataclasses.replace(site, causal=causal)
    return Trace("planted", "cpu", text, None, (Attention(site, weights=weights[None], masked=masked[None]),))


def random(count: int, causal: bool, sink: float, number: int = 5) -> np.ndarray:
    rng = np.random.default_rng(count)
    weights = rng.dirichlet(np.full(count, 0.3), (number, count))
    weights[..., 0] += sink * rng.random((number, count)) ** 2
    if causal:
        weights *= np.tri(count)
    return np.asarray(weights / weights.sum(-1, keepdims=True))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("text", "cls"), [(COPIES, False), (COPIES, True), ("one .", False), ("a", True)])
def test_each_measure_is_that_of_the_matrix_without_its_first_column(text: str, cls: bool, causal: bool) -> None:
    named = tokens(text, cls=cls)
    weights = random(len(named), causal, 30.0)
    found, want = describe_heads(trace_of(weights, named, causal)), by_hand(weights, named, causal)
    assert [one.name for one in found.rest] == list(remainder.FORMULAS)
    for one in found.rest:
        np.testing.assert_allclose(one.values[0], want[one.name], rtol=1e-9, atol=1e-12, err_msg=one.name)


def test_rows_of_which_nothing_is_left_do_not_count() -> None:
    text = tokens("a b c d")
    weights = np.zeros((2, 4, 4))
    weights[..., 0] = 1.0
    weights[1, 3] = [0.6, 0.0, 0.4, 0.0]  # the one row of the second head with something left
    weights[1, 2] = [0.995, 0.0, 0.0, 0.005]  # too little of it
    found = describe_heads(trace_of(weights, text, False))
    rest = {one.name: one.values[0] for one in found.rest}
    assert rest["previous"].tolist() == pytest.approx([math.nan, 1.0], nan_ok=True)
    assert rest["self"].tolist() == pytest.approx([math.nan, 0.0], nan_ok=True)
    assert found.kinds == (("sink", "sink"),)
    assert found.rest_kinds == (("nothing", "previous-token"),)


def test_a_sink_is_named_by_the_rest_and_other_heads_are_not() -> None:
    count = 12
    text = tokens(" ".join(f"w{at}" for at in range(count)))
    eye = np.eye(count)
    back = np.roll(eye, 1, axis=0)
    heads_ = np.stack([np.roll(eye, -1, axis=1), np.roll(eye, 1, axis=1), eye, np.full((count, count), 1 / count), eye])
    weights = 0.4 * heads_
    weights[..., 0] += 0.6
    weights[4] = back * 0.9 + 0.1 / count  # no sink
    found = describe_heads(trace_of(weights, text, False))
    assert found.kinds[0] == ("sink", "sink", "sink", "sink", "previous-token")
    assert found.rest_kinds[0] == ("previous-token", "next-token", "self", "broad", "")


def test_padding_in_front_is_no_first_token() -> None:
    text = tokens("a b c d", pad=0)
    named = Tokens(
        np.array([0, *text.ids]), ("[PAD]", *text.pieces), ((0, 0), *text.offsets), (None, *text.words),
        (True, *text.special), (False, *text.mask), text.text,
    )  # fmt: skip
    weights = random(4, True, 2.0, 3)
    padded = np.zeros((3, 5, 5))
    padded[:, 1:, 1:] = weights
    one, two = describe_heads(trace_of(weights, text, True)), describe_heads(trace_of(padded, named, True))
    for a, b in zip(one.rest, two.rest, strict=True):
        np.testing.assert_allclose(a.values, b.values, err_msg=a.name)


def test_means_over_texts_name_the_rest() -> None:
    text = tokens("a b c d e f")
    traces = [trace_of(random(6, True, sink, 3), text, True) for sink in (5.0, 9.0, 20.0)]
    tables = [describe_heads(trace) for trace in traces]
    found = heads.over_texts(tables)
    assert found.texts == 3
    for at, one in enumerate(found.rest):
        values = np.stack([table.rest[at].values for table in tables])
        want = np.nanmean(values, axis=0) if not np.isnan(values).all() else values[0]
        np.testing.assert_allclose(one.values, want)
    assert len(found.spread) == len(found.measures)
    sinks = np.array(found.kinds) == "sink"
    assert sinks.any()
    assert ((np.array(found.rest_kinds) != "") == sinks).all()


def test_induction_of_a_probe_takes_the_texts_place_in_the_rest_too() -> None:
    text = tokens("a b c d")
    table = describe_heads(trace_of(random(4, True, 9.0, 2), text, True))
    probed = describe_heads(trace_of(random(19, True, 9.0, 2), tokens(COPIES), True))
    assert np.isnan(table.rest[3].values).all()
    found = heads.with_measure(table, probed.measure("induction"), probed.rest[3])
    assert found.rest[3] is probed.rest[3]
    assert found.rest[0] is table.rest[0]


@pytest.fixture(scope="module")
def minilm() -> Model:
    return attnx.open("minilm", device="cpu")


def test_the_bundled_model_without_its_first_token(minilm: Model) -> None:
    """On onnxruntime's own weights."""
    text = "The animal didn't cross the street because it was too tired."
    trace = minilm.trace(text, quantities=("masked", "weights"))
    found = describe_heads(trace)
    for site, attention in enumerate(trace.attentions):
        want = by_hand(attention.need("weights")[0], trace.tokens, False)
        for one in found.rest:
            np.testing.assert_allclose(one.values[site], want[one.name], rtol=1e-5, atol=1e-7, err_msg=one.name)
    assert sum(kind == "sink" for row in found.kinds for kind in row) == 56
    assert is_punctuation(trace.tokens).count(True) == 2
