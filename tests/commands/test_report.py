"""`attnx report`: what it writes, says and refuses."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.commands.conftest import ANIMAL, Run


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
