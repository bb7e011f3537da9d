"""Inputs told by the graph: ids of any name, masks that keep, pad or are added; two files joined by names."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import attnx
from attnx.catalog.models import locate, own_name, pick
from attnx.errors import InputError, UnsupportedError, UsageError
from attnx.feed.inputs import is_ids, looked_up, seen_by, written
from attnx.session.ort import Slot
from attnx.tokens import from_ids
from tests.cli.conftest import attnx as attnx_command

__all__ = ["attnx_command"]

WIDTH, VOCABULARY = 8, 24
TABLE = np.random.default_rng(5).standard_normal((VOCABULARY, WIDTH)).astype(np.float32)
I64, F32, BOOL = TensorProto.INT64, TensorProto.FLOAT, TensorProto.BOOL
LOW = np.float32(-1e9)
MASKS: dict[str, tuple[int, list[tuple[str, list[str], str]], float]] = {
    "bool keeps": (BOOL, [("Where", ["wide", "scaled", "low"], "masked")], 1.0),
    "bool pads": (BOOL, [("Where", ["wide", "low", "scaled"], "masked")], 0.0),
    "whole keeps": (I64, [("Cast", ["wide"], "kept"), ("Where", ["kept", "scaled", "low"], "masked")], 1.0),
    "whole pads": (I64, [("Cast", ["wide"], "kept"), ("Where", ["kept", "low", "scaled"], "masked")], 0.0),
    "multiplied": (
        F32,
        [("Sub", ["one", "wide"], "gone"), ("Mul", ["gone", "low"], "far"), ("Add", ["scaled", "far"], "masked")],
        1.0,
    ),
    "added": (F32, [("Add", ["scaled", "wide"], "masked")], 0.0),
}
"""Kind -> element type of the mask input, how it reaches the scores, what it holds for a key that may be seen."""


def model(folder: Path, kind: str, ids: str = "x", mask: str = "mask") -> Path:
    """One attention over embedded ids with a mask [batch,length], as one file."""
    element, steps, _ = MASKS[kind]
    nodes = [
        helper.make_node("Gather", ["table", ids], ["e"], name="embed"),
        helper.make_node("Transpose", ["e"], ["et"], perm=[0, 2, 1], name="turn"),
        helper.make_node("MatMul", ["e", "et"], ["scores"], name="qk"),
        helper.make_node("Mul", ["scores", "scale"], ["scaled"], name="scale_it"),
        helper.make_node("Unsqueeze", [mask, "axis"], ["wide"], name="widen"),
    ]
    for at, (op, sources, target) in enumerate(steps):
        more = {"to": BOOL} if op == "Cast" else {}
        nodes.append(helper.make_node(op, sources, [target], name=f"mask_{at}", **more))
    nodes += [
        helper.make_node("Softmax", ["masked"], ["weights"], axis=-1, name="soft"),
        helper.make_node("MatMul", ["weights", "e"], ["y"], name="pv"),
    ]
    constants = {
        "table": TABLE, "scale": np.float32(0.25), "axis": np.array([1]), "low": LOW, "one": np.float32(1),
    }  # fmt: skip
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info(ids, I64, ["b", "n"]), helper.make_tensor_value_info(mask, element, ["b", "n"])],
        [helper.make_tensor_value_info("y", F32, ["b", "n", WIDTH])],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()],
    )  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(made)
    onnx.save(made, folder / "model.onnx")
    return folder / "model.onnx"


def weights(ids: list[int], seen: list[bool]) -> np.ndarray:
    e = TABLE[ids].astype(np.float64)
    scores = np.where(seen, e @ e.T / 4, -np.inf)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(shares / shares.sum(-1, keepdims=True))


@pytest.mark.parametrize("kind", MASKS)
def test_ids_of_any_name_and_masks_of_every_kind(kind: str, tmp_path: Path) -> None:
    opened = attnx.open(model(tmp_path, kind), device="cpu")
    ids, mask = opened.slots()
    assert (ids.ids, is_ids(ids), mask.kept) == (True, True, MASKS[kind][2])
    tokens = [3, 7, 7, 1]
    trace = opened.trace(tokens=from_ids(tokens))
    np.testing.assert_allclose(trace.attentions[0].need("weights")[0, 0], weights(tokens, [True] * 4), atol=1e-5)
    assert trace.notes == ()
    real = from_ids(tokens)
    padded = type(real)(real.ids, real.pieces, real.offsets, real.words, real.special, (True, True, True, False))
    trace = opened.trace(tokens=padded)
    want = weights(tokens, [True, True, True, False])
    np.testing.assert_allclose(trace.attentions[0].need("weights")[0, 0], want, atol=1e-5)


@pytest.mark.parametrize("kind", MASKS)
def test_a_mask_that_was_given_tells_which_tokens_are_padding(kind: str, tmp_path: Path) -> None:
    opened = attnx.open(model(tmp_path, kind), device="cpu")
    slot = opened.slots()[1]
    fed = written(slot, np.array([[True, True, False]])).astype(slot.dtype)
    trace = opened.trace(inputs={"x": np.array([[4, 5, 6]]), "mask": fed})
    assert trace.tokens.mask == (True, True, False)
    np.testing.assert_allclose(
        trace.attentions[0].need("weights")[0, 0], weights([4, 5, 6], [True, True, False]), atol=1e-5
    )
    assert seen_by(slot, fed).tolist() == [[True, True, False]]


def test_where_every_key_is_hidden_it_is_said(tmp_path: Path) -> None:
    opened = attnx.open(model(tmp_path, "bool pads"), device="cpu")
    trace = opened.trace(inputs={"x": np.array([[4, 5, 6]]), "mask": np.ones((1, 3), bool)})
    assert any("every key is hidden from" in note for note in trace.notes)


def test_a_batch_pads_with_what_hides(tmp_path: Path) -> None:
    opened = attnx.open(model(tmp_path, "bool pads"), device="cpu")
    texts = [[1, 2, 3, 4, 5], [6, 7]]
    for ids, trace in zip(texts, opened.trace_many([from_ids(ids) for ids in texts]), strict=True):
        got = trace.attentions[0].need("weights")[0, 0]
        np.testing.assert_allclose(got, weights(ids, [True] * len(ids)), atol=1e-5)


def test_of_several_lookups_the_largest_table_is_the_vocabulary() -> None:
    slots = [Slot(name, ("b", "n"), "tensor(int64)") for name in ("u", "x", "position", "mask")]
    marked = looked_up(slots, {"u": 2, "x": 100, "position": 512})
    assert [slot.name for slot in marked if slot.ids] == ["x"]
    assert not any(slot.ids for slot in looked_up(slots, {"u": 9, "x": 9}))
    assert not any(slot.ids for slot in looked_up([*slots, Slot("input_ids", ("b", "n"), "tensor(int64)")], {"x": 9}))
    assert not any(slot.ids for slot in looked_up(slots, {}))


def test_the_template_and_the_command_line_agree(attnx_command: Any, tmp_path: Path) -> None:
    path = model(tmp_path / "m", "bool pads", mask="src_mask")
    done = attnx_command("inspect", "--ids", "5,6,7", "-m", path, "--query", "1", "--json")
    assert "hidden" not in done.err
    program = attnx_command("sites", path, "--feed-template").out
    (tmp_path / "feed.py").write_text(program)
    exec(compile(program, "feed.py", "exec"), {})
    with np.load(tmp_path / "FEED.npz") as feed:
        assert not feed["src_mask"].any()


# Two files whose names say how they are joined


def two(folder: Path) -> Path:
    """An encoder that gives memory_out and state_out, and a decoder that takes memory, pad and state."""

    def save(name: str, nodes: Any, inputs: Any, outputs: Any, constants: Any) -> None:
        graph = helper.make_graph(
            [
                helper.make_node(op, sources, targets, name=f"n{at}", **more)
                for at, (op, sources, targets, more) in enumerate(nodes)
            ],
            name,
            [helper.make_tensor_value_info(*value) for value in inputs],
            [helper.make_tensor_value_info(*value) for value in outputs],
            [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()],
        )
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.checker.check_model(made)
        onnx.save(made, folder / f"{name}.onnx")

    folder.mkdir(parents=True)
    save(
        "encoder",
        [
            ("Gather", ["table", "src"], ["e"], {}),
            ("Tanh", ["e"], ["memory_out"], {}),
            ("Identity", ["src_mask"], ["src_mask_out"], {}),
            ("ReduceMean", ["memory_out"], ["state_out"], {"axes": [1], "keepdims": 0}),
        ],
        [("src", I64, ["b", "n"]), ("src_mask", BOOL, ["b", "n"])],
        [("memory_out", F32, ["b", "n", WIDTH]), ("src_mask_out", BOOL, ["b", "n"]), ("state_out", F32, ["b", WIDTH])],
        {"table": TABLE},
    )
    save(
        "decoder",
        [
            ("Gather", ["table", "prefix"], ["t"], {}),
            ("Unsqueeze", ["state", "axis"], ["s"], {}),
            ("Add", ["t", "s"], ["q"], {}),
            ("Transpose", ["memory"], ["mt"], {"perm": [0, 2, 1]}),
            ("MatMul", ["q", "mt"], ["scores"], {}),
            ("Unsqueeze", ["src_mask", "axis"], ["wide"], {}),
            ("Where", ["wide", "low", "scores"], ["masked"], {}),
            ("Softmax", ["masked"], ["w"], {"axis": -1}),
            ("MatMul", ["w", "memory"], ["c"], {}),
            ("MatMul", ["c", "head"], ["logits"], {}),
            ("ReduceMean", ["c"], ["state_out"], {"axes": [1], "keepdims": 0}),
        ],
        [
            ("prefix", I64, ["b", "m"]), ("memory", F32, ["b", "n", WIDTH]), ("src_mask", BOOL, ["b", "n"]),
            ("state", F32, ["b", WIDTH]),
        ],
        [("logits", F32, ["b", "m", VOCABULARY]), ("state_out", F32, ["b", WIDTH])],
        {"table": TABLE, "axis": np.array([1]), "low": LOW, "head": TABLE.T.copy()},
    )  # fmt: skip
    return folder


def crossed(source: list[int], target: list[int], seen: list[bool]) -> np.ndarray:
    memory = np.tanh(TABLE[source].astype(np.float64))
    scores = np.where(seen, (TABLE[target] + memory.mean(0)) @ memory.T, -np.inf)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(shares / shares.sum(-1, keepdims=True))


def test_two_files_on_arrays_are_joined_by_names(tmp_path: Path) -> None:
    opened = attnx.open(two(tmp_path / "m"), device="cpu")
    fed = {"src": np.array([[3, 1, 2]]), "src_mask": np.array([[False, False, True]]), "prefix": np.array([[4, 5]])}
    trace = opened.trace(inputs=fed)
    (site,) = trace.attentions
    assert (site.site.kind, site.site.component) == ("cross", "decoder")
    np.testing.assert_allclose(site.need("weights")[0, 0], crossed([3, 1, 2], [4, 5], [True, True, False]), atol=1e-5)
    assert trace.memory is not None
    assert trace.memory.ids.tolist() == [3, 1, 2]
    assert trace.tokens.ids.tolist() == [4, 5]
    with pytest.raises(InputError, match="no input nothing"):
        opened.trace(inputs={**fed, "nothing": np.zeros(1)})
    with pytest.raises(InputError):
        opened.trace(inputs={"prefix": np.array([[4, 5]])})


def test_a_mask_that_the_encoder_only_hands_on_is_filled_as_the_decoder_reads_it(tmp_path: Path) -> None:
    place = two(tmp_path / "m")
    (place / "config.json").write_text(json.dumps({"decoder_start_token_id": 4}))
    from tests.small_senses import letters

    letters(place)
    trace = attnx.open(place, device="cpu").trace(tokens=from_ids([3, 1, 2]), target="f")
    cross = trace.attentions[0].need("weights")[0, 0]
    np.testing.assert_allclose(cross, crossed([3, 1, 2], trace.tokens.ids.tolist(), [True] * 3), atol=1e-5)


def test_a_state_that_is_carried_from_call_to_call_is_not_passed_over(tmp_path: Path) -> None:
    place = two(tmp_path / "m")
    (place / "config.json").write_text(json.dumps({"decoder_start_token_id": 4}))
    with pytest.raises(UnsupportedError, match=r"keeps a state of its own from call to call \(state\)"):
        attnx.open(place, device="cpu").trace(tokens=from_ids([3, 1]), generate=2)


# Which file and which name is meant


@pytest.mark.parametrize(
    ("files", "chosen"),
    [
        (["encoder.onnx", "decoder.onnx", "parts/head.onnx"], "decoder.onnx"),
        (["net.onnx", "old/net.onnx"], "net.onnx"),
        (["onnx/net.onnx", "onnx/old/net.onnx"], "onnx/net.onnx"),
        (["a.onnx", "b.onnx", "c/model.onnx"], None),
        (["a/decoder_model.onnx", "b/one.onnx"], None),
        (["x/y/net.onnx"], "x/y/net.onnx"),
        (["onnx/model.onnx", "other.onnx"], "onnx/model.onnx"),
    ],
)
def test_what_lies_deeper_is_something_else(files: list[str], chosen: str | None) -> None:
    assert pick(files) == chosen


def test_a_bundled_model_is_known_by_its_own_name() -> None:
    assert own_name("minilm") == "sentence-transformers/all-MiniLM-L6-v2"
    for name in ("all-MiniLM-L6-v2", "all-minilm-l6-v2"):
        assert locate(name) == locate("minilm")


def test_pulling_what_is_bundled_is_refused(attnx_command: Any) -> None:
    assert "comes with attnx" in attnx_command("pull", "minilm", code=UsageError.exit_code).err
