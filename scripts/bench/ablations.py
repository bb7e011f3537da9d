#!/usr/bin/env python3
"""Every head ablated by itself, against as many plain runs, and against hooks in PyTorch.

    python scripts/bench/ablations.py [--decoder FILE] [--turns 3] [--torch-python PATH] [--only encoder|decoder]

Both sides take turns in one process; medians of the ratios are printed, of wall time and of processor time (which says
more where other programs run). Sessions are open on both sides; `opened too` counts attnx's checks and sessions, and
compares with plain runs whose session is open already.
  encoder   the bundled encoder, 16 tokens, 72 heads; its output whole
  decoder   30 layers of 9 heads, random weights (`make_decoder.py`; built where --decoder names no file), 64 tokens,
            270 heads; logits of the last position. Plain runs are timed in groups before and after, and peak memory is
            that of two processes of their own: one that runs the plain session, one that ablates every head
  PyTorch   the same decoder in transformers (LlamaForCausalLM, eager, random weights), a hook on each output
            projection's input, batch of one
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

import attnx
from attnx.interventions.feeds import plan_run
from attnx.interventions.plan import Edit, Intervention
from attnx.interventions.running import Intervening
from attnx.run.prompt import Prompt

TEXT = "The animal didn't cross the street because it was too tired."
GROUP = 15
"""Plain runs of the decoder that are timed together."""
TORCH = """
import sys, time
import torch
from transformers import LlamaConfig, LlamaForCausalLM
config = LlamaConfig(hidden_size=576, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3, head_dim=64,
                     intermediate_size=1536, vocab_size=49152, tie_word_embeddings=True, attn_implementation="eager")
model = LlamaForCausalLM(config).eval()
ids = torch.randint(0, 49152, (1, 64), generator=torch.Generator().manual_seed(0))
state = {"head": None}
def hook_of(layer):
    def hook(module, args):
        if state["head"] is None or state["head"][0] != layer:
            return None
        context = args[0].clone()
        at = state["head"][1] * 64
        context[..., at:at + 64] = 0
        return (context,)
    return hook
for at, layer in enumerate(model.model.layers):
    layer.self_attn.o_proj.register_forward_pre_hook(hook_of(at))
print(f"torch {torch.__version__}, {torch.get_num_threads()} threads", flush=True)
heads = [(layer, head) for layer in range(30) for head in range(9)]
for line in sys.stdin:
    some = heads[::int(line)]
    wall, cpu = time.perf_counter(), time.process_time()
    with torch.no_grad():
        for state["head"] in some:
            model(input_ids=ids, use_cache=False).logits[0, -1]
    print((time.perf_counter() - wall) / len(some), (time.process_time() - cpu) / len(some), flush=True)
"""

Times = tuple[float, float]


def timed(call: Callable[[], object]) -> Times:
    """Wall and processor seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - wall, time.process_time() - cpu


def every_head(layers: int, heads: int) -> list[Intervention]:
    """One intervention a head."""
    places = [(layer, head) for layer in range(layers) for head in range(heads)]
    return [Intervention(f"{n}.{h}", (Edit("ablate", (n,), (h,)),)) for n, h in places]


def show(title: str, mine: list[Times], other: list[Times]) -> None:
    wall, cpu = (statistics.median(a[i] / b[i] for a, b in zip(mine, other, strict=True)) for i in (0, 1))
    print(f"{title:<52}{wall:8.3f}{cpu:8.3f}", flush=True)


def encoder(turns: int) -> None:
    model = attnx.open("minilm", device="cpu")
    made = plan_run(model, Prompt(TEXT))
    feeds, steps = {"inputs": made.feed}, every_head(6, 12)
    plain, kept = model.plain(), Intervening(model, feeds)

    def plainly() -> None:
        for _ in steps:
            plain.run(made.feed)

    calls: dict[str, Callable[[], object]] = {
        "plain": plainly,
        "open": lambda: list(kept.run(steps)),
        "opened too": lambda: list(Intervening(model, feeds).run(steps)),
    }
    found: dict[str, list[Times]] = {name: [] for name in calls}
    for turn in range(turns + 1):
        for name, call in calls.items():
            taken = timed(call)
            if turn:
                found[name].append(taken)
    print(f"{len(made.tokens)} tokens, {statistics.median(t[0] for t in found['plain']) / 72 * 1e3:.1f} ms a plain run")
    show("encoder: 72 ablations / 72 plain runs", found["open"], found["plain"])
    show("encoder: 72 ablations, opened too / 72 plain runs", found["opened too"], found["plain"])


def feed_of() -> Mapping[str, np.ndarray]:
    ids = np.random.default_rng(0).integers(0, 49152, (1, 64))
    return {"input_ids": ids, "attention_mask": np.ones_like(ids)}


def ablate(path: Path) -> None:
    """Every head of the decoder, from the start."""
    running = Intervening(attnx.open(path, device="cpu"), {"inputs": feed_of()})
    for effect in running.run(every_head(30, 9), at={"logits": 63}):
        assert effect.outputs["logits"].shape == (1, 1, 49152)


def child(path: Path, what: str) -> None:
    """One side alone, for its memory."""
    if what == "ablate":
        ablate(path)
    elif what == "plain":
        session = attnx.open(path, device="cpu").plain()
        for _ in range(3):
            session.run(feed_of())
    else:
        import onnxruntime as ort

        session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        for _ in range(3):
            session.run(None, feed_of())
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def decoder(path: Path, turns: int, torch_python: str | None) -> None:
    def peak(what: str) -> float:
        command = [sys.executable, __file__, "--decoder", str(path), "--child", what]
        return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    memory = {what: peak(what) for what in ("onnxruntime", "plain", "ablate")}
    other = None
    if torch_python:
        other = subprocess.Popen([torch_python, "-c", TORCH], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert other.stdout is not None
        print(other.stdout.readline().strip() or sys.exit("torch or transformers is missing there"))
    plain, feed = attnx.open(path, device="cpu").plain(), feed_of()
    plain.run(feed)

    def group() -> Times:
        found = timed(lambda: [plain.run(feed) for _ in range(GROUP)])
        return found[0] / GROUP, found[1] / GROUP

    def hooked() -> Times:
        assert other is not None
        assert other.stdin is not None
        assert other.stdout is not None
        other.stdin.write("18\n")
        other.stdin.flush()
        wall, cpu = map(float, other.stdout.readline().split())
        return wall, cpu

    mine: list[Times] = []
    plains: list[Times] = []
    hooks: list[Times] = []
    for _ in range(turns):
        before, torch_before = group(), hooked() if other else (1.0, 1.0)
        wall, cpu = timed(lambda: ablate(path))
        after, torch_after = group(), hooked() if other else (1.0, 1.0)
        mine.append((wall / 270, cpu / 270))
        plains.append(((before[0] + after[0]) / 2, (before[1] + after[1]) / 2))
        hooks.append(((torch_before[0] + torch_after[0]) / 2, (torch_before[1] + torch_after[1]) / 2))
    print(f"64 tokens, {statistics.median(t[0] for t in plains) * 1e3:.0f} ms a plain run")
    show("decoder: 270 ablations, opened too / 270 plain runs", mine, plains)
    if other is not None:
        show("decoder: hooks in PyTorch / attnx, opened too", hooks, mine)
        other.stdin.close()  # type: ignore[union-attr]
        other.wait()
    sizes = ", ".join(f"{what} {size:.0f} MB" for what, size in memory.items())
    print(f"peak memory: {sizes}; ablations / plain {memory['ablate'] / memory['plain']:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--decoder", type=Path)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--torch-python", help="a Python with torch and transformers")
    parser.add_argument("--only", choices=("encoder", "decoder"))
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return child(options.decoder, options.child)
    print(f"{'':<52}{'wall':>8}{'cpu':>8}")
    if options.only != "decoder":
        encoder(options.turns)
    if options.only == "encoder":
        return None
    with tempfile.TemporaryDirectory() as folder:
        path = options.decoder
        if path is None:
            path = Path(folder) / "decoder.onnx"
            command = [sys.executable, str(Path(__file__).with_name("make_decoder.py")), str(path)]
            subprocess.run(command, check=True)
        return decoder(path, options.turns, options.torch_python)


if __name__ == "__main__":
    main()
