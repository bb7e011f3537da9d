"""`attnx report`: what it writes, says and refuses."""

import base64
import json
import re
import shutil
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

import attnx as library
from attnx.study import html_report as paging
from attnx.study import stretches
from attnx.study.worth_opening import strongest_of
from tests.cli.conftest import ANIMAL, MINILM, Run
from tests.cli.layerwise import a_layer_at_a_time
from tests.graphs import D, G, H

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


@pytest.mark.parametrize(
    ("model", "more", "layers", "heads"),
    [
        ("minilm", [], 6, 0), ("minilm", ["-H", "3.2", "-l", "2-4"], 3, 0), ("tiny-gpt", [], 4, 0),
        ("tiny-gpt", [], 4, 6), ("tiny-gpt", ["-H", "2.3", "-l", "1-2"], 2, 6),
    ],
)  # fmt: skip
def test_the_page_of_a_long_text_is_made_a_layer_or_head_at_a_time(
    attnx: Run, model: str, more: list[str], layers: int, heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page of one run; a run begins where no matrices are held, and the layer that is open first is run again."""
    command = ("report", ANIMAL, "-m", model, *more, "-o")
    attnx(*command, "whole.html")
    fetched = a_layer_at_a_time(monkeypatch, heads=heads > 0)
    attnx(*command, "apart.html")
    front = bool(heads) and "-l" in more  # the stream before the first layer that is wanted, once
    assert len(fetched) == (layers * heads + layers - 1 if heads else layers) + 1 + front
    counts = [count for count in fetched if count]
    assert max(counts) == min(counts) <= 2
    runs = len(fetched)
    for name, value, said in (("--head", "2.99", "there is no head 99"), ("--query", "zebra", "zebra")):
        assert said in attnx(*command, "apart.html", "--force", name, value, code=2).err
    assert len(fetched) == runs + (4 + 2 * front if heads else 2)  # said before the second layer, or head, is run
    whole, apart = _data(Path("whole.html")), _data(Path("apart.html"))
    assert len(whole["references"]) == 1
    _alike(apart, whole, (apart["blobs"], whole["blobs"]))


def test_a_layer_whose_heads_are_packed_in_different_ways_is_packed_whole(
    attnx: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("report", ANIMAL, "-m", "tiny-gpt", "-l", "1-2", "-o")
    attnx(*command, "whole.html")
    monkeypatch.setattr(stretches, "ROOM", 1)
    asked: list[int] = []
    monkeypatch.setattr("attnx.view.report.packed_heads", lambda parts, group: asked.append(len(parts)))
    attnx(*command, "apart.html")
    assert asked == [6, 6]
    whole, apart = _data(Path("whole.html")), _data(Path("apart.html"))
    _alike(apart, whole, (apart["blobs"], whole["blobs"]))


@pytest.mark.parametrize("heads", [False, True])
@pytest.mark.parametrize("positions", ["every second token", "every second query", "one more in front"])
def test_positions_that_are_not_the_texts_tokens_are_read_in_parts(
    attnx: Run, positions: str, heads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of the words that are looked from are kept only where positions are the text's tokens."""
    text, folder = "The animal was here because it was tired.", _elsewhere(positions)
    command = ("report", text, "-m", folder, "--force", "-o")
    attnx(*command, "whole.html")
    said = attnx("scale", text, "-m", folder).err
    monkeypatch.setattr(stretches, "ROOM", 1)
    if not heads:
        monkeypatch.setattr(stretches.Stretches, "split", lambda self, part: ())
    attnx(*command, "apart.html")
    whole, apart = _data(Path("whole.html")), _data(Path("apart.html"))
    assert len(whole["sites"]) == 2
    assert attnx("scale", text, "-m", folder).err == said
    assert "L0 and 1 more: " in said or positions == "every second query"
    assert apart["references"] == whole["references"] == []
    assert any("over that text" in note for note in whole["notes"])
    _alike(apart, whole, (apart["blobs"], whole["blobs"]))


def _elsewhere(positions: str) -> str:
    """Two layers over positions that are not the tokens of the text, one by one."""
    g = G()
    ids = g.input("input_ids", ["b", "s"], TensorProto.INT64)
    x = str(g.op("Gather", g.weight(30522, 16), ids))

    def second(y: str) -> str:
        starts, ends, axes, steps = (g.const([n], np.int64) for n in (0, 2**62, 1, 2))
        return str(g.op("Slice", y, starts, ends, axes, steps))

    if positions == "one more in front":
        x = str(g.op("Concat", g.weight(1, 1, 16), x, axis=1))
    elif positions == "every second token":
        x = second(x)
    for _ in range(2):
        asks = second(x) if positions == "every second query" else x
        weights = g.softmax(g.scores(g.heads(g.linear(asks, D * H)), g.heads(g.linear(x, D * H), (0, 2, 3, 1))))
        added = g.out(str(g.op("MatMul", weights, g.heads(g.linear(x, D * H)))))
        out = g.op("Add", asks, added)
        x = x if positions == "every second query" else str(out)
    folder = Path("elsewhere")
    folder.mkdir()
    g.save(folder, str(out))
    shutil.copy(MINILM / "tokenizer.json", folder)
    return str(folder)


def test_without_a_head_to_open_the_largest_weight_of_a_layer_is_found_head_by_head(
    attnx: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("report", ANIMAL, "-m", "tiny-gpt", "-l", "1-2", "-o")
    monkeypatch.setattr(paging, "opened", lambda trace, columns: (1, None))
    trace = library.open("tiny-gpt", device="cpu").trace(ANIMAL, layers=[2])
    a_layer_at_a_time(monkeypatch, heads=True)
    attnx(*command, "apart.html")
    weights = trace.attentions[0].weights[0].copy()
    plain = ~np.asarray(trace.tokens.special, bool)
    chosen = _data(Path("apart.html"))["chosen"]
    look = strongest_of(trace, 0, None)
    assert (chosen["site"], chosen["head"]) == (1, look.head)
    best = np.where(plain[:, None] & plain & ~np.eye(len(plain), dtype=bool), weights, -1).max(axis=(1, 2))
    assert chosen["head"] == best.argmax()


def _alike(one: Any, two: Any, blobs: tuple[list[str], list[str]], name: str = "") -> None:
    """The same but for rounding; what is packed is compared as it is read back: [number, step], or a number."""
    if name in ("query", "key", "scores", "masked") and isinstance(two, list):
        for left, right in zip(one, two, strict=True):
            got, want = (_plane(texts[n]) * step for texts, (n, step) in zip(blobs, (left, right), strict=True))
            np.testing.assert_allclose(got, want, atol=2 * right[1] + 1e-5)
    elif name in ("thumbs", "hidden"):
        for left, right in zip(*([x] if name == "thumbs" else x for x in (one, two)), strict=True):
            assert (left is None) == (right is None)
            if right is not None:
                got, want = (
                    np.frombuffer(_bytes(texts[n]), np.uint8) for texts, n in zip(blobs, (left, right), strict=True)
                )
                np.testing.assert_allclose(got.astype(int), want.astype(int), atol=name == "thumbs")
    elif isinstance(two, dict):
        assert one.keys() == two.keys()
        for key in two.keys() - {"blobs"}:
            _alike(one[key], two[key], blobs, key)
    elif isinstance(two, list):
        assert len(one) == len(two)
        for left, right in zip(one, two, strict=True):
            _alike(left, right, blobs, name)
    elif isinstance(two, float):
        assert one == pytest.approx(two, rel=2e-4, abs=1e-5), name
    else:
        assert one == two, name


def _plane(text: str) -> np.ndarray:
    low, high = np.frombuffer(_bytes(text), np.uint8).reshape(2, -1)
    return np.stack([low, high], axis=-1).reshape(-1).view("<i2").astype(np.float64)


def _bytes(text: str) -> bytes:
    return zlib.decompress(base64.b64decode(text), -15)


def _data(path: Path) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text(encoding="utf-8"))
    assert found is not None
    out: dict[str, Any] = json.loads(found[1])
    return out
