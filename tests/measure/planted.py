"""Traces with planted heads, whose measures are known in closed form. Nothing here imports attnx.formula."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from attnx.records import Attention, Site, Tokens, Trace


def tokens(text: str, *, cls: bool = False, split: dict[str, int] | None = None, pad: int = 0) -> Tokens:
    """Words of a text as tokens; punctuation apart; a word in `split` becomes that many pieces."""
    ids, pieces, offsets, words = [], [], [], []
    vocabulary: dict[str, int] = {}
    at, word = 0, 0
    for part in text.split():
        start = text.index(part, at)
        at = start + len(part)
        bare = part.rstrip(".,;!?")
        for begin, end in ((start, start + len(bare)), *((i, i + 1) for i in range(start + len(bare), at))):
            if begin == end:
                continue
            count = (split or {}).get(text[begin:end], 1)
            edges = [begin + (end - begin) * i // count for i in range(count + 1)]
            for a, b in pairwise(edges):
                pieces.append(text[a:b])
                offsets.append((a, b))
                ids.append(vocabulary.setdefault(text[a:b], 10 + len(vocabulary)))
                words.append(word)
            word += 1
    special = [False] * len(ids)
    if cls:
        ids, pieces = [1, *ids, 2], ["[CLS]", *pieces, "[SEP]"]
        offsets, words, special = [(0, 0), *offsets, (0, 0)], [None, *words, None], [True, *special, True]
    real = len(ids)
    return Tokens(
        ids=np.array([*ids, *[0] * pad], np.int64),
        pieces=(*pieces, *["[PAD]"] * pad),
        offsets=(*offsets, *[(0, 0)] * pad),
        words=(*words, *[None] * pad),
        special=(*special, *[True] * pad),
        mask=(*[True] * real, *[False] * pad),
        text=text,
    )


def plain(count: int) -> Tokens:
    """`count` different words: w0 w1 ..."""
    return tokens(" ".join(f"w{at}" for at in range(count)))


def softmax(row: list[float]) -> list[float]:
    """One row in plain Python; a fully hidden row is all 0."""
    top = max(row)
    if top == -math.inf:
        return [0.0] * len(row)
    parts = [math.exp(x - top) for x in row]
    return [part / sum(parts) for part in parts]


def site(index: int = 0, **more: object) -> Site:
    """A self-attention site with scale 1/sqrt(4)."""
    given: dict[str, object] = {
        "index": index, "layer": index, "component": "encoder", "kind": "self", "op": "Softmax", "node": f"n{index}",
        "heads": 1, "kv_heads": 1, "head_size": 4, "scale": 0.5, "causal": False,
    }  # fmt: skip
    return Site(**{**given, **more})  # type: ignore[arg-type]


def weighted(weights: list[np.ndarray] | np.ndarray, index: int = 0, **more: object) -> Attention:
    """A site of which only the weights [H,Q,K] are known."""
    array = np.asarray(weights, np.float32)[None]
    return Attention(site=site(index, **{"heads": array.shape[1], **more}), weights=array)


def trace(text: Tokens, *attentions: Attention, memory: Tokens | None = None) -> Trace:
    """A trace of a text."""
    return Trace(model="planted", device="cpu", tokens=text, memory=memory, attentions=attentions)


def previous(n: int) -> np.ndarray:
    """Every token looks at the one before; the first at itself."""
    return np.eye(n)[[max(i - 1, 0) for i in range(n)]]


def following(n: int) -> np.ndarray:
    """Every token looks at the next one; the last at itself."""
    return np.eye(n)[[min(i + 1, n - 1) for i in range(n)]]


def uniform(n: int) -> np.ndarray:
    """Every token looks at all alike."""
    return np.full((n, n), 1 / n)


def to(n: int, key: int) -> np.ndarray:
    """Every token looks at one key."""
    return np.eye(n)[[key] * n]


def full(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, mask: np.ndarray, index: int = 0, **more: object
) -> Attention:
    """All arrays of a site from q [H,Q,D], k [Hkv,K,D], v [Hkv,K,Dv], mask [Q,K] (added), by plain loops.

    Scale 1/sqrt(D) unless `scale` is given; softcap as given.
    """
    heads, queries, size = query.shape
    group = heads // key.shape[0]
    scale = float(more.get("scale", size**-0.5))  # type: ignore[arg-type]
    softcap = more.get("softcap")
    shape = (heads, queries, key.shape[1])
    stages = {name: np.zeros(shape) for name in ("scores", "scaled", "capped", "masked", "weights")}
    context = np.zeros((heads, queries, value.shape[2]))
    for h in range(heads):
        for i in range(queries):
            for j in range(shape[2]):
                s = sum(float(a) * float(b) for a, b in zip(query[h, i], key[h // group, j], strict=True))
                c = s * scale
                capped = softcap * math.tanh(c / softcap) if softcap else c  # type: ignore[operator]
                for name, x in zip(
                    ("scores", "scaled", "capped", "masked"), (s, c, capped, capped + mask[i, j]), strict=True
                ):
                    stages[name][h, i, j] = x
            stages["weights"][h, i] = softmax(stages["masked"][h, i].tolist())
            for j in range(shape[2]):
                context[h, i] += stages["weights"][h, i, j] * value[h // group, j]
    arrays = {name: array[None].astype(np.float32) for name, array in stages.items()}
    info = {"heads": heads, "kv_heads": key.shape[0], "head_size": size, "scale": scale, **more}
    return Attention(
        site=site(index, **info),
        query=query[None].astype(np.float32),
        key=key[None].astype(np.float32),
        value=value[None].astype(np.float32),
        context=context[None].astype(np.float32),
        **arrays,
    )


def drawn(
    heads: int = 2,
    kv: int = 2,
    n: int = 5,
    size: int = 4,
    seed: int = 0,
    spread: float = 1.0,
    mask: str = "none",
    **more: object,
) -> Attention:
    """A site of random q, k, v; mask "none", "causal" or a number that hides the future."""
    draw = np.random.default_rng(seed)
    q, k, v = (spread * draw.standard_normal((count, n, size)) for count in (heads, kv, kv))
    hides = {"none": 0.0, "causal": -np.inf}.get(mask)
    bias = np.triu(np.full((n, n), float(mask) if hides is None else hides), k=1) if hides != 0.0 else np.zeros((n, n))
    bias = np.where(np.tri(n, dtype=bool), 0.0, bias)
    return full(q, k, v, bias, **more)
