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
from attnx.feed.spectra import log_mel

sys.path.insert(0, str(Path(__file__).parent))
from family_sounds import speech

ROOT = Path(__file__).resolve().parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
"""What has lines on families, in tables."""
TOLERANCE = 2e-4


def faults(folder: Path) -> list[str]:
    """What of a family is not as its truth says; nothing where all of it holds."""
    about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
    if "speech" in about:
        return speech_faults(folder, about)
    if "translates" in about:
        return translator_faults(folder, about)
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
        if not found and not given.keys() - {"text", "target", "generate"}:
            found += aligned_faults(folder, given, about, truth)
        if "contacts" in truth:
            found += contact_faults(folder, given["text"], truth["contacts"])
    return found


def contact_faults(folder: Path, protein: str, want: np.ndarray) -> list[str]:
    """What `attnx contacts` makes of a protein that is not transformers' corrected map, head by head and on average."""
    from attnx.run.prompt import Prompt
    from attnx.study.contacts import contacts
    from attnx.study.request import Head

    model, prompt, want = attnx.open(folder, device="cpu"), Prompt(protein), want.reshape(-1, *want.shape[-2:])
    maps = {"all": (contacts(model, prompt), want.mean(0))}
    heads = [(site.layer, head) for site in model.sites for head in range(site.heads or 0)]
    for (layer, head), one in zip(heads, want, strict=True):
        maps[f"L{layer} H{head}"] = contacts(model, prompt, [Head(layer, head)]), one
    gaps = {name: float(np.abs(got.map.values - one).max()) for name, (got, one) in maps.items()}
    return [f"contacts of {name} are off by {gap:.2g}" for name, gap in gaps.items() if not gap <= TOLERANCE]


def translator_faults(folder: Path, about: dict[str, Any]) -> list[str]:
    """What a translator of whose file no framework speaks writes and links that onnxruntime alone does not."""
    from attnx.run.generate import plan
    from attnx.run.prompt import Prompt
    from attnx.study.translation import pair

    model, given = attnx.open(folder, device="cpu"), about["given"]
    got = pair(model, Prompt(given["text"], generate=plan(model, given["generate"])))
    ids, cross = _translated(folder, about["translates"], given["generate"])
    if got.trace.tokens.ids.tolist() != ids:
        return [f"wrote {got.trace.tokens.ids.tolist()}, not {ids}"]
    return word_faults(got, cross)


def word_faults(got: Any, weights: list[np.ndarray]) -> list[str]:
    """What `attnx align` links words with that is not plain sums over cross-attention [H,T,S] of each layer."""
    found = []
    for layer, a in enumerate(weights):
        for t, (_, rows) in enumerate(got.target):
            for s, (_, keys) in enumerate(got.source):
                want = a[:, list(rows)][..., list(keys)].sum(-1).mean(-1)
                gap = float(np.abs(got.weights.values[layer, : len(a), t, s] - want).max())
                found += [f"aligned, layer {layer}: words {t}, {s} are off by {gap:.2g}"] if gap > TOLERANCE else []
    return found


def _translated(folder: Path, told: dict[str, Any], count: int) -> tuple[list[int], list[np.ndarray]]:
    """Greedy decoding through the caches by onnxruntime alone: the ids, and of each layer the cross-attention [H,T,S].

    In a graph that quantises what flows through it, a token's weights hang on what else is in the pass.
    """
    import onnx
    import onnxruntime

    stop = json.loads((folder / "generation_config.json").read_text(encoding="utf-8"))["eos_token_id"]

    def session(name: str) -> tuple[Any, list[str]]:
        graph = onnx.load(folder / f"{name}.onnx")
        crossing = [n for n in graph.graph.node if n.op_type == "Softmax" and re.search("encoder_attn|EncDec", n.name)]
        names = [node.output[0] for node in crossing]
        graph.graph.output.extend(onnx.helper.make_empty_tensor_value_info(one) for one in names)
        return onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"]), names

    memory = np.array([told["memory"]])
    seen = np.ones_like(memory)
    hidden = session("encoder_model")[0].run(None, {"input_ids": memory, "attention_mask": seen})[0]
    ids, new, kept = list(told["start"]), list(told["start"]), {}
    parts: list[list[np.ndarray]] = []
    while True:
        run, names = session("decoder_with_past_model" if kept else "decoder_model")
        feed = {"input_ids": np.array([new]), "encoder_attention_mask": seen, "encoder_hidden_states": hidden, **kept}
        given = {slot.name: feed[slot.name] for slot in run.get_inputs()}
        out = dict(zip((o.name for o in run.get_outputs()), run.run(None, given), strict=True))
        parts.append([out[name][0] for name in names])
        kept |= {k.replace("present", "past_key_values"): v for k, v in out.items() if k.startswith("present")}
        written = len(ids) - len(told["start"])
        if written == count or (written and ids[-1] == stop):
            return ids, [np.concatenate(layer, axis=1) for layer in zip(*parts, strict=True)]
        new = [int(out["logits"][0, -1].argmax())]
        ids += new


def aligned_faults(folder: Path, given: dict[str, Any], about: dict[str, Any], truth: Any) -> list[str]:
    """What `attnx align` makes of a text that is not what plain sums over the framework's attention are."""
    from attnx.run.generate import plan
    from attnx.run.prompt import Prompt
    from attnx.study.answer import answer
    from attnx.study.crossing import is_two_sided
    from attnx.study.translation import pair

    model = attnx.open(folder, device="cpu")
    sites = [i for i, s in enumerate(about["sites"]) if (s["kind"] != "self") is is_two_sided(model)]
    if not sites or any(len(truth[f"rows.{i}"]) < truth[f"rows.{i}"].max() + 1 for i in sites):
        return []
    weights = [truth[f"weights.{i}"][0] for i in sites]
    found: list[str] = []
    if is_two_sided(model):
        return word_faults(pair(model, Prompt(**given)), weights)
    if about["sites"][0]["causal"] and "generate" in given:
        told = answer(model, Prompt(given["text"]), plan(model, given["generate"]), "paragraph")
        size, count = told.prompt, told.written
        for layer, a in enumerate(weights):
            for step in range(count):
                row = a[:, size - 1 + step]
                inside = [at for at in told.spans[0].tokens if at and not told.tokens.special[at]]
                want = np.stack([row[:, inside].sum(-1), row[:, size : size + step].sum(-1)], axis=-1)
                gap = float(np.abs(told.weights.values[layer, : len(a), step][:, [0, -1]] - want).max())
                found += [f"traced, layer {layer}: step {step} is off by {gap:.2g}"] if gap > TOLERANCE else []
    return found


def speech_faults(folder: Path, about: dict[str, Any]) -> list[str]:
    """What a listener's words and times are not as transformers gives them, or as plain sums over its weights do."""
    from attnx.study.speech import Request, time_words
    from attnx.tokens.spoken import spoken

    model = attnx.open(folder, device="cpu")
    end = model.tokenizer.token_id("<|endoftext|>")
    found: list[str] = []
    for at, case in enumerate(about["speech"]):
        with tempfile.TemporaryDirectory() as apart:
            speech(Path(apart) / "speech.wav", case["seconds"])
            got = time_words(model, Path(apart) / "speech.wav", Request(prompt=case["prompt"], count=about["count"]))
        ids = [n for n in got.tokens.ids.tolist() if n != end]
        if "ids" in case:
            want = [n for n in case["ids"] if n != end]
            if ids != want:
                found.append(f"speech {at}: wrote {ids}, not {want}")
                continue
            gap = float(np.abs(got.ends[: len(ids)] - np.array(case["ends"][: len(ids)])).max(initial=0.0))
            found += [f"speech {at}: times are off by {gap:.2g} s"] if gap > 1e-4 else []
        for language, words in case.get("words", {}).items():
            said = spoken([n for n in ids if n < end], model.tokenizer.decode, spaces=language == "english")
            found += [f"speech {at}: {language} words are {said}"] if [[t, list(p)] for t, p in said] != words else []
        if len(got.windows) == 1 and (folder / "decoder_model.onnx").is_file():
            again = _warped(folder, got, case["seconds"], case["prompt"])
            gap = float(np.abs(again - got.ends[: len(again)]).max(initial=0.0)) if again is not None else 0.0
            found += [f"speech {at}: times are off by {gap:.2g} s from a second computation"] if gap > 1e-4 else []
    return found


def _warped(folder: Path, got: Any, seconds: float, prompt: str | None) -> np.ndarray | None:
    """Times of a single window by onnxruntime's own cross-attention and plain loops; None of a fused graph."""
    import onnx
    import onnxruntime

    tokenizer, config = attnx.open(folder).tokenizer, json.loads((folder / "generation_config.json").read_text())
    with tempfile.TemporaryDirectory() as apart:
        samples = speech(Path(apart) / "speech.wav", seconds)
    features = log_mel(samples, 32_000)[None].astype(np.float32)
    language = config["lang_to_id"][f"<|{got.language}|>"]
    first = [
        config["decoder_start_token_id"],
        language,
        config["task_to_id"]["transcribe"],
        config["no_timestamps_token_id"],
    ]
    if prompt is not None:
        said = tokenizer.encode(f" {prompt}", add_special=False).ids.tolist()
        first = [config["prev_sot_token_id"], *said, *first]
    graph = onnx.load(folder / "decoder_model.onnx")
    names = [node.output[0] for node in graph.graph.node if node.op_type == "Softmax"]
    graph.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in names)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    encoder = onnxruntime.InferenceSession(folder / "encoder_model.onnx", providers=["CPUExecutionProvider"])
    decoder = onnxruntime.InferenceSession(graph.SerializeToString(), options, providers=["CPUExecutionProvider"])
    hidden = encoder.run(None, {"input_features": features})[0]
    ids = [*first, *got.tokens.ids.tolist()][:-1]
    values = decoder.run(names, {"input_ids": np.array([ids]), "encoder_hidden_states": hidden})
    cross = [v[0] for v in values if v.shape[-1] == hidden.shape[1]]
    if not cross:
        return None
    frames = -(-len(samples) // 160) // 2
    matrix = np.zeros((len(ids) - len(first), frames))
    for layer, head in config["alignment_heads"]:
        rows = cross[layer][head][len(first) :, :frames].astype(np.float64)
        scores = (rows - rows.mean(0)) / rows.std(0)
        for t in range(len(rows)):
            for f in range(frames):
                near = [abs(f + d) if f + d < frames else 2 * (frames - 1) - f - d for d in range(-3, 4)]
                matrix[t, f] += sorted(scores[t, near])[3] / len(config["alignment_heads"])
    return _path(-matrix) * 0.02


def _path(cost: np.ndarray) -> np.ndarray:
    """The column at which the cheapest path reaches each row, cell by cell."""
    rows, columns = cost.shape
    best = np.full((rows, columns), np.inf)
    came = {}
    for t in range(rows):
        for f in range(columns):
            ways = [((t - 1, f - 1), 0), ((t - 1, f), 1), ((t, f - 1), 2)]
            there = [(best[at], -kind, at) for at, kind in ways if min(at) >= 0]
            before = min(there, default=(0.0, 0, None))
            best[t, f], came[t, f] = cost[t, f] + before[0], before[2]
    at, first = (rows - 1, columns - 1), np.zeros(rows)
    while at is not None:
        first[at[0]] = at[1]
        at = came[at]
    return first


def lines() -> dict[str, list[str]]:
    """The commands of the README's table of families, and of those in docs, by family."""
    found: dict[str, list[str]] = {}
    for row in (line for page in PAGES for line in page.read_text(encoding="utf-8").splitlines()):
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
