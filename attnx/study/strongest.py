"""Which layer holds the weight that is taken apart: of a long text, found before arrays of one layer are fetched."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnx.errors import UnsupportedError
from attnx.measure import looks
from attnx.records import QUANTITIES
from attnx.run.dry_run import fed
from attnx.run.query_rows import gather
from attnx.session import memory
from attnx.study.grouping import columns_summed, rows_averaged
from attnx.study.selection import positions, trusted

if TYPE_CHECKING:
    from attnx.cli.start import Start


def strongest_layer(run: Start, query: str | None, key: str | None) -> tuple[int, int | None] | None:
    """The layer, and with a query the head, that `measure.looks.strongest` would choose of the whole trace.

    Args:
        run: What a command was given.
        query: Only from this token: its row of every layer is gathered in the graph.
        key: Only to this token.

    Returns:
        None where the text is short, or where that cannot be found so.

    Raises:
        UsageError: There is no such token.
    """
    made = fed(run.opened, run.feed)
    sites = [] if made is None else made.sites(run.opened)
    layers = [site.layer for site in sites if site.layer is not None]
    if made is None or len(set(layers)) != len(sites) or any(site.kind != "self" for site in sites) or not sites:
        return None
    if memory.needed(sites, made.feed, QUANTITIES) <= memory.LARGE:
        return None
    if query is None:
        return layers[-1], None
    rows = positions(made.tokens, query)
    to = () if key is None else positions(made.tokens, key, argument="key")
    row = gather(run.opened, made, sites, rows, ("masked", "weights"))
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
