"""The bundled decoder copies with its induction heads: what the documentation says of it, over random blocks."""

from __future__ import annotations

import numpy as np

import attnx
from attnx.interventions.plan import Edit, Intervention
from attnx.interventions.running import Intervening

LAYERS, HEADS, LENGTH = 4, 6, 25
COPY = [(1, head) for head in (0, 2, 3, 4, 5)]


def test_without_its_induction_heads_the_bundled_decoder_no_longer_copies() -> None:
    model = attnx.open("tiny-gpt", device="cpu")
    rng = np.random.default_rng(0)
    block = np.stack([rng.permutation(np.arange(10, model.tokenizer.size))[:LENGTH] for _ in range(8)])
    ids = np.concatenate([np.zeros((8, 1), np.int64), block, block], axis=1)
    feed = {"input_ids": ids, "attention_mask": np.ones_like(ids), "position_ids": np.arange(51)[None].repeat(8, 0)}
    empty = np.zeros((8, HEADS, 0, 32), np.float32)
    feed |= {f"past_key_values.{n}.{side}": empty for n in range(LAYERS) for side in ("key", "value")}
    running = Intervening(model, {"inputs": feed}, outputs=["logits"])
    every = [(layer, head) for layer in range(LAYERS) for head in range(HEADS)]
    groups = {f"{layer}.{head}": [(layer, head)] for layer, head in every}
    groups |= {"induction": COPY, "above": [at for at in every if at[0] > 1]}
    steps = [
        Intervention(name, tuple(Edit("ablate", (layer,), (head,)) for layer, head in heads))
        for name, heads in groups.items()
    ]

    def right(logits: np.ndarray) -> float:
        return float((logits[:, LENGTH + 1 : -1].argmax(-1) == ids[:, LENGTH + 2 :]).mean())

    assert right(running.base("inputs")["logits"]) > 0.99
    copied = {effect.id: right(effect.outputs["logits"]) for effect in running.run(steps)}
    assert copied.pop("induction") < 0.1
    assert copied.pop("above") > 0.99
    assert copied.pop("0.1") < 0.1, "the previous-token head that the five read from"
    assert copied.pop("0.3") < 0.1
    assert min(copied.values()) > 0.98, "any other head can be spared"
    found = running.attentions("inputs", running.points.components()["decoder"])
    weights = {a.site.layer: a.weights for a in found.values()}
    queries = np.arange(LENGTH + 1, ids.shape[1])
    scores = {(n, h): w[:, h, queries, queries - LENGTH + 1].mean() for n, w in weights.items() for h in range(HEADS)}
    assert sorted(at for at, score in scores.items() if score > 0.4) == COPY
