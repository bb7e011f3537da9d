"""Sites of one model may be over different tokens: which of them a query, a mean or a table can cover."""

from __future__ import annotations

from dataclasses import replace

from attnx.errors import UsageError
from attnx.records import Attention, Trace
from attnx.study.request import Request
from attnx.study.selection import positions_of

Sides = tuple[tuple[str, ...], tuple[str, ...]]


def together(trace: Trace, request: Request, notes: list[str]) -> Trace:
    """The trace with only those sites that can be shown together, and a note on the others.

    Sites that are shown one by one are unaffected. If a query is followed through several, or several are
    averaged or shown side by side, all must be over the same tokens: those of the first that has the query.

    Raises:
        UsageError: No site has the query.
    """
    if request.query is None and request.over not in ("layers", "all"):
        return trace
    first = _first(trace, request)
    wanted = sides(trace, first)
    kept = tuple(a for a in trace.attentions if sides(trace, a) == wanted)
    if len(kept) == len(trace.attentions):
        return trace
    gone = [label for label, a in zip(trace.labels, trace.attentions, strict=True) if sides(trace, a) != wanted]
    notes.append(f"left out, over other queries or keys: {', '.join(gone)}; a layer by itself shows them")
    return replace(trace, attentions=kept)


def sides(trace: Trace, attention: Attention) -> Sides:
    """The tokens on a site's axes."""
    return trace.queries_of(attention).pieces, trace.keys_of(attention).pieces


def _first(trace: Trace, request: Request) -> Attention:
    if request.query is None or trace.rows is not None:
        return trace.attentions[0]
    failed: UsageError | None = None
    seen: set[tuple[str, ...]] = set()
    for attention in trace.attentions:
        queries = trace.queries_of(attention)
        if queries.pieces in seen:
            continue
        seen.add(queries.pieces)
        try:
            positions_of(queries, request)
        except UsageError as error:
            failed = failed or error
            continue
        return attention
    assert failed is not None
    raise failed
