"""Which layer holds the weight to decompose; for a long text, found before that layer's arrays are fetched."""

from __future__ import annotations

from attnx.errors import UnsupportedError
from attnx.measure import looks
from attnx.records import QUANTITIES
from attnx.run.dry_run import dry_run
from attnx.run.prompt import Prompt
from attnx.run.query_rows import gather
from attnx.session import memory
from attnx.session.protocol import OpenModel
from attnx.study.grouping import columns_summed, rows_averaged
from attnx.study.selection import positions, trusted
from attnx.study.worth_opening import opening_reduced


def strongest_layer(
    model: OpenModel, prompt: Prompt, query: str | None, key: str | None
) -> tuple[int, int | None] | None:
    """The layer and head that the whole trace would give: by `opening`, or the strongest if a query or key is given.

    Args:
        model: The model.
        prompt: The prompt to run it on.
        query: Only from this token: its row of every layer is gathered in the graph.
        key: Only to this token.

    Returns:
        None if the text is short, or if it cannot be found this way.

    Raises:
        UsageError: There is no such token.
    """
    planned = dry_run(model, prompt)
    sites = [] if planned is None else planned.sites(model)
    layers = [site.layer for site in sites if site.layer is not None]
    if planned is None or len(set(layers)) != len(sites) or any(site.kind != "self" for site in sites) or not sites:
        return None
    if memory.needed(sites, planned.feed, QUANTITIES) <= memory.LARGE:
        return None
    if query is None:
        if key is not None:
            return layers[-1], None
        opened = opening_reduced(model, planned, sites)
        layer = None if opened is None else sites[opened[0]].layer
        return (layers[-1], None) if opened is None or layer is None else (layer, opened[1])
    rows = positions(planned.tokens, query)
    to = () if key is None else positions(planned.tokens, key)
    row = gather(model, planned, sites, rows, ("masked", "weights"))
    if row is None:
        return None
    try:
        row, _ = trusted(row)
        if len(rows) > 1:
            row = rows_averaged(row, rows, query)
        if len(to) > 1:
            for site in range(len(row.attentions)):
                row = columns_summed(row, site, 0, to, key or "")
        found = looks.strongest(row, query=0, key=to[0] if to else None)
    except UnsupportedError:
        return None
    layer = row.attentions[found.site].site.layer
    return None if layer is None else (layer, found.head)
