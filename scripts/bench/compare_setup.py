"""What `compare.py` sets up: an environment for each tool, and the same weights and texts for all of them."""

from __future__ import annotations

import json
import random
import subprocess
import venv
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
TOOLS = {
    "attnx": [str(ROOT), "pyarrow"],
    "transformers": ["transformers"],
    "transformer-lens": ["transformer-lens"],
    "bertviz": ["bertviz", "transformers"],
    "circuitsvis": ["circuitsvis", "transformers"],
}
"""What pip installs for each tool; torch with all but attnx."""
FILE = "model.safetensors"
WORDS = "the animal did not cross a wide street because it was too tired to walk and so we sat there".split()


def install(folder: Path, tool: str, torch: str) -> str:
    """Make the tool's environment where it is not there yet; returns why that failed, or nothing."""
    python, done = python_of(folder, tool), folder / tool / "installed"
    if done.exists():
        return ""
    venv.create(folder / tool, with_pip=True, clear=True)
    wanted = TOOLS[tool] if tool == "attnx" else [*TOOLS[tool], torch]
    run = subprocess.run([python, "-m", "pip", "install", "--quiet", *wanted], capture_output=True, text=True)
    if run.returncode:
        return f"pip: {last_line(run.stderr)}"
    done.touch()
    return ""


def python_of(folder: Path, tool: str) -> str:
    return str(folder / tool / "bin" / "python")


def installed(folder: Path, tool: str) -> tuple[str, int, int]:
    """The tool's version, how many packages its environment holds besides pip and setuptools, and their bytes."""
    code = (
        "import importlib.metadata as m, json; skip = ('pip', 'setuptools')\n"
        "all = {d.metadata['Name'].lower(): d for d in m.distributions()}\n"
        "each = [d for name, d in all.items() if name not in skip]\n"
        "files = {f.locate().resolve() for d in each for f in d.files or ()}\n"
        f"print(json.dumps([all[{tool!r}].version, len(each), sum(f.stat().st_size for f in files if f.is_file())]))"
    )
    run = subprocess.run([python_of(folder, tool), "-c", code], capture_output=True, text=True, check=True)
    version, packages, size = json.loads(run.stdout)
    return version, packages, size


def write_checkpoint(model: Path, folder: Path) -> None:
    """A model of models/ as a transformers checkpoint: initializers keep its names; BERT's matrices lie transposed."""
    import onnx
    from onnx import numpy_helper

    from attnx.feed.arrays import save_arrays

    config = json.loads((model / "config.json").read_text())
    arrays = {}
    for tensor in onnx.load(model / "model.onnx").graph.initializer:
        if not tensor.name.endswith((".weight", ".bias")):
            continue
        array = numpy_helper.to_array(tensor).astype(np.float32)
        if config["model_type"] == "bert" and array.ndim == 2 and "_embeddings" not in tensor.name:
            array = array.T
        arrays[tensor.name] = array
    folder.mkdir(parents=True, exist_ok=True)
    save_arrays(arrays, folder / FILE, force=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_bytes((model / "tokenizer.json").read_bytes())
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))


def write_texts(model: Path, folder: Path, sentence: str, tokens: int, texts: int) -> None:
    """The sentence, so many token ids of one text, and a corpus, from a seed."""
    from tokenizers import Tokenizer

    draw = random.Random(0)
    corpus = [" ".join(draw.choices(WORDS, k=draw.randint(8, 40))) for _ in range(texts)]
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    coded = tokenizer.encode(" ".join(draw.choices(WORDS, k=tokens)))
    ids = coded.ids[:tokens]
    if coded.special_tokens_mask[-1]:
        ids[-1] = coded.ids[-1]
    (folder / "corpus.txt").write_text("\n".join(corpus) + "\n")
    (folder / "texts.json").write_text(json.dumps({"sentence": sentence, "long": ids, "corpus": corpus}))


def last_line(text: str) -> str:
    """The last line of errors that says something."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no message")
