"""One head worth opening: inspect, qkv, report and explore open the same one, found here in numpy from the weights."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import attnx as package
from attnx.study import strongest
from tests.cli.conftest import ANIMAL, Run

TEXTS = [(ANIMAL, "minilm"), ("The cat sat on the mat. The cat", "tiny-gpt"), ("A quick test of one head.", "minilm")]


def expected(text: str, model: str) -> tuple[int, int, int, int]:
    """Layer and head with the largest share of its weight on one word, and its largest weight between two words."""
    trace = package.open(model, device="cpu").trace(text, quantities=("weights",))
    plain = ~np.asarray(trace.tokens.special, bool)
    weights = np.stack([a.need("weights")[0] for a in trace.attentions]).astype(np.float64)
    keys = plain.copy()
    keys[0] = False  # where weight is parked
    share = weights.sum(2) / weights.sum((2, 3))[..., None]
    layer, head, _ = np.unravel_index(np.where(keys, share, -1).argmax(), share.shape)
    pairs = plain[:, None] & plain[None, :] & ~np.eye(len(plain), dtype=bool)
    query, key = np.unravel_index(np.where(pairs, weights[layer, head], -1).argmax(), pairs.shape)
    return int(layer), int(head), int(query), int(key)


@pytest.mark.parametrize(("text", "model"), TEXTS)
def test_inspect_qkv_and_report_open_the_same_head(text: str, model: str, attnx: Run) -> None:
    layer, head, query, key = expected(text, model)
    shown = re.search(r"most on one token\n.*  (L\d+ H\d+) \d\.\d\d  →", attnx("inspect", text, "-m", model).out)
    assert shown is not None
    assert shown[1] == f"L{layer} H{head}"
    taken = attnx("qkv", text, "-m", model, "--json").document
    assert (taken["head"]["layer"], taken["head"]["head"]) == (layer, head)
    assert (taken["query"]["position"], taken["key"]["position"]) == (query, key)
    attnx("report", text, "-m", model)
    page = Path("report.html").read_text()
    found = re.search(r'"chosen":({[^}]*})', page)
    assert found is not None
    assert json.loads(found[1]) == {"site": layer, "head": head, "query": query}


@pytest.mark.parametrize("stretch", [1 << 28, 1])
def test_explore_opens_it_too(stretch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("textual", reason="the extra `explore` is not installed")
    from attnx.errors import UsageError
    from attnx.explore import reader
    from attnx.explore.desk import Desk

    monkeypatch.setattr(reader, "STRETCH", stretch)
    desk = Desk(package.open("minilm", device="cpu"), ANIMAL)
    desk.start()
    assert (desk.site, desk.head, desk.query) == expected(ANIMAL, "minilm")[:3]
    desk.start("2.1", "tired")
    assert (desk.site, desk.head, desk.query) == (2, 1, 13)
    desk.start("5.9")
    weights = package.open("minilm", device="cpu").trace(ANIMAL, quantities=("weights",)).attentions[5].weights
    assert weights is not None
    inner = weights[0, 9, 1:15, 1:15] * ~np.eye(14, dtype=bool)
    assert desk.query == 1 + inner.max(1).argmax()
    with pytest.raises(UsageError, match="no layer 9"):
        desk.start("9.1")


def test_of_a_long_text_the_same_head_is_found_in_the_graph(monkeypatch: pytest.MonkeyPatch, attnx: Run) -> None:
    whole = attnx("qkv", ANIMAL, "--json").document
    monkeypatch.setattr(strongest.memory, "LARGE", 0)
    found = attnx("qkv", ANIMAL, "--json").document
    assert {name: found[name] for name in ("head", "query", "key")} == {
        name: whole[name] for name in ("head", "query", "key")
    }
