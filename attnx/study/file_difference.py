"""What differs between the graphs of two model files: operators, fused attention, quantisation, opsets, producer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from attnx.graph.load.load import load
from attnx.session.protocol import OpenModel
from attnx.study.precision import QUANTISED
from attnx.study.shelf import precision

_OWN = ("", "ai.onnx")
SHOWN = 4
"""How many operators a sentence names at most."""


@dataclass(frozen=True, slots=True)
class Held:
    """The contents of one model's graphs, all its files together."""

    operators: Mapping[str, int]
    """How many nodes there are of each operator; operators outside ONNX's own domain are named with their domain."""
    attention: Mapping[str, int]
    """How many attention sites there are of each operator: "Softmax" if it is decomposed."""
    weights: str
    """The type of most bytes of its weights: "fp32", "int8"."""
    opsets: Mapping[str, int]
    """Domain -> version."""
    producer: str

    @property
    def quantised(self) -> dict[str, int]:
        """How many nodes there are of each operator that computes with quantised numbers."""
        return {name: count for name, count in self.operators.items() if name.rpartition("::")[2] in QUANTISED}


@dataclass(frozen=True, slots=True)
class FileDifference:
    """Two models' graphs side by side."""

    one: Held
    two: Held

    @property
    def operators(self) -> dict[str, tuple[int, int]]:
        """Each operator whose count differs, with its count in either model; the largest change first."""
        both = {**self.one.operators, **self.two.operators}
        counts = {name: (self.one.operators.get(name, 0), self.two.operators.get(name, 0)) for name in both}
        changed = {name: pair for name, pair in counts.items() if pair[0] != pair[1]}
        return dict(sorted(changed.items(), key=lambda item: (-abs(item[1][0] - item[1][1]), item[0])))

    @property
    def said(self) -> tuple[str, ...]:
        """What differs, one clause each; empty if nothing does."""
        out = []
        changed = self.operators
        named = [f"{name} {one} → {two}" for name, (one, two) in list(changed.items())[:SHOWN]]
        if changed:
            more = len(changed) - len(named)
            out.append(f"operators: {', '.join(named)}" + (f" and {more} more" if more else ""))
        for what, one, two in (
            ("attention is", _counted(self.one.attention), _counted(self.two.attention)),
            ("quantised:", _counted(self.one.quantised) or "none", _counted(self.two.quantised) or "none"),
            ("weights", self.one.weights or "none", self.two.weights or "none"),
            ("opset", _opsets(self.one), _opsets(self.two)),
            ("exported by", self.one.producer or "?", self.two.producer or "?"),
        ):
            if one != two:
                out.append(f"{what} {one} → {two}")
        return tuple(out)


def file_difference(one: OpenModel, two: OpenModel) -> FileDifference:
    """Compare the graphs of two models; weights are not read.

    Raises:
        ModelError: A file cannot be read.
    """
    return FileDifference(_held(one), _held(two))


def _held(model: OpenModel) -> Held:
    paths = [side.path for side in (model.encoder, model) if side is not None]
    operators: Counter[str] = Counter()
    opsets: dict[str, int] = {}
    weights, producers = [], []
    for path in paths:
        proto = load(Path(path)).proto
        graphs = [proto.graph]
        nodes = [node for function in proto.functions for node in function.node]
        while graphs:
            graph = graphs.pop()
            nodes += graph.node
            graphs += [a.g for node in graph.node for a in node.attribute if a.HasField("g")]
            graphs += [g for node in graph.node for a in node.attribute for g in a.graphs]
        operators.update(n.op_type if n.domain in _OWN else f"{n.domain}::{n.op_type}" for n in nodes)
        opsets |= {entry.domain or "ai.onnx": entry.version for entry in proto.opset_import}
        weights.append(precision(load(Path(path))))
        producers.append(" ".join(filter(None, (proto.producer_name, proto.producer_version))))
    sites = (*(model.encoder.sites if model.encoder is not None else ()), *model.sites)
    return Held(
        dict(operators.most_common()),
        dict(Counter(site.op for site in sites).most_common()),
        ", ".join(dict.fromkeys(filter(None, weights))),
        opsets,
        ", ".join(dict.fromkeys(filter(None, producers))),
    )


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def _opsets(held: Held) -> str:
    return ", ".join(
        f"{version}" if domain == "ai.onnx" else f"{domain} {version}" for domain, version in held.opsets.items()
    )


__all__ = ["FileDifference", "Held", "file_difference"]
