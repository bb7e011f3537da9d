"""The page of `attnx report` in a real browser, its numbers against onnxruntime alone."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnx.cli import app as cli
from tests.cli.conftest import ANIMAL, Oracle, Run
from tests.view.browser import Browser, chromium

LONG = " ".join([ANIMAL.rstrip(".") + " after the keeper had fed it"] * 6)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = chromium()
    if program is None:
        pytest.skip("no Chromium here: apt-get install chromium, or ATTNX_CHROMIUM=PATH")
    one = Browser(program, tmp_path_factory.mktemp("profile"))
    yield one
    one.close()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("page") / "animal.html"
    assert cli.run(["report", ANIMAL, "-o", str(path), "--head", "5.11"]) == 0
    return path.as_uri()


@pytest.fixture(scope="module")
def long_page(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("page") / "long.html"
    assert cli.run(["report", LONG, "-o", str(path), "--head", "5.11", "--query", "it@10"]) == 0
    return path.as_uri()


def fine(browser: Browser, page: str) -> None:
    """Nothing failed and nothing but the page itself was asked for."""
    assert browser.errors == []
    assert browser.requests == [page.partition("#")[0]] or browser.requests == [page]


def rows(browser: Browser) -> list[list[str]]:
    """The text of the table of stages."""
    found: list[list[str]] = browser.run(
        "[...document.querySelectorAll('#row tbody tr')].map(line => [...line.children].map(cell => cell.textContent))"
    )
    return found


def text(browser: Browser, selector: str) -> str:
    return str(browser.run(f"document.querySelector({json.dumps(selector)}).textContent"))


def number(shown: str) -> float:
    return 0.0 if shown == "<0.001" else float(shown.replace("−", "-"))


def softmax(scores: np.ndarray) -> np.ndarray:
    parts = np.exp(scores - scores.max())
    return np.asarray(parts / parts.sum())


def check_stages(browser: Browser, told: Oracle, layer: int, head: int, query: int) -> None:
    """Every number of the table against scores and weights tapped by hand."""
    scores = told.scores[layer, head, query].astype(float)
    shown = rows(browser)
    for line in shown:
        key = int(line[0])
        assert line[1] == told.pieces[key]
        assert number(line[2]) == pytest.approx(scores[key], abs=0.006 + 5e-4 * abs(scores[key]))
        assert number(line[3]) == pytest.approx(scores[key] / 32**0.5, abs=0.006)
        assert number(line[4]) == pytest.approx(scores[key] / 32**0.5, abs=0.006)
        assert number(line[5]) == pytest.approx(softmax(scores)[key], abs=0.0015)
        assert number(line[6]) == pytest.approx(told.weights[layer, head, query, key], abs=0.001)
    kept = {int(line[0]) for line in shown}
    if len(kept) < len(scores):
        rank = np.maximum(softmax(scores), told.weights[layer, head, query])
        assert min(rank[list(kept)]) >= max(np.delete(rank, list(kept))) - 1e-4


@pytest.mark.parametrize("before", ["", "delete globalThis.DecompressionStream"])
def test_stages_are_those_of_the_model(browser: Browser, page: str, oracle: Any, before: str) -> None:
    browser.open(page, before=before)
    assert browser.run("typeof DecompressionStream") == ("undefined" if before else "function")
    assert text(browser, "#head-name") == "L5 H11"
    assert text(browser, "#row-name") == "query it @10: the softmax before and after scaling"
    boxes = "[...document.querySelectorAll('.stage')].map(one => [one.querySelector('strong, h3, b')?.textContent"
    boxes += " ?? one.textContent.trim().split(/\\s/)[0], one.getBoundingClientRect().top, one.offsetLeft])"
    stages = browser.run(boxes)
    assert [name.split()[0] for name, _, _ in stages] == ["scores", "scaled", "masked", "weights"]
    assert len({top for _, top, _ in stages}) == 1  # side by side
    assert [left for _, _, left in stages] == sorted({left for _, _, left in stages})
    told = oracle(ANIMAL)
    check_stages(browser, told, 5, 11, 10)
    scores = told.scores[5, 11, 10].astype(float)
    for selector, weights in ((".way.before", softmax(scores)), (".way.after", softmax(scores / 32**0.5))):
        said = browser.run(f"[...document.querySelectorAll('{selector} dd')].map(one => one.textContent)")
        said = [number(one.removesuffix(" nats")) for one in said]
        entropy = -(weights * np.log(weights)).sum()
        assert said == pytest.approx([entropy, weights.max(), (weights * (1 - weights)).sum()], abs=0.002)
    fine(browser, page)


def test_long_texts_are_rebuilt_from_query_and_key(browser: Browser, long_page: str, oracle: Any) -> None:
    browser.open(long_page)
    data = browser.run("document.getElementById('data').textContent")
    assert {site["base"] for site in json.loads(data)["sites"]} == {"qk"}
    told = oracle(LONG)
    check_stages(browser, told, 5, 11, 10)
    browser.click("#row-said button")
    assert len(rows(browser)) == len(told.pieces)
    check_stages(browser, told, 5, 11, 10)
    browser.run("location.hash = '#2.3.57'")
    browser.wait("document.querySelector('#head-name').textContent === 'L2 H3'")
    browser.wait("document.querySelector('#row-name').textContent.includes('@57')")
    check_stages(browser, told, 2, 3, 57)
    fine(browser, long_page)


def test_hovering_shows_where_a_token_looks_and_who_looks_at_it(browser: Browser, page: str, oracle: Any) -> None:
    browser.open(page)
    weights = oracle(ANIMAL).weights[5, 11]
    shares = "[...document.querySelectorAll('#{} li')].map(one => one.lastChild.textContent)"
    assert browser.run(shares.format("keys")) == [f"{w:.2f}" if w >= 0.005 else "" for w in weights[10]]
    browser.hover("#q-5")
    browser.wait("document.querySelector('#q-5').classList.contains('active')")
    assert browser.run(shares.format("keys")) == [f"{w:.2f}" if w >= 0.005 else "" for w in weights[5]]
    browser.hover("#k-2")
    browser.wait("document.querySelector('#k-2').classList.contains('active')")
    assert browser.run(shares.format("queries")) == [f"{w:.2f}" if w >= 0.005 else "" for w in weights[:, 2]]
    drawn = "(() => { const one = document.getElementById('lines-canvas'); return one.getContext('2d')"
    drawn += ".getImageData(0, 0, one.width, one.height).data.some(value => value > 0); })()"
    assert browser.run(drawn)
    assert text(browser, "#row-name").startswith("query it")
    browser.click("#q-5")
    browser.wait("document.querySelector('#row-name').textContent.startsWith('query t @5')")
    assert browser.run("location.hash") == "#5.11.5"


def test_the_row_across_heads_is_the_models(browser: Browser, page: str, oracle: Any) -> None:
    browser.open(page)
    told = oracle(ANIMAL)
    weights = told.weights[:, :, 10].reshape(72, 16).copy()
    weights[:, [0, 10, 15]] = -1
    best = sorted(((w.max(), at, int(w.argmax())) for at, w in enumerate(weights)), reverse=True)[:8]
    want = [f"L{at // 12} H{at % 12} → {told.pieces[key]} {value:.2f}" for value, at, key in best]
    assert browser.run("[...document.querySelectorAll('.best li')].map(one => one.textContent)") == want
    size = "(() => { const one = document.querySelector('#rows canvas'); return [one.width, one.height]; })()"
    assert browser.run(size) == [16, 72]
    browser.click(".best li:nth-child(2) button")
    browser.wait(f"document.querySelector('#head-name').textContent === {json.dumps(' '.join(want[1].split()[:2]))}")


def test_everything_can_be_reached_by_keys(browser: Browser, page: str) -> None:
    browser.open(page)
    chosen = "document.querySelector('.thumb[aria-selected=true]').getAttribute('aria-label')"
    assert browser.run(chosen).startswith("L5 H11")
    browser.run("document.querySelector('.thumb[aria-selected=true]').focus()")
    browser.press("ArrowUp", 38)
    browser.wait("document.querySelector('#head-name').textContent === 'L4 H11'")
    browser.press("ArrowLeft", 37)
    browser.wait("document.querySelector('#head-name').textContent === 'L4 H10'")
    browser.press("Home", 36)
    browser.wait("document.querySelector('#head-name').textContent === 'L4 H0'")
    assert browser.run("document.activeElement === document.querySelector('.thumb[aria-selected=true]')")
    assert browser.run("document.querySelectorAll('.thumb[tabindex=\"0\"]').length") == 1
    browser.run("document.querySelector('#queries').focus()")
    browser.press("ArrowDown", 40)
    browser.wait("document.querySelector('#row-name').textContent.startsWith('query was @11')")
    assert browser.run("document.querySelector('#queries').getAttribute('aria-activedescendant')") == "q-11"
    browser.press("End", 35)
    browser.wait("document.querySelector('#row-name').textContent.startsWith('query [SEP] @15')")
    assert text(browser, "#status").startswith("L4 H0, query [SEP]: ")
    browser.run("document.querySelector('#tab-lines').focus()")
    browser.press("ArrowRight", 39)
    assert browser.run("document.querySelector('#lines').hidden && !document.querySelector('#matrix').hidden")
    assert browser.run("document.querySelectorAll('#matrix .side.left > span').length") == 16
    # Nothing that takes the focus is without a name.
    unnamed = browser.run(
        "[...document.querySelectorAll('button, select, input, [tabindex=\"0\"]')].filter(one => one.offsetParent && "
        "!(one.getAttribute('aria-label') || one.textContent.trim() || one.closest('label'))).map(one => one.outerHTML)"
    )
    assert unnamed == []
    fine(browser, page)


def test_coreference_and_kinds_say_what_the_commands_say(browser: Browser, page: str, attnx: Run) -> None:
    browser.open(page)
    told = attnx("coref", ANIMAL, "--json").document["pronouns"][0]
    shown = browser.run(
        "[...document.querySelectorAll('.verdicts tbody tr:not(.between)')].map(line => [...line.children].map(cell =>"
        " cell.textContent))"
    )
    names = [one["text"] if isinstance(one, dict) else one for one in told["candidates"]]
    by_name = {line[0].split()[0] + line[0].split()[1] if " " in line[0] else line[0]: line for line in shown}
    mean = next(one for one in told["verdicts"] if one["method"] == "mean of all heads")
    line = by_name["meanof"]
    assert line[1] == names[mean["candidate"]]
    assert number(line[3]) == pytest.approx(mean["lead"], abs=0.006)
    assert [by_name[name][1] for name in ("nearest", "first", "uniform")] == ["street", "animal", "(level)"]
    heads = attnx("heads", ANIMAL, "--json").document
    both = [list(zip(*lines, strict=True)) for lines in zip(heads["kinds"], heads["rest"]["kinds"], strict=True)]
    cells = "[...document.querySelectorAll('#kind-table button')].map(one => one.getAttribute('aria-label'))"
    said = [[", ".join(filter(None, one)) for one in line] for line in both]
    assert "sink, broad" in said[5]
    want = [f"L{layer} H{head}: {kind}" for layer, line in enumerate(said) for head, kind in enumerate(line)]
    assert browser.run(cells) == want
    stars = "[...document.querySelectorAll('#kind-table button')].map(one => one.textContent.endsWith('*'))"
    assert browser.run(stars) == [bool(rest) for line in both for _, rest in line]
    browser.run('document.querySelector(\'#kind-table [data-r="4"][data-c="5"]\').click()')
    assert browser.run("document.querySelector('#head-said').textContent").startswith(f"{said[4][5]} · ")
    assert "* sink, and what the rest" in browser.run("document.querySelector('#kinds-said').textContent")
    browser.run(
        "(() => { const one = document.querySelector('#measure'); one.value = '0';"
        " one.dispatchEvent(new Event('change')); })()"
    )
    entropy = attnx("heads", ANIMAL, "--json").document["measures"][0]["values"]
    shown = browser.run("[...document.querySelectorAll('#kind-table button')].map(one => one.textContent)")
    assert [number(one) for one in shown] == pytest.approx([value for line in entropy for value in line], abs=0.006)
    fine(browser, page)


def test_scale_mute_and_theme_change_what_is_drawn(browser: Browser, page: str) -> None:
    browser.open(page, dark=True)
    look = "document.documentElement.dataset.look"
    ground = "getComputedStyle(document.body).backgroundColor"
    pixels = "(name => { const one = document.querySelector(name + ' canvas'); return [...one.getContext('2d')"
    pixels += ".getImageData(0, 0, one.width, one.height).data]; })"
    weights = f"{pixels}('.stage:last-child')"
    assert browser.run(look) == "dark"
    dark, black = browser.run(weights), browser.run(ground)
    choose = "(() => {{ const one = document.querySelector('{}'); one.value = '{}';"
    choose += " one.dispatchEvent(new Event('change')); }})()"
    browser.run(choose.format("#theme", "light"))
    assert browser.run(look) == "light"
    assert browser.run(ground) != black
    light = browser.run(weights)
    assert light != dark
    browser.run(choose.format("#scale", "linear"))
    assert browser.run(weights) != light
    assert "linear" in text(browser, "#grid-said")
    cells = np.array(browser.run(weights)).reshape(16, 16, 4)
    assert (cells[..., 3] == 255).all()
    browser.run("document.querySelector('#mute').click()")
    cells = np.array(browser.run(weights)).reshape(16, 16, 4)
    assert (cells[:, [0, 15], 3] == 0).all()
    assert (cells[:, 1:15, 3] == 255).all()
    assert text(browser, "#k-0 .share") == ""
    # What was chosen is kept for the next time.
    browser.open(page, dark=True)
    assert browser.run(look) == "light"
    browser.run("localStorage.clear()")
    fine(browser, page)


def test_paper_is_light_and_has_no_controls(browser: Browser, page: str) -> None:
    browser.open(page, dark=True, paper=True)
    assert browser.run("document.documentElement.dataset.look") == "light"
    shown = "getComputedStyle(document.querySelector('{}')).display"
    assert browser.run(shown.format(".controls")) == "none"
    assert browser.run(shown.format("#stages")) == "block"
    sheet = browser.send("Page.printToPDF", printBackground=True)["data"]
    assert len(sheet) > 20_000


@pytest.mark.parametrize("width", [360, 768, 1920])
def test_nothing_is_wider_than_the_window(browser: Browser, long_page: str, width: int) -> None:
    browser.open(long_page, width=width)
    assert browser.run("document.documentElement.scrollWidth") <= width


def test_hostile_text_is_text(browser: Browser, attnx: Run) -> None:
    told = "<script>document.title='owned'</script> <img src=x onerror=alert(1)>"
    told += " \"'&amp; שלום مرحبا 👩\u200d🚀 \x1b[31m it"
    attnx("report", told, "-o", "page.html", "--to", "script")
    page = (Path.cwd() / "page.html").as_uri()
    browser.open(page)
    assert browser.run("document.querySelectorAll('img').length") == 0
    assert browser.run("document.scripts.length") == 2
    assert browser.run("document.title") != "owned"
    shown = text(browser, "#text")
    assert "<script>document.title='owned'</script>" in shown
    assert "<0x1B>[31m" in shown
    assert "שלום" in shown
    assert browser.run("[...document.querySelectorAll('#keys li bdi')].map(one => one.textContent)").count("<") >= 3
    fine(browser, page)


def test_a_causal_model_hides_the_future(browser: Browser, tmp_path: Path) -> None:
    """A decoder of one layer, its mask in the graph: what is hidden is drawn as hidden, and said."""
    from attnx.view.report import Report, report
    from tests.view import samples

    trace = samples.trace(causal=True)
    path = tmp_path / "causal.html"
    path.write_bytes(report(Report(trace, chosen=(1, 3, 10))).content)
    browser.open(path.as_uri())
    cells = browser.run(
        "(() => { const one = document.querySelector('.stage:last-child canvas'); return [...one.getContext('2d')"
        ".getImageData(0, 0, 16, 16).data]; })()"
    )
    clear = np.array(cells).reshape(16, 16, 4)[..., 3] == 0
    assert (clear == np.triu(np.ones((16, 16), bool), 1)).all()
    assert [line[4] for line in rows(browser)] == [*([line[3] for line in rows(browser)][:11]), *["hidden"] * 5]
    assert [line[0] for line in rows(browser) if line[6] == "0.000"] == ["11", "12", "13", "14", "15"]
    assert "hidden by the mask" in text(browser, "#stages")
    assert "causal" in text(browser, "#head-said")
    assert browser.run("document.querySelector('#coreference').hidden && document.querySelector('#kinds').hidden")
    fine(browser, path.as_uri())
