"""Whether a graph holds what is wanted: a model is not opened for quantities that none of its sites has."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from attnx.errors import UnsupportedError
from attnx.records import QUANTITIES, Site
from attnx.taps.tap import places_for


def must_hold(sites: Sequence[Site], quantities: Collection[str]) -> None:
    """Refuse quantities that no site has.

    Raises:
        UnsupportedError: No site has any of the quantities or what they are computed from; explains why, for the first.
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
