"""Which layer holds the weight that is taken apart: of a long text, found before arrays of one layer are fetched."""

from __future__ import annotations

from attnx.errors import UnsupportedError
from attnx.measure import looks
from attnx.records import QUANTITIES
from attnx.run.dry_run import dry_run
from attnx.run.prompt import Prompt
from attnx.run.query_rows import gather
from attnx.session import memory
from attnx.session.protocol import OpenModel
from attnx.study.selection import position, trusted


def strongest_layer(
    model: OpenModel, prompt: Prompt, query: str | None, key: str | None
) -> tuple[int, int | None] | None:
    """The layer, and with a query the head, that `measure.looks.strongest` would choose of the whole trace.

    Args:
        model: The model.
        prompt: What it is run on.
        query: Only from this token: its row of every layer is gathered in the graph.
        key: Only to this token.

    Returns:
        None where the text is short, or where that cannot be found so.

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
        return layers[-1], None
    row = gather(model, planned, sites, [position(planned.tokens, query)], ("masked", "weights"))
    if row is None:
        return None
    to = None if key is None else position(planned.tokens, key, argument="key")
    try:
        row, _ = trusted(row)
        found = looks.strongest(row, query=0, key=to)
    except UnsupportedError:
        return None
    layer = row.attentions[found.site].site.layer
    return None if layer is None else (layer, found.head)
