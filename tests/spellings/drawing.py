"""What a number stands for: one choice of each of the ways in which exporters differ."""

from __future__ import annotations

import random
from typing import Any

PROJECT = (
    "matmul", "gemm", "packed", "packed5", "packed5first", "gathered5", "einsum", "conv1d", "conv2d", "sliced",
)  # fmt: skip
LAYOUT = (
    "bhqd", "merged", "einsum", "bhdn", "heads_first", "summed", "key_first", "batched_dot", "stacked", "five",
)  # fmt: skip
SCALE = ("div", "mul", "query", "key", "both", "none", "computed", "learned", "learned_query", "query_early")
MASK = (
    "none", "pad_add", "pad_where", "pad_times", "pad_min", "pad_log", "causal_where", "causal_trilu", "causal_buffer",
    "causal_add", "causal_pad", "causal_times", "mask_input", "bool_input", "after", "inside", "causal_scatter",
    "cumsum", "pad_bool_and",
)  # fmt: skip
SOFTMAX = (
    "op", "op", "op", "positive", "written", "stable", "log", "logsumexp", "cast", "base2", "exp2_written",
    "reciprocal", "one", "zeros", "turned", "flat", "flat3", "pow_inverse", "eps",
)  # fmt: skip
NORM = ("none", "none", "none", "l2", "lp", "rms", "layer", "rotary", "rotary_pairs")
BIAS = ("none", "none", "none", "alibi", "table", "learned")
AFTER = ("none", "none", "dropout", "identity", "nan_guard", "cast")
BACK = ("reshape", "reshape", "concat", "einsum", "per_head", "none", "flatten_gemm")
REPEAT = ("expand", "tile", "gather", "concat", "broadcast")


def draw(number: int) -> dict[str, Any]:
    """The choices of a number."""
    r = random.Random(911_000 + number)
    heads = r.choice([1, 2, 3, 4, 4, 6])
    c: dict[str, Any] = {
        "opset": r.choice([11, 12, 13, 14, 15, 17, 17, 18, 19, 20, 21, 22, 23, 24]),
        "constants": r.choice(["initializer", "initializer", "node"]),
        "dims": r.choice(["symbolic", "symbolic", "fixed", "batch1", "anonymous"]),
        "heads": heads,
        "kv": r.choice([heads, heads, *[n for n in (1, 2, 3) if heads % n == 0]]),
        "size": r.choice([4, 8, 8, 5, 16]),
        "vsize": r.choice([0, 0, 0, 3, 6, 12]),
        "batch": r.choice([1, 2, 3]),
        "seq": r.choice([5, 6, 7, 9]),
        "memory": r.choice([0, 0, 0, 4, 8, 11]),
        "query": r.choice(["data"] * 7 + ["latent"]),
        "first": r.choice(["batch"] * 5 + ["seq"]),
        "bias_on": r.random() < 0.6,
        "project": r.choice(PROJECT),
        "layout": r.choice(LAYOUT),
        "scale": r.choice(SCALE),
        "mask": r.choice(MASK),
        "softmax": r.choice(SOFTMAX),
        "norm": r.choice(NORM),
        "bias": r.choice(BIAS),
        "softcap": r.choice([0, 0, 0, 0, 5.0]),
        "after": r.choice(AFTER),
        "back": r.choice(BACK),
        "repeat": r.choice(REPEAT),
        "pre_norm": r.random() < 0.4,
        "residual": r.random() < 0.5,
        "inner": r.random() < 0.15,
    }
    c["vsize"] = c["vsize"] or c["size"]
    if c["query"] == "latent":
        c["memory"] = 0
        if c["mask"].startswith("causal") or c["mask"] == "cumsum":
            c["mask"] = "pad_where"
    cross = bool(c["memory"]) or c["query"] == "latent"
    if cross:
        if c["mask"].startswith("causal") or c["mask"] == "cumsum":
            c["mask"] = "pad_add"
        if c["project"] in ("packed", "packed5", "packed5first", "gathered5", "sliced"):
            c["project"] = "matmul"
        if c["norm"].startswith("rotary"):
            c["norm"] = "none"
        if c["bias"] == "alibi":
            c["bias"] = "learned"
    if (c["kv"] != heads or c["vsize"] != c["size"]) and c["project"] in ("packed5", "packed5first", "gathered5"):
        c["project"] = "packed"
    if c["norm"].startswith("rotary"):
        c["size"] += c["size"] % 2
        if c["project"] in ("packed5", "packed5first", "gathered5"):
            c["vsize"] = c["size"]
    if c["mask"] == "causal_trilu" and c["opset"] < 14:
        c["mask"] = "causal_where"
    if c["norm"] == "lp" and c["kv"] != heads:
        c["norm"] = "l2"
    if c["layout"] == "five" and c["kv"] in (1, heads):
        c["layout"] = "bhqd"
    c["inner"] = c["inner"] and c["project"] in ("matmul", "packed", "sliced")
    if c["layout"] == "stacked" and c["kv"] != heads:
        c["kv"] = heads
    if c["layout"] == "stacked" and heads == 1:
        c["layout"] = "bhqd"
    if c["scale"] == "query_early" and c["norm"] in ("l2", "lp", "rms", "layer"):
        c["scale"] = "query"
    if c["mask"] == "after" and c["softmax"] in ("one", "zeros"):
        c["softmax"] = "op"
    if c["bias"] in ("learned", "table") or c["mask"] == "causal_scatter":
        c["dims"] = "fixed"
    return _allowed(c)


def _allowed(c: dict[str, Any]) -> dict[str, Any]:
    """Choices that an operator set, or one another, rule out, given up for their nearest kin."""
    if c["opset"] < 12:
        c["layout"] = "bhqd" if c["layout"] == "einsum" else c["layout"]
        c["project"] = "matmul" if c["project"] == "einsum" else c["project"]
    if c["layout"] == "stacked" and (c["query"] == "latent" or c["scale"] == "learned_query"):
        c["layout"] = "bhqd"
    if c["scale"] == "learned" and c["layout"] in ("merged", "stacked"):
        c["layout"] = "bhqd"
    if c["scale"].startswith("learned") and c["heads"] == 1:
        c["scale"] = "mul"
    summing = ("written", "stable", "reciprocal", "eps", "one", "base2", "exp2_written")
    if c["mask"] == "inside" and c["softmax"] not in summing:
        c["softmax"] = "written"
    if c["opset"] < 13 and c["layout"] == "key_first" and c["softmax"] not in (*summing, "logsumexp", "pow_inverse"):
        c["softmax"] = "one" if c["softmax"] == "zeros" else "written"
    return c
