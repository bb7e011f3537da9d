"""Which layer holds the weight that is taken apart: of a long text, found before arrays of one layer are fetched."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnx.errors import UnsupportedError
from attnx.measure import looks
from attnx.records import QUANTITIES
from attnx.run.dry_run import fed
from attnx.run.query_rows import gather
from attnx.session import memory
from attnx.study.selection import position, trusted

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
    row = gather(run.opened, made, sites, [position(made.tokens, query)], ("masked", "weights"))
    if row is None:
        return None
    to = None if key is None else position(made.tokens, key, argument="key")
    try:
        row, _ = trusted(row)
        found = looks.strongest(row, query=0, key=to)
    except UnsupportedError:
        return None
    layer = row.attentions[found.site].site.layer
    return None if layer is None else (layer, found.head)
