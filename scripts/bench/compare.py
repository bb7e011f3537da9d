#!/usr/bin/env python3
"""attnx beside other tools, each in its own environment: same weights, same texts, whole processes.

    python scripts/bench/compare.py [--folder FOLDER] [--models minilm tiny-gpt] [--tools ...] [--jobs ...] [--turns 5]

Needs attnx's own environment and pip. Installs each tool (and attnx) into FOLDER/TOOL, or into a temporary folder,
which is kept only where it is given: then a second run installs nothing. A model of models/ is written as a checkpoint
of transformers from the very weights of its ONNX file, so that both sides run the same numbers; what the tools find is
compared before anything is timed, and a tool that finds something else is not timed. Ctrl-C ends the turns, and prints
what was measured until then.
  sentence   all attention weights of one sentence, to a file          long   of 512 tokens
  corpus     every head's entropy, mean over 200 sentences of 8 to 40 words, in batches of 32
  ablations  every head ablated by itself, and how far the output moved: one sentence
  page       an HTML page of every layer and head: one sentence
A job is a process from start to end; the tools take turns, forwards and backwards, after one turn that does not count.
Wall and processor time and peak resident memory are medians. A job that a tool has no way to do, or failed, or that it
did otherwise, is listed with the reason. Plain `torch` on Linux comes with CUDA; --torch takes another requirement, and
pip's own settings (PIP_EXTRA_INDEX_URL and so on) are heard.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from compare_setup import FILE, TOOLS, install, installed, last_line, python_of, write_checkpoint, write_texts
from compare_tables import Cost, Found, agreement, left_out, ratios, sizes

ROOT = Path(__file__).resolve().parents[2]
JOBS = ("sentence", "long", "corpus", "ablations", "page")
VIEW = "draws weights that the caller got from transformers"
NO_WAY = {
    "transformers": {"page": "gives tensors, and draws nothing"},
    "transformer-lens": {"page": "gives tensors; draws through circuitsvis"},
    "bertviz": dict.fromkeys(JOBS[:-1], VIEW),
    "circuitsvis": dict.fromkeys(JOBS[:-1], VIEW),
}
"""Jobs that a tool has no way to do, by its documents; none of them is tried."""
TEXTS = {
    "minilm": "The animal didn't cross the street because it was too tired.",
    "tiny-gpt": "The cat sat on the mat. The cat",
}
STARTER = """
import os, sys, time
flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
to = [(os.POSIX_SPAWN_OPEN, at + 1, path, flags, 0o644) for at, path in enumerate(sys.argv[1:3])]
start = time.perf_counter()
child = os.posix_spawn(sys.argv[3], sys.argv[3:], os.environ, file_actions=to)
_, status, used = os.wait4(child, 0)
wall = time.perf_counter() - start
print([wall, used.ru_utime + used.ru_stime, used.ru_maxrss, os.waitstatus_to_exitcode(status)])
"""
"""Runs a command with its output and errors in two files, and prints seconds, peak and exit code; not on Windows."""
ALLOWED = 1e-3
"""The largest difference of a weight, an entropy in nats or a moved output, past which a tool is not timed."""


def command(folder: Path, tool: str, job: str, model: Path, out: Path) -> list[str]:
    """What does a job in a tool: attnx's own commands, or compare_jobs.py in the tool's environment."""
    if tool != "attnx":
        script = str(Path(__file__).with_name("compare_jobs.py"))
        return [python_of(folder, tool), script, tool, job, str(out.parent), str(out.parent / "texts.json"), str(out)]
    texts = json.loads((out.parent / "texts.json").read_text())
    name, corpus, rows = str(model), str(out.parent / "corpus.txt"), str(out.with_suffix(".parquet"))
    ids = ",".join(map(str, texts["long"]))
    args = {
        "sentence": ["trace", name, texts["sentence"], "--only", "weights", "--save", str(out), "--force"],
        "long": ["trace", name, "--ids", ids, "--only", "weights", "--save", str(out), "--force"],
        "corpus": ["scan", corpus, "-m", name, "--measure", "entropy", "--json", "-o", rows, "--force"],
        "ablations": ["ablate", texts["sentence"], "-m", name, "--json"],
        "page": ["report", texts["sentence"], "-m", name, "-o", str(out), "--force"],
    }
    return [python_of(folder, "attnx"), "-m", "attnx", *args[job], "--device", "cpu"]


def measure(args: list[str], folder: Path) -> Cost:
    """Run a process from start to end; `said` is its output, or the last line of its errors where it failed.

    It is started by a small process: a child's peak memory begins at its parent's.
    """
    own = {"HF_HUB_OFFLINE": "1", "XDG_CACHE_HOME": str(folder / "cache")}
    out, errors = folder / "said.txt", folder / "errors.txt"
    starter = [sys.executable, "-S", "-c", STARTER, str(out), str(errors), *args]
    run = subprocess.run(starter, capture_output=True, text=True, check=True, env={**os.environ, **own}, cwd=folder)
    wall, cpu, peak, code = json.loads(run.stdout)
    said = last_line(errors.read_text(errors="replace")) if code else out.read_text()
    return Cost(wall, cpu, peak * (1 if sys.platform == "darwin" else 1024), code, said)


def result(job: str, out: Path, said: str) -> np.ndarray:
    """What a job found, as one array; attnx's scan and ablate say it as JSON."""
    if not out.exists():
        document = json.loads(said)
        if job == "corpus":
            return np.array(document["summary"][0]["values"])
        layers = 1 + max(effect["heads"][0]["layer"] for effect in document["effects"])
        return np.array([effect["moved"] for effect in document["effects"]]).reshape(layers, -1)
    arrays = np.load(out)
    return np.squeeze(np.stack([arrays[name] for name in arrays.files]))


def compare(folder: Path, model: Path, tools: Sequence[str], jobs: Sequence[str], turns: int, found: Found) -> None:
    """One turn that is checked and not timed, then `turns` of whatever held; `found` grows as they end."""
    work = folder / "work" / model.name
    able: dict[str, list[str]] = {job: [] for job in jobs}
    mine: dict[str, np.ndarray] = {}
    for turn in range(-1, turns):
        for job in jobs:
            for tool in tools if turn < 0 else able[job] if turn % 2 == 0 else able[job][::-1]:
                if reason := NO_WAY.get(tool, {}).get(job):
                    found.reasons[job, tool] = reason
                    continue
                out = work / f"{job}-{tool}.{'html' if job == 'page' else 'npz'}"
                cost = measure(command(folder, tool, job, model, out), work)
                if cost.code and tool == "attnx":
                    sys.exit(f"attnx failed: {cost.said}")
                if cost.code:
                    found.reasons[job, tool] = f"failed: {cost.said[:300]}"
                elif turn >= 0:
                    found.costs.setdefault((job, tool), []).append(cost)
                elif job == "page":
                    page = out.read_text(encoding="utf-8")
                    found.pages[tool] = len(page.encode()), fetches(page)
                    able[job].append(tool)
                else:
                    value = result(job, out, cost.said)
                    off = found.off[job, tool] = difference(value, mine.setdefault(job, value))
                    if off <= ALLOWED:
                        able[job].append(tool)
                    else:
                        found.reasons[job, tool] = f"finds something else: off by {off:.2g}"
            print(f"{model.name}, turn {turn + 1} of {turns}: {job}", file=sys.stderr, flush=True)


def difference(value: np.ndarray, mine: np.ndarray) -> float:
    """The largest difference from what attnx found; infinite for another shape."""
    if value.shape != mine.shape:
        return float("inf")
    return float(np.abs(value.astype(float) - mine).max())


def fetches(page: str) -> bool:
    """Whether a page loads scripts or styles from elsewhere."""
    return bool(re.search(r"""(?:src|href)\s*=\s*["'](?:https?:)?//|["']https?://[^"']+(?:\.js|\.min|/d3)""", page))


def processor() -> str:
    """The processor's name, as the system gives it."""
    if Path("/proc/cpuinfo").exists():
        names = [line.split(":")[1] for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line]
        if names:
            return names[0].strip()
    return platform.processor() or platform.machine()


def load() -> str:
    """The load over the last minute, where the system counts it."""
    return f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, help="where the environments are made and kept; else a temporary folder")
    parser.add_argument("--models", nargs="+", choices=list(TEXTS), default=list(TEXTS))
    parser.add_argument("--tools", nargs="+", choices=list(TOOLS)[1:], default=list(TOOLS)[1:], help="beside attnx")
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS))
    parser.add_argument("--turns", type=int, default=5, help="processes of each job and tool that count")
    parser.add_argument("--tokens", type=int, default=512, help="of the long text")
    parser.add_argument("--texts", type=int, default=200, help="of the corpus")
    parser.add_argument("--torch", default="torch", metavar="REQUIREMENT", help="torch, as pip is asked for it")
    parser.add_argument("--seconds", action="store_true", help="attnx's own seconds too, where the machine is quiet")
    options = parser.parse_args(argv)
    for name in ("turns", "tokens", "texts"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} is 1 or more")
    return options


def run(options: argparse.Namespace, folder: Path) -> None:
    """Install, compare, print."""
    tools, not_installed = [], {}
    for tool in ["attnx", *options.tools]:
        print(f"installing {tool}", file=sys.stderr, flush=True)
        if why := install(folder, tool, options.torch):
            not_installed["every job", tool] = why
        else:
            tools.append(tool)
    if "attnx" not in tools:
        sys.exit(f"attnx could not be installed: {not_installed['every job', 'attnx']}")
    before, files = load(), {}
    found = {name: Found() for name in options.models}
    for name in options.models:
        model, work = ROOT / "models" / name, folder / "work" / name
        write_checkpoint(model, work)
        write_texts(model, work, TEXTS[name], options.tokens, options.texts)
        sizes_of = [path.stat().st_size / 1e6 for path in (model / "model.onnx", work / FILE)]
        files[name] = f"ONNX {sizes_of[0]:.1f} MB, checkpoint {sizes_of[1]:.1f} MB"
    with contextlib.suppress(KeyboardInterrupt):
        for name, of in found.items():
            compare(folder, ROOT / "models" / name, tools, options.jobs, options.turns, of)
    print(f"{datetime.date.today()}, {processor()}, {os.cpu_count()} cores, load {before} before and {load()} after;")
    counts = {len(costs) for of in found.values() for costs in of.costs.values()} or {0}
    turns = " to ".join(str(count) for count in sorted({min(counts), max(counts)}))
    print(f"Python {platform.python_version()}; medians of {turns} processes each, which took turns.\n")
    for name, of in found.items():
        print(f"{name}: {files[name]}\n\n{ratios(of, tools, options.jobs, options.seconds)}\n")
        print(f"{agreement(of, tools, options.jobs)}\n")
    environments = {tool: installed(folder, tool) for tool in tools}
    print(sizes(environments, {name: of.pages for name, of in found.items()}))
    reasons = {"Not installed": not_installed} | {f"Not done, {name}": of.reasons for name, of in found.items()}
    for what, why in reasons.items():
        if why:
            print(f"\n{what}:\n\n{left_out(why)}")


def main() -> None:
    options = arguments()
    if options.folder is not None:
        options.folder.mkdir(parents=True, exist_ok=True)
        return run(options, options.folder.resolve())
    with tempfile.TemporaryDirectory() as folder:
        return run(options, Path(folder).resolve())


if __name__ == "__main__":
    main()
