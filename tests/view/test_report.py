"""The page as a file: what it holds, what it refuses to fetch, and that no text becomes markup."""

import base64
import hashlib
import json
import re
import zlib
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

from attnx.errors import UnsupportedError
from attnx.measure.choice import Verdict
from attnx.records import Axis, Measurement, Trace
from attnx.tokens.spans import Mention
from attnx.view.report import Reference, Report, report
from tests.view import samples

NASTY = [
    "<script>alert(1)</script>", "</script>", "&amp;", "\"'", "\u202eabc", "\x00", "שלום", "مرحبا", "👩\u200d🚀",
    "\ud800", "@@data@@",
]  # fmt: skip


class Reader(HTMLParser):
    """Elements with their attributes, and the text of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.inside: dict[str, list[str]] = {}
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        tag, attributes = self.found[-1] if self.found else ("", {})
        name = attributes.get("id") or tag
        self.inside.setdefault(name, []).append(data)

    def text(self, name: str) -> str:
        return "".join(self.inside[name])


def read(content: bytes) -> tuple[Reader, dict[str, Any]]:
    page = Reader(content.decode("utf-8"))
    data: dict[str, Any] = json.loads(page.text("data"))
    return page, data


def hostile() -> Trace:
    trace = samples.trace(NASTY)
    return replace(trace, model="<img src=x>", tokens=replace(trace.tokens, text="".join(NASTY)))


def test_no_text_becomes_markup() -> None:
    plain, _ = read(report(Report(samples.trace())).content)
    page, data = read(report(Report(hostile(), notes=("<b>note</b>",))).content)
    assert [tag for tag, _ in page.found] == [tag for tag, _ in plain.found]
    assert data["model"] == "<img src=x>"
    assert data["notes"] == ["<b>note</b>"]
    pieces = data["sides"][0]["pieces"]
    assert pieces[0] == NASTY[0]
    assert pieces[4] == "<U+202E>abc"
    assert pieces[5] == "<0x00>"
    assert pieces[6:8] == NASTY[6:8]
    assert pieces[9] == "<U+D800>"
    assert pieces[10] == "@@data@@"
    content = report(Report(hostile())).content
    for control in (b"\x00", b"\x1b", "\u202e".encode()):
        assert control not in content
    assert content.count(b"<script") == 2
    assert content.count(b"</script") == 2


def test_nothing_is_fetched_and_no_other_script_runs() -> None:
    content = report(Report(samples.trace())).content
    page, _ = read(content)
    attributes = {name for _, found in page.found for name in found}
    assert not attributes & {"src", "onclick", "onload", "style", "srcset", "action"}
    assert {found["href"] for _, found in page.found if "href" in found} == {"#head"}
    said = page.text("script") + page.text("style")
    assert not re.search(r"https?://|url\(|@import|fetch\(|XMLHttp|import\(|\beval\b|innerHTML", said)
    policy = next(found["content"] or "" for tag, found in page.found if found.get("http-equiv"))

    def sha(text: str) -> str:
        return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

    text = content.decode()
    program = text[text.rindex("<script>") + 8 : text.rindex("</script>")]
    style = text[text.index("<style>") + 7 : text.index("</style>")]
    assert policy == f"default-src 'none'; script-src 'sha256-{sha(program)}'; style-src 'sha256-{sha(style)}'"


def test_the_page_states_how_far_off_it_is() -> None:
    trace = samples.trace()
    page = report(Report(trace))
    _, data = read(page.content)
    assert data["error"] == page.error
    worst = 0.0
    for site, attention in zip(data["sites"], trace.attentions, strict=True):
        assert site["base"] == "scores"
        for head in range(4):
            number, step = site["scores"][head]
            low, high = np.frombuffer(zlib.decompress(base64.b64decode(data["blobs"][number]), -15), np.uint8).reshape(
                2, -1
            )
            scores = (low.astype(np.int64) + 256 * high.view(np.int8).astype(np.int64)) * step
            weights = samples.softmax((scores * site["scale"]).reshape(16, 16))
            assert attention.weights is not None
            worst = max(worst, float(np.abs(weights - attention.weights[0, head]).max()))
    assert page.error == pytest.approx(worst, rel=0.05, abs=1e-6)


def test_thumbnails_are_block_means() -> None:
    trace = samples.trace(samples.long(90), layers=1, heads=2, causal=True)
    _, data = read(report(Report(trace)).content)
    site = data["sites"][0]
    rows, columns = site["thumb"]
    assert (rows, columns) == (40, 40)
    codes = np.frombuffer(zlib.decompress(base64.b64decode(data["blobs"][site["thumbs"]]), -15), np.uint8)
    codes = codes.reshape(2, rows, columns)
    edges = [at * 90 // 40 for at in range(41)]
    weights = trace.attentions[0].weights
    assert weights is not None
    for head in range(2):
        means = np.full((rows, columns), np.nan)
        for r in range(rows):
            for c in range(columns):
                cells = [
                    weights[0, head, q, k]
                    for q in range(edges[r], edges[r + 1])
                    for k in range(edges[c], edges[c + 1])
                    if k <= q
                ]
                means[r, c] = np.mean(cells) if cells else np.nan
        assert ((codes[head] == 0) == np.isnan(means)).all()
        want = 1 + 254 * np.sqrt(means / np.nanmax(means))
        assert np.nanmax(np.abs(np.where(codes[head] == 0, np.nan, codes[head]) - want)) <= 0.51


def test_measures_and_references_follow_the_sites_that_are_shown() -> None:
    trace = samples.trace(layers=3, heads=2)
    bare = replace(trace.attentions[0], weights=None)
    trace = replace(trace, attentions=(bare, *trace.attentions[1:]))
    axes = (Axis("layer", ("L0", "L1", "L2")), Axis("head", ("H0", "H1")))
    values = np.array([[0.1, 0.2], [0.3, np.nan], [0.5, 0.6]])
    measure = Measurement("entropy", "nats", axes, values, (0.0, None), "Clark", "-sum a ln a")
    shares = Measurement(
        "share", "share", (*axes, Axis("candidate", ("animal", "street"))), np.arange(12.0).reshape(3, 2, 2)
    )
    verdict = Verdict("best head", "L1 H0", 0, (0.75, 0.25), 0.5)
    one = Reference(
        Mention("it", 42, 44, (10,)), (Mention("animal", 4, 10, (2,)), Mention("street", 20, 26, (8,))), (0, 1, 2),
        shares, shares, (verdict,), (verdict, replace(verdict, where="L1"), replace(verdict, where="L2")), (verdict,),
    )  # fmt: skip
    page = report(
        Report(trace, (measure,), (("a", "b"), ("c", "d"), ("e", "f")), ("c: x > 1",), (one,), chosen=(2, 1, 10))
    )
    _, data = read(page.content)
    assert page.notes == ("L0 is left out: its weights are not known",)
    assert [site["label"] for site in data["sites"]] == ["L1", "L2"]
    assert data["kinds"] == [["c", "d"], ["e", "f"]]
    assert data["measures"][0]["values"] == [[0.3, None], [0.5, 0.6]]
    assert data["chosen"] == {"site": 1, "head": 1, "query": 10}
    reference = data["references"][0]
    assert reference["sites"] == [0, 1]
    assert reference["shares"] == [[[4, 5], [6, 7]], [[8, 9], [10, 11]]]
    assert [line["where"] for line in reference["layers"]] == ["L1", "L2"]
    assert reference["candidates"][1] == {"text": "street", "pieces": [8]}


def test_without_weights_there_is_no_page() -> None:
    trace = samples.trace(layers=1)
    with pytest.raises(UnsupportedError, match="no attention of this model has weights"):
        report(Report(replace(trace, attentions=(replace(trace.attentions[0], weights=None),))))


def test_the_same_trace_gives_the_same_bytes() -> None:
    assert report(Report(samples.trace())).content == report(Report(samples.trace())).content
