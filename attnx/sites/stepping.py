"""The body of a Loop or Scan as a separate graph, and a copy of the node that outputs more of its values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from attnx.graph.axes.paths import above
from attnx.graph.fact import UNKNOWN, Fact
from attnx.graph.load.flatten import sort_nodes
from attnx.graph.load.nodes import attribute, attributes, outer_names
from attnx.graph.shapes.index import Graph
from attnx.sites.finding import Finding, Replacement

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

    from attnx.sites.emit import Emit

_GROWS = "attnx/grows/"
_TRIES = 3
_PASS = ("Identity", "Cast")


class Body:
    """The body of a Loop or Scan.

    Attributes:
        graph: The body; a value that it reads from outside becomes an input or, where known, a constant.
        firsts: Name -> a stack over steps, of which only the first step is wanted.
    """

    def __init__(self, outer: Graph, node: NodeProto) -> None:
        from onnx import GraphProto

        self.outer, self.node = outer, node
        held = attribute(node, "body")
        assert held is not None
        self.body = GraphProto()
        self.body.CopyFrom(held.g)
        a = attributes(node)
        self.loop = node.op_type == "Loop"
        self.scanned = 0 if self.loop else int(a["num_scan_inputs"])
        self.lead = 2 if self.loop else 0
        count = len(node.input) - self.scanned
        self.carried = list(
            zip((i.name for i in self.body.input[self.lead : count]), node.input[self.lead : count], strict=False)
        )
        """(name in the body, its initial value)."""
        self.free = sorted(outer_names(self.body))
        self.taken: dict[str, tuple[bool, int]] = {}
        """Value output from the body -> whether its first axis counts steps of an inner loop, and its rank."""
        self.firsts: dict[str, str] = {}
        self.graph, self.growing = self._graph()
        self.unchanged = {name for i, (name, _) in enumerate(self.carried) if self._passes(i)}

    def _graph(self) -> tuple[Graph, list[int]]:
        """The body as a graph, and the sizes that stand for dimensions that change from step to step."""
        facts = self._given()
        for _ in range(_TRIES):
            graph = self._indexed(facts)
            after = [graph.facts.get(o.name, UNKNOWN) for o in self.body.output]
            changed = False
            for (name, _), fact in zip(self.carried, after[1 if self.loop else 0 :], strict=False):
                before = facts[name]
                if before.shape is None or fact.shape is None or len(before.shape) != len(fact.shape):
                    changed = changed or before.shape is not None
                    facts[name] = Fact(None, before.dtype)
                    continue
                shape = tuple(a if a == b else None for a, b in zip(before.shape, fact.shape, strict=True))
                changed = changed or shape != before.shape
                facts[name] = Fact(shape, before.dtype)
            if not changed:
                break
        growing = [size for name, size in graph.sizes.items() if name.startswith(_GROWS)]
        graph.sizes.update(self.outer.sizes)
        return graph, growing

    def _given(self) -> dict[str, Fact]:
        """What is known of the body's inputs at the first step, and of what it reads from outside."""
        names = [i.name for i in self.body.input]
        facts = {name: self.outer.facts.get(value, UNKNOWN) for name, value in self.carried}
        if self.loop:
            facts[names[0]], facts[names[1]] = Fact((), 7), Fact((), 9)
        axes = list(attributes(self.node).get("scan_input_axes") or [0] * self.scanned)
        for i in range(self.scanned):
            whole = self.outer.facts.get(self.node.input[len(self.node.input) - self.scanned + i], UNKNOWN)
            shape = whole.shape
            if shape is not None:
                at = axes[i] % len(shape)
                shape = shape[:at] + shape[at + 1 :]
            facts[names[len(names) - self.scanned + i]] = Fact(shape, whole.dtype)
        return {name: Fact(fact.shape, fact.dtype) for name, fact in facts.items()}

    def _indexed(self, facts: Mapping[str, Fact]) -> Graph:
        from onnx import ModelProto

        proto = ModelProto()
        proto.CopyFrom(self._shell())
        graph = proto.graph
        graph.name = self.body.name
        graph.initializer.extend(self.body.initializer)
        graph.node.extend(self.body.node)
        graph.output.extend(self.body.output)
        for info in self.body.input:
            graph.input.append(_info(info.name, facts.get(info.name, UNKNOWN), info))
        for name in self.free:
            held = self._constant(name)
            if held is not None:
                graph.initializer.append(held)
            else:
                graph.input.append(_info(name, self.outer.facts.get(name, UNKNOWN)))
        known = {t.name for t in graph.initializer} | {i.name for i in graph.input}
        made = Graph(self.outer.loaded, proto, sort_nodes(graph.node, known))
        made.facts  # noqa: B018  binds sizes
        return made

    def _shell(self) -> ModelProto:
        from onnx import helper

        empty = helper.make_graph([], "body", [], [])
        return helper.make_model(empty, opset_imports=list(self.outer.proto.opset_import))

    def _constant(self, name: str) -> TensorProto | None:
        """A value read from outside, if it is the same for all model inputs."""
        from onnx import TensorProto, numpy_helper

        if name in self.outer.initializers:
            copy = TensorProto()
            copy.CopyFrom(self.outer.initializers[name])
            return copy
        if name in self.outer.dynamic:
            return None
        value = self.outer.stable(name)
        return None if value is None else numpy_helper.from_array(value, name)

    def _passes(self, i: int) -> bool:
        """Whether a carried value passes from step to step unchanged."""
        value = self.body.output[(1 if self.loop else 0) + i].name
        for _ in range(8):
            node = self.graph.producer(value)
            if node is None or node.op_type not in _PASS:
                break
            value = node.input[0]
        return bool(value == self.carried[i][0])

    # What values of the body are

    def steady(self, inside: Graph, value: str) -> bool:
        """Whether a value has the same size at every step, as far as the graph tells."""
        shape = inside.shape(value)
        return shape is not None and not any(d % p == 0 for d in shape if d for p in self.growing)

    def reads(self, inside: Graph, value: str) -> set[str]:
        """The body's inputs and the outside values from which a value is made."""
        return {name for name in above(inside, [value]) if name in inside.inputs}

    def fixed(self, inside: Graph, value: str) -> bool:
        """Whether a value is the same at every step."""
        return self.reads(inside, value) <= self.unchanged | set(self.free)

    def same(self, inside: Graph, value: str) -> str | None:
        """The outside value that equals a value of the body at every step; None where there is none."""
        for _ in range(8):
            node = inside.producer(value)
            if node is None or node.op_type != "Identity":
                break
            value = node.input[0]
        if value in self.free:
            return value
        return dict(self.carried)[value] if value in self.unchanged else None

    def outside(self, inside: Graph, value: str, *, moving: bool = False) -> str:
        """An outside value from which one of the body comes; with `moving`, one that changes at every step, if any."""
        reads = self.reads(inside, value) if value else set()
        carried = [(name, first) for name, first in self.carried if name in reads]
        changing = [first for name, first in carried if name not in self.unchanged]
        kept = [first for name, first in carried if name in self.unchanged] + [n for n in self.free if n in reads]
        scanned = [
            outer
            for inner, outer in zip(
                [i.name for i in self.body.input][len(self.body.input) - self.scanned :],
                self.node.input[len(self.node.input) - self.scanned :],
                strict=False,
            )
            if self.scanned and inner in reads
        ]
        order = [*scanned, *changing, *kept] if moving else [*kept, *scanned, *changing]
        return str(next(iter(order), ""))

    def carries(self, inside: Graph, finding: Finding) -> str:
        """The node's output that a site's result goes into."""
        place = finding.places.get("context") or finding.places["weights"]
        for out, name in zip(self.body.output[1 if self.loop else 0 :], self.node.output, strict=False):
            if name and place.value in above(inside, [out.name]):
                return str(name)
        return str(next(o for o in self.node.output if o))

    # The copy of the node

    def rewritten(
        self, kept: Mapping[str, tuple[NodeProto, Replacement]], names: Mapping[str, str], emit: Emit
    ) -> list[NodeProto]:
        """A copy of the node that also outputs the values taken, and the nodes after it that lay them out."""
        from onnx import NodeProto, helper

        stand_ins = {id(node): stand_in for node, stand_in in kept.values()}
        body = type(self.body)()
        body.CopyFrom(self.body)
        del body.node[:]
        for node in self.graph.nodes:
            instead = stand_ins.get(id(node))
            body.node.extend([node] if instead is None else instead.nodes)
            body.initializer.extend([] if instead is None else instead.initializers)
        copy = NodeProto()
        copy.CopyFrom(self.node)
        count = (1 if self.loop else 0) + len(self.carried)
        outputs, outs = list(body.output), list(self.node.output)
        outs += [""] * (len(outputs) - (1 if self.loop else 0) - len(outs))
        behind: list[NodeProto] = []
        before: list[NodeProto] = []
        for value, (stacked, rank) in self.taken.items():
            name = names[value]
            kind = self._type(value)
            if stacked and self.loop:
                _accumulate(copy, body, outputs, outs, before, behind, (value, name, kind, count), emit)
                count += 1
                continue
            # A Scan must know the rank of its outputs; their sizes may be anything.
            outputs.append(helper.make_tensor_value_info(value, kind, [f"{name}/{i}" for i in range(rank)]))
            outs.append(f"{name}/by step" if stacked else name)
            if stacked:
                behind += _flattened(emit, f"{name}/by step", name)
        for first, name in self.firsts.items():
            start, stop, axis = emit.ints(0), emit.ints(1), emit.ints(0)
            behind.append(helper.make_node("Slice", [name, start, stop, axis], [first], name=first))
        del body.output[:], copy.output[:]
        body.output.extend(outputs)
        copy.output.extend(outs)
        attribute(copy, "body").g.CopyFrom(body)  # type: ignore[union-attr]
        if not self.loop:
            _extend_directions(copy, len(outputs) - count, len(self.taken), attributes(self.node))
        return [*before, copy, *behind]

    def _type(self, value: str) -> int:
        fact = self.graph.facts.get(value)
        return fact.dtype if fact is not None and fact.dtype else 1


def _info(name: str, fact: Fact, declared: ValueInfoProto | None = None) -> ValueInfoProto:
    """An input of the body, with those of its sizes that do not change."""
    from onnx import helper

    kind = fact.dtype or (declared.type.tensor_type.elem_type if declared is not None else 0) or 1
    if fact.shape is None:
        return helper.make_tensor_value_info(name, kind, None)
    dims = [f"{_GROWS}{name}/{i}" if d is None else d for i, d in enumerate(fact.shape)]
    return helper.make_tensor_value_info(name, kind, dims)


def _accumulate(
    copy: NodeProto, body: GraphProto, outputs: list[ValueInfoProto], outs: list[str], before: list[NodeProto],
    behind: list[NodeProto], what: tuple[str, str, int, int], emit: Emit,
) -> None:  # fmt: skip
    """Collect a value whose number of rows differs from step to step in a carried sequence."""
    from onnx import helper

    value, name, kind, at = what
    start, into, out, last = (f"{name}/{part}" for part in ("none", "so far", "and now", "all"))
    before.append(helper.make_node("SequenceEmpty", [], [start], name=start, dtype=kind))
    body.input.append(helper.make_tensor_sequence_value_info(into, kind, None))
    body.node.append(helper.make_node("SequenceInsert", [into, value], [out], name=out))
    copy.input.append(start)
    outputs.insert(at, helper.make_tensor_sequence_value_info(out, kind, None))
    outs.insert(at - 1, last)
    behind.append(helper.make_node("ConcatFromSequence", [last], [name], name=name, axis=0))


def _flattened(emit: Emit, value: str, name: str) -> list[NodeProto]:
    """Merge the two outermost axes of a value."""
    from onnx import helper

    shape, rest, whole = (f"{name}/{part}" for part in ("shape", "rest", "whole"))
    return [
        helper.make_node("Shape", [value], [shape], name=shape),
        helper.make_node("Slice", [shape, emit.ints(2), emit.ints(2**62), emit.ints(0)], [rest], name=rest),
        helper.make_node("Concat", [emit.ints(-1), rest], [whole], name=whole, axis=0),
        helper.make_node("Reshape", [value, whole], [name], name=name),
    ]


def _extend_directions(node: NodeProto, outputs: int, new: int, a: Mapping[str, object]) -> None:
    """Make the additional outputs of a Scan follow the order of its inputs."""
    from onnx import helper

    (backward, *_) = list(a.get("scan_input_directions") or [0])  # type: ignore[call-overload]
    own = list(a.get("scan_output_directions") or [0] * (outputs - new))  # type: ignore[call-overload]
    axes = list(a.get("scan_output_axes") or [0] * (outputs - new))  # type: ignore[call-overload]
    for name, values in (
        ("scan_output_directions", [*own, *[backward] * new]),
        ("scan_output_axes", [*axes, *[0] * new]),
    ):
        for held in [x for x in node.attribute if x.name == name]:
            node.attribute.remove(held)
        node.attribute.append(helper.make_attribute(name, [int(v) for v in values]))
