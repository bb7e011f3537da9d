"""Whether what is asked for fits in memory, said before anything is run."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from attnx.errors import RunError
from attnx.records import STAGES, Array, Site


def needed(sites: Sequence[Site], feed: Mapping[str, Array], quantities: Collection[str]) -> int:
    """Bytes of the matrices that are asked for: 4 x batch x heads x n^2 for each stage of each site.

    n is the length of the longest sequence of ids in the feed; a model without ids is not estimated (0).
    """
    shapes = [a.shape for a in feed.values() if a.ndim == 2 and a.dtype.kind == "i"]
    if not shapes:
        return 0
    batch, length = max(shapes, key=lambda shape: shape[1])
    stages = sum(name in STAGES for name in quantities)
    return sum(4 * batch * (site.heads or 1) * length * length * stages for site in sites)


def available() -> int | None:
    """Bytes of memory that are free for use; None where the system does not say."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None


def check(sites: Sequence[Site], feed: Mapping[str, Array], quantities: Collection[str]) -> None:
    """Refuse a run whose matrices would not fit.

    Raises:
        RunError: They need more than what is free; the figures, and what fits.
    """
    free, need = available(), needed(sites, feed, quantities)
    if free is None or need <= free:
        return
    stages = ", ".join(name for name in quantities if name in STAGES)
    raise RunError(
        f"{stages} of {len(sites)} sites need {need / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB of memory are free",
        "Choose layers (--layer 5), use a shorter text, or take what is reduced in the graph: Model.heads and "
        "Model.rows in Python.",
    )
