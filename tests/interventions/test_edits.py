"""Every intervention on every kind of model, against the same in numpy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import attnx
from attnx.interventions.plan import Edit, Intervention
from attnx.interventions.running import Intervening
from tests.interventions import models

Array = np.ndarray
CLOSE = 2e-5


class Case:
    """A model in both forms, and two feeds."""

    def __init__(self, name: str, folder: Path) -> None:
        self.kind = (models.KINDS | models.MORE)[name]
        self.w = models.weights(self.kind)
        self.feeds = dict(zip(("inputs", "other"), models.feeds(self.kind), strict=True))
        model = attnx.open(models.build(self.kind, self.w, folder), device="cpu")
        self.all = Intervening(model, self.feeds)
        self.mask = self.feeds["inputs"]["attention_mask"]
        self.unedited = {
            n: models.recorded(self.kind, self.w, f["input_ids"], self.mask) for n, f in self.feeds.items()
        }

    def numpy(self, run: str, hook: models.Hook) -> Array:
        return models.run(self.kind, self.w, self.feeds[run]["input_ids"], self.mask, hook)


@pytest.fixture(scope="module", params=models.KINDS | models.MORE)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(request.param, tmp_path_factory.mktemp("model"))


def plan(case: Case) -> list[tuple[Intervention, models.Hook]]:
    """Interventions, each with the hook that makes it in numpy."""
    kind, mask = case.kind, case.mask
    last = kind.layers - 1
    out = []

    def add(name: str, edit: Edit, hook: models.Hook, run: str = "inputs") -> None:
        out.append((Intervention(name, (edit,), run), hook))

    for name, layers, heads, queries in (
        ("one head", (last,), (1,), None), ("two heads", (0,), (0, 3), None), ("everywhere", None, (2,), None),
        ("one position", (0,), (2,), (4,)), ("all", None, None, None),
    ):  # fmt: skip
        for what in ("zero", "mean", "uniform"):
            edit = Edit("ablate", layers, heads, queries, method=what)  # type: ignore[arg-type]
            add(f"{what} {name}", edit, models.edited(kind, mask, what, layers, heads, queries))
    edit = Edit("ablate", (last,), (0,), method="mean", over="unpadded")
    add("unpadded", edit, models.edited(kind, mask, "unpadded", (last,), (0,)))
    for name, layers, heads, queries, keys in (
        ("edge", (0,), (0,), (5,), (3,)), ("key", None, None, None, (1,)), ("edges", (last,), (1, 2), (4, 5), (0, 2)),
    ):  # fmt: skip
        add(
            f"knockout {name}",
            Edit("knockout", layers, heads, queries, keys, keep_self=True),
            models.edited(kind, mask, "knockout", layers, heads, queries, keys, keep_self=True),
        )
    emptied = Edit("knockout", (0,), None, None, (0,))  # the first query of a causal model has no key left
    add("knockout emptied", emptied, models.edited(kind, mask, "knockout", (0,), None, None, (0,)))
    for run, source in (("other", "inputs"), ("inputs", "other")):
        for what, heads, queries, keys in (
            ("query", (2,), None, None), ("query", None, (3,), None), ("key", (kind.kv - 1,), None, None),
            ("key", None, None, (2, 3)), ("value", (0,), None, None), ("value", None, None, (4,)),
            ("weights", (1,), None, None), ("weights", None, (5,), None), ("context", (3,), None, None),
            ("context", None, (4, 6), None), ("attention", None, None, None), ("attention", None, (3,), None),
            ("mlp", None, None, None), ("mlp", None, (2, 4), None), ("residual", None, (2, 3), None),
        ):  # fmt: skip
            for layer in range(kind.layers):
                add(
                    f"{what} {heads} {queries} {keys} {layer} {run}",
                    Edit("patch", (layer,), heads, queries, keys, quantity=what, source=source),
                    models.edited(kind, mask, what, (layer,), heads, queries, keys, case.unedited[source]),
                    run,
                )
    return out


def test_unedited_runs_are_the_models(case: Case) -> None:
    for name in case.feeds:
        np.testing.assert_allclose(case.all.base(name)["logits"], case.unedited[name]["logits", 0], atol=CLOSE)


def test_every_intervention_is_what_it_is_in_numpy(case: Case) -> None:
    steps = plan(case)
    got = {effect.id: effect for effect in case.all.run([step for step, _ in steps])}
    assert len(got) == len(steps)
    for step, hook in steps:
        want = case.numpy(step.run, hook)
        moved = np.abs(want - case.unedited[step.run]["logits", 0]).max()
        off = np.abs(got[step.id].outputs["logits"] - want).max()
        assert off <= max(min(CLOSE, 0.05 * moved), 4e-6, 1e-5 * moved), (step.id, off, moved)
        np.testing.assert_allclose(got[step.id].base["logits"], case.unedited[step.run]["logits", 0], atol=CLOSE)
    assert not case.all.notes, "interventions on one feed are rows of one batch"
