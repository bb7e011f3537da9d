"""Hold attnx to what the frameworks say of the families that make_families.py built.

    python scripts/check_families.py [families]

For each: the ids of its tokens, what it writes, the sites and the weights of each; and every line of the README's table
of families is run. None of it needs torch.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import attnx
from attnx.cli import app as cli
from attnx.feed.arrays import load_feed

README = Path(__file__).resolve().parents[1] / "README.md"
TOLERANCE = 2e-4


def faults(folder: Path) -> list[str]:
    """What of a family is not as its truth says; nothing where all of it holds."""
    about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
    given: dict[str, Any] = dict(about["given"])
    for name in ("image", "audio"):
        if name in given:
            given[name] = folder / given[name]
    if "inputs" in given:
        given["inputs"] = load_feed(folder / given["inputs"])
    trace = attnx.open(folder, device="cpu").trace(**given, required=bool(about["sites"]))
    found: list[str] = []
    for tokens, name in ((trace.tokens, "ids"), (trace.memory, "memory")):
        if name in about and (tokens is None or tokens.ids.tolist() != about[name]):
            found.append(f"{name}: {None if tokens is None else tokens.ids.tolist()}, not {about[name]}")
    if len(trace.attentions) != len(about["sites"]):
        return [*found, f"{len(trace.attentions)} sites, not {len(about['sites'])}"]
    with np.load(folder / "truth.npz") as truth:
        for i, (a, want) in enumerate(zip(trace.attentions, about["sites"], strict=True)):
            got = {"kind": a.site.kind, "component": a.site.component, "causal": a.site.causal}
            found += [f"site {i}: {k} is {got[k]}, not {v}" for k, v in want.items() if got[k] != v]
            found += [f"site {i}: check {c.name} is missed" for c in a.checks if not c.holds]
            weights, rows = truth[f"weights.{i}"], truth[f"rows.{i}"]
            if a.need("weights").shape[-1] != weights.shape[-1] or a.need("weights").shape[2] <= rows.max():
                found.append(f"site {i}: weights are {a.need('weights').shape}, not {weights.shape}")
                continue
            gap = float(np.abs(a.need("weights")[:, :, rows] - weights).max())
            if not gap <= about.get("tolerance", TOLERANCE):
                found.append(f"site {i}: weights are off by {gap:.2g}")
    return found


def lines() -> dict[str, list[str]]:
    """The commands of the README's table of families, by family."""
    found: dict[str, list[str]] = {}
    for row in README.read_text(encoding="utf-8").splitlines():
        for line in re.findall(r"`(attnx [^`]+)`", row) if row.startswith("|") else []:
            if named := re.search(r"families/([\w-]+)", line):
                found.setdefault(named[1], []).append(line)
    return found


def run(line: str) -> tuple[int, str, str]:
    """Run a command line in this process, in the folder in which it stands: exit code, stdout, stderr."""
    raw, err = io.BytesIO(), io.StringIO()
    out = io.TextIOWrapper(raw, encoding="utf-8", write_through=True)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.run(shlex.split(line)[1:])
    return code, raw.getvalue().decode(), err.getvalue()


def main() -> int:
    """Check every family in a folder, and the README's lines on them."""
    root = Path(sys.argv[1] if len(sys.argv) > 1 else "families").absolute()
    folders = [p for p in sorted(root.iterdir()) if (p / "about.json").is_file()]
    told = lines()
    apart = tempfile.TemporaryDirectory()  # what the lines write is of no use to anyone
    (Path(apart.name) / "families").symlink_to(root)
    os.chdir(apart.name)
    wrong = 0
    for folder in folders:
        said = faults(folder)
        for line in told.get(folder.name, []):
            code, out, err = run(line)
            said += [] if code == 0 and out + err else [f"{line} ends with {code}: {err}"]
        wrong += bool(said)
        print(f"{folder.name}: {'; '.join(said) or 'holds'}")
    os.chdir(root)
    apart.cleanup()
    print(f"{len(folders) - wrong} of {len(folders)} hold")
    return 1 if wrong or not folders else 0


if __name__ == "__main__":
    sys.exit(main())
