"""`attnx inspect`: every number against onnxruntime alone, or against the float32 weights in plain numpy."""

import io
import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console

import attnx as package
from attnx.cli.wording import worded
from attnx.records import SHOWN, Attention, Check, Site, Tokens, Trace
from attnx.run import pipeline
from attnx.run.passes import Pass
from attnx.session.ort import has_driver
from attnx.session.protocol import Wanted
from attnx.study.attention_kind import choose_sort
from attnx.study.inspection import inspect
from attnx.study.presentation import render
from attnx.study.request import ask
from tests.cli.conftest import ANIMAL, BANK, Oracle, Run

FLOAT32 = np.load(Path(__file__).parents[1] / "scripts" / "animal_it_float32.npy")
"""[layer,H,K]: the row of `it` in ANIMAL, from the float32 weights in plain numpy."""
IT, ANIMAL_AT = 10, 2


def numbers(line: str) -> list[float]:
    return [float(text) for text in re.findall(r"\d+\.\d+", line)]


# The overview


def test_overview_shows_that_it_looks_at_animal(attnx: Run) -> None:
    line = next(line for line in attnx("inspect", ANIMAL).out.splitlines() if line.startswith("10 it"))
    assert re.match(r"10 it +→ animal 0\.67 .* L5 H11", line)
    assert FLOAT32[5, 11, ANIMAL_AT] == pytest.approx(0.673, abs=0.0005)


def test_overview_targets_are_the_last_layers_largest(attnx: Run, oracle: Callable[[str], Oracle]) -> None:
    ours = attnx("inspect", ANIMAL, "--json").document["overview"]["looks"]
    last = oracle(ANIMAL).weights[5]
    assert [look["query"] for look in ours] == list(range(1, 15))
    for look in ours:
        row = last[:, look["query"]].copy()
        row[:, [0, 15, look["query"]]] = -1
        best = row.max(axis=0)
        keys = np.argsort(-best)[:3]
        assert [t["key"] for t in look["targets"]] == keys.tolist()
        assert [t["head"] for t in look["targets"]] == row[:, keys].argmax(axis=0).tolist()
        np.testing.assert_allclose([t["value"] for t in look["targets"]], best[keys], atol=1e-5)


def test_overview_points_out_heads(attnx: Run, oracle: Callable[[str], Oracle]) -> None:
    worth = attnx("inspect", ANIMAL, "--json").document["overview"]["worth"]
    weights = oracle(ANIMAL).weights
    plain = np.arange(1, 15)
    sharp = weights[:, :, plain][..., plain].max(axis=-1).mean(axis=-1)
    order = np.dstack(np.unravel_index(np.argsort(-sharp, axis=None), sharp.shape))[0]
    assert [(w["layer"], w["head"]) for w in worth["most confident"]] == [tuple(at) for at in order[:4].tolist()]
    np.testing.assert_allclose(
        [w["value"] for w in worth["most confident"]], np.sort(sharp, axis=None)[::-1][:4], atol=1e-5
    )
    share = weights.sum(axis=2) / 16
    words, special = share[..., plain].max(axis=-1), share[..., [0, 15]].max(axis=-1)
    for name, values in (("most on one token", words), ("parked", special)):
        np.testing.assert_allclose([w["value"] for w in worth[name]], np.sort(values, axis=None)[::-1][:3], atol=1e-5)
    assert worth["most on one token"][0]["label"] == "L5 H11"
    assert worth["most on one token"][0]["piece"] == "animal"


def test_overview_adds_up_where_the_weight_goes(attnx: Run, oracle: Callable[[str], Oracle]) -> None:
    mass = attnx("inspect", ANIMAL, "--json").document["overview"]["mass"]
    share = oracle(ANIMAL).weights.mean(axis=(0, 1, 2))
    want = {"[CLS] (parked)": share[0], "[SEP]": share[15], "punctuation": share[[4, 14]].sum()}
    want["words"] = 1 - sum(want.values())
    assert dict(zip(mass["axes"][0]["labels"], mass["values"], strict=True)) == pytest.approx(want, abs=1e-5)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (160, 50)])
def test_overview_fits_the_screen(monkeypatch: pytest.MonkeyPatch, width: int, height: int) -> None:
    monkeypatch.setattr(
        "attnx.study.presentation.get_terminal_size", lambda _: __import__("os").terminal_size((width, height))
    )
    asked = ask()
    model = package.open()
    sort, others = choose_sort(model.sites, asked)
    shown = inspect(model.trace(ANIMAL, quantities=asked.quantities), asked, sort, others)
    file = io.StringIO()
    console = Console(file=file, width=width, height=height, force_terminal=True, color_system="truecolor")
    for renderable in render(shown):
        console.print(renderable)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", file.getvalue()).splitlines()
    assert len(lines) < height
    assert max(map(cell_len, lines)) <= width
    assert any(line.startswith("10 it") and "animal 0.67" in line for line in lines)
    assert not any("more" in line for line in lines)


# One token, one head, a layer


def test_query_ranks_heads_by_the_float32_numbers(attnx: Run) -> None:
    ranking = attnx("inspect", ANIMAL, "--query", "it", "--top", "72", "--json").document["ranking"]
    want = FLOAT32.copy()
    want[..., [0, 15]] = -1
    assert len(ranking) == 72
    for entry in ranking:
        row = want[entry["layer"], entry["head"]]
        assert entry["value"] == pytest.approx(row.max(), abs=0.002)
        assert row[entry["key"]] == pytest.approx(row.max(), abs=0.002)
    assert [e["value"] for e in ranking] == sorted((e["value"] for e in ranking), reverse=True)


def test_query_prints_what_json_holds(attnx: Run) -> None:
    lines = attnx("inspect", ANIMAL, "--query", "it", "--top", "5").out.splitlines()
    assert re.match(r" L5 H11 → animal +0\.67 ", lines[6])
    assert lines[:2] == ["minilm · 16 tokens · cpu", "weights from it@10"]


@pytest.mark.parametrize("query", ["it", "IT", "10", "@10", "it@10"])
def test_query_by_text_or_position(attnx: Run, query: str) -> None:
    heads = attnx("inspect", ANIMAL, "--head", "5.11", "--query", query, "--json").document["heads"]
    assert [h["queries"] for h in heads] == [[10]]
    np.testing.assert_allclose(heads[0]["values"], FLOAT32[5, 11][None], atol=0.002)


def test_repeated_query_lists_the_choices(attnx: Run) -> None:
    err = attnx("inspect", ANIMAL, "--head", "5.11", "--query", "the", code=2).err
    assert "the" in err
    assert "@1" in err
    assert "the@7" in err


@pytest.mark.parametrize(("text", "word", "at"), [
    (BANK, "defenestrated", [2, 3, 4, 5]), (ANIMAL, "didn't", [3, 4, 5]), (ANIMAL, "didn't@3", [3, 4, 5]),
    ("동물은 길을", "동물은", list(range(1, 10))),
])  # fmt: skip
def test_a_word_of_several_pieces_is_meant_whole(
    text: str, word: str, at: list[int], attnx: Run, oracle: Callable[[str], Oracle]
) -> None:
    got = attnx("inspect", text, "--head", "5.11", "--query", word, "--json").document
    assert got["query"]["positions"] == at
    row = oracle(text).weights[5, 11, at].mean(0)
    np.testing.assert_allclose(got["heads"][0]["values"][0], row, atol=1e-5)
    assert f"from {len(at)} tokens together: the mean of their rows" in got["notes"]


def test_head_table_holds_the_weights(attnx: Run, oracle: Callable[[str], Oracle]) -> None:
    lines = attnx("inspect", "It was tired.", "--head", "5.11").out.splitlines()
    rows = [numbers(line) for line in lines if re.match(r"\d ", line)]
    want = oracle("It was tired.").weights[5, 11]
    assert len(rows) == 6
    np.testing.assert_allclose(rows, want, atol=0.00501)


@pytest.mark.parametrize("head", ["5.11", "L5H11", "l5 h11"])
def test_spellings_of_a_head(attnx: Run, head: str) -> None:
    assert attnx("inspect", ANIMAL, "--head", head, "--query", "it").out.startswith("minilm · L5 H11 · weights ")


def test_heads_may_repeat_and_go_with_layers(attnx: Run) -> None:
    labels = [h["label"] for h in attnx("inspect", ANIMAL, "-H", "5.11", "-H", "3.1", "--json").document["heads"]]
    assert labels == ["L3 H1", "L5 H11"]
    labels = [h["label"] for h in attnx("inspect", ANIMAL, "-l", "0,4-5", "-H", "2", "--json").document["heads"]]
    assert labels == ["L0 H2", "L4 H2", "L5 H2"]


def test_layer_and_query_give_a_row_a_head(attnx: Run, oracle: Callable[[str], Oracle]) -> None:
    done = attnx("inspect", "It was tired.", "--layer", "5", "--query", "it")
    rows = [numbers(line) for line in done.out.splitlines() if line.startswith("L5 H")]
    np.testing.assert_allclose(rows, oracle("It was tired.").weights[5, :, 1], atol=0.00501)


def test_top_keeps_the_largest(attnx: Run) -> None:
    (head,) = attnx("inspect", ANIMAL, "-H", "5.11", "-q", "it", "--top", "3", "--json").document["heads"]
    order = np.argsort(-FLOAT32[5, 11])[:3]
    assert [t["key"] for t in head["top"][0]] == order.tolist()
    assert [t["piece"] for t in head["top"][0]] == ["animal", "[CLS]", "tired"]
    out = attnx("inspect", ANIMAL, "-H", "5.11", "-q", "it", "--top", "3").out
    assert [line.split()[1] for line in out.splitlines()[1:4]] == ["animal", "[CLS]", "tired"]
    assert "13 more" in out


def test_grid_as_json_is_every_head(attnx: Run, oracle: Callable[[str], Oracle]) -> None:
    heads = attnx("inspect", "It was tired.", "--view", "grid", "--json").document["heads"]
    values = np.array([h["values"] for h in heads]).reshape(6, 12, 6, 6)
    np.testing.assert_allclose(values, oracle("It was tired.").weights, atol=1e-5)


@pytest.mark.parametrize("view", ["grid", "heatmap", "table", "lines"])
def test_views_of_a_layer(attnx: Run, view: str) -> None:
    out = attnx("inspect", "It was tired.", "--layer", "5", "--view", view).out
    assert "tired" in out or view == "grid"
    assert max(map(cell_len, out.splitlines())) <= 80


@pytest.mark.parametrize(("scale", "says"), [("log", "log"), ("row", "row's largest")])
def test_colour_scales(attnx: Run, scale: str, says: str) -> None:
    for view in ("grid", "heatmap", "table"):
        assert says in attnx("inspect", "It was tired.", "--layer", "5", "--view", view, "--scale", scale).out


# Stages


def test_scores_and_scaled_are_what_the_graph_computes(attnx: Run, oracle: Callable[[str], Oracle]) -> None:
    want = oracle(BANK).scores[5, 11]
    for stage, factor in (("scores", 1.0), ("scaled", 32**-0.5), ("masked", 32**-0.5)):
        (head,) = attnx("inspect", BANK, "-H", "5.11", "--stage", stage, "--json").document["heads"]
        np.testing.assert_allclose(head["values"], want * factor, atol=1e-4)
        assert head["trusted"] is True


def test_stage_needs_no_other_arrays_than_its_own_and_its_checks(monkeypatch: pytest.MonkeyPatch, attnx: Run) -> None:
    asked: list[Wanted] = []
    original = pipeline.find

    def spy(one: Pass) -> pipeline.Chosen:
        asked.append(one.wanted)
        return original(one)

    monkeypatch.setattr(pipeline, "find", spy)
    attnx("inspect", ANIMAL, "-H", "5.11")
    attnx("inspect", ANIMAL, "-l", "2-3", "--stage", "scores")
    assert asked[0].layers == (5,)
    assert set(asked[0].quantities) == {"weights", "masked"}
    assert asked[1].layers == (2, 3)
    assert set(asked[1].quantities) == {"query", "key", "scores"}


# Words, muting, means


def groups(pieces: list[str]) -> list[list[int]]:
    out: list[list[int]] = []
    for at, piece in enumerate(pieces):
        if piece.startswith("##"):
            out[-1].append(at)
        else:
            out.append([at])
    return out


def test_words_sum_to_and_average_from(attnx: Run, oracle: Callable[[str], Oracle]) -> None:
    done = attnx("inspect", BANK, "-H", "2.8", "--words", "--json").document
    found = oracle(BANK)
    words = groups(found.pieces)
    assert any(len(word) > 1 for word in words)
    assert done["tokens"]["pieces"] == ["[CLS]", "the", "defenestrated", "bank", "refused", ".", "[SEP]"]
    weights = found.weights[2, 8]
    want = [[np.mean([weights[q, list(k)].sum() for q in query]) for k in words] for query in words]
    np.testing.assert_allclose(done["heads"][0]["values"], want, atol=1e-5)


def test_mute_scales_what_is_left(attnx: Run, oracle: Callable[[str], Oracle]) -> None:
    done = attnx("inspect", ANIMAL, "-H", "5.11", "-q", "it", "--mute", "--json").document
    row = oracle(ANIMAL).weights[5, 11, IT, 1:15]
    assert done["muted"] == [0, 15]
    assert done["heads"][0]["keys"] == list(range(1, 15))
    np.testing.assert_allclose(done["heads"][0]["values"][0], row / row.sum(), atol=1e-5)
    assert any("sum to 1" in note for note in done["notes"])


def test_mute_of_scores_only_leaves_out(attnx: Run, oracle: Callable[[str], Oracle]) -> None:
    done = attnx("inspect", ANIMAL, "-H", "5.11", "-q", "it", "--mute", "--stage", "scores", "--json").document
    np.testing.assert_allclose(done["heads"][0]["values"][0], oracle(ANIMAL).scores[5, 11, IT, 1:15], atol=1e-4)
    assert not any("sum to 1" in note for note in done["notes"])


@pytest.mark.parametrize("how", ["mean", "max"])
@pytest.mark.parametrize(("over", "axes", "count"), [("heads", 1, 6), ("layers", 0, 12), ("all", (0, 1), 1)])
def test_means_and_maxima(
    attnx: Run, oracle: Callable[[str], Oracle], how: str, over: str, axes: Any, count: int
) -> None:
    heads = attnx("inspect", "It was tired.", f"--{how}", over, "--json").document["heads"]
    want = getattr(np, how)(oracle("It was tired.").weights, axis=axes)
    np.testing.assert_allclose(np.array([h["values"] for h in heads]), want.reshape(count, 6, 6), atol=1e-5)
    assert all(how in h["label"] for h in heads)


def test_a_mean_says_what_it_is(attnx: Run) -> None:
    assert attnx("inspect", ANIMAL, "-l", "5", "--mean", "heads").out.startswith("minilm · L5 mean of 12 heads")
    out = attnx("inspect", ANIMAL, "--max", "all", "-q", "it").out
    assert out.startswith("minilm · max of 72 heads in 6 layers")


# Where the text comes from


def test_stdin(attnx: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(f"{ANIMAL}\n".encode())))
    assert attnx("inspect", "-", "-q", "it", "--json").document["tokens"]["text"] == ANIMAL


def test_file_gives_a_document_a_line(attnx: Run, tmp_path: Path) -> None:
    (tmp_path / "texts").write_text("It was.\n\n  \nHe is.\r\n", encoding="utf-8")
    documents = [json.loads(line) for line in attnx("inspect", "--file", "texts", "--jsonl").out.splitlines()]
    assert [d["tokens"]["text"] for d in documents] == ["It was.", "He is."]
    assert "2" in attnx("inspect", "--file", "texts", "--json", code=2).err
    assert attnx("inspect", "--file", "texts").out.count("where each token looks") == 2


def test_pair_has_two_segments(attnx: Run) -> None:
    tokens = attnx("inspect", "It was.", "--pair", "He is.", "--json").document["tokens"]
    assert tokens["type_ids"] == [0, 0, 0, 0, 0, 1, 1, 1, 1]
    assert tokens["pieces"][4] == "[SEP]"


def test_ids(attnx: Run, oracle: Callable[[str], Oracle]) -> None:
    done = attnx("inspect", "--ids", "101,2009,2001,5458,1012,102", "-H", "5.11", "--json").document
    assert done["tokens"]["pieces"] == ["[CLS]", "it", "was", "tired", ".", "[SEP]"]
    np.testing.assert_allclose(done["heads"][0]["values"], oracle("It was tired.").weights[5, 11], atol=1e-5)


def test_inputs(attnx: Run, tmp_path: Path, oracle: Callable[[str], Oracle]) -> None:
    ids = np.array([[101, 2009, 2001, 5458, 1012, 102]])
    np.savez(tmp_path / "feed.npz", input_ids=ids, attention_mask=ids * 0 + 1, token_type_ids=ids * 0)
    done = attnx("inspect", "--inputs", "feed.npz", "-H", "5.11", "--json").document
    np.testing.assert_allclose(done["heads"][0]["values"], oracle("It was tired.").weights[5, 11], atol=1e-5)


def test_unknown_pieces_and_truncation_are_said_on_stderr(attnx: Run) -> None:
    done = attnx("inspect", "The \U00013000 crossed.", "-H", "5.11", "-q", "crossed")
    assert "unknown" in done.err
    assert "[UNK]" in done.err
    assert "unknown to" not in done.out
    assert "cut to 512 tokens" in attnx("inspect", "tired " * 600, "-l", "0", "-H", "0", "-q", "5").err


# Files


def test_save(attnx: Run, tmp_path: Path, oracle: Callable[[str], Oracle]) -> None:
    command = ("inspect", "It was tired.", "-H", "5.11", "--save")
    shown = attnx(*command[:-1]).out
    done = attnx(*command, "head.txt")
    assert done.out == ""
    assert "wrote head.txt" in done.err
    assert numbers((tmp_path / "head.txt").read_text(encoding="utf-8")) == numbers(shown)
    attnx(*command, "head.svg")
    assert "<svg" in (tmp_path / "head.svg").read_text(encoding="utf-8")
    attnx(*command, "head.npz")
    np.testing.assert_allclose(
        np.load(tmp_path / "head.npz")["values"], oracle("It was tired.").weights[5, 11], atol=1e-5
    )
    attnx(*command, "head.json")
    assert json.loads((tmp_path / "head.json").read_bytes())["heads"][0]["label"] == "L5 H11"
    attnx(*command, "head.png")
    assert (tmp_path / "head.png").read_bytes().startswith(b"\x89PNG")


def test_save_replaces_only_by_force(attnx: Run, tmp_path: Path) -> None:
    (tmp_path / "head.txt").write_text("mine")
    assert "--force" in attnx("inspect", "It.", "--save", "head.txt", code=2).err
    assert (tmp_path / "head.txt").read_text() == "mine"
    attnx("inspect", "It.", "--save", "head.txt", "--force")
    assert "heads worth a look" in (tmp_path / "head.txt").read_text(encoding="utf-8")


# What goes wrong


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        ((), 2, "no text"),
        (("It.", "--file", "x"), 2, "--file"),
        (("It.", "--layer", "6"), 2, "layers 0 to 5"),
        (("It.", "--layer", "x"), 2, "--layer 'x'"),
        (("It.", "--layer", "3-1"), 2, "3-1"),
        (("It.", "--head", "5.12"), 2, "heads 0 to 11"),
        (("It.", "--head", "9.1"), 2, "layers 0 to 5"),
        (("It.", "--head", "a.b"), 2, "5.11"),
        (("It.", "--query", "dog"), 2, "there is no token"),
        (("It.", "--query", "99"), 2, "position 99"),
        (("It.", "--stage", "logits"), 2, "scores, scaled"),
        (("It.", "--scale", "cubic"), 2, "linear, log, row"),
        (("It.", "-H", "5.11", "--stage", "scores", "--scale", "log"), 2, "--scale linear"),
        (("It.", "--view", "pie"), 2, "overview, grid"),
        (("It.", "--view", "row"), 2, "--query"),
        (("It.", "--view", "heatmap"), 2, "--head 5.11"),
        (("It.", "--words", "--stage", "scores"), 2, "--words"),
        (("It.", "--mean", "heads", "--max", "heads"), 2, "--mean and --max"),
        (("It.", "--mean", "rows"), 2, "heads, layers, all"),
        (("It.", "--site", "cross"), 2, "encoder"),
        (("It.", "--top", "0"), 2, "--top"),
        (("It.", "--device", "tpu"), 2, "cpu"),
        (("It.", "--pair"), 2, "--pair"),
        (("It.", "-m", "minlm"), 3, "Did you mean minilm"),
        (("It.", "-m", "no.onnx"), 3, "no.onnx"),
        (("It.", "--tokenizer", "nowhere"), 4, "nowhere"),
        (("--file", "nowhere"), 4, "nowhere"),
        (("--ids", "1,x"), 4, "x"),
        (("--ids", "1,99999999"), 4, "99999999"),
        (("--inputs", "nowhere.npz"), 4, "nowhere.npz"),
        (("It.", "--set", "x"), 2, "input_ids"),
        (("It.", "--save", "x.doc"), 2, ".svg"),
    ],
)
def test_mistakes(attnx: Run, args: tuple[str, ...], code: int, says: str) -> None:
    done = attnx("inspect", *args, code=code)
    assert done.out == ""
    assert says in done.err
    assert done.err.startswith("attnx: ")
    assert "\n  " in done.err, "no hint"
    assert "Traceback" not in done.err


@pytest.mark.skipif(has_driver(), reason="there is a GPU")
def test_cuda_is_not_replaced_by_the_cpu_in_silence(attnx: Run) -> None:
    err = attnx("inspect", "It.", "--device", "cuda", code=5).err
    assert "--device cuda" in err
    assert "--device cpu" in err or "[cuda]'" in err
    assert attnx("inspect", "It.", "--device", "auto", "--json").document["device"] == "cpu"


def test_text_cannot_move_the_cursor(attnx: Run) -> None:
    text = "It \x1b[31m was\x07 \u202e tired \x9b2J."
    for view in ("overview", "grid", "table", "heatmap", "lines"):
        args = () if view in ("overview", "grid") else ("-H", "5.11")
        out = attnx("inspect", text, "--view", view, *args).out
        assert not set(out) & {"\x1b", "\x07", "\x9b", "\u202e"}


def test_markup_in_a_text_is_text(attnx: Run) -> None:
    out = attnx("inspect", "[bold]it[/bold] [/b]", "-H", "5.11").out
    assert "bold" in out


def test_wide_characters_keep_columns_straight(attnx: Run) -> None:
    lines = attnx("inspect", "고양이 日本 cat.", "-H", "5.11").out.splitlines()
    table = [line for line in lines if re.match(r" ?\d+ ", line)]
    assert len({cell_len(line) for line in table}) == 1


# Sites that cannot be trusted, and models with several sorts of attention


def tokens(*pieces: str) -> Tokens:
    n = len(pieces)
    return Tokens(np.arange(n), pieces, ((0, 0),) * n, tuple(range(n)), (False,) * n, (True,) * n)


def attention(index: int, layer: int, component: Any, kind: Any, q: int, k: int, holds: bool = True) -> Attention:
    weights = np.random.default_rng(index).dirichlet(np.ones(k), (1, 2, q)).astype(np.float32)
    site = Site(index, layer, component, kind, "Softmax", f"n{index}", 2, 2, 4, 0.5)
    check = Check("weights = softmax(masked)", 0.0 if holds else 0.25, 1e-4)
    return Attention(site, weights=weights, masked=np.log(weights), origin={"weights": "tapped"}, checks=(check,))


def encoder_decoder(holds: bool = True) -> Trace:
    sites = (
        attention(0, 0, "encoder", "self", 4, 4),
        attention(1, 0, "decoder", "self", 3, 3),
        attention(2, 0, "decoder", "cross", 3, 4, holds),
        attention(3, 1, "decoder", "cross", 3, 4),
    )
    return Trace("m", "cpu", tokens("x", "y", "z"), tokens("a", "b", "c", "d"), sites)


@pytest.mark.parametrize(
    ("site", "sort", "indices"),
    [
        (None, "cross", [2, 3]),
        ("cross", "cross", [2, 3]),
        ("decoder.cross", "cross", [2, 3]),
        ("decoder", "decoder", [1]),
        ("decoder.self", "decoder", [1]),
        ("Encoder", "encoder", [0]),
    ],
)
def test_sorts_of_attention(site: str | None, sort: str, indices: list[int]) -> None:
    trace, asked = encoder_decoder(), ask(site=site, heads=["0"])
    chosen, others = choose_sort([a.site for a in trace.attentions], asked)
    shown = inspect(trace, asked, chosen, others)
    assert shown.sort == sort
    assert [p.site.index for p in shown.picks if p.site] == indices
    assert {sort, *others} == {"encoder", "decoder", "cross"}
    assert shown.picks[0].matrix.keys.labels == (("x", "y", "z") if sort == "decoder" else ("a", "b", "c", "d"))
    assert any("--site" in worded(note) for note in shown.notes)


def test_a_site_that_fails_its_checks_is_left_out_of_surveys_and_marked_alone() -> None:
    trace = encoder_decoder(holds=False)
    sites = [a.site for a in trace.attentions]
    for options in ({}, {"view": "grid"}, {"query": "y"}):
        asked = ask(**options)  # type: ignore[arg-type]
        shown = inspect(trace, asked, *choose_sort(sites, asked))
        assert [a.site.index for a in shown.trace.attentions] == [3]
        assert any("L0 NOT TRUSTED" in note and "0.25" in note for note in shown.notes)
    asked = ask(heads=["0.1"])
    shown = inspect(trace, asked, *choose_sort(sites, asked))
    assert [p.trusted for p in shown.picks] == [False]
    out = io.StringIO()
    for renderable in render(shown):
        Console(file=out, width=100).print(renderable)
    assert "NOT TRUSTED" in out.getvalue().splitlines()[0]
    assert "0.25" in out.getvalue()
    asked = ask(mean="heads")
    shown = inspect(trace, asked, *choose_sort(sites, asked))
    assert [p.trusted for p in shown.picks] == [False, True]


def test_nothing_is_surveyed_where_nothing_can_be_trusted() -> None:
    trace = encoder_decoder(holds=False)
    trace = replace(trace, attentions=trace.attentions[2:3])
    from attnx.errors import UnsupportedError

    with pytest.raises(UnsupportedError, match="trusted"):
        inspect(trace, ask(), "cross")


def test_a_head_without_a_layer_says_what_it_stands_for(attnx: Run) -> None:
    said = "--head 5 names no layer: H5 of all 6 layers; one of them is --head L.5"
    assert said in attnx("inspect", "It was.", "--head", "5", "--query", "it").out.splitlines()
    assert said in attnx("inspect", "It was.", "--head", "5", "--json").document["notes"]
    for args in (("--head", "3.5"), ("--head", "5", "--layer", "3"), ("--head", "5", "--mean", "layers")):
        assert "names no layer" not in attnx("inspect", "It was.", *args, "--query", "it").out


def test_each_text_of_a_file_is_named(attnx: Run, tmp_path: Path) -> None:
    (tmp_path / "t").write_text(f"the cat sat\n\n{'the dog ' * 60}\nit slept\n", encoding="utf-8")
    done = attnx("inspect", "-f", "t", "-q", "the@1", "--top", "1", code=2)
    named = " ".join(done.out.splitlines()).split("line ")[1:]
    assert named[0].startswith("1: the cat sat")
    assert named[1].startswith("3: the dog the dog")
    assert named[1].count("the dog") < 60
    assert done.err.startswith('attnx: line 4: there is no token or word "the"')  # which text could not be shown
    assert "line 1" not in attnx("inspect", "the cat sat", "-q", "the@1", "--top", "1").out


@pytest.mark.parametrize("given", ["-", "--file"])
def test_a_null_character_does_not_vanish_unsaid(
    attnx: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    (tmp_path / "t.txt").write_bytes(b"It\0was\n")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"It\0was\n")))
    said = attnx("inspect", *(["-"] if given == "-" else ["--file", "t.txt"])).err
    assert " ".join(said.split()).count("the tokenizer drops 1 character of the text: ␀ at 2") == 1


@pytest.mark.parametrize("whole", [("--all",), ("--view", "table")])
def test_a_wide_matrix_is_folded_at_80_columns(
    attnx: Run, oracle: Callable[[str], Oracle], whole: tuple[str, ...]
) -> None:
    text = attnx("inspect", ANIMAL, "--head", "5.11", *whole).out
    assert "shown: keys" not in text
    assert all(len(line) <= 80 for line in text.splitlines())
    head, one, two = re.split(r"\n(?=query ↓ key →)|\n\n", text)
    assert head == "minilm · L5 H11 · weights"
    rows = [[numbers(line) for line in band.splitlines() if re.match(r" ?\d+ ", line)] for band in (one, two)]
    found = [[*left, *right] for left, right in zip(*rows, strict=True)]
    np.testing.assert_allclose(found, oracle(ANIMAL).weights[5, 11], atol=0.00501)


@pytest.mark.parametrize("lines", [24, 30])
def test_a_head_that_suits_no_table_on_one_screen_is_a_heatmap(
    attnx: Run, oracle: Callable[[str], Oracle], monkeypatch: pytest.MonkeyPatch, lines: int
) -> None:
    monkeypatch.setenv("LINES", str(lines))
    out = attnx("inspect", ANIMAL, "--head", "5.11").out.splitlines()
    assert len(out) <= lines - 1
    assert out[-1] == "numbers: --all"
    rows = [found for found in (re.match(r" +(\d+) .{8}(.*)", line) for line in out) if found]
    assert [int(row[1]) for row in rows] == list(range(16))
    weights = oracle(ANIMAL).weights[5, 11]
    dark = [[at for at in range(16) if row[2].ljust(32)[2 * at] in "▓█"] for row in rows]
    assert dark == [list(np.flatnonzero(row >= 0.625 * weights.max())) for row in weights]


def test_one_query_in_the_heads_of_a_layer_fits_a_screen(attnx: Run, oracle: Callable[[str], Oracle]) -> None:
    told = ("inspect", ANIMAL, "--layer", "5", "--query", "it")
    out = attnx(*told).out.splitlines()
    assert len(out) <= 23
    assert out[-1] == "numbers: --all"
    largest = [float(found[1]) for found in (re.match(r"L5 H\d+ +\S+ ([\d.]+)", line) for line in out) if found]
    np.testing.assert_allclose(largest, oracle(ANIMAL).weights[5, :, 10].max(-1), atol=0.00501)
    assert len(attnx(*told, "--all").out.splitlines()) > 23


def test_a_long_overview_says_what_was_cut_and_how_to_get_all(attnx: Run) -> None:
    args = ("inspect", "the animal saw another one " * 20, "-m", "tiny-gpt")
    lines = attnx(*args).out.splitlines()
    count = len(attnx(*args, "--json").document["overview"]["looks"])
    assert count == 101
    assert len(lines) == 23
    shown = sum("→" in line[:24] for line in lines)
    assert any(line.rstrip().startswith(f"    … and {count - shown} more tokens: --all") for line in lines)
    assert sum("→" in line[:24] for line in attnx(*args, "--all").out.splitlines()) == count


def test_explain_says_what_the_numbers_are(attnx: Run) -> None:
    first = attnx("inspect", ANIMAL, "--all").out
    told = attnx("inspect", ANIMAL, "--all", "--explain").out
    assert told.startswith(first)
    below = " ".join(told.removeprefix(first).split())
    for name in ("where each token looks", "most on one token", "confidence", "parked", "where the weight goes"):
        assert name in first
        assert f"{name}: " in below
    assert "mean over sites, heads and queries" in below


def test_the_ranking_says_how_many_heads_are_left_and_all_has_them(attnx: Run) -> None:
    args = ("inspect", ANIMAL, "--query", "it")
    few, every = (attnx(*args, *more).out.splitlines() for more in ((), ("--all",)))
    assert sum("→" in line for line in few) == 10
    assert few[-1].startswith("62 more heads: --all · ")
    assert sum("→" in line for line in every) == 72
    assert every[2:12] == few[2:12]
    assert "--all" not in every[-1]


@pytest.mark.parametrize("stage", [one for one in SHOWN if one != "bias"])  # which MiniLM lacks
def test_every_stage_is_explained(stage: str, attnx: Run) -> None:
    told = ("inspect", ANIMAL, "--head", "5.11", "--query", "it", "--stage", stage)
    last = attnx(*told, "--explain").out.removeprefix(attnx(*told).out)
    assert last.startswith(f"{stage}: ")
    assert "Vaswani et al. 2017, equation 1" in " ".join(last.split())
