"""How records show themselves in a notebook."""

import io
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from rich.console import Console
from rich.text import Text

import attnx
from attnx.records import Axis, Measurement, Sites
from attnx.view.save import look
from tests.view import samples


def tags(text: str) -> set[str]:
    found: set[str] = set()

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: object) -> None:
            found.add(tag)

    Reader().feed(text)
    return found


def test_a_trace_is_a_grid_with_its_text() -> None:
    trace = samples.trace()
    trace = replace(trace, tokens=replace(trace.tokens, text="the animal didn't cross"))
    found = trace._repr_mimebundle_()
    assert set(found) == {"text/plain", "text/html"}
    assert found["text/html"] == trace._repr_html_()
    lines = found["text/plain"].splitlines()
    assert lines[0] == "minilm · 16 tokens · 2 layers · cpu"
    assert lines[1] == "the animal didn't cross"
    assert any(line.startswith("L0 ") for line in lines)
    assert any(line.startswith("L1 ") for line in lines)
    assert "\x1b" not in found["text/plain"]
    assert tags(found["text/html"]) == {"pre", "code", "span"}
    assert len(re.findall(r"color: #[0-9a-f]{6}", found["text/html"])) > 50


def test_a_measurement_is_its_numbers() -> None:
    axes = (Axis("layer", ("L0", "L1")), Axis("head", ("H0", "H1", "H2")))
    measure = Measurement("entropy", "nats", axes, np.array([[0.25, 1.5, np.nan], [2.0, 0.75, 3.0]]), source="Clark")
    text = measure._repr_mimebundle_()["text/plain"]
    text = re.sub("[░▒▓█]", "", text)  # shades stand for the colours that plain text has not
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.startswith("L")}
    assert rows == {"L0": ["0.25", "1.50", "-"], "L1": ["2.00", "0.75", "3.00"]}
    assert "1.50" in measure._repr_html_()


def test_sites_are_a_tuple_and_a_table() -> None:
    sites = Sites(a.site for a in samples.trace().attentions)
    assert isinstance(sites, tuple)
    assert sites[1].layer == 1
    text = sites._repr_mimebundle_()["text/plain"]
    assert text.startswith("2 attention sites")
    assert "/encoder/layer.1/attention/self/Softmax" in text
    assert isinstance(attnx.open("minilm").sites, Sites)


@pytest.mark.parametrize("nasty", ["<script>alert(1)</script>", "[bold]no[/bold]", "\x1b[31m", "\u202eabc"])
def test_no_text_becomes_markup(nasty: str) -> None:
    trace = samples.trace([nasty, "b", "c"])
    trace = replace(trace, model=nasty, tokens=replace(trace.tokens, text=nasty))
    measure = Measurement(nasty, nasty, (Axis("token", (nasty, "b")),), np.array([1.0, 2.0]), source=nasty)
    for record in (trace, measure):
        page, text = record._repr_html_(), record._repr_mimebundle_()["text/plain"]
        assert tags(page) <= {"pre", "code", "span"}
        assert "\x1b" not in page + text
        assert "\u202e" not in page + text
    if nasty.isprintable():
        assert nasty in trace._repr_mimebundle_()["text/plain"]


def test_drawing_shows_nothing_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a notebook rich displays whatever is printed on a console that does not know better."""
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    shown: list[object] = []
    monkeypatch.setattr("rich.jupyter.display", lambda *what: shown.append(what))
    trace = samples.trace()
    assert "minilm" in trace._repr_mimebundle_()["text/plain"]
    assert "attention sites" in Sites(a.site for a in trace.attentions)._repr_html_()
    for ending in (".txt", ".html", ".svg"):
        assert b"minilm" in look(Text("minilm"), ending)
    assert not shown
    Console(file=io.StringIO()).print("x")
    assert shown


def test_what_cannot_be_drawn_says_so() -> None:
    trace = samples.trace()
    bare = replace(trace, attentions=tuple(replace(a, weights=None) for a in trace.attentions))
    assert "no site has weights" in bare._repr_html_()
    deep = Measurement("deep", "", tuple(Axis(f"a{at}", ("x",)) for at in range(4)), np.zeros((1, 1, 1, 1)))
    assert "deep" in deep._repr_mimebundle_()["text/plain"]
