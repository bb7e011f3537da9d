"""What must hold of every intervention, and how runs share a batch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import attnx
from attnx.errors import InputError, RunError, UnsupportedError, UsageError
from attnx.interventions import batches, rows
from attnx.interventions.plan import PATCHED, Edit, Intervention
from attnx.interventions.running import Intervening
from attnx.records import Check
from tests import small_models
from tests.interventions import models

Array = np.ndarray


def opened(
    kind: models.Kind, folder: Path, change: Any = None, feeds: dict[str, dict[str, Array]] | None = None
) -> Intervening:
    """A model; `change` may change its proto first."""
    path = models.build(kind, models.weights(kind), folder)
    if change is not None:
        proto = onnx.load(path)
        change(proto)
        onnx.save(proto, path)
    given = feeds or dict(zip(("inputs", "other"), models.feeds(kind), strict=True))
    return Intervening(attnx.open(path, device="cpu"), given)


def heads(kind: models.Kind) -> list[Intervention]:
    each = [(layer, head) for layer in range(kind.layers) for head in range(models.HEADS)]
    return [Intervention(f"{layer}.{head}", (Edit("ablate", (layer,), (head,)),)) for layer, head in each]


@pytest.mark.parametrize("name", ["pre", "post", "grouped", "sink", "merged", "gqa skip", "mha skip post"])
def test_what_changes_nothing_gives_what_the_model_gives(name: str, tmp_path: Path) -> None:
    kind = models.KINDS[name]
    all_ = opened(kind, tmp_path)
    steps = [Intervention(q, (Edit("patch", quantity=q, source="inputs"),)) for q in PATCHED]
    steps.append(Intervention("nothing", ()))
    for effect in all_.run(steps):
        np.testing.assert_allclose(effect.outputs["logits"], effect.base["logits"], atol=1e-5, err_msg=effect.id)


def test_what_is_not_downstream_is_the_same_bit_for_bit(tmp_path: Path) -> None:
    kind = models.Kind(layers=3)

    def more(proto: onnx.ModelProto) -> None:
        names = ["given", *(f"after{i}" for i in range(3))]
        # The stream before each layer: what the first norm of each layer reads.
        made = [n for n in proto.graph.node if n.op_type == "LayerNormalization"]
        for name, norm in zip(names, [*made[::2][:3], made[-1]], strict=True):
            proto.graph.node.append(helper.make_node("Identity", [norm.input[0]], [name]))
            proto.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", "length", 16]))

    all_ = opened(kind, tmp_path, more)
    for edit in (
        Edit("ablate", (1,), (2,)), Edit("ablate", (1,), method="mean"), Edit("knockout", (1,), None, None, (0,)),
        Edit("patch", (1,), quantity="mlp"), Edit("patch", (1,), quantity="value"),
    ):  # fmt: skip
        (effect,) = all_.run([Intervention("x", (edit,))])
        for name in ("given", "after0"):
            assert np.array_equal(effect.outputs[name], effect.base[name]), name
        for name in ("after1", "after2", "logits"):
            assert not np.array_equal(effect.outputs[name], effect.base[name]), name


@pytest.mark.parametrize("name", ["pre", "low", "sink", "gqa", "both ways"])
def test_a_knocked_out_weight_is_0_and_the_rest_sums_to_1(name: str, tmp_path: Path) -> None:
    kind = models.KINDS[name]
    all_ = opened(kind, tmp_path)
    (site,) = all_.points.sites(None, (0,))
    weights = all_.points.of(site, "weights")
    edit = Edit("knockout", (0,), (1, 2), None, (2, 3), keep_self=True)
    (effect,) = all_.run([Intervention("x", (edit,))], take=weights)
    (after,) = effect.taken[weights[0].title]
    (before,) = all_.take("inputs", weights)
    cells = np.zeros((7, 7), bool)
    cells[:, [2, 3]] = True
    cells &= ~np.eye(7, dtype=bool)
    assert (after[:, 1:3][:, :, cells] == 0).all()
    assert (before[0, 1:3][:, cells & np.tri(7, dtype=bool)] > 0).all()
    assert np.array_equal(after[:, [0, 3]], before[:, [0, 3]])
    if not kind.sink:
        np.testing.assert_allclose(after.sum(-1), 1.0, atol=1e-6)
    else:
        assert (after.sum(-1) < 1).all()


def test_a_row_whose_every_key_is_knocked_out_gets_nothing(tmp_path: Path) -> None:
    all_ = opened(models.Kind(), tmp_path)
    (site,) = all_.points.sites(None, (0,))
    weights = all_.points.of(site, "weights")
    edit = Edit("knockout", (0,), (0,), (0,))
    (effect,) = all_.run([Intervention("x", (edit,))], take=weights)
    (after,) = effect.taken[weights[0].title]
    assert (after[:, 0, 0] == 0).all()
    assert np.isfinite(effect.outputs["logits"]).all()
    np.testing.assert_allclose(after[:, 0, 1:].sum(-1), 1.0, atol=1e-6)


def test_several_edits_act_together_and_the_later_holds(tmp_path: Path) -> None:
    kind = models.Kind()
    all_ = opened(kind, tmp_path)
    feed = models.feeds(kind)[0]
    mask = feed["attention_mask"]
    theirs = models.recorded(kind, models.weights(kind), models.feeds(kind)[1]["input_ids"], mask)
    edits = (
        Edit("ablate", (0,), (0, 1)), Edit("patch", (0,), (1,), quantity="context"),
        Edit("ablate", (1,), (3,), method="mean"), Edit("knockout", (1,), (0,), (6,), (1,)),
    )  # fmt: skip
    (effect,) = all_.run([Intervention("x", edits)])
    hooks = [
        models.edited(kind, mask, "zero", (0,), (0, 1)),
        models.edited(kind, mask, "context", (0,), (1,), theirs=theirs),
        models.edited(kind, mask, "mean", (1,), (3,)), models.edited(kind, mask, "knockout", (1,), (0,), (6,), (1,)),
    ]  # fmt: skip

    def all_hooks(name: str, layer: int, array: Array) -> Array:
        for hook in hooks:
            array = hook(name, layer, array)
        return array

    want = models.run(kind, models.weights(kind), feed["input_ids"], mask, all_hooks)
    np.testing.assert_allclose(effect.outputs["logits"], want, atol=2e-5)


@pytest.mark.parametrize("name", ["pre", "grouped", "merged", "stacked"])
def test_values_of_ones_own_are_set(name: str, tmp_path: Path) -> None:
    kind = models.KINDS[name]
    all_ = opened(kind, tmp_path)
    w = models.weights(kind)
    feed = models.feeds(kind)[0]
    rng = np.random.default_rng(5)
    for quantity, shape in (
        ("context", (1, models.HEADS, 1, models.SIZE)), ("query", (2, models.HEADS, 7, models.SIZE)),
        ("key", (1, kind.kv, 7, models.SIZE)), ("value", (1, kind.kv, 1, models.SIZE)), ("mlp", (1, 1, models.WIDTH)),
        ("residual", (2, 7, models.WIDTH)),
    ):  # fmt: skip
        values = rng.normal(size=shape).astype(np.float32)
        edit = Edit("patch", (1,), quantity=quantity, values=values)

        def hook(called: str, layer: int, array: Array, q: str = quantity, v: Array = values) -> Array:
            return np.broadcast_to(v, array.shape) if (called, layer) == (q, 1) else array

        want = models.run(kind, w, feed["input_ids"], feed["attention_mask"], hook)
        (effect,) = all_.run([Intervention("x", (edit,))])
        np.testing.assert_allclose(effect.outputs["logits"], want, atol=5e-5, err_msg=quantity)
    bad = Edit("patch", (1,), quantity="query", values=np.zeros((1, 3, 7, models.SIZE)))
    with pytest.raises(InputError, match="values have shape"):
        list(all_.run([Intervention("x", (bad,))]))


def test_batches_are_cut_where_they_take_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = models.Kind()
    whole = {e.id: e.outputs["logits"] for e in opened(kind, tmp_path).run(heads(kind))}
    for most in (1, 4, 7):
        monkeypatch.setattr(rows, "MOST", most)
        cut = {e.id: e.outputs["logits"] for e in opened(kind, tmp_path).run(heads(kind))}
        assert list(cut) == list(whole)
        for name, array in whole.items():
            np.testing.assert_allclose(cut[name], array, atol=1e-6)


def _count_runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    sizes: list[int] = []
    values = batches.Batches._values

    def counted(self: Any, some: Any) -> Any:
        sizes.append(len(some))
        return values(self, some)

    monkeypatch.setattr(batches.Batches, "_values", counted)
    return sizes


def test_one_batch_runs_them_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = _count_runs(monkeypatch)
    kind = models.Kind()
    list(opened(kind, tmp_path).run(heads(kind)))
    assert sizes == [len(heads(kind)) + 1]


def test_a_batch_of_fixed_size_is_run_one_by_one_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = models.Kind()
    whole = {e.id: e.outputs["logits"] for e in opened(kind, tmp_path).run(heads(kind))}

    def fix(proto: onnx.ModelProto) -> None:
        for slot in proto.graph.input:
            slot.type.tensor_type.shape.dim[0].dim_value = 2

    sizes = _count_runs(monkeypatch)
    all_ = opened(kind, tmp_path, fix)
    for effect in all_.run(heads(kind)):
        np.testing.assert_allclose(effect.outputs["logits"], whole[effect.id], atol=1e-6)
    assert set(sizes) == {1}
    assert all_.notes == ["interventions are run one at a time: the model was exported for a batch of a fixed size"]


def test_rows_that_see_one_another_are_run_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph that takes the mean over the batch: no operator says so, only its numbers do."""
    kind = models.Kind()

    def mix(proto: onnx.ModelProto) -> None:
        node = next(n for n in proto.graph.node if n.op_type == "Identity" and n.output[0] == "logits")
        logits = node.input[0]
        proto.graph.node.append(helper.make_node("ReduceMean", [logits], ["mean"], axes=[0], keepdims=1))
        proto.graph.node.append(helper.make_node("Add", [logits, "mean"], ["both"]))
        node.input[0] = "both"
        proto.graph.node.remove(node)
        proto.graph.node.append(node)

    sizes = _count_runs(monkeypatch)
    all_ = opened(kind, tmp_path, mix)
    w, feed = models.weights(kind), models.feeds(kind)[0]
    for effect in all_.run(heads(kind)):
        layer, head = map(int, effect.id.split("."))
        hook = models.edited(kind, feed["attention_mask"], "zero", (layer,), (head,))
        want = models.run(kind, w, feed["input_ids"], feed["attention_mask"], hook)
        np.testing.assert_allclose(effect.outputs["logits"], want + want.mean(0), atol=2e-5)
    assert sizes[1:] == [1] * (len(heads(kind)) + 1)
    assert "one at a time" in all_.notes[0]


def test_quantised_activations_are_run_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = models.Kind()

    def quantise(proto: onnx.ModelProto) -> None:
        """The unembedding in integers, one scale for all that comes in."""
        head = next(n for n in reversed(proto.graph.node) if n.op_type == "MatMul")
        tensor = next(t for t in proto.graph.initializer if t.name == head.input[1])
        w = numpy_helper.to_array(tensor)
        scale = np.abs(w).max() / 127
        for name, array in (
            ("wq", np.round(w / scale).astype(np.int8)), ("ws", np.float32(scale)), ("wz", np.int8(0)),
        ):  # fmt: skip
            proto.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
        at = list(proto.graph.node).index(head)
        made = [
            helper.make_node("DynamicQuantizeLinear", [head.input[0]], ["xq", "xs", "xz"]),
            helper.make_node("MatMulInteger", ["xq", "wq", "xz", "wz"], ["product"]),
            helper.make_node("Cast", ["product"], ["real"], to=TensorProto.FLOAT),
            helper.make_node("Mul", ["xs", "ws"], ["scales"]),
            helper.make_node("Mul", ["real", "scales"], [head.output[0]]),
        ]
        nodes = [*list(proto.graph.node)[:at], *made, *list(proto.graph.node)[at + 1 :]]
        copies = [onnx.NodeProto.FromString(n.SerializeToString()) for n in nodes]
        del proto.graph.node[:]
        proto.graph.node.extend(copies)

    sizes = _count_runs(monkeypatch)
    all_ = opened(kind, tmp_path, quantise)
    alone = {}
    for step in heads(kind)[:3]:
        (effect,) = opened(kind, tmp_path, quantise).run([step])
        alone[step.id] = effect.outputs["logits"]
    sizes.clear()
    for effect in all_.run(heads(kind)[:3]):
        assert np.array_equal(effect.outputs["logits"], alone[effect.id])
    assert set(sizes) == {1}
    assert all_.notes == [
        "interventions are run one at a time: DynamicQuantizeLinear takes one scale for all rows of a batch"
    ]


def test_hooks_that_would_change_the_model_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = models.Kind()
    all_ = opened(kind, tmp_path)
    base = all_.base("inputs")
    base["logits"] = base["logits"] + 1
    with pytest.raises(RunError, match="with nothing changed"):
        list(all_.run(heads(kind)))


def test_a_site_that_is_not_trusted_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = models.Kind()
    all_ = opened(kind, tmp_path)
    site = all_.points.sites(None, (0,))[0]
    found = all_.attentions("inputs", [site])[site.index]
    all_.state("inputs").attentions[site.index] = replace(found, checks=(Check("rows sum to 1", 0.5, 1e-4),))
    with pytest.raises(UnsupportedError, match=r"L0 .* is not intervened in: 'rows sum to 1' is off by 0\.5"):
        list(all_.run(heads(kind)))


def test_left_padding_rows_that_see_nothing(tmp_path: Path) -> None:
    kind = models.Kind()
    ids, mask = models.feeds(kind)[0]["input_ids"], np.ones((2, 7), np.int64)
    mask[1, :3] = 0
    feeds = {"inputs": {"input_ids": ids, "attention_mask": mask}}
    # The graph guards rows that see nothing: their weights are 0.
    all_ = opened(kind, tmp_path, _guarded, feeds)
    for what, edit in (
        ("uniform", Edit("ablate", method="uniform")), ("mean", Edit("ablate", (0,), method="mean")),
        ("unpadded", Edit("ablate", (0,), method="mean", over="unpadded")),
        ("knockout", Edit("knockout", (1,), None, None, (4,))),
    ):  # fmt: skip
        layers = None if what == "uniform" else (0,) if what != "knockout" else (1,)
        hook = models.edited(kind, mask, what, layers, keys=(4,) if what == "knockout" else None)
        want = models.run(kind, models.weights(kind), ids, mask, hook)
        (effect,) = all_.run([Intervention(what, (edit,))])
        np.testing.assert_allclose(effect.outputs["logits"], want, atol=2e-5, err_msg=what)


def _guarded(proto: onnx.ModelProto) -> None:
    nodes = []
    for node in proto.graph.node:
        nodes.append(node)
        if node.op_type == "Softmax":
            out = node.output[0]
            node.output[0] = f"{out}_raw"
            nodes.append(helper.make_node("IsNaN", [f"{out}_raw"], [f"{out}_nan"]))
            nodes.append(helper.make_node("Where", [f"{out}_nan", "nought", f"{out}_raw"], [out]))
    copies = [onnx.NodeProto.FromString(n.SerializeToString()) for n in nodes]
    proto.graph.initializer.append(numpy_helper.from_array(np.float32(0), "nought"))
    del proto.graph.node[:]
    proto.graph.node.extend(copies)


def test_a_past_that_is_not_empty(tmp_path: Path) -> None:
    """The last tokens behind a cache: patched keys are those of the whole text, queries those of the new tokens."""
    w = small_models.weights()
    path = small_models.save(tmp_path, model=small_models.cached_decoder(w))
    model = attnx.open(path, device="cpu")
    ids = np.array([[3, 5, 7, 2, 9, 4]])
    slots = {s.name: s for s in model.slots()}
    whole = model.trace(inputs=cached_feed(slots, ids, None), quantities=("key", "value"), outputs=True)
    first = model.trace(inputs=cached_feed(slots, ids[:, :4], None), outputs=True)
    feed = cached_feed(slots, ids, first.outputs)
    all_ = Intervening(model, {"inputs": feed}, ["logits"])
    np.testing.assert_allclose(all_.base("inputs")["logits"], whole.outputs["logits"][:, 4:], atol=1e-5)
    full = Intervening(model, {"inputs": cached_feed(slots, ids, None)}, ["logits"])
    for edit, same in (
        (Edit("ablate", (1,), (0,)), True), (Edit("knockout", (1,), None, None, (1,)), True),
        (Edit("patch", (1,), (1,), keys=(0, 5), quantity="value", values=np.zeros((1, 1, 1, 1))), True),
        (Edit("patch", (1,), keys=(2,), quantity="key", values=np.ones((1, 1, 1, 1))), True),
        (Edit("ablate", (1,), (0,), method="uniform"), True),
        (Edit("ablate", (1,), (0,), method="mean"), False),  # over the new tokens alone
    ):  # fmt: skip
        (one,) = all_.run([Intervention("x", (edit,))])
        (two,) = full.run([Intervention("x", (edit,))])
        close = np.allclose(one.outputs["logits"], two.outputs["logits"][:, 4:], atol=1e-5)
        assert close is same, edit
        assert not np.allclose(one.outputs["logits"], one.base["logits"], atol=1e-4)
    own = Edit("knockout", (1,), keep_self=True)
    (site,) = all_.points.sites(None, (1,))
    weights = all_.points.of(site, "weights")
    (effect,) = all_.run([Intervention("x", (own,))], take=weights)
    (after,) = effect.taken[weights[0].title]
    np.testing.assert_allclose(after, np.broadcast_to(np.eye(2, 6, 4), after.shape), atol=1e-6)


def cached_feed(slots: dict[str, Any], ids: Array, given: Any) -> dict[str, Array]:
    past = 0 if given is None else 4
    feed: dict[str, Array] = {}
    for name, slot in slots.items():
        if "past" in name:
            size = [1, small_models.HEADS, 0, small_models.SIZE]
            feed[name] = (
                np.zeros(size, np.float32) if given is None else given[name.replace("past_key_values", "present")]
            )
        elif "mask" in name:
            feed[name] = np.ones_like(ids)
        elif "position" in name:
            feed[name] = np.arange(past, ids.shape[1])[None]
        else:
            feed[name] = ids[:, past:]
        assert feed[name].ndim == len(slot.shape)
    return feed


def test_texts_of_different_lengths_are_refused(tmp_path: Path) -> None:
    kind = models.Kind()
    one, other = models.feeds(kind)
    all_ = opened(kind, tmp_path, None, {"inputs": one, "other": {n: a[:, :5] for n, a in other.items()}})
    with pytest.raises(UsageError, match="patched from") as error:
        list(all_.run([Intervention("x", (Edit("patch", (0,), quantity="value"),))]))
    assert "same number of tokens" in error.value.hint
    (effect,) = all_.run([Intervention("y", (Edit("ablate", (0,)),), "other")])
    assert effect.outputs["logits"].shape[1] == 5


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (Edit("ablate", (2,)), "there is no layer 2"),
        (Edit("ablate", (0,), (4,)), "there is no head 4"),
        (Edit("ablate", (0,), None, (7,)), "there is no query 7"),
        (Edit("knockout", (0,), None, None, (9,)), "there is no key 9"),
        (Edit("patch", (0,), (2,), quantity="key"), "there is no key/value head 2"),
        (Edit("patch", (0,), (0,), quantity="mlp"), "has none"),
        (Edit("patch", (0,), quantity="nothing"), "there is no quantity 'nothing'"),
        (Edit("ablate", (0,), component="cross"), "no component 'cross'"),
        (Edit("patch", (0,), quantity="value", source="third"), "no such feed"),
    ],
)
def test_what_is_not_there(edit: Edit, said: str, tmp_path: Path) -> None:
    all_ = opened(models.KINDS["grouped"], tmp_path)
    with pytest.raises(UsageError, match=said) as error:
        list(all_.run([Intervention("x", (edit,))]))
    assert error.value.hint


def test_the_output_that_is_asked_for(tmp_path: Path) -> None:
    path = models.build(models.Kind(), models.weights(models.Kind()), tmp_path)
    feed = models.feeds(models.Kind())[0]
    with pytest.raises(UsageError, match="no output 'nothing'"):
        Intervening(attnx.open(path, device="cpu"), {"inputs": feed}, ["nothing"])
