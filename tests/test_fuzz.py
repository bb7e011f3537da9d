"""2,000 broken models and feeds: each is read, run or refused with a reason - no traceback, no hang, nothing lost."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.mutants import feed, mutant

ROOT = Path(__file__).parents[1]
COUNT, CHILDREN = 2000, 20
SLOWEST = 60.0
"""Seconds of silence after which a child hangs (a mutant takes a few milliseconds; the machine may be busy)."""


def work_through(folder: Path, first: int, stop: int) -> tuple[list[str], list[tuple[int, str]]]:
    """Every line that children said of a range of mutants; and the mutants that ended a child, with their stage."""
    lines: list[str] = []
    lost: list[tuple[int, str]] = []
    while first < stop:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.mutants", str(folder), str(first), str(stop)],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1", "ATTNX_CACHE": "off"},
        )  # fmt: skip
        assert process.stdout is not None
        said = b""
        while True:
            ready, _, _ = select.select([process.stdout], [], [], SLOWEST)
            chunk = os.read(process.stdout.fileno(), 1 << 16) if ready else b""
            if not ready:
                process.kill()
                process.wait()
                pytest.fail(f"no end: {said.decode().splitlines()[-1:]}")
            if not chunk:
                break
            said += chunk
        process.stdout.close()
        own = said.decode().splitlines()
        lines += own
        if process.wait() == 0:
            return lines, lost
        assert process.returncode < 0, f"a child gave up: {own[-1:]}"
        number, stage, *_ = own[-1].split()
        lost.append((int(number), stage))
        first = int(number) + 1
    return lines, lost


@pytest.mark.skipif(os.name == "nt", reason="select on pipes")
@pytest.mark.parametrize("child", range(CHILDREN))
def test_nothing_that_is_broken_breaks_attnx(tmp_path: Path, child: int) -> None:
    each = COUNT // CHILDREN
    lines, lost = work_through(tmp_path, child * each, (child + 1) * each)
    assert [line for line in lines if " BUG " in line] == []
    ends = Counter(line.split()[1] for line in lines)
    assert ends["find"] == each
    assert ends["traced"] + ends["refused"] + len(lost) == each
    assert ends["traced"] > each // 10  # it is no test where nothing gets through
    assert ends["run"] > each // 5
    # onnxruntime may crash on a model; reading one may not. What crashes it is an error on the command line.
    assert [pair for pair in lost if pair[1] != "run"] == []
    for number, _ in lost[:3]:
        contained(tmp_path, number)


def contained(folder: Path, number: int) -> None:
    path, inputs = folder / "crash.onnx", folder / "crash.npz"
    path.write_bytes(mutant(number)[1])
    more = {"attention_mask": np.ones((1, 5), np.int64), "use_cache_branch": np.array([True])}
    slots = subprocess.run(
        [sys.executable, "-m", "attnx", "sites", str(path), "--feed-template"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    np.savez(inputs, **feed(number), **{name: array for name, array in more.items() if name in slots})
    done = subprocess.run(
        [sys.executable, "-m", "attnx", "trace", str(path), "--inputs", str(inputs)],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode in (0, 3, 4, 5)
    assert "Traceback" not in done.stderr
    assert done.returncode == 0 or done.stderr.startswith("attnx: ")


def test_a_feed_without_rows_is_refused(tmp_path: Path) -> None:
    """Found by this test: Einsum of onnxruntime 1.31 divides by the number of rows, and ends the process."""
    assert feed(3964)["x"].shape[0] == 0
    contained(tmp_path, 3964)


def test_mutants_are_the_same_every_time() -> None:
    assert [mutant(n) for n in range(20)] == [mutant(n) for n in range(20)]
    assert len({mutant(n)[1] for n in range(200)}) > 150
