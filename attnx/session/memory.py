"""Check that a run fits in memory, before anything is run."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from attnx.errors import RunError
from attnx.numerals import whole
from attnx.records import STAGES, Array, Site
from attnx.wording import Wording

WITHIN = 3
"""Matrices of one site that are in memory at once in a session: the scores, the weights, and what follows from them."""
_NO_LIMIT = 1 << 60
"""Version 1 of cgroups writes a number above this for "no limit"."""
LARGE = 32 << 20
"""Matrices of more bytes than this are reduced in the graph where possible, rather than fetched."""
LITTLE = 64 << 20
"""Runs of fewer bytes than this are not checked: onnxruntime itself takes more."""


def needed(sites: Sequence[Site], feed: Mapping[str, Array], quantities: Collection[str]) -> int:
    """Bytes of the wanted matrices: 4 x batch x heads x n^2 for each stage of each site.

    n is the length of the longest sequence of ids in the feed; a model without ids is not estimated (0).
    """
    stages = sum(name in STAGES for name in quantities)
    return sum(one_matrix(site, feed) * stages for site in sites)


def one_matrix(site: Site, feed: Mapping[str, Array]) -> int:
    """Bytes of one stage of one site, as in `needed`."""
    shapes = [a.shape for a in feed.values() if a.ndim == 2 and a.dtype.kind == "i"]
    batch, length = max(shapes, key=lambda shape: shape[1], default=(0, 0))
    return int(4 * batch * (site.heads or 1) * length * length)


def available(root: Path = Path("/")) -> int | None:
    """Bytes of memory that are free for this process; None where the system does not report it.

    Args:
        root: Root of the system's files.

    Returns:
        The machine's free memory, or what is left of the smallest limit on this container or service.

    Source: Linux kernel documentation, proc(5) MemAvailable; admin-guide/cgroup-v2 (memory.max, memory.current) and
    cgroup-v1/memory (memory.limit_in_bytes, memory.usage_in_bytes); file cache that can be dropped counts as free.
    """
    free = [size for size in (_machine(root), *_groups(root)) if size is not None]
    return min(free) if free else None


_LAYER = "[One layer takes {one} (<layers=>, <heads=>). |One layer takes {one} ([<layers=>|<heads=>]). ]"


def check(sites: Sequence[Site], feed: Mapping[str, Array], quantities: Collection[str]) -> None:
    """Refuse a run whose matrices would not fit.

    Raises:
        RunError: They need more than is free; the message has the figures, and what would fit.
    """
    free, need = available(), needed(sites, feed, quantities)
    if free is None or need <= free:
        return
    stages = ", ".join(name for name in quantities if name in STAGES)
    one = max(needed([site], feed, quantities) for site in sites)
    layer = _LAYER if one <= free and len(sites) > 1 else ""
    raise RunError(
        f"{stages} of {len(sites)} sites need {_size(need)}, and {_size(free)} of memory are free",
        Wording(
            layer + "One token's row (<model.rows()>) and the measures of heads (<model.heads()>) are reduced in the "
            "graph and take little. Or use a shorter text.",
            one=_size(one),
        ),
    )


def check_reduced(sites: Sequence[Site], feed: Mapping[str, Array]) -> None:
    """Refuse a run in which even the matrices of one site, held only inside the session, would not fit.

    Raises:
        RunError: They need more than is free.
    """
    need = WITHIN * max((one_matrix(site, feed) for site in sites), default=0)
    free = available() if need > LITTLE else None  # reading the free memory takes a millisecond
    if free is None or need <= free:
        return
    raise RunError(
        f"one layer's matrices need {_size(need)} inside the model, and {_size(free)} of memory are free",
        "Use a shorter text.",
    )


def give_back() -> None:
    """Give memory that was freed back to the system at once, where the C library can (glibc)."""
    with contextlib.suppress(OSError, AttributeError, TypeError):  # Windows takes no None; others have no such function
        ctypes.CDLL(None).malloc_trim(0)


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"


def _machine(root: Path) -> int | None:
    for line in _text(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:") and (size := _number(line.split()[1])) is not None:
            return size * 1024
    return None


def _groups(root: Path) -> Iterator[int | None]:
    """What is left of each limit: that of the process's group, and of the groups above it."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        kinds, _, path = rest.partition(":")
        second = number == "0" and not kinds
        if not second and "memory" not in kinds.split(","):
            continue
        mounted = root / ("sys/fs/cgroup" if second else "sys/fs/cgroup/memory")
        names = ("memory.max", "memory.current") if second else ("memory.limit_in_bytes", "memory.usage_in_bytes")
        # Inside a container the path may be the host's; the container's own group is then at the root.
        inner = [part for part in path.split("/") if part not in ("", ".", "..")]
        for depth in range(len(inner) + 1):
            folder = mounted.joinpath(*inner[:depth])
            limit, used = (_number(_text(folder / name).strip()) for name in names)
            if limit is not None and used is not None and limit < _NO_LIMIT:
                yield max(0, limit - used + _droppable(folder, second))


def _droppable(folder: Path, second: bool) -> int:
    """Bytes of a group that are file cache, which the system would drop if memory ran short."""
    name = "inactive_file" if second else "total_inactive_file"
    for line in _text(folder / "memory.stat").splitlines():
        if line.split(" ")[0] == name:
            return _number(line.split(" ")[-1]) or 0
    return 0


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


def _number(text: str) -> int | None:
    return whole(text, most=2**64)  # "max" means no limit
