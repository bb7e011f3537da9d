"""What the documentation names can be reached from `attnx`, and each loads when it is first named."""

import importlib
import re
import subprocess
import sys

import numpy as np
import pytest

import attnx
from attnx import measure
from attnx.errors import InputError, UnsupportedError, UsageError
from attnx.measure import heads, induction, looks, norms, scaling
from attnx.records import Axis, Measurement
from attnx.run.states import states
from attnx.study.mentioned import candidates, mentions, pronouns
from tests.measure import planted


def test_every_name_in_the_documentation() -> None:
    named = re.findall(r"measure\.(\w+)\.(\w+)\(", measure.__doc__ or "")
    assert len(named) >= 9
    for module, function in named:
        assert callable(getattr(getattr(attnx.measure, module), function))
        assert getattr(measure, module) is importlib.import_module(f"attnx.measure.{module}")
    with pytest.raises(AttributeError):
        _ = measure.no_such_measure
    assert "measure" in dir(attnx)


def test_naming_it_loads_nothing_heavy() -> None:
    code = "import attnx.measure, sys; print(sorted({'numpy', 'onnx', 'onnxruntime', 'rich'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_strongest_weight_that_fits() -> None:
    weights = np.zeros((2, 3, 3))
    weights[0] = [[0.1, 0.9, 0], [0.2, 0.2, 0.6], [0, 0.3, 0.7]]
    weights[1] = [[0.5, 0.1, 0.4], [1, 0, 0], [0.05, 0.95, 0]]
    trace = planted.trace(planted.plain(3), planted.weighted(weights))
    found = looks.strongest(trace)
    assert (found.head, found.query, found.key, found.value) == (1, 1, 0, 1.0)
    assert looks.strongest(trace, query=0).value == pytest.approx(0.9)
    found = looks.strongest(trace, query=2, key=2)  # the token itself, where it is asked for
    assert (found.head, found.value) == (0, pytest.approx(0.7))
    found = looks.strongest(trace, head=(0, 0), key=2)
    assert (found.query, found.value) == (1, pytest.approx(0.6))
    with pytest.raises(UnsupportedError):
        looks.strongest(planted.trace(planted.plain(2), planted.weighted(np.zeros((1, 2, 2)))))


def test_a_measure_in_place_of_another() -> None:
    def one(name: str, values: list[float]) -> Measurement:
        axes = (Axis("layer", ("L0",)), Axis("head", ("H0", "H1")))
        return Measurement(name, "share", axes, np.array([values]))

    table = heads.table([one("previous", [0.9, 0.1]), one("induction", [np.nan, np.nan])])
    assert table.kinds == (("previous-token", "mixed"),)
    probed = heads.with_measure(table, one("induction", [0.1, 0.8]))
    assert probed.kinds == (("previous-token", "induction"),)
    with pytest.raises(UsageError):
        heads.with_measure(table, one("beauty", [1, 1]))


def test_norms_without_their_sum() -> None:
    trace = planted.trace(planted.plain(5), planted.drawn())
    output = np.random.default_rng(0).standard_normal((2, 4, 6))
    quick, whole = norms.value_norms(trace, 0, output, together=False), norms.value_norms(trace, 0, output)
    assert quick.together is None
    assert whole.together is not None
    np.testing.assert_allclose(quick.shares.values, whole.shares.values, rtol=1e-12)
    by_hand = np.linalg.norm(trace.attentions[0].value[0].astype(np.float64) @ output, axis=-1)
    np.testing.assert_allclose(quick.values.values, by_hand, rtol=1e-12)


MODEL = attnx.open()


def test_the_probe_stands_between_the_models_own_special_tokens() -> None:
    tokens = induction.probe(MODEL.tokenizer)
    assert tokens.pieces[0] == "[CLS]"
    assert tokens.pieces[-1] == "[SEP]"
    ids = tokens.ids[1:-1].reshape(4, 25)
    assert (ids == ids[0]).all()
    assert len(set(ids[0].tolist())) == 25
    assert not any(tokens.special[1:-1])


def test_the_head_that_changes_most_at_one_token() -> None:
    trace = MODEL.trace("The cat sat.", quantities=("query", "key", "scores", "scaled", "masked", "weights"))
    site, head = scaling.strongest_head(trace, 2)
    scores = np.stack([a.scores[0, :, 2] for a in trace.attentions])  # type: ignore[index]
    soft = [np.exp(x) / np.exp(x).sum(-1, keepdims=True) for x in (scores.astype(np.float64), scores / np.sqrt(32))]
    change = np.abs(soft[0] - soft[1]).sum(-1)
    assert (site, head) == np.unravel_index(change.argmax(), change.shape)


def test_mentions_by_word_place_and_phrase() -> None:
    tokens = MODEL.encode("It saw that it was the big old animal. It ran.")
    assert [m.pieces for m in mentions(tokens, "it")] == [(1,), (4,), (11,)]
    assert [m.pieces for m in mentions(tokens, "it@4")] == [(4,)]
    assert [m.pieces for m in mentions(tokens, "4")] == [(4,)]
    assert [m.text for m in mentions(tokens, "big old animal")] == ["big old animal"]
    assert len(pronouns(tokens, None)) == 3
    assert [m.text for m in candidates(tokens, "animal, big", mentions(tokens, "it@4")[0])] == ["animal", "big"]
    for wrong, error in (("dog", InputError), ("it@3", UsageError), ("99", UsageError)):
        with pytest.raises(error):
            mentions(tokens, wrong)


def test_states_are_what_each_block_reads() -> None:
    found = states(MODEL, "The cat sat.")
    assert list(found.vectors) == ["L0", "L1", "L2", "L3", "L4", "L5", "output"]
    assert all(array.shape == (len(found.tokens), 384) for array in found.vectors.values())
    from tests.cli.analysed import bundled

    want = bundled("The cat sat.")
    for layer in range(6):
        np.testing.assert_allclose(found.vectors[f"L{layer}"], want.states[layer], atol=1e-4)
    np.testing.assert_allclose(found.vectors["output"], want.last, atol=1e-4)
