"""`attnx report`: what it writes, says and refuses."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnx.study import html_report as paging
from tests.cli.conftest import ANIMAL, MINILM, Run

DECODER = MINILM.parent / "tiny-gpt" / "model.onnx"


def test_what_it_says_and_writes(attnx: Run) -> None:
    done = attnx("report", ANIMAL)
    assert done.out == ""
    size = Path("report.html").stat().st_size
    assert re.search(rf"wrote report\.html: {size / 1e6:.1f} MB, 72 heads, weights within \de-05\n", done.err)
    assert size < 250_000
    content = Path("report.html").read_bytes()
    again = attnx("report", ANIMAL, code=2)
    assert "report.html exists" in again.err
    assert "--force" in again.err
    attnx("report", ANIMAL, "--force", "--from", "it", "--to", "animal,street")
    data = _data(Path("report.html"))
    assert [one["text"] for one in data["references"][0]["candidates"]] == ["animal", "street"]
    assert Path("report.html").read_bytes() != content


def test_effects_are_on_the_page_where_they_are_wanted(attnx: Run) -> None:
    args = ("It was tired.", "-m", "tiny-gpt")
    attnx("report", *args, "--causal", "-o", "causal.html")
    attnx("report", *args, "-o", "plain.html")
    with_, without = (
        {m["name"]: m["values"] for m in _data(Path(f"{n}.html"))["measures"]} for n in ("causal", "plain")
    )
    assert with_.keys() - without.keys() == {"effect"}
    want = attnx("ablate", *args, "--json").document["map"]["values"]
    np.testing.assert_allclose(np.array(with_["effect"]), np.array(want), rtol=1e-5, atol=2e-6)


def test_where_weights_do_not_follow_the_mask_is_read(attnx: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    attnx("report", ANIMAL, "-o", "light.html")
    monkeypatch.setattr(paging, "fewer", lambda sites: ("weights",))
    attnx("report", ANIMAL, "-o", "again.html")
    one, two = _data(Path("light.html")), _data(Path("again.html"))
    assert {site["base"] for site in one["sites"] + two["sites"]} == {"scores"}
    assert one["measures"] == two["measures"]
    assert one["error"] == pytest.approx(two["error"], abs=1e-6)


def test_a_mask_that_is_an_input_is_shown(attnx: Run) -> None:
    ids = np.array([[101, 4937, 4937, 3608, 102]])
    np.savez("feed.npz", input_ids=ids, attention_mask=[[1, 1, 1, 0, 1]], token_type_ids=0 * ids)
    attnx("report", "--inputs", "feed.npz")
    for site in _data(Path("report.html"))["sites"]:
        assert all(blob is not None for blob in site["hidden"])


@pytest.mark.skipif(not DECODER.exists(), reason="the bundled decoder is not here")
def test_what_a_decoder_writes_is_on_the_page(attnx: Run) -> None:
    done = attnx("report", "The cat sat on the mat because it", "-m", "tiny-gpt", "--generate", "3")
    assert "wrote 3 tokens" in done.err
    data = _data(Path("report.html"))
    assert len(data["sides"][0]["pieces"]) == len(data["sides"][0]["special"]) == 12
    assert all(site["causal"] and None not in site["hidden"] for site in data["sites"])


def test_ids_layers_and_texts_without_pronouns(attnx: Run) -> None:
    attnx("report", "--ids", "101,4937,4937,102", "-o", "ids.html", "--layer", "2-3", "--query", "1")
    data = _data(Path("ids.html"))
    assert [site["label"] for site in data["sites"]] == ["L2", "L3"]
    assert data["references"] == []
    assert data["chosen"]["query"] == 1
    assert [len(line) for line in data["kinds"]] == [12, 12]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("-o", "page.pdf"), "does not end in .html"),
        (("-o", "nowhere/page.html"), "folder"),
        (("--head", "9.1"), "there is no layer 9"),
        (("--head", "5.12"), "there is no head 12"),
        (("--query", "zebra"), "zebra"),
        (("--layer", "7"), "there is no layer 7"),
    ],
)
def test_mistakes_are_said(attnx: Run, arguments: tuple[str, ...], said: str) -> None:
    done = attnx("report", ANIMAL, *arguments, code=2)
    assert said in done.err
    assert list(Path.cwd().iterdir()) == []


def test_a_word_that_is_not_there(attnx: Run) -> None:
    assert "zebra" in attnx("report", ANIMAL, "--from", "zebra", code=4).err
    assert list(Path.cwd().iterdir()) == []


def _data(path: Path) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text(encoding="utf-8"))
    assert found is not None
    out: dict[str, Any] = json.loads(found[1])
    return out
