"""A wrong reading of a model, planted, is caught by the checks; a wrong number is never shown as good."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import attnx
from attnx import formula
from attnx.cli import app as cli
from attnx.records import Attention, Site
from attnx.run.check import check
from attnx.run.read import compute
from attnx.sites.recognise import find
from tests.idioms import HEADS, SIZE, Form, build, code, save

Arrays = dict[str, np.ndarray]


def traced(form: Form, folder: Path) -> Attention:
    feed = {"x": code(2, 7)}
    if form.mask == "padding":
        keep = np.ones((2, 7), np.int64)
        keep[0, -2:] = 0
        feed["attention_mask"] = keep
    (attention,) = attnx.open(save(build(form), folder), device="cpu").trace(inputs=feed).attentions
    return attention


def arrays_of(attention: Attention) -> Arrays:
    return {q: array for q in attention.origin if (array := getattr(attention, q)) is not None}


def failed(attention: Attention, arrays: Arrays) -> set[str]:
    """Names of the checks that fail: the same ones where large matrices are checked one after another."""

    def found() -> dict[str, tuple[float, bool]]:
        made = check(attention.site, arrays, attention.origin, low=False)
        return {c.name: (pytest.approx(c.difference, rel=1e-6, abs=1e-12), c.holds) for c in made}

    whole = found()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(formula, "AT_ONCE", 1)
        apart = found()
    assert {name: (one.expected, holds) for name, (one, holds) in apart.items()} == whole
    return {name for name, (_, holds) in whole.items() if not holds}


def swap_query_and_key(a: Arrays) -> None:
    a["query"], a["key"] = a["key"], a["query"]


def half_as_many_heads(a: Arrays) -> None:
    for name in ("query", "key"):
        b, h, n, d = a[name].shape
        a[name] = a[name].transpose(0, 2, 1, 3).reshape(b, n, h // 2, 2 * d).transpose(0, 2, 1, 3)


def heads_in_another_order(a: Arrays) -> None:
    a["query"] = a["query"][:, ::-1]


def heads_and_features_mixed(a: Arrays) -> None:
    b, h, n, d = a["value"].shape
    flat = a["value"].transpose(0, 2, 1, 3).reshape(b, n, d, h)
    a["value"] = flat.transpose(0, 3, 1, 2)


def values_of_other_keys(a: Arrays) -> None:
    a["value"] = a["value"][:, :, ::-1]


def keys_moved_on(a: Arrays) -> None:
    a["key"] = np.roll(a["key"], 1, axis=2)


def softmax_over_the_queries(a: Arrays) -> None:
    a["weights"] = a["weights"].transpose(0, 1, 3, 2)


def mask_missed(a: Arrays) -> None:
    a["masked"] = a["scaled"]


def scale_off(factor: float) -> object:
    def change(a: Arrays) -> None:
        a["scaled"] = a["scaled"] * np.float32(factor)

    return change


@pytest.mark.parametrize(
    ("change", "mask", "caught"),
    [
        (swap_query_and_key, "none", "query x key = scores"),
        (half_as_many_heads, "none", "query x key = scores"),
        (heads_in_another_order, "none", "query x key = scores"),
        (keys_moved_on, "none", "query x key = scores"),
        (heads_and_features_mixed, "none", "weights x value = context"),
        (values_of_other_keys, "none", "weights x value = context"),
        (softmax_over_the_queries, "causal_where", "rows sum to 1"),
        (softmax_over_the_queries, "none", "weights = softmax(masked)"),
        (mask_missed, "causal_where", "weights = softmax(masked)"),
        (scale_off(2.0), "none", "masked has the scale of scaled"),
        (scale_off(0.25), "causal_add", "masked has the scale of scaled"),
        (scale_off(-1.0), "causal_where", "masked has the scale of scaled"),
        (scale_off(1.01), "padding", "masked has the scale of scaled"),
    ],
)
def test_a_wrong_reading_fails_its_check(change: object, mask: str, caught: str, tmp_path: Path) -> None:
    attention = traced(Form(mask=mask), tmp_path)
    arrays = arrays_of(attention)
    assert failed(attention, arrays) == set()  # as it is, everything holds
    change(arrays)  # type: ignore[operator]
    assert caught in failed(attention, arrays)
    checks = check(attention.site, arrays, attention.origin, low=False)
    assert not replace(attention, checks=checks).trusted


@pytest.mark.parametrize("factor", [2.0, 0.5, SIZE**0.5])
@pytest.mark.parametrize(
    "form", [Form(), Form(scale="mul", mask="causal_add"), Form(softcap=8.0, scale="mul")], ids=str
)
def test_a_site_with_a_wrong_scale_is_not_trusted(form: Form, factor: float, tmp_path: Path) -> None:
    attention = traced(form, tmp_path)
    assert isinstance(attention.site.scale, float)
    site = replace(attention.site, scale=attention.site.scale * factor)
    arrays = {q: a for q, a in arrays_of(attention).items() if q != "scaled" and (site.softcap or q != "capped")}
    origin = {q: o for q, o in attention.origin.items() if q in arrays}
    compute(site, arrays, origin, arrays.keys() | {"scaled", "capped"})
    caught = "capped = softcap(scaled)" if site.softcap else "masked has the scale of scaled"
    assert caught in {c.name for c in check(site, arrays, origin, low=False) if not c.holds}


def test_numbers_that_fail_are_not_shown_as_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command line, with a scale that recognition missed by a factor."""
    from attnx.run import read as tracing

    real = tracing.compute

    def wrong(site: object, arrays: Arrays, origin: object, quantities: object) -> None:
        real(replace(site, scale=site.scale * 2), arrays, origin, quantities)  # type: ignore[type-var, attr-defined, arg-type]
        if "scaled" in arrays:
            arrays["scaled"] = arrays["scores"] * np.float32(site.scale * 2)  # type: ignore[attr-defined]

    monkeypatch.setattr("attnx.run.read.compute", wrong)
    onnx.save(build(Form()), tmp_path / "m.onnx")
    np.savez(tmp_path / "feed.npz", x=code(1, 5))
    cli.run(["trace", str(tmp_path / "m.onnx"), "--inputs", str(tmp_path / "feed.npz")])
    out = capsys.readouterr().out
    assert "masked has the scale of scaled: does not hold" in out


def test_padding_has_no_weight(tmp_path: Path) -> None:
    attention = traced(Form(mask="padding"), tmp_path)
    weights = attention.need("weights")
    assert not weights[0, :, :, -2:].any()
    np.testing.assert_allclose(weights[0, :, :, :-2].sum(-1), 1, atol=1e-5)
    assert weights[1, :, :, -2:].any()


def test_sites_stand_in_the_order_of_the_data_not_of_the_file(tmp_path: Path) -> None:
    """Three layers, named backwards and written in a shuffled order."""
    rng = np.random.default_rng(0)
    nodes, weights, x = [], [], "x"
    for layer in range(3):
        name = f"layer_{9 - layer}"
        for c in "qkv":
            tensor = rng.standard_normal((16, 16)).astype(np.float32)
            weights.append(numpy_helper.from_array(tensor, f"{name}/{c}w"))
            nodes.append(helper.make_node("MatMul", [x, f"{name}/{c}w"], [f"{name}/{c}"], name=f"{name}/m{c}"))
        nodes += [
            helper.make_node("Transpose", [f"{name}/k"], [f"{name}/kt"], name=f"{name}/t", perm=[0, 2, 1]),
            helper.make_node("MatMul", [f"{name}/q", f"{name}/kt"], [f"{name}/s"], name=f"{name}/qk"),
            helper.make_node("Softmax", [f"{name}/s"], [f"{name}/p"], name=f"{name}/softmax", axis=-1),
            helper.make_node("MatMul", [f"{name}/p", f"{name}/v"], [f"{name}/y"], name=f"{name}/pv"),
        ]
        x = f"{name}/y"
    random.Random(5).shuffle(nodes)
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b", "s", 16])],
        [helper.make_tensor_value_info(x, TensorProto.FLOAT, None)], weights,
    )  # fmt: skip
    path = tmp_path / "m.onnx"
    path.write_bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    )
    sites = find(path).sites
    assert [s.node for s in sites] == ["layer_9/softmax", "layer_8/softmax", "layer_7/softmax"]
    assert [(s.index, s.layer) for s in sites] == [(0, 0), (1, 1), (2, 2)]


def shown(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, object]:
    capsys.readouterr()
    assert cli.run([*args, "--json"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_merged_words_are_counted_once(capsys: pytest.CaptureFixture[str]) -> None:
    text = "The unbelievably defenestrated bank refused."
    pieces = shown(capsys, "inspect", text, "--layer", "2")
    words = shown(capsys, "inspect", text, "--layer", "2", "--words")
    groups = [*pieces["tokens"]["words"]]  # type: ignore[index]
    assert len(groups) > len(words["heads"][0]["queries"])  # type: ignore[index] # some word is split
    for one, merged in zip(pieces["heads"], words["heads"], strict=True):  # type: ignore[arg-type]
        values = np.array(merged["values"])
        np.testing.assert_allclose(values.sum(-1), 1, atol=1e-4)
        plain = np.array(one["values"])
        keys = [i for i, g in enumerate(groups) if g is not None and groups.count(g) > 1]
        at = sorted({g for g in groups if g is not None and groups.count(g) > 1})
        assert values[0, 1 + at[0]] == pytest.approx(plain[0, [k for k in keys if groups[k] == at[0]]].sum(), abs=1e-4)


def test_a_mean_of_heads_says_that_it_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    document = shown(capsys, "flow", "It was tired.")
    assert "mean of its heads" in json.dumps(document)


def test_heads_are_as_many_as_were_planted(tmp_path: Path) -> None:
    for layout, kv in (("bhqd", HEADS), ("merged", HEADS), ("grouped", 2), ("grouped", 1), ("einsum", HEADS)):
        attention = traced(Form(layout=layout, kv_heads=kv), tmp_path)
        assert (attention.site.heads, attention.site.kv_heads, attention.site.head_size) == (HEADS, kv, SIZE)


# A wrong reading of one layer of the bundled model, through every command that shows what it touches

SENTENCE = "The animal didn't cross the street because it was too tired."


def scale_missed(site: Site) -> Site:
    assert isinstance(site.scale, float)
    return replace(site, scale=site.scale * 2)


def swapped(site: Site) -> Site:
    query, key = site.places["query"], site.places["key"]
    there = {
        "query": replace(key, layout=key.layout.replace("k", "q")),
        "key": replace(query, layout=query.layout.replace("q", "k")),
    }
    return replace(site, places={**site.places, **there})


def key_for_value(site: Site) -> Site:
    return replace(site, places={**site.places, "value": site.places["key"]})


def scores_for_weights(site: Site) -> Site:
    return replace(site, places={**site.places, "weights": site.places["masked"]})


LIES = {
    scale_missed: [
        ["inspect", "--layer", "2", "--stage", "scaled"], ["inspect", "-H", "2.1", "--stage", "scaled"], ["scale"],
        ["scale", "-H", "2.1"], ["qkv", "-H", "2.1", "-q", "it"], ["report"], ["trace"], ["diff"],
    ],
    swapped: [
        ["inspect", "-H", "2.1", "--stage", "scores"], ["scale"], ["qkv", "-H", "2.1", "-q", "it"], ["report"],
        ["trace"], ["diff"],
    ],
    key_for_value: [["qkv", "-H", "2.1", "-q", "it"], ["trace"]],
    scores_for_weights: [
        ["inspect"], ["inspect", "--layer", "2"], ["inspect", "-H", "2.1"], ["inspect", "-q", "it"], ["coref"],
        ["inspect", "--view", "grid"], ["inspect", "--mean", "heads", "--layer", "2"], ["heads"], ["flow"], ["report"],
        ["flow", "-q", "it"], ["mask"], ["qkv", "-H", "2.1", "-q", "it"], ["trace"], ["diff"], ["scan"],
    ],
}  # fmt: skip
SAID = re.compile("NOT TRUSTED|not trusted|does not hold|do not hold")


def line(args: list[str]) -> list[str]:
    command, *rest = args
    given = {
        "trace": ["minilm", SENTENCE],
        "diff": ["minilm", "minilm", SENTENCE],
        "scan": ["c.txt", "-o", "x.parquet"],
    }
    return [command, *given.get(command, [SENTENCE]), *rest]


@pytest.fixture
def lying(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Callable[[Site], Site]], None]:
    """Makes recognition wrong in layer 2."""
    from attnx.sites import recognise as sites

    real = sites.find
    monkeypatch.setenv("ATTNX_CACHE", "off")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.txt").write_text(f"{SENTENCE}\nIt slept.\n", encoding="utf-8")

    def plant(lie: Callable[[Site], Site]) -> None:
        def find_wrongly(*args: Any, **more: Any) -> Any:
            found = real(*args, **more)
            return replace(found, sites=tuple(lie(s) if s.layer == 2 else s for s in found.sites))

        monkeypatch.setattr(sites, "find", find_wrongly)

    return plant


CASES = [(lie, args) for lie, lines in LIES.items() for args in lines]


@pytest.mark.parametrize(("lie", "args"), CASES, ids=lambda v: " ".join(v) if isinstance(v, list) else v.__name__)
def test_every_command_that_is_touched_says_so(
    lie: Callable[[Site], Site], args: list[str], lying: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run([*line(args), *(["--force"] if args[0] == "scan" else [])]) == 0  # as it is, nothing is said
    told = capsys.readouterr()
    assert not SAID.search(told.out + told.err), told.out + told.err
    lying(lie)
    forced = ["--force"] if args[0] in ("scan", "report") else []
    code_ = cli.run([*line(args), *forced])
    told = capsys.readouterr()
    assert code_ in (0, 3)
    assert SAID.search(told.out + told.err), told.out + told.err
    assert "L2" in told.out + told.err
    if code_ == 0 and args[0] not in ("report", "scan"):  # as JSON it is told as well
        cli.run([*line(args), "--json"])
        told = capsys.readouterr()
        marked = re.search('"trusted":false|"holds":false', told.out)
        assert marked or SAID.search(told.out + told.err), told.out[:2000] + told.err


def test_a_layer_that_is_not_trusted_is_in_no_page_and_no_scan(
    lying: Callable[..., None], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    lying(scores_for_weights)
    assert cli.run(["scan", "c.txt", "-o", "x.parquet"]) == 0
    assert cli.run(["report", SENTENCE, "-o", "x.html"]) == 0
    capsys.readouterr()
    assert set(parquet.read_table("x.parquet").column("layer").to_pylist()) == {f"L{i}" for i in (0, 1, 3, 4, 5)}
    page = (tmp_path / "x.html").read_text(encoding="utf-8")
    assert re.findall(r'"label":\s*"(L\d)"', page) == ["L0", "L1", "L3", "L4", "L5"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["inspect", "--mean", "heads", "--layer", "2"], "mean"), (["inspect", "--mean", "all"], "mean"),
        (["inspect", "--max", "heads", "--layer", "2"], "largest|max"), (["flow", "--explain"], "mean"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_what_is_an_average_is_called_one(
    args: list[str], said: str, form: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run([*line(args), *form]) == 0
    assert re.search(said, capsys.readouterr().out)


def test_both_the_json_and_the_title_say_so(lying: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    lying(scores_for_weights)
    document = shown(capsys, "trace", "minilm", SENTENCE)
    trusted = [site["trusted"] for site in document["sites"]]  # type: ignore[attr-defined]
    assert trusted == [True, True, False, True, True, True]
    assert cli.run(["inspect", SENTENCE, "-H", "2.1", "--view", "heatmap"]) == 0
    assert re.search(r"^minilm · L2 H1.*NOT TRUSTED", capsys.readouterr().out, re.M)
