"""What a site's graph holds of it: a model is not opened for what none of its sites has."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from attnx.errors import UnsupportedError
from attnx.records import QUANTITIES, Site
from attnx.taps.tap import places_for


def must_hold(sites: Sequence[Site], quantities: Collection[str]) -> None:
    """Refuse what no site has.

    Raises:
        UnsupportedError: None has any of the quantities, nor what they are computed from; says why, of the first.
    """
    if any(places_for(site, quantities) for site in sites):
        return
    first = sites[0]
    held = [name for name in QUANTITIES if name not in first.absent and places_for(first, [name])]
    why = f" ({first.notes[0]})" if first.notes else ""
    raise UnsupportedError(
        f"{first.label} ({first.op} {first.node!r}) has no {', '.join(quantities)}{why}",
        f"It has {', '.join(held)}." if held else "Nothing of it can be shown.",
    )
