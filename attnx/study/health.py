"""What works on this machine and what does not, found by trying it: versions, devices, libraries, cache, numbers."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import platform
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from importlib.resources import files
from pathlib import Path
from typing import Literal, Protocol

import numpy as np

from attnx.errors import AttnxError
from attnx.installed import pip
from attnx.records import Trace
from attnx.session.processor import Processor, here

State = Literal["good", "note", "bad"]
NEEDED = (
    "onnxruntime-gpu", "onnxruntime", "onnx", "numpy", "tokenizers", "huggingface_hub", "orjson", "rich", "typer",
    "platformdirs",
)  # fmt: skip
OPTIONAL = {
    "textual": "explore", "matplotlib": "figures", "pillow": "vision", "jinja2": "chat", "pyarrow": "parquet",
    "ray": "scan",
}  # fmt: skip
"""Distribution -> the extra that installs it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    part: str
    """versions, devices, processor, CUDA, cache, models, self-test."""
    name: str
    state: State
    """good; note: nothing is wrong, but it may explain something; bad: should be fixed."""
    said: str
    remedy: str = ""


class TracesText(Protocol):
    """What the self-test needs from an opened model."""

    def trace(self, text: str | None = None) -> Trace:
        """Run the model on a text."""


def examine(open_model: Callable[[str], TracesText]) -> Iterator[Finding]:
    """Check everything, yielding one finding after another.

    Args:
        open_model: Opens a model by its name, for the self-test.
    """
    yield from versions()
    yield from devices()
    yield from processor()
    yield from cuda()
    yield from cache()
    yield from models()
    yield from self_test(open_model)


def versions() -> Iterator[Finding]:
    """What is installed; two onnxruntimes at once are bad, because they overwrite each other's files."""
    from attnx.version import __version__

    yield Finding("versions", "attnx", "good", __version__)
    yield Finding("versions", "python", "good", f"{platform.python_version()} on {platform.platform(terse=True)}")
    found = {name: _version(name) for name in (*NEEDED, *OPTIONAL)}
    both = [name for name in ("onnxruntime", "onnxruntime-gpu") if found[name]]
    for name in NEEDED:
        if name in ("onnxruntime", "onnxruntime-gpu"):
            if found[name]:
                yield Finding("versions", name, "good", str(found[name]))
        elif found[name]:
            yield Finding("versions", name, "good", str(found[name]))
        else:
            yield Finding("versions", name, "bad", "not installed", f"pip install {name}")
    if len(both) == 2:
        yield Finding(
            "versions", "onnxruntime twice", "bad",
            f"onnxruntime {found[both[0]]} and onnxruntime-gpu {found[both[1]]} share one folder, and the later one "
            "wrote over the other",
            "pip uninstall -y onnxruntime onnxruntime-gpu; pip install onnxruntime-gpu (or onnxruntime without a GPU)",
        )  # fmt: skip
    elif not both:
        yield Finding("versions", "onnxruntime", "bad", "not installed", "pip install onnxruntime")
    for name, extra in OPTIONAL.items():
        said = found[name] or f"not installed; {pip(extra)} brings it"
        yield Finding("versions", name, "good" if found[name] else "note", said)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def devices() -> Iterator[Finding]:
    """Which devices a session really gets: onnxruntime lists providers that cannot load."""
    from attnx.session.ort import built_in, has_driver

    try:
        listed = built_in()
    except ImportError as error:
        yield Finding(
            "devices", "onnxruntime", "bad", f"cannot be imported: {error}", "pip install --force-reinstall onnxruntime"
        )
        return
    yield Finding("devices", "built in", "good", ", ".join(listed))
    yield _device("cpu")
    if "CUDAExecutionProvider" not in listed:
        yield Finding(
            "devices",
            "cuda",
            "note",
            "this onnxruntime is built without CUDA",
            f"{pip('cuda')} on Linux or Windows",
        )
    elif not has_driver():
        yield Finding("devices", "cuda", "note", "there is no NVIDIA driver on this machine: attnx runs on the CPU")
    else:
        yield _device("cuda")


def _device(device: str) -> Finding:
    from onnx import TensorProto, helper

    from attnx.session.ort import open_session

    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "one", [info[0]], [info[1]])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    try:
        session = open_session(model.SerializeToString(), device=device)
        got = session.run({"x": np.ones(1, np.float32)})["y"]
    except AttnxError as error:
        return Finding("devices", device, "bad", error.message, error.hint)
    if got.tolist() != [1.0]:
        return Finding("devices", device, "bad", f"gives {got.tolist()} for 1.0", "Reinstall onnxruntime.")
    return Finding("devices", device, "good", f"runs ({session.device})")


def processor(found: Processor | None = None) -> Iterator[Finding]:
    """A processor's features (None for this one), and how integer kernels and blocked layouts behave on it."""
    try:
        found = found or here()
    except ImportError:
        return  # onnxruntime cannot be imported; reported above
    yield Finding("processor", "name", "good" if found.name else "note", found.name or "not known on this system")
    told = "not known on this system" if found.instructions is None else ", ".join(found.instructions) or "none of note"
    yield Finding("processor", "instructions", "note" if found.instructions is None else "good", told)
    yield Finding(
        "processor", "uint8 x int8", "note" if found.saturates is not False else "good", _PRODUCTS[found.saturates]
    )
    block = (
        f"blocks of {found.block} channels" if found.block else "onnxruntime has none here, or it could not be tried"
    )
    yield Finding("processor", "own layouts", "good" if found.block else "note", block)


_PRODUCTS = {
    False: "exact",
    None: "not known: onnxruntime could not be tried",
    True: "saturates in 16 bits: models in int8 whose weights use the whole range give other numbers here than on a "
    "processor with VNNI; a comparison with the model in floats measures how far",
}
"""By whether integer products saturate."""


def cuda() -> Iterator[Finding]:
    """The libraries that onnxruntime's CUDA provider loads: where each is, or what installs it."""
    from attnx.session.ort import built_in, cuda_version, has_driver

    if sys.platform == "darwin" or "CUDAExecutionProvider" not in built_in():
        return
    major = cuda_version().split(".")[0] or "13"
    driver = has_driver()
    yield Finding("CUDA", "driver", "good" if driver else "note", "loads" if driver else "there is none")
    wanted = {"cudart": major, "cublas": major, "cublasLt": major, "cufft": "12" if major == "13" else "11",
              "curand": "10", "cudnn": "9"}  # fmt: skip
    for name, number in wanted.items():
        where = library(name, number)
        if where is not None:
            yield Finding("CUDA", f"lib{name} {number}", "good", where)
        else:
            state: State = "bad" if driver else "note"
            yield Finding("CUDA", f"lib{name} {number}", state, "not found", pip("cuda") if driver else "")


def library(name: str, number: str) -> str | None:
    """Where a CUDA library is: in an nvidia-* wheel, or where the system's loader finds it; None if it is nowhere."""
    windows = sys.platform == "win32"
    patterns = [f"nvidia/**/{name}64_{number}*.dll"] if windows else [f"nvidia/**/lib{name}.so.{number}*"]
    for folder in map(Path, dict.fromkeys(sys.path)):
        for pattern in patterns:
            if folder.joinpath("nvidia").is_dir() and (found := next(folder.glob(pattern), None)) is not None:
                return str(found)
    system = f"{name}64_{number}.dll" if windows else f"lib{name}.so.{number}"
    try:
        ctypes.CDLL(system)
    except OSError:
        return None
    return f"{system}, by the system's loader"


def cache() -> Iterator[Finding]:
    """Where the cache is, what it contains, and whether it is writable."""
    from attnx.session import cache as kept

    where = kept.folder()
    if where is None:
        yield Finding("cache", "folder", "note", f"turned off by {kept.VARIABLE}")
        return
    count, size = kept.held()
    yield Finding(
        "cache", "folder", "good", f"{where}: {count} {'entry' if count == 1 else 'entries'}, {size / 1e6:.1f} MB"
    )
    try:
        where.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(suffix=".part", dir=where)
        os.close(handle)
        Path(name).unlink()
    except OSError as error:
        yield Finding(
            "cache", "writing", "note", f"{error.strerror}: every model is read anew each time",
            f"Set {kept.VARIABLE} to a folder that can be written.",
        )  # fmt: skip
    else:
        yield Finding("cache", "writing", "good", "works")


_ROW = re.compile(r"^\| (?P<name>[\w.]+) \| (?P<size>\d+) \| `(?P<sha>[0-9a-f]{64})` \|$", re.M)


def models() -> Iterator[Finding]:
    """Whether the bundled models' files are unchanged since they were built, by the sha256 in their MODEL.md."""
    from attnx.catalog.models import bundled, bundled_root

    names = bundled()
    if not names:
        yield Finding("models", "bundled", "bad", "there are none", "Reinstall: pip install --force-reinstall attnx")
    for name in names:
        folder = bundled_root() / name
        page = folder / "MODEL.md"
        rows = list(_ROW.finditer(page.read_text(encoding="utf-8"))) if page.is_file() else []
        wrong = [row["name"] for row in rows if _sha256(folder / row["name"]) != row["sha"]]
        if not rows:
            yield Finding("models", name, "note", "its MODEL.md lists no sha256")
        elif wrong:
            yield Finding(
                "models", name, "bad", f"{', '.join(wrong)}: not the file that was built",
                "Reinstall: pip install --force-reinstall attnx",
            )  # fmt: skip
        else:
            yield Finding("models", name, "good", f"{len(rows)} files have the sha256 of MODEL.md")


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""


def reference() -> dict[str, object]:
    """The stored values of the self-test: a model, a text, and rows of its weights."""
    found: dict[str, object] = json.loads((files("attnx") / "data" / "selftest.json").read_text(encoding="utf-8"))
    return found


def self_test(open_model: Callable[[str], TracesText]) -> Iterator[Finding]:
    """Run the bundled model and compare rows of its attention with stored ones.

    Args:
        open_model: Opens a model by its name.
    """
    stored = reference()
    rows: list[dict[str, object]] = stored["rows"]  # type: ignore[assignment]
    tolerance = float(str(stored["tolerance"]))
    try:
        trace = open_model(str(stored["model"])).trace(str(stored["text"]))
    except AttnxError as error:
        yield Finding("self-test", str(stored["model"]), "bad", error.message, error.hint)
        return
    worst = 0.0
    for row in rows:
        weights = trace.attentions[int(str(row["layer"]))].need("weights")[
            0, int(str(row["head"])), int(str(row["query"]))
        ]
        want = np.asarray(row["weights"], np.float64)
        worst = max(worst, float(np.abs(weights - want).max()) if weights.shape == want.shape else float("inf"))
    failed = [check.name for a in trace.attentions for check in a.checks if not check.holds]
    if not worst <= tolerance:
        yield Finding(
            "self-test", str(stored["model"]), "bad", f"weights differ from the stored ones by {worst:.2g}",
            "Numbers of attnx cannot be trusted here; reinstall attnx and onnxruntime.",
        )  # fmt: skip
    elif failed:
        yield Finding("self-test", str(stored["model"]), "bad", f"these do not hold: {', '.join(sorted(set(failed)))}")
    else:
        yield Finding(
            "self-test", str(stored["model"]), "good",
            f"{len(rows)} rows of weights within {worst:.1g} of the stored ones, every check holds ({trace.device})",
        )  # fmt: skip
