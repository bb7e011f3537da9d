"""Several tokens in --query and --key: rows averaged, columns summed, in every command, against onnxruntime's own."""

import numpy as np
import pytest

from tests.cli.analysed import bundled, values
from tests.cli.conftest import ANIMAL, Run

GROUP, AT = "it..too", [10, 11, 12]
KEYS, TO = "animal,street", [2, 8]


def test_inspect_averages_rows(attnx: Run) -> None:
    b = bundled(ANIMAL)
    row = b.weights[5, 11, AT].mean(axis=0)
    got = attnx("inspect", ANIMAL, "--head", "5.11", "--query", GROUP, "--json").document
    assert got["query"] == {"position": 10, "piece": GROUP, "positions": AT}
    np.testing.assert_allclose(got["heads"][0]["values"][0], row, atol=1e-5)
    out = attnx("inspect", ANIMAL, "--head", "5.11", "--query", GROUP, "--top", "1").out
    assert f"query 10 {GROUP} → key" in out
    assert f"{row.max():.3f}" in out
    assert "from 3 tokens together: the mean of their rows" in out
    ranked = attnx("inspect", ANIMAL, "--query", GROUP, "--json").document["ranking"]
    means = b.weights[:, :, AT].mean(axis=2)
    for one in ranked[:5]:
        assert one["value"] == pytest.approx(means[one["layer"], one["head"], one["key"]], abs=1e-5)
    best = means[:, :, 1:-1].max()
    assert ranked[0]["value"] == pytest.approx(best, abs=1e-5)
    scores = attnx("inspect", ANIMAL, "--head", "5.11", "--query", GROUP, "--stage", "scores", "--json").document
    np.testing.assert_allclose(scores["heads"][0]["values"][0], b.scores[5, 11, AT].mean(axis=0), rtol=1e-4, atol=1e-4)
    single = attnx("inspect", ANIMAL, "--head", "5.11", "--query", "it", "--json").document
    assert single["query"]["positions"] == [10]
    assert "would do nothing" not in attnx("inspect", ANIMAL, "--head", "5.11", "-q", GROUP, "--words", "--mute").err
    assert "have no mean" in attnx("inspect", ANIMAL, "-H", "5.11", "-q", GROUP, "--stage", "masked", code=2).err
    whole = attnx("inspect", ANIMAL, "-H", "5.11", "-q", "didn't", "--json").document["heads"]  # a word is its pieces
    assert (
        whole[0]["values"]
        == attnx("inspect", ANIMAL, "-H", "5.11", "-q", "3..5", "--json").document["heads"][0]["values"]
    )


def test_words_are_grouped_as_words(attnx: Run) -> None:
    told = ("inspect", ANIMAL, "--head", "5.11", "--query", "animal..cross", "--words", "--json")
    b = bundled(ANIMAL).weights[5, 11]
    keys = [[at] for at in range(3)] + [[3, 4, 5]] + [[at] for at in range(6, 16)]
    rows = np.stack([b[2], b[[3, 4, 5]].mean(0), b[6]]).mean(0)
    want = [rows[group].sum() for group in keys]
    np.testing.assert_allclose(attnx(*told).document["heads"][0]["values"][0], want, atol=1e-5)


def test_qkv_takes_the_mean_query_and_the_sum_of_the_keys(attnx: Run) -> None:
    b = bundled(ANIMAL)
    got = attnx("qkv", ANIMAL, "--head", "5.11", "--query", GROUP, "--key", KEYS, "--json").document
    steps = dict(zip(got["steps"]["axes"][0]["labels"], got["steps"]["values"], strict=True))
    q, k = b.query[5, 11, AT].mean(0), b.key[5, 11, TO].sum(0)
    assert steps["q·k"] == pytest.approx(float(q @ k), rel=1e-4)
    assert steps["q·k"] == pytest.approx(float(b.scores[5, 11][np.ix_(AT, TO)].sum(1).mean()), rel=1e-4)
    assert steps["scaled"] == pytest.approx(steps["q·k"] / np.sqrt(32), rel=1e-4)
    cells = b.weights[5, 11][np.ix_(AT, TO)]
    assert steps["weight"] == pytest.approx(float(cells.sum(1).mean()), abs=1e-5)
    carried = (cells.mean(0)[:, None] * b.value[5, 11, TO]).sum(0)
    assert steps["|weight v|"] == pytest.approx(float(np.linalg.norm(carried)), rel=1e-4)
    context = (b.weights[5, 11, AT] @ b.value[5, 11]).mean(0)
    assert steps["|context|"] == pytest.approx(float(np.linalg.norm(context)), rel=1e-4)
    assert steps["share of context"] == pytest.approx(float(carried @ context / (context @ context)), rel=1e-3)
    assert steps["masked"] is None
    assert got["query"]["positions"] == AT
    assert got["key"]["positions"] == TO
    chosen = attnx("qkv", ANIMAL, "--query", GROUP, "--key", KEYS, "--json").document["head"]
    sums = b.weights[:, :, AT].mean(2)[..., TO].sum(-1)
    assert sums[chosen["layer"], chosen["head"]] == pytest.approx(sums.max(), abs=1e-5)


def test_scale_averages_what_each_softmax_gives(attnx: Run) -> None:
    b = bundled(ANIMAL)
    got = attnx("scale", ANIMAL, "--head", "5.11", "--query", GROUP, "--json").document
    table = values(got["row"])
    raw = b.scores[5, 11, AT].astype(np.float64)
    unscaled = np.exp(raw - raw.max(-1, keepdims=True))
    unscaled /= unscaled.sum(-1, keepdims=True)
    np.testing.assert_allclose(table[:, 0], raw.mean(0), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(table[:, 2], unscaled.mean(0), atol=1e-4)
    np.testing.assert_allclose(table[:, 3], b.weights[5, 11, AT].mean(0), atol=1e-5)
    assert got["query"]["positions"] == AT
    moved = np.array(
        [[np.abs(b.weights[layer, head, AT] - _softmax(b.scores[layer, head, AT])).sum(-1).mean() for head in range(12)]
         for layer in range(6)]
    )  # fmt: skip
    there = attnx("scale", ANIMAL, "--query", GROUP, "--json").document["head"]
    assert moved[there["layer"], there["head"]] == pytest.approx(moved.max(), abs=1e-4)


def _softmax(raw: np.ndarray) -> np.ndarray:
    e = np.exp(raw - raw.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_flow_averages_what_each_token_gives(attnx: Run) -> None:
    parts = [attnx("flow", ANIMAL, "--query", f"@{at}", "--json").document for at in AT]
    got = attnx("flow", ANIMAL, "--query", GROUP, "--json").document
    assert got["query"] == {"position": 10, "piece": GROUP, "positions": AT}
    for name in ("flow", "norms", "attention"):
        want = np.mean([values(one[name]) for one in parts], axis=0)
        np.testing.assert_allclose(values(got[name]), want, atol=1e-6, err_msg=name)
    want = np.mean([values(parts[0]["rollout"])[:, at] for at in AT], axis=0)
    np.testing.assert_allclose(values(got["rollout"])[:, 10], want, atol=1e-6)
    assert f"what {GROUP}@10 holds" in attnx("flow", ANIMAL, "--query", GROUP).out


def test_a_page_opens_with_one_token(attnx: Run) -> None:
    assert "takes one token here" in attnx("report", ANIMAL, "--query", GROUP, code=2).err


@pytest.mark.parametrize(
    ("command", "several"),
    [*((name, True) for name in ("inspect", "qkv", "scale", "flow")), ("report", False), ("explore", False)],
)
def test_help_promises_several_tokens_only_where_they_are_taken(attnx: Run, command: str, several: bool) -> None:
    assert ("it..tired" in attnx(command, "--help").out) is several
