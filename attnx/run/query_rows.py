"""Rows of single queries, gathered in the graph: no matrix leaves the session, no layer after the last wanted runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from attnx.errors import InputError
from attnx.numerals import counted
from attnx.records import Array, Site, Tokens, Trace
from attnx.run.check import attentions as checked
from attnx.run.dry_run import DryRun, dry_run, reduce
from attnx.run.naming import side_by_side
from attnx.run.pipeline import execute
from attnx.run.prompt import Prompt
from attnx.run.read import read
from attnx.session.protocol import OpenModel, Wanted
from attnx.taps.reductions import ROWS, fits
from attnx.taps.tap import Tapped
from attnx.tokens.axes import pick


def rows(
    model: OpenModel,
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
        A trace whose query side is those tokens, in the order of `positions`; `rows` holds their positions.

    Raises:
        InputError: A position that does not exist.
    """
    bad = [at for at in positions if not 0 <= at < len(tokens)]
    if bad or not positions:
        what = f"there is no token {bad[0]}" if bad else "no positions were given"
        raise InputError(f"{what}: the text has {counted(len(tokens), 'token')}, from 0")
    prompt = Prompt(tokens=tokens)
    planned = dry_run(model, prompt)
    if planned is not None:
        trace = gather(model, planned, planned.sites(model, layers), positions, quantities, verify)
        if trace is not None:
            return trace
    whole = execute(model, prompt, Wanted(layers, quantities, verify=verify))
    if any(len(whole.queries_of(a)) != len(tokens) for a in whole.attentions):
        raise InputError("the queries of this model are not the tokens of the text", "Trace it whole.")
    return cut(whole, positions)


def gather(
    model: OpenModel,
    planned: DryRun,
    sites: Sequence[Site],
    positions: Sequence[int],
    quantities: Collection[str],
    verify: bool = True,
) -> Trace | None:
    """The rows of some queries at some sites; None where a site's queries are not the text's tokens."""
    if not sites or any(site.kind != "self" for site in sites):
        return None
    if not all(fits(site, "sizes") for site in sites):
        return None
    found = reduce(model, planned, sites, (*quantities, "sizes"), {ROWS: np.asarray(positions, np.int64)})
    if found is None:
        return None
    trace, tapped, values = found
    if any(_sizes(site, tapped, values) != (len(planned.tokens),) * 2 for site in sites):
        return None  # a block of the text, or a single query token: its rows are not those of the text's tokens
    tapped = replace(tapped, taps={i: {q: n for q, n in t.items() if q != "sizes"} for i, t in tapped.taps.items()})
    attentions = checked(read(sites, tapped, values, quantities, positions), quantities, verify)
    notes = tuple(dict.fromkeys((*trace.notes, *side_by_side(attentions))))  # the dry run had no arrays to tell by
    return named(replace(trace, attentions=attentions, notes=notes), positions)


def _sizes(site: Site, tapped: Tapped, values: Mapping[str, Array]) -> tuple[int, int]:
    """How many queries and keys a site had, without a sink."""
    queries, keys = values[tapped.taps[site.index]["sizes"]].tolist()
    window = site.places["weights"].window or (None, None)
    return queries, len(range(keys)[slice(*window)])


def cut(trace: Trace, positions: Sequence[int]) -> Trace:
    """Cut a whole trace down to what `gather` would give."""
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
