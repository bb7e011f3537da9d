"""Small traces for the views' tests, made by formulas: no random numbers, so that pictures stay the same anywhere."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attnx.records import Attention, Axis, Check, Measurement, Miss, Place, Site, Tokens, Trace

ENGLISH = "[CLS] the animal didn ' t cross the street because it was too tired . [SEP]".split()
WIDE = ["[CLS]", "고양이", "가", "##해서", "日本語", "🚀", "e\u0301te\u0301", "한", "👩\u200d🚀", "नमस्ते", "[SEP]"]
HOSTILE = [
    "[bold]",
    "[/b]",
    "\x1b[31mred\x1b[0m",
    "a\nb",
    "\t",
    "",
    "  ",
    "\u202edesrever",
    "\x00",
    ":smile:",
    "\ud800",
]
SPECIAL = ("[CLS]", "[SEP]")


def tokens(pieces: list[str]) -> Tokens:
    size = len(pieces)
    special = tuple(piece in SPECIAL for piece in pieces)
    return Tokens(
        ids=np.arange(100, 100 + size),
        pieces=tuple(pieces),
        offsets=((0, 0),) * size,
        words=tuple(None if flag else at for at, flag in enumerate(special)),
        special=special,
        mask=(True,) * size,
    )


def softmax(scores: np.ndarray) -> np.ndarray:
    wide = np.exp(scores.astype(np.float64) - scores.max(-1, keepdims=True))
    return (wide / wide.sum(-1, keepdims=True)).astype(np.float32)


def trace(pieces: list[str] = ENGLISH, layers: int = 2, heads: int = 4, causal: bool = False, size: int = 32) -> Trace:
    """Each head has its own habit: the first token, the one before, itself, the next; the last L H finds 10 -> 2."""
    n = len(pieces)
    query, key = np.indices((n, n))
    attentions = []
    for layer in range(layers):
        scaled = np.zeros((1, heads, n, n), np.float32)
        for head in range(heads):
            ripple = np.sin(1.7 * query + 2.3 * key + 0.9 * head + 0.4 * layer)
            habit = [key == 0, key == query - 1, key == query, key == query + 1][head % 4]
            scaled[0, head] = ripple + 4.0 * habit
        if n > 10:
            scaled[0, -1, 10] = -1
            scaled[0, -1, 10, 2], scaled[0, -1, 10, 8] = 3, 1
        hidden = (key > query) & causal
        masked = np.where(hidden, np.float32(-np.inf), scaled)
        site = Site(
            index=layer,
            layer=layer,
            component="decoder" if causal else "encoder",
            kind="self",
            op="Softmax",
            node=f"/encoder/layer.{layer}/attention/self/Softmax",
            heads=heads,
            kv_heads=heads,
            head_size=size,
            scale=size**-0.5,
            scale_place="Div after QK^T",
            causal=causal,
            places={"query": Place("/q/Mul_output_0", "b h q d", (0.5,))},
        )
        attentions.append(
            Attention(
                site,
                scores=scaled * np.float32(size**0.5),
                scaled=scaled,
                capped=scaled,
                masked=masked,
                weights=softmax(masked),
                origin={"weights": "tapped", "capped": "computed"},
                checks=(Check("rows sum to 1", 1e-7, 1e-4),),
            )
        )
    return Trace(
        "minilm", "cpu", tokens(pieces), None, tuple(attentions), misses=(Miss("/pool/Softmax", "Softmax", "rank 2"),)
    )


def finite(trace: Trace) -> Trace:
    """The same, hidden by the lowest float32 in place of minus infinity."""
    lowest = np.finfo(np.float32).min
    return replace(trace, attentions=tuple(
        replace(a, masked=np.where(np.isneginf(a.need("masked")), lowest, a.need("masked"))) for a in trace.attentions
    ))  # fmt: skip


def long(count: int = 120) -> list[str]:
    words = "the cat sat on the mat and then it looked at a bird which flew over an old fence".split()
    return ["[CLS]", *(words[at % len(words)] for at in range(count - 2)), "[SEP]"]


def by_head(layers: int = 6, heads: int = 12) -> Measurement:
    layer, head = np.indices((layers, heads))
    return Measurement(
        name="entropy",
        unit="nats",
        axes=(
            Axis("layer", tuple(f"L{at}" for at in range(layers))),
            Axis("head", tuple(f"H{at}" for at in range(heads))),
        ),
        values=1.5 + 1.2 * np.sin(layer * 1.3 + head * 0.7),
        bounds=(0.0, None),
        source="Clark et al. 2019, section 3.3",
        formula="mean over queries of -sum a ln a",
    )


def by_candidate() -> Measurement:
    return Measurement(
        name="coreference share",
        unit="share",
        axes=(Axis("candidate", ("animal", "street", "고양이", "[/b]", "none")),),
        values=np.array([0.67, 0.1, 0.03, 0.2, np.nan]),
        bounds=(0.0, 1.0),
        source="attnx",
        formula="mean over heads",
    )
