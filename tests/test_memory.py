"""How much memory is free: what the machine says, and what is left of the limits that a container is under."""

from pathlib import Path

import numpy as np
import pytest

import attnx
from attnx.cli.wording import worded
from attnx.errors import RunError
from attnx.session import memory

GIB = 2**30


def system(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


MEMINFO = {"proc/meminfo": "MemTotal: 33554432 kB\nMemFree: 1048576 kB\nMemAvailable: 16777216 kB\n"}
SECOND = {"proc/self/cgroup": "0::/a.slice/b.scope\n"}
FIRST = {"proc/self/cgroup": "9:name=systemd:/x\n4:cpu,memory:/x/y\n0::/x\n"}


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({}, None),
        (MEMINFO, 16 * GIB),
        # the second version: the group's own limit, file cache that can be dropped counted as free
        (
            MEMINFO
            | SECOND
            | {
                "sys/fs/cgroup/a.slice/b.scope/memory.max": f"{4 * GIB}\n",
                "sys/fs/cgroup/a.slice/b.scope/memory.current": f"{3 * GIB}\n",
                "sys/fs/cgroup/a.slice/b.scope/memory.stat": f"anon 5\ninactive_file {GIB // 2}\nactive_file 7\n",
            },
            GIB + GIB // 2,
        ),
        # a limit of a group above it
        (
            MEMINFO
            | SECOND
            | {
                "sys/fs/cgroup/a.slice/b.scope/memory.max": "max\n",
                "sys/fs/cgroup/a.slice/b.scope/memory.current": "1\n",
                "sys/fs/cgroup/a.slice/memory.max": f"{2 * GIB}\n",
                "sys/fs/cgroup/a.slice/memory.current": f"{GIB}\n",
            },
            GIB,
        ),
        # in a container with a namespace of its own the group stands at the top
        (
            MEMINFO
            | {
                "proc/self/cgroup": "0::/\n",
                "sys/fs/cgroup/memory.max": f"{GIB}\n",
                "sys/fs/cgroup/memory.current": f"{GIB + 9}\n",
            },
            0,
        ),
        # the first version; the path is the host's, and is not there inside
        (
            MEMINFO
            | FIRST
            | {
                "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{8 * GIB}\n",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{2 * GIB}\n",
                "sys/fs/cgroup/memory/memory.stat": f"inactive_file 1\ntotal_inactive_file {GIB}\n",
            },
            7 * GIB,
        ),
        # the first version without a limit
        (
            MEMINFO
            | FIRST
            | {
                "sys/fs/cgroup/memory/x/y/memory.limit_in_bytes": "9223372036854771712\n",
                "sys/fs/cgroup/memory/x/y/memory.usage_in_bytes": "5\n",
            },
            16 * GIB,
        ),
        # a limit above what the machine has free
        (
            MEMINFO
            | SECOND
            | {
                "sys/fs/cgroup/a.slice/b.scope/memory.max": f"{40 * GIB}\n",
                "sys/fs/cgroup/a.slice/b.scope/memory.current": "0\n",
            },
            16 * GIB,
        ),
    ],
)
def test_what_is_free(tmp_path: Path, files: dict[str, str], free: int | None) -> None:
    assert memory.available(system(tmp_path, files)) == free


def test_the_message_has_the_figures_and_what_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    sites = attnx.open("minilm", device="cpu").sites
    feed = {"input_ids": np.ones((1, 4096), np.int64)}
    monkeypatch.setattr(memory, "available", lambda: 2 * GIB)
    with pytest.raises(RunError) as caught:
        memory.check(sites, feed, ("masked", "weights"))
    assert caught.value.message == "masked, weights of 6 sites need 9.0 GiB, and 2.0 GiB of memory are free"
    assert "One layer takes 1.5 GiB (`layers=...`)." in caught.value.hint
    assert "One layer takes 1.5 GiB (--layer L, --head L.H)." in worded(caught.value.hint)
    memory.check(sites[:1], feed, ("masked", "weights"))
    with pytest.raises(RunError, match=r"one layer's matrices need 2\.2 GiB inside the model"):
        memory.check_reduced(sites, feed)
    monkeypatch.setattr(memory, "available", lambda: None)
    memory.check(sites, feed, ("weights",))
