"""From sites and what is wanted to a tapped model: outputs are added, examined fused nodes opened, nothing else."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from attnx.errors import ModelError
from attnx.records import STAGES, Place, Site
from attnx.taps.norms import norms_behind
from attnx.taps.reductions import (
    ADDED,
    ENTROPIES,
    NORMS,
    ROLLOUTS,
    STATS,
    UNLIKE,
    Reduction,
    Writer,
    before_mask,
    fits,
    source,
)
from attnx.taps.some_heads import heads_input, some_heads
from attnx.wording import Wording

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

    from attnx.graph.shapes.index import Graph
    from attnx.sites.recognise import Found

_Proto = TypeVar("_Proto")
_QUANTISED = {
    "QLinearMatMul": (6, 7),
    "QLinearConv": (6, 7),
    "QGemm": (7, 8),
    "QLinearAdd": (6, 7),
    "QLinearMul": (6, 7),
    "QLinearWhere": (7, 8),
    "QLinearConcat": (0, 1),
    "QLinearSoftmax": (3, 4),
    "QLinearSigmoid": (3, 4),
    "QLinearLeakyRelu": (3, 4),
    "QLinearAveragePool": (3, 4),
    "QLinearGlobalAveragePool": (3, 4),
    "QLinearReduceMean": (3, 4),
    "QuantizeLinear": (1, 2),
}
"""Operators with an integer result -> which inputs hold its scale and zero point."""
_VIEWS = frozenset("Transpose Reshape Unsqueeze Squeeze Flatten Identity Split Slice Gather Expand Tile".split())
"""Operators whose integers have the scale and zero point of their first input."""
_INTEGERS = (2, 3, 4, 5)
"""ONNX's data types of 8 and 16 bits that quantised tensors have."""
_TENSORRT = "trt"
"""The domain of TensorRT's operators, as written by ModelOpt."""
_ROUNDS = ("QuantizeLinear", "DynamicQuantizeLinear")


@dataclass(frozen=True, slots=True)
class Tapped:
    """A model with taps, ready for a session."""

    model: bytes
    """Serialised; large weights are references into the files of `folder`."""
    folder: Path
    """Folder that external data is relative to."""
    taps: Mapping[int, Mapping[str, str]]
    """Site index -> quantity -> name of the output that holds it, as described by its Place."""
    outputs: tuple[str, ...]
    """The model's own outputs that were kept."""
    plain: bool = False
    """Whether it has only ONNX's own operators on floats. Kernels of other operators may round differently where
    onnxruntime does not arrange their weights beforehand."""
    widened: bool = False
    """Whether bfloat16 values are computed in float32."""
    rounded: bool = False
    """Whether floats are rounded to integers between float operators, with no products of integers (QDQ): the last bit
    of a float may then change the result by a whole quantisation step."""


def tap(
    found: Found,
    wanted: Mapping[int, Collection[str]],
    *,
    outputs: Collection[str] | None = None,
    rows: bool = False,
    picked: Collection[int] = (),
    wide: bool = True,
    begin: str | None = None,
    end: str | None = None,
) -> Tapped:
    """Add outputs for the wanted quantities.

    Args:
        found: The model and its sites.
        wanted: Site index -> quantities, and statistics of `reductions.STATS`; those without a place are left out.
        outputs: Which of the model's own outputs to keep; all if None.
        rows: Give only the rows of the queries in the input `reductions.ROWS`, where the graph's layout allows it.
        picked: Sites of which only some heads' matrices are given, where the graph's layout allows it: those in the
            input `some_heads.heads_input`.
        wide: Compute bfloat16 values in float32.
        begin: A tensor that becomes an input of the same name: what only leads to it is not run.
        end: A tensor that becomes an output of the same name.

    Returns:
        The tapped model. Without taps and with all outputs, it computes exactly what the file does.

    Raises:
        ModelError: A weight file is missing.
    """
    from attnx.sites.recognise import replaced

    keys = {key for key, (_, stand_in) in found.replacements.items() if stand_in.required}
    keys |= {key for i in wanted if wanted[i] for key in found.fused_of.get(i, ())}
    proto = replaced(found.graph, found.replacements, keys)
    check_runnable(found, proto)
    taps: dict[int, dict[str, str]] = {}
    own = len(proto.graph.node)
    named: dict[str, str] = {}
    added: list[str] = []
    writer = Writer(found.opened, proto)
    means: list[tuple[int, str]] = []
    kept = [o for o in found.graph.outputs if outputs is None or o in outputs]
    if begin is not None:
        writer.begin(begin)
    few = {i: _few(found, writer, wanted, i, (*kept, *([] if end is None else [end]))) for i in wanted if i in picked}
    for i, quantities in wanted.items():
        marked = "marks" in quantities
        for quantity in quantities:
            place = found.sites[i].places.get(source(quantity))
            if place is None or not _readable(found.opened, place.value):
                continue
            if quantity in few.get(i, {}):
                taps.setdefault(i, {})[quantity] = few[i][quantity]
                added.append(few[i][quantity])
                continue
            name = _output(found.opened, proto, place, named)
            masked = found.sites[i].places.get("masked")
            if quantity in ADDED:
                before = before_mask(found.sites[i])
                if before is None:
                    continue
                scores = _output(found.opened, proto, before, named)
                name = writer.added(name, place, scores, before, quantity)
            elif quantity in UNLIKE:
                from attnx.taps.hiding import unlike  # what `heads` measures by

                name = unlike(writer, found.opened, name, place, before_mask(found.sites[i]), quantity)
            elif quantity in NORMS:
                both = norms_behind(writer, found.opened, found.sites[i], name, place)
                if both is None:
                    quantity = "value"
                else:
                    name = both[NORMS.index(quantity)]
            elif quantity in ROLLOUTS:
                means.append((i, writer.head_mean(name, place, found.sites[i].sink, found.sites[i].heads)))
                continue
            elif quantity in ENTROPIES and masked is not None and fits(found.sites[i], "visible"):
                scores, single = _output(found.opened, proto, masked, named), quantity == "entropy_single"
                name = writer.entropy(name, place, scores, masked, marked=marked, single=single)
            elif quantity in STATS:
                name = writer.stat(name, place, quantity, found.sites[i].heads, marked)
            elif rows and quantity in STAGES:
                name = writer.rows(name, place) or name
            elif i in picked and quantity in STAGES:
                name = writer.heads(name, place, heads_input(i)) or name
            taps.setdefault(i, {})[quantity] = name
            added.append(name)
    if means:
        (way,) = (name for name in ROLLOUTS if name in wanted[means[0][0]])
        follow = writer.rollout if way == "rollout" else writer.arrived
        added.append(follow(_by_layer(writer, found.sites, means)))
        taps.setdefault(means[0][0], {})[way] = added[-1]
    stats = [s for s in STATS if any(s in names for names in taps.values())]
    writer.declare(Reduction(tuple(stats), rows=rows))
    writer.declare_heads(sorted(picked))
    added += [] if end is None else [end]
    return finish(found, proto, own, kept, added, taps, wide=wide)


def _few(
    found: Found, writer: Writer, wanted: Mapping[int, Collection[str]], site: int, kept: Collection[str]
) -> dict[str, str]:
    """The stages of some heads of a site, computed for these alone, unless something else needs all heads."""
    others = [
        place.value
        for i, quantities in wanted.items()
        for quantity in quantities
        if (i != site or quantity not in STAGES) and (place := found.sites[i].places.get(source(quantity))) is not None
    ]
    return some_heads(writer, found.opened, found.sites[site], wanted[site], [*others, *kept])


def check_runnable(found: Found, proto: ModelProto) -> None:
    """Refuse a model that onnxruntime must not be given.

    Raises:
        ModelError: A weight file is missing, or a node would crash the process.
    """
    from attnx.graph.load.soundness import ends_process

    if found.loaded.missing:
        raise ModelError(
            f"the model cannot be run: {next(iter(found.loaded.missing.values()))}",
            Wording("Put the weight files beside the .onnx file. <model.find()> works without them."),
        )
    foreign = {n.op_type for n in proto.graph.node if n.domain.split(".")[0] == _TENSORRT}
    if foreign:
        raise ModelError(
            f"the model is not run: it has operators of TensorRT ({', '.join(sorted(foreign))}, of the domain "
            f"{_TENSORRT}), for which onnxruntime has no kernels",
            Wording(
                "Give the model as it was before it was prepared for TensorRT, or quantised with ONNX's own "
                "QuantizeLinear and DequantizeLinear. <model.find()> works."
            ),
        )
    if (node := ends_process(proto.graph.node)) is not None:
        raise ModelError(
            f"the model is not run: its node {node!r} (com.microsoft.Attention) has no bias, and onnxruntime's kernel "
            "would end the process",
            Wording("Give the node a bias of zeros, or export the model without that fusion. <model.find()> works."),
        )


def finish(
    found: Found,
    proto: ModelProto,
    own: int,
    kept: Sequence[str],
    added: Sequence[str],
    taps: Mapping[int, Mapping[str, str]] | None = None,
    *,
    wide: bool = True,
) -> Tapped:
    """Make a changed copy of a model ready for a session: order nodes, set outputs, drop everything that is not needed.

    Args:
        found: The model.
        proto: The copy, changed in place.
        own: How many of its first nodes are the model's own.
        kept: The model's own outputs that it keeps.
        added: Further tensors that it outputs.
        taps: See `Tapped`.
        wide: Compute bfloat16 values in float32.
    """
    from attnx.taps.widening import widen, widen_inputs  # not needed where a tapped model comes from the cache

    _place_beside(proto, own)
    _set_outputs(proto, kept, list(dict.fromkeys(added)))
    _drop_unused(proto)
    if not wide:
        widen_inputs(proto)
    widened = wide and widen(proto)
    folder = _relocate(found, proto)
    nodes = proto.graph.node
    return Tapped(
        proto.SerializeToString(), folder, taps or {}, tuple(kept),
        plain=_plain(nodes), widened=widened, rounded=_rounded(nodes),
    )  # fmt: skip


def _by_layer(writer: Writer, sites: Sequence[Site], means: Sequence[tuple[int, str]]) -> list[str]:
    """For each layer, a mean over the heads of its sites."""
    groups: list[list[tuple[int, str]]] = []
    for i, name in means:
        before = sites[groups[-1][0][0]] if groups else None
        if before is not None and sites[i].layer == before.layer and sites[i].component == before.component:
            groups[-1].append((i, name))
        else:
            groups.append([(i, name)])
    return [writer.mean_of([n for _, n in group], [sites[i].heads or 1 for i, _ in group]) for group in groups]


def _plain(nodes: Iterable[NodeProto]) -> bool:
    marks = ("Quant", "QLinear", "Integer")
    return all(n.domain in ("", "ai.onnx") and not any(m in n.op_type for m in marks) for n in nodes)


def _rounded(nodes: Iterable[NodeProto]) -> bool:
    ops = {n.op_type for n in nodes if "Quant" in n.op_type or "QLinear" in n.op_type or "Integer" in n.op_type}
    return ops <= {"DequantizeLinear", *_ROUNDS} and not ops.isdisjoint(_ROUNDS)


def _output(graph: Graph, proto: ModelProto, place: Place, added: dict[str, str]) -> str:
    """The name under which a place's tensor can be an output: its own, or that of a copy where it cannot be one."""
    from onnx import helper

    value = place.value
    if value in added:
        return added[value]
    name = value
    node: NodeProto | None = graph.producer(value)
    fact = graph.facts.get(value)
    if node is None or value in graph.initializers:
        name = f"attnx/tap/{value}"
        proto.graph.node.append(helper.make_node("Identity", [value], [name], name=name))
    elif fact is not None and fact.dtype in _INTEGERS and (maker := _quantiser(graph, node)) is not None:
        name = f"attnx/tap/{value}"
        scale, zero = maker
        proto.graph.node.append(
            helper.make_node("DequantizeLinear", [value, scale, *([zero] if zero else [])], [name], name=name)
        )
    elif fact is not None and fact.dtype == 16:  # bfloat16: numpy has no such type
        name = f"attnx/tap/{value}"
        proto.graph.node.append(helper.make_node("Cast", [value], [name], name=name, to=1))
    added[value] = name
    return name


def _readable(graph: Graph, value: str) -> bool:
    """Whether a value's numbers are what they stand for: floats, or integers whose scale and zero point are known."""
    node, fact = graph.producer(value), graph.facts.get(value)
    whole = fact is not None and fact.dtype in _INTEGERS and value not in graph.initializers
    return not whole or node is None or _quantiser(graph, node) is not None


def _quantiser(graph: Graph, node: NodeProto) -> tuple[str, str] | None:
    """Scale and zero point of a node's integer result, traced back through views."""
    for _ in range(12):
        if node.op_type == "DynamicQuantizeLinear":
            return node.output[1], node.output[2]
        if node.op_type in _QUANTISED:
            scale, zero = (node.input[i] if i < len(node.input) else "" for i in _QUANTISED[node.op_type])
            return scale, zero
        before = graph.producer(node.input[0])
        if node.op_type not in _VIEWS or before is None:
            return None
        node = before
    return None


def _set_outputs(proto: ModelProto, kept: Sequence[str], added: Sequence[str]) -> None:
    from onnx import helper

    own = {o.name: o for o in proto.graph.output}
    infos = [own[name] for name in kept]
    infos += [helper.make_empty_tensor_value_info(name) for name in added if name not in own or name not in kept]
    copies = [_copy(info) for info in infos]
    del proto.graph.output[:]
    proto.graph.output.extend(copies)


def _place_beside(proto: ModelProto, own: int) -> None:
    """Move each node after the first `own` to right after the nodes that it reads.

    onnxruntime runs nodes in file order where it can: after the last layer, a reduction would keep the matrix of its
    site alive until the end of the run.
    """
    at: dict[str, int] = {}
    order: list[tuple[int, int]] = []
    for i, node in enumerate(proto.graph.node):
        place = i if i < own else max((at.get(name, -1) for name in node.input), default=-1)
        order.append((place, i))
        at.update((name, place) for name in node.output)
    nodes = [_copy(proto.graph.node[i]) for _, i in sorted(order)]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)


def _drop_unused(proto: ModelProto) -> None:
    """Drop the nodes and weights that no output needs: onnxruntime would run them anyway."""
    from attnx.graph.load.nodes import outer_names, subgraphs

    needed = {o.name for o in proto.graph.output}
    nodes = []
    for node in reversed(proto.graph.node):
        if needed.isdisjoint(node.output):
            continue
        nodes.append(node)
        needed.update(node.input)
        for _, inner in subgraphs(node):
            needed |= outer_names(inner)
    if len(nodes) == len(proto.graph.node):
        return
    weights = [tensor for tensor in proto.graph.initializer if tensor.name in needed]
    nodes = [_copy(node) for node in reversed(nodes)]
    weights = [_copy(tensor) for tensor in weights]
    # Old exporters list weights among the inputs, as default values: without its weight, an input would have to be fed.
    dropped = {tensor.name for tensor in proto.graph.initializer} - {tensor.name for tensor in weights}
    inputs = [_copy(value) for value in proto.graph.input if value.name not in dropped]
    del proto.graph.node[:], proto.graph.initializer[:], proto.graph.input[:]
    proto.graph.input.extend(inputs)
    proto.graph.node.extend(nodes)
    proto.graph.initializer.extend(weights)


def _copy(message: _Proto) -> _Proto:
    """A copy of a message that outlives the list that contains it."""
    copy = type(message)()
    copy.CopyFrom(message)  # type: ignore[attr-defined]
    return copy


def _relocate(found: Found, proto: ModelProto) -> Path:
    """Make every external location relative to one folder, the only form onnxruntime takes for a model in memory."""
    from attnx.graph.load.load import tensors

    folder = found.loaded.folder()
    for tensor in tensors(proto):
        if tensor.data_location != 1:
            continue
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = os.path.relpath(found.loaded.files[entry.value], folder)
    return folder


def places_for(site: Site, quantities: Collection[str]) -> set[str]:
    """What must be tapped at a site to show the quantities: their own places, or what they are computed from."""
    needs = {
        "query": (), "key": (), "value": (), "scores": ("query", "key"), "scaled": ("scores",), "capped": ("scaled",),
        "masked": (), "weights": ("masked",), "context": ("weights", "value"),
    }  # fmt: skip
    out: set[str] = set()

    def add(quantity: str) -> None:
        if quantity in site.places:
            out.add(quantity)
        else:
            for source in needs[quantity]:
                add(source)

    for quantity in quantities:
        if quantity in STATS:
            out.add(quantity)
        else:
            add(quantity)
    return out


__all__ = ["Tapped", "check_runnable", "finish", "places_for", "tap"]
