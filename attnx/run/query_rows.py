"""Rows of single queries, gathered in the graph: no matrix leaves the session, and no layer behind the last is run."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from attnx.errors import InputError
from attnx.records import Site, Tokens, Trace
from attnx.run import read as tracing
from attnx.run.dry_run import Fed, fed, reduce
from attnx.taps.reductions import ROWS

if TYPE_CHECKING:
    from attnx.model import Model


def rows(
    model: Model,
    tokens: Tokens,
    positions: Sequence[int],
    quantities: Collection[str],
    layers: Collection[int] | None = None,
    verify: bool = True,
) -> Trace:
    """Run a model and keep the rows of some queries only.

    Args:
        model: The model.
        tokens: What to run on.
        positions: The queries, from 0.
        quantities: What is wanted of them. All are [B,H,R,K] (query and context [B,H,R,D]); key and value are whole.
        layers: Only sites of these layers.
        verify: Make the checks that the arrays at hand allow.

    Returns:
        A trace whose query side is those tokens, in the order of `positions`; `rows` says where they stand.

    Raises:
        InputError: A position that is not there.
    """
    bad = [at for at in positions if not 0 <= at < len(tokens)]
    if bad or not positions:
        what = f"there is no token {bad[0]}" if bad else "no positions were given"
        raise InputError(f"{what}: the text has {len(tokens)} tokens, from 0")
    made = fed(model, {"tokens": tokens})
    if made is not None and (trace := gather(model, made, made.sites(model, layers), positions, quantities, verify)):
        return trace
    whole = model.trace(tokens=tokens, layers=layers, quantities=quantities, verify=verify)
    if any(len(whole.queries_of(a)) != len(tokens) for a in whole.attentions):
        raise InputError("the queries of this model are not the tokens of the text", "Trace it whole.")
    return cut(whole, positions)


def gather(
    model: Model,
    made: Fed,
    sites: Sequence[Site],
    positions: Sequence[int],
    quantities: Collection[str],
    verify: bool = True,
) -> Trace | None:
    """The rows of some queries at some sites; None where a site's queries are not the text's tokens."""
    if not sites or any(site.kind != "self" for site in sites):
        return None
    found = reduce(model, made, sites, quantities, {ROWS: np.asarray(positions, np.int64)})
    if found is None:
        return None
    trace, tapped, values = found
    attentions = tracing.read(sites, tapped, values, quantities, verify, rows=positions)
    return named(replace(trace, attentions=attentions), positions)


def cut(trace: Trace, positions: Sequence[int]) -> Trace:
    """A whole trace as `gather` would give it."""
    at = list(positions)
    names = ("query", "scores", "scaled", "capped", "masked", "weights", "context")
    attentions = tuple(
        replace(a, **{n: array[:, :, at] for n in names if (array := getattr(a, n)) is not None})
        for a in trace.attentions
    )
    return named(replace(trace, attentions=attentions), positions)


def named(trace: Trace, positions: Sequence[int]) -> Trace:
    """A trace whose attentions hold some rows only, with its query side cut to these."""
    picked = pick(trace.tokens, positions)
    sides = {a.site.index: (picked, trace.keys_of(a)) for a in trace.attentions}
    return replace(trace, sides=sides, rows=tuple(positions))


def pick(tokens: Tokens, positions: Sequence[int]) -> Tokens:
    """Some tokens of a text, in the order of `positions`."""
    at = list(positions)

    def take(values: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(values[i] for i in at) if values else ()

    return replace(
        tokens,
        ids=np.asarray(tokens.ids)[at],
        pieces=take(tokens.pieces),
        offsets=take(tokens.offsets),
        words=take(tokens.words),
        special=take(tokens.special),
        mask=take(tokens.mask),
        type_ids=take(tokens.type_ids),
    )
