"""Traces as other visualisers take them: the arrays and tokens, and the real packages where they are installed."""

import importlib
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from attnx.errors import UnsupportedError, UsageError
from attnx.records import Trace
from tests.view import samples


def both() -> Trace:
    """An encoder of 5 tokens, a decoder of 3, cross-attention between them."""
    draw = np.random.default_rng(3)

    def rows(*shape: int) -> np.ndarray:
        return samples.softmax(draw.normal(size=shape).astype(np.float32))

    trace = samples.trace(["a", " b", "c", "d", "e"], layers=1)
    one = trace.attentions[0]
    sites = [
        replace(one, weights=rows(1, 4, 5, 5)),
        replace(one, site=replace(one.site, component="decoder", causal=True), weights=rows(1, 4, 3, 3)),
        replace(one, site=replace(one.site, component="decoder", kind="cross"), weights=rows(1, 4, 3, 5)),
    ]
    return replace(trace, tokens=samples.tokens(["x", "y", "z"]), memory=trace.tokens, attentions=tuple(sites))


def load(name: str) -> Any:
    """A package that is not among those that the tests need, or a reason to skip."""
    try:
        return importlib.import_module(name)
    except Exception as error:  # some fail in ways of their own where torch is missing
        pytest.skip(f"{name} cannot be imported here ({type(error).__name__}): pip install {name.partition('.')[0]}")


def test_one_text_for_bertviz() -> None:
    trace = samples.trace()
    got = trace.to_bertviz()
    assert set(got) == {"attention", "tokens"}
    assert got["tokens"] == samples.ENGLISH
    for layer, attention in zip(got["attention"], trace.attentions, strict=True):
        assert layer.shape == (1, 4, 16, 16)
        assert (layer == attention.weights).all()
    asked = []
    assert trace.to_bertviz(lambda array: asked.append(array.shape) or "made")["attention"] == ["made", "made"]
    assert asked == [(1, 4, 16, 16)] * 2


def test_only_the_first_sequence_is_given() -> None:
    trace = samples.trace(layers=1)
    weights = trace.attentions[0].weights
    assert weights is not None
    pair = replace(
        trace, attentions=(replace(trace.attentions[0], weights=np.concatenate([weights, weights[:, ::-1]])),)
    )
    (layer,) = pair.to_bertviz()["attention"]
    assert (layer == weights).all()


def test_encoder_and_decoder_for_bertviz() -> None:
    got = both().to_bertviz()
    assert {name: [one.shape for one in found] for name, found in got.items() if name.endswith("attention")} == {
        "encoder_attention": [(1, 4, 5, 5)],
        "decoder_attention": [(1, 4, 3, 3)],
        "cross_attention": [(1, 4, 3, 5)],
    }
    assert got["encoder_tokens"] == ["a", "b", "c", "d", "e"]
    assert got["decoder_tokens"] == ["x", "y", "z"]


def test_one_layer_for_circuitsvis() -> None:
    trace = samples.trace(causal=True)
    got = trace.to_circuitsvis(layer=-1)
    assert (got["attention"] == trace.attentions[1].weights[0]).all()  # type: ignore[index]
    assert got["tokens"] == samples.ENGLISH
    assert got["attention_head_names"] == ["L1 H0", "L1 H1", "L1 H2", "L1 H3"]
    assert got["mask_upper_tri"] is True
    with pytest.raises(UsageError, match="no layer 2"):
        trace.to_circuitsvis(layer=2)


def test_what_these_views_cannot_show_is_refused() -> None:
    trace = samples.trace(layers=2)
    bare = replace(trace, attentions=tuple(replace(a, weights=None) for a in trace.attentions))
    for view in (bare.to_bertviz, bare.to_circuitsvis):
        with pytest.raises(UnsupportedError, match="no weights"):
            view()
    first = trace.attentions[0]
    assert first.weights is not None
    with_past = replace(first, weights=np.pad(first.weights, ((0, 0), (0, 0), (0, 0), (4, 0))))
    for view in (
        replace(trace, attentions=(with_past,)).to_bertviz,
        replace(trace, attentions=(with_past,)).to_circuitsvis,
    ):
        with pytest.raises(UnsupportedError, match="16 x 20"):
            view()
    fewer = replace(trace.attentions[1], weights=first.weights[:, :2])
    with pytest.raises(UnsupportedError, match="different numbers of heads"):
        replace(trace, attentions=(first, fewer)).to_bertviz()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("view", ["head_view", "model_view"])
@pytest.mark.parametrize("made", [samples.trace, both])
def test_bertviz_takes_it(view: str, made: Any) -> None:
    torch, bertviz = load("torch"), load("bertviz")
    trace = made()
    page = getattr(bertviz, view)(**trace.to_bertviz(torch.as_tensor), html_action="return").data
    found, _ = json.JSONDecoder().raw_decode(page, page.index('{"attention": '))
    for part in found["attention"]:
        name = (part["name"] or "encoder").lower()
        (site,) = [a for a in trace.attentions if name in (a.site.kind, a.site.component)][:1]
        want = site.weights[0]
        assert np.array(part["attn"][0]) == pytest.approx(want, abs=1e-6)
        assert [text.strip() for text in part["left_text"]] == [p.strip() for p in trace.queries_of(site).pieces]
        assert [text.strip() for text in part["right_text"]] == [p.strip() for p in trace.keys_of(site).pieces]


@pytest.mark.filterwarnings("ignore")
def test_circuitsvis_takes_it() -> None:
    view = load("circuitsvis.attention")
    trace = samples.trace(causal=True)
    page = str(view.attention_heads(**trace.to_circuitsvis(layer=1)))
    assert '"L1 H3"' in page
    assert json.dumps(samples.ENGLISH)[1:40] in page


def test_a_frame_has_a_row_for_each_visible_cell() -> None:
    pandas = pytest.importorskip("pandas")
    import attnx

    trace = attnx.open("tiny-gpt", device="cpu").trace("The cat sat", layers=[1, 3], quantities=["masked", "weights"])
    frame = trace.to_frame()
    assert isinstance(frame, pandas.DataFrame)
    names = ["site", "layer", "head", "query_position", "query", "key_position", "key", "weights"]
    assert list(frame.columns) == names
    count = len(trace.tokens)
    assert len(frame) == 2 * 6 * count * (count + 1) // 2
    weights = trace.attentions[1].weights
    assert weights is not None
    for line in frame[frame.layer == 3].itertuples():
        assert line.weights == weights[0, line.head, line.query_position, line.key_position]
        assert (line.query, line.key) == (
            trace.tokens.pieces[line.query_position],
            trace.tokens.pieces[line.key_position],
        )
    assert frame.groupby(["layer", "head", "query_position"]).weights.sum().sub(1).abs().max() < 1e-5
    assert len(trace.to_frame("masked")) == len(frame)
    with pytest.raises(UsageError, match="'value' has no row"):
        trace.to_frame("value")
    with pytest.raises(UnsupportedError, match="has no scores"):
        trace.to_frame("scores")


def test_a_frame_without_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(UsageError, match="needs pandas") as caught:
        both().to_frame()
    assert caught.value.hint == "pip install pandas"


def test_what_records_say_of_themselves() -> None:
    trace = both()
    assert repr(trace) == f"<Trace of {trace.model}: 3 tokens beside 5, 3 attentions, {trace.device}>"
    assert repr(trace.attentions[0]).endswith(", 4 heads: scores, scaled, capped, masked, weights>")
    import attnx

    model = attnx.open("minilm", device="cpu")
    assert repr(model) == f"<Model minilm: {model.path}, device cpu>"
