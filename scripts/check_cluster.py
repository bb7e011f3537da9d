#!/usr/bin/env python3
"""A scan on two machines that share nothing but a cable: `attnx scan --engine ray` against one process, to the byte.

    python scripts/check_cluster.py [--texts 600] [--only NAME]      # as root, on Linux; with iproute2 and attnx[scan]

A machine is a network namespace with mount and process namespaces of its own, joined to the other by a pair of virtual
interfaces. Temporary files, shared memory and home are in memory of its own. The programs are on both, and no file of a
scan is: corpus, model and result lie on the first machine, where the command and Ray's head run; the second has a
worker. Each has one processor, so that half of the work can only be done over the cable.

  whole        nothing happens to anybody
  other        the second machine has another model under the same path, whose weights are those of the first reversed
  process      what measures on the second machine gets SIGKILL when a third of the parts are done
  machine      every process of the second machine does

Each time the file has to be that of one process on the first machine, and the second has to have taken part. All that
was made is removed at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).resolve().parents[1]
WORDS = "the animal did not cross a wide street because it was too tired to walk and so we sat there".split()
ADDRESSES = "10.231.77.1", "10.231.77.2"
PORT = 6379
WORK = "/tmp/scan"
"""Where a machine has its files; the other has others there."""
PRIVATE = "/tmp", "/var/tmp", "/dev/shm"
PART = 8
"""Texts a part."""
PATIENCE = 300.0
"""Seconds after which something that should have happened is missed."""
FIRST = "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)\nwhile True: signal.pause()"
"""The first process of a machine: what ends there is forgotten."""
RAY = "from ray.scripts.scripts import main; main()"
CASES = "whole", "other", "process", "machine"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine that is made of namespaces."""

    name: str
    pid: int
    """Its first process; with it all others end."""

    def path(self, name: str) -> Path:
        """One of its files, seen from outside."""
        return Path(f"/proc/{self.pid}/root{WORK}") / name

    def command(self, *argv: str) -> list[str]:
        """A command line that runs there."""
        own = f"PATH={Path(sys.executable).parent}:{os.environ['PATH']}", f"HOME={WORK}", f"XDG_CACHE_HOME={WORK}/cache"
        quick = "RAY_health_check_period_ms=1000", "RAY_health_check_failure_threshold=5"
        enter = "nsenter", "-t", str(self.pid), "--net", "--mount", "--pid"
        return [*enter, "env", "-C", WORK, *own, *quick, "RAY_USAGE_STATS_ENABLED=0", *argv]

    def run(self, *argv: str) -> str:
        """Run something there to its end; what it printed."""
        done = subprocess.run(self.command(*argv), capture_output=True, text=True, timeout=PATIENCE)
        if done.returncode:
            raise SystemExit(f"FAILED on {self.name}: {' '.join(argv)}\n{done.stdout}{done.stderr}")
        return done.stdout

    def measuring(self) -> list[int]:
        """The processes there that measure."""
        found = []
        pids = subprocess.run(["ip", "netns", "pids", self.name], capture_output=True, text=True, check=True).stdout
        for pid in pids.split():
            with suppress(OSError):
                line = Path(f"/proc/{pid}/cmdline").read_bytes()
                if line.startswith(b"ray::") and b"_Measurer" in line:
                    found.append(int(pid))
        return found


def until(what: Callable[[], T], said: str) -> T:
    """Wait for something.

    Raises:
        SystemExit: It does not happen.
    """
    end = time.monotonic() + PATIENCE
    while not (found := what()):
        if time.monotonic() > end:
            raise SystemExit(f"FAILED: {said}: not within {PATIENCE:.0f} s")
        time.sleep(0.02)
    return found


def ip(*argv: str) -> None:
    """iproute2."""
    subprocess.run(["ip", *argv], check=True)


@contextmanager
def cable(names: tuple[str, str]) -> Iterator[None]:
    """Two network namespaces that reach each other and nothing else."""
    ends = [f"{name[-12:]}-v" for name in names]
    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", ends[0], "netns", names[0], "type", "veth", "peer", "name", ends[1], "netns", names[1])
        for name, end, address in zip(names, ends, ADDRESSES, strict=True):
            ip("-n", name, "address", "add", f"{address}/24", "dev", end)
            for link in ("lo", end):
                ip("-n", name, "link", "set", link, "up")
        yield
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL)


@contextmanager
def machine(name: str) -> Iterator[Machine]:
    """A machine on one end of the cable."""
    mounts = [f"mount -t tmpfs tmpfs {place}" for place in PRIVATE if Path(place).is_dir()]
    script = " && ".join(
        ["mount --make-rprivate /", *mounts, f"mkdir -p {WORK}/cache", f'exec {sys.executable} -c "$0"']
    )
    spaces = "unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"
    host = subprocess.Popen(["ip", "netns", "exec", name, *spaces, "bash", "-c", script, FIRST])
    try:
        pid = until(lambda: _child(host.pid), f"{name} starts")
        one = Machine(name, pid)
        until(one.path("cache").is_dir, f"{name} has its own files")
        yield one
    finally:
        host.kill()
        host.wait()


def _child(pid: int) -> int:
    """The process that another started; 0 where there is none."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(found[0]) if found else 0


def check(happens: str, texts: int) -> str:
    """One scan on a cluster of its own; what is to be said of it.

    Raises:
        SystemExit: It did not give what one process gives.
    """
    names = f"attnx-{os.getpid()}-a", f"attnx-{os.getpid()}-b"
    with cable(names), machine(names[0]) as one, machine(names[1]) as other:
        draw = random.Random(0)
        lines = [" ".join(draw.choices(WORDS, k=draw.randint(8, 40))) for _ in range(texts)]
        one.path("corpus.txt").write_text("\n".join(lines), encoding="utf-8")
        shutil.copytree(ROOT / "models" / "tiny-gpt", one.path("model"))
        start = (
            sys.executable,
            "-c",
            RAY,
            "start",
            "--num-cpus=1",
            "--object-store-memory=200000000",
            "--disable-usage-stats",
        )
        one.run(*start, "--head", f"--node-ip-address={ADDRESSES[0]}", f"--port={PORT}", "--include-dashboard=false")
        other.run(*start, f"--address={ADDRESSES[0]}:{PORT}", f"--node-ip-address={ADDRESSES[1]}")
        common = "-m", "attnx", "scan", "corpus.txt", "-m", "model", "--part", str(PART), "--device", "cpu", "--json"
        there = "--engine", "ray", "--address", f"{ADDRESSES[0]}:{PORT}", "--workers", "2"
        argv = one.command(sys.executable, *common, "-o", "cluster.parquet", *there)
        began = time.monotonic()
        scan = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            parts, most = one.path("cluster.parquet.parts"), -(-texts // PART)

            def done() -> int:
                return len(list(parts.glob("0*.parquet")))

            until(lambda: (done() >= most // 3 and other.measuring()) or scan.poll() is not None, "a third is done")
            pids, before = other.measuring(), done()
            busy = sum(_seconds(pid) for pid in pids)
            opened = sorted(path.name for path in other.path("cache").rglob("*") if path.is_file())
            if happens == "process":
                for pid in pids:
                    os.kill(pid, signal.SIGKILL)
            elif happens == "machine":
                os.kill(other.pid, signal.SIGKILL)
            out, err = scan.communicate(timeout=PATIENCE)
        finally:
            scan.kill()
            scan.wait()
        took = time.monotonic() - began
        if scan.returncode:
            raise SystemExit(f"FAILED: {happens}: exit {scan.returncode} after {took:.0f} s, {before} parts\n{err}")
        document = json.loads(out)
        if document["texts"] != texts or not pids or not opened:
            raise SystemExit(f"FAILED: {happens}: {document['texts']} texts; on the second: {pids}, {opened}\n{err}")
        one.run(sys.executable, *common, "-o", "process.parquet")
        same = one.path("cluster.parquet").read_bytes() == one.path("process.parquet").read_bytes()
        if not same:
            raise SystemExit(f"FAILED: {happens}: the files differ\n{err}")
        size = one.path("cluster.parquet").stat().st_size
        left = sorted(path.name for path in one.path("").iterdir())
    when = f"at {before} of {most} parts" if happens in ("process", "machine") else f"{most} parts"
    return (
        f"{happens}: {when}, {took:.0f} s, the second machine measured for {busy:.1f} s of processor time by then; "
        f"{size} bytes, the same as of one process; {', '.join(left)}"
    )


def _seconds(pid: int) -> float:
    """Processor seconds of a process."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def main() -> None:
    """Check every way in which a cluster can fare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--texts", type=int, default=600)
    parser.add_argument("--only", choices=CASES)
    options = parser.parse_args()
    missing = [tool for tool in ("ip", "nsenter", "unshare") if shutil.which(tool) is None]
    missing += ["attnx[scan]"] if find_spec("ray") is None else []
    if sys.platform != "linux" or os.geteuid() != 0 or missing:
        raise SystemExit(f"this makes namespaces: it takes Linux, root, and {', '.join(missing or ['iproute2'])}")
    if any(Path(p).is_relative_to(q) for p in (ROOT, sys.prefix) for q in PRIVATE):
        raise SystemExit(f"the programs must be on both machines, which have nothing of {', '.join(PRIVATE)} in common")
    for happens in CASES:
        if options.only in (None, happens):
            print(check(happens, options.texts), flush=True)


if __name__ == "__main__":
    main()
