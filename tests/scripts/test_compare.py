"""`scripts/bench/compare.py` without installing anything: its arguments, commands, checkpoints and tables."""

import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from tokenizers import Tokenizer

from attnx.cli import app

ROOT = Path(__file__).parents[2]
MINILM = ROOT / "models" / "minilm"
TINY_GPT = ROOT / "models" / "tiny-gpt"


def script(name: str) -> ModuleType:
    for folder in (str(ROOT / "scripts"), str(ROOT / "scripts" / "bench")):
        if folder not in sys.path:
            sys.path.insert(0, folder)
    return __import__(name)


bert_in_numpy, compare, compare_jobs, gpt_in_numpy = (
    script(name) for name in ("bert_in_numpy", "compare", "compare_jobs", "gpt_in_numpy")
)
Cost, Found = compare.Cost, compare.Found


def test_arguments() -> None:
    options = compare.arguments([])
    assert options.tools == [tool for tool in compare.TOOLS if tool != "attnx"]
    assert options.jobs == list(compare.JOBS)
    assert (options.folder, options.turns, options.tokens, options.texts) == (None, 5, 512, 200)
    options = compare.arguments("--folder F --tools bertviz --jobs page --turns 2 --torch torch==2.13".split())
    assert (options.folder, options.tools, options.jobs) == (Path("F"), ["bertviz"], ["page"])
    assert (options.turns, options.torch) == (2, "torch==2.13")


@pytest.mark.parametrize("wrong", ["--turns 0", "--tools nosuch", "--jobs nosuch", "--models nosuch"])
def test_arguments_that_are_refused(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        compare.arguments(wrong.split())
    assert stop.value.code == 2
    assert wrong.split()[0] in capsys.readouterr().err


def test_every_tool_does_a_job_or_says_why_not() -> None:
    assert set(compare_jobs.JOBS) == set(compare.TOOLS) - {"attnx"}
    assert set(compare.NO_WAY) <= set(compare_jobs.JOBS)
    for tool, reasons in compare.NO_WAY.items():
        assert set(reasons) < set(compare.JOBS), f"{tool} does nothing"
        assert all(reasons.values())


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small model's checkpoint and texts: 40 tokens, 3 sentences."""
    folder = tmp_path_factory.mktemp("work")
    compare.write_checkpoint(TINY_GPT, folder)
    compare.write_texts(TINY_GPT, folder, compare.TEXTS["tiny-gpt"], 40, 3)
    return folder


def forward(work: Path, ids: list[int], without: tuple[int, int] | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Weights [layer,head,Q,K] and logits [Q,vocab] of the checkpoint in numpy; a head ablated in its W_O."""
    tensors = dict(bert_in_numpy.read_safetensors((work / compare.FILE).read_bytes()))
    config = json.loads((work / "config.json").read_text())
    if without:
        layer, head = without
        name, size = f"transformer.h.{layer}.attn.c_proj.weight", config["n_embd"] // config["n_head"]
        tensors[name] = tensors[name].copy()
        tensors[name][head * size : (head + 1) * size] = 0
    weights, logits = gpt_in_numpy.forward(tensors, config, np.array([ids]))
    return weights[:, 0], logits[0]


def coded(work: Path, text: str) -> list[int]:
    return Tokenizer.from_file(str(work / "tokenizer.json")).encode(text).ids


def entropy(weights: np.ndarray) -> np.ndarray:
    return -(weights * np.log(np.where(weights > 0, weights, 1))).sum(-1).mean(-1)


def kl(before: np.ndarray, after: np.ndarray) -> float:
    """Of the next token, nats."""
    p, q = (x[-1].astype(float) - np.log(np.exp(x[-1].astype(float)).sum()) for x in (before, after))
    return float((np.exp(p) * (p - q)).sum())


def test_texts(work: Path) -> None:
    texts = json.loads((work / "texts.json").read_text())
    assert len(texts["long"]) == 40
    assert texts["corpus"] == (work / "corpus.txt").read_text().splitlines()
    assert all(8 <= len(text.split()) <= 40 for text in texts["corpus"])


@pytest.mark.parametrize("job", [job for job in compare.JOBS if job != "page"])
def test_attnx_finds_what_numpy_finds_in_the_checkpoint(
    job: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """attnx's command on the ONNX file, read by `result`; numpy on the checkpoint that the other tools get."""
    out = work / f"{job}-attnx.npz"
    _, *module = (args := compare.command(work, "attnx", job, TINY_GPT, out))[:3]
    assert module == ["-m", "attnx"]
    assert app.run(args[3:]) == 0
    value = compare.result(job, out, capsys.readouterr().out)
    texts = json.loads((work / "texts.json").read_text())
    if job == "corpus":
        expected = np.mean([entropy(forward(work, coded(work, text))[0]) for text in texts["corpus"]], 0)
    elif job == "ablations":
        ids = coded(work, texts["sentence"])
        assert value.shape == (4, 6)
        value = value[[0, 2], [3, 1]]
        expected = np.array([kl(forward(work, ids)[1], forward(work, ids, head)[1]) for head in ((0, 3), (2, 1))])
        assert expected.max() > 0.1
    else:
        expected, _ = forward(work, texts["long"] if job == "long" else coded(work, texts["sentence"]))
    assert compare.difference(value, expected) < 1e-4
    assert compare.difference(value, value[..., :1]) == float("inf")


@pytest.mark.slow
def test_matrices_of_bert_lie_as_transformers_wants_them(tmp_path: Path) -> None:
    compare.write_checkpoint(MINILM, tmp_path)
    tensors = bert_in_numpy.read_safetensors((tmp_path / compare.FILE).read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    compare.write_texts(MINILM, tmp_path, compare.TEXTS["minilm"], 20, 1)
    ids = np.array([json.loads((tmp_path / "texts.json").read_text())["long"]])
    assert (ids[0, 0], ids[0, -1], ids.size) == (101, 102, 20)
    weights, _ = bert_in_numpy.forward(tensors, config, ids, np.ones_like(ids), np.zeros_like(ids))
    out = tmp_path / "long-attnx.npz"
    assert app.run(compare.command(tmp_path, "attnx", "long", MINILM, out)[3:]) == 0
    assert compare.difference(compare.result("long", out, ""), weights[:, 0]) < 1e-4


def test_a_process_is_measured(tmp_path: Path) -> None:
    """Memory is the process's own, not that of the large one which starts it; a failure says its last line."""
    held = np.ones(30_000_000)
    small = compare.measure([sys.executable, "-S", "-c", "print('said')"], tmp_path)
    large = compare.measure([sys.executable, "-S", "-c", "x = bytes(range(1, 251)) * 400_000"], tmp_path)
    failed = compare.measure([sys.executable, "-S", "-c", "1/0"], tmp_path)
    assert (small.code, small.said.strip()) == (0, "said")
    assert small.peak < 60e6 < 100e6 < large.peak < held.nbytes
    assert (failed.code, failed.said) == (1, "ZeroDivisionError: division by zero")


def test_tables() -> None:
    found = Found(
        costs={
            ("page", "attnx"): [Cost(1, 2, 100_000_000), Cost(3, 4, 300_000_000), Cost(2, 2, 200_000_000)],
            ("page", "bertviz"): [Cost(8, 9, 500_000_000)],
        },
        off={("long", "attnx"): 0.0, ("long", "transformers"): 2e-6},
        reasons={("long", "bertviz"): "draws", ("corpus", "bertviz"): "draws", ("page", "transformers"): "failed: x"},
        pages={"attnx": (2_000_000, False), "bertviz": (1_500_000, True)},
    )
    tools = ["attnx", "transformers", "bertviz"]
    lines = compare.ratios(found, tools, ["page"], False).splitlines()
    assert lines[0] == "| wall; processor; memory | attnx | transformers | bertviz |"
    assert lines[2] == "| page | 1; 1; 1 (200 MB) | no | 4.0; 4.5; 2.5 |"
    assert "| page | 2.00 s; 2.00 s; 1 (200 MB) | no |" in compare.ratios(found, tools, ["page"], True)
    assert compare.agreement(found, tools, ["long"]).splitlines()[2] == "| long | 2e-06 |"
    sizes = compare.sizes({"bertviz": ("1.4", 20, 5_000_000_000)}, {"minilm": found.pages})
    assert sizes.splitlines()[2] == "| bertviz | 1.4 | 20 | 5,000 MB | 1.50 MB, needs the network |"
    assert compare.left_out(found.reasons).splitlines() == [
        "- bertviz, long, corpus: draws",
        "- transformers, page: failed: x",
    ]


def test_a_page_that_needs_the_network_is_told_from_one_that_names_a_link() -> None:
    assert compare.fetches('<script src="https://x.org/require.min.js"></script>')
    assert compare.fetches("require.config({paths: {d3: 'https://x.org/d3/5.8.0/d3.min'}})")
    assert compare.fetches("import { AttentionHeads } from 'https://x.com/circuitsvis@1.0/dist/cdn/esm.js'")
    assert not compare.fetches('<svg xmlns="http://www.w3.org/2000/svg"><a href="#here">https://x.org</a></svg>')
