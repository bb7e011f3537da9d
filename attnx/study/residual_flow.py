"""What flows through the layers of one side of a model: rollout, exact flow, attention weighted by norms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from attnx.errors import UnsupportedError, UsageError
from attnx.formula import average
from attnx.measure import flow as flows
from attnx.measure import rollout as rollouts
from attnx.measure.norms import value_norms
from attnx.measure.rows import read
from attnx.records import Array, Axis, Measurement, Tokens, Trace
from attnx.run.dry_run import dry_run
from attnx.run.prompt import Prompt
from attnx.run.query_rows import gather
from attnx.session import memory
from attnx.session.protocol import OpenModel
from attnx.study.head_mean import over_heads
from attnx.study.output_weights import contributions
from attnx.tokens.spans import axis_labels
from attnx.wording import Wording

ARRAYS = ("masked", "weights", "value")
SIDES = ("encoder", "decoder", "cross")
QUICK = 4_000_000
"""Exact flow is only computed up to this cost: a few seconds. See `flow.FLOW_LIMIT`."""


@dataclass(frozen=True, slots=True)
class Streams:
    """The results of following attention through the layers."""

    side: str
    queries: tuple[str, ...]
    keys: tuple[str, ...]
    query: int | None
    rollout: Measurement
    """[S,Q,K]."""
    last: Measurement
    """[Q,K]: the rollout after the last layer."""
    attention: Measurement
    """[K]: the last layer's attention from the query (all queries if there is none), mean over heads."""
    norms: Measurement | None
    """[K]: the same weighted by norms."""
    flow: Measurement | None
    """[1,K]."""
    notes: tuple[str, ...]
    group: tuple[int, ...] = ()
    """The positions that `query` covers: means of several tokens are at the first."""

    @property
    def largest(self) -> Array:
        """[K]: the largest value that any method gives each key, from the followed token."""
        assert self.query is not None
        ways = [self.attention.values, self.rollout.values[-1, self.query]]
        ways += [self.norms.values] if self.norms is not None else []
        ways += [self.flow.values[0]] if self.flow is not None else []
        return np.asarray(np.fmax.reduce(ways))


def follow(
    model: OpenModel,
    trace: Trace,
    query: str | None,
    side: str | None,
    *,
    relative: bool = False,
    inputs: Mapping[str, Array] | None = None,
    row: Trace | None = None,
) -> Streams:
    """Follow attention through one side of a model.

    Args:
        model: Gives W_O.
        trace: With weights of all layers, and value if norms are wanted.
        query: The token to follow, as the user names it.
        side: "encoder", "decoder" or "cross"; by default cross if the model has it.
        relative: Divide by what uniform attention gives.
        inputs: The model's inputs, if its graph has branches.
        row: The query's row at the last site, with value, if the trace only has means over heads.

    Raises:
        UsageError: No such side or token.
        UnsupportedError: There is no self-attention over the text, or its matrices are not square.
    """
    there = [name for name in SIDES if _has(trace, name)]
    chosen = side if side is not None else there[-1] if there else "encoder"
    if chosen not in SIDES or (there and chosen not in there):
        raise UsageError(f"this model has no side {chosen!r}", f"It has {', '.join(there)}.")
    notes: list[str] = []
    if others := ", ".join(n for n in there if n != chosen):
        notes.append(Wording("{side} side; <side> shows the others: {others}", side=chosen, others=others))
    if chosen == "cross":
        rollout, tokens, keys = rollouts.memory_rollout(trace), trace.tokens, trace.memory or trace.tokens
        if relative:
            notes.append(Wording("<relative> is for one text alone: it changes nothing here"))
    else:
        tokens = keys = _text(trace, chosen)
        rollout = rollouts.rollout(trace, tokens, relative=relative)
    group: tuple[int, ...] = ()
    if query is not None:
        from attnx.study.selection import positions

        group = positions(tokens, query)
    where = group[0] if group else None
    queries, count = axis_labels(tokens, rollout.values.shape[1]), rollout.values.shape[2]
    if len(group) > 1:
        notes.append(f"from {len(group)} tokens together: the mean of what each of them gives")
        rollout = _together(rollout, group)
        queries = (*queries[: group[0]], query or "", *queries[group[0] + 1 :])
    exact = None
    if where is not None and chosen != "cross":
        exact, note = _exact(trace, group, tokens, len(rollout.values), relative)
        notes += [note] if note else []
    site = _last(trace, chosen, tokens)
    norms = None
    if where is not None and row is not None:
        norms = _norms(model, row, 0, range(len(group)), inputs)
    elif where is not None and trace.attentions[site].value is not None:
        norms = _norms(model, trace, site, group, inputs)
    return Streams(
        side=chosen,
        queries=queries,
        keys=axis_labels(keys, count),
        query=where,
        rollout=rollout,
        last=replace(rollout, axes=rollout.axes[1:], values=rollout.values[-1]),
        attention=last_attention(trace, site, group),
        norms=norms,
        flow=exact,
        notes=tuple(notes),
        group=group,
    )


def long(model: OpenModel, prompt: Prompt, query: str | None) -> tuple[Trace, Trace | None] | None:
    """For a long text: the means over heads, computed in the graph, and the query's row at the last site.

    Returns:
        None if the text is short, or the graph or the text does not allow it.

    Raises:
        UsageError: There is no such token.
    """
    planned = dry_run(model, prompt)
    sites = [] if planned is None else planned.sites(model)
    if (
        planned is None
        or memory.needed(sites, planned.feed, ARRAYS) <= memory.LARGE
        or any(site.sink for site in sites)
    ):
        return None
    found = over_heads(model, planned, sites)
    if found is None or query is None:
        return None if found is None else (found[0], None)
    from attnx.study.selection import positions

    row = gather(model, planned, sites[-1:], positions(planned.tokens, query), ARRAYS)
    return None if row is None or not row.attentions[0].trusted else (found[0], row)


def _has(trace: Trace, side: str) -> bool:
    if side == "cross":
        return trace.memory is not None and any(a.site.kind == "cross" for a in trace.attentions)
    return any(a.site.kind == "self" and a.site.component == side for a in trace.attentions)


def _text(trace: Trace, side: str) -> Tokens:
    """The tokens that a side's self-attentions are over."""
    for attention in trace.attentions:
        if attention.site.kind == "self" and attention.site.component == side:
            return trace.queries_of(attention)
    raise UnsupportedError(
        "no self-attention of this model is over a text, so nothing flows through it",
        Wording("<model.find()> lists what the model has."),
    )


def _last(trace: Trace, side: str, tokens: Tokens) -> int:
    """Position of the side's last site."""
    kind = "cross" if side == "cross" else "self"
    fits = [at for at, a in enumerate(trace.attentions) if a.site.kind == kind and trace.queries_of(a) is tokens]
    return fits[-1]


def _together(measure: Measurement, group: Sequence[int]) -> Measurement:
    """Replace the first of some rows of [...,Q,K] by their mean."""
    values = measure.values.copy()
    values[..., group[0], :] = values[..., list(group), :].mean(axis=-2)
    return replace(measure, values=values)


def _exact(
    trace: Trace, group: Sequence[int], tokens: Tokens, layers: int, relative: bool
) -> tuple[Measurement | None, str | None]:
    """Exact flow if it takes seconds, averaged over several tokens as one row; otherwise why it is missing."""
    if layers * len(tokens) ** 3 * len(group) > QUICK:
        return (
            None,
            f"no exact flow: {len(tokens)} tokens through {layers} layers would take too long; rollout is shown",
        )
    found = flows.flow(trace, list(group), tokens, relative=relative)
    axes = (replace(found.axes[0], labels=found.axes[0].labels[:1]), found.axes[1])
    return replace(found, axes=axes, values=found.values.mean(axis=0, keepdims=True)), None


def last_attention(trace: Trace, site: int, group: Sequence[int]) -> Measurement:
    """The last layer's weights from one query (or averaged over all queries), mean over heads."""
    attention = trace.attentions[site]
    rows = read(trace, attention)
    matrix = average(rows.weights, axis=0, where=np.broadcast_to(rows.real[..., None], rows.weights.shape))
    row = average(matrix if not group else matrix[list(group)], axis=0)
    labels = axis_labels(trace.keys_of(attention), len(row))
    return Measurement(
        name="attention",
        unit="share",
        axes=(Axis("key", labels),),
        values=row,
        bounds=(0.0, 1.0),
        source="Vaswani et al. 2017, equation 1",
        formula=f"weights of {trace.labels[site]}, the mean of its heads",
    )


def _norms(
    model: OpenModel, trace: Trace, site: int, group: Sequence[int], inputs: Mapping[str, Array] | None
) -> Measurement:
    """The same weighted by norms: of the sum of the heads after W_O, or without W_O the mean of the heads' shares."""
    one = replace(trace, attentions=(trace.attentions[site],))
    sizes, output = contributions(model, trace.attentions[site], inputs)
    found = value_norms(one, 0, output, together=False, sizes=sizes)
    row = average(found.shares.values[:, list(group)], axis=(0, 1))
    return Measurement(
        name="weighted norms",
        unit="share",
        axes=(found.shares.axes[2],),
        values=np.asarray(row),
        bounds=(0.0, 1.0),
        source=found.shares.source,
        formula=f"{found.shares.formula} of {trace.labels[site]}, the mean of its heads",
        notes=found.shares.notes,
    )
