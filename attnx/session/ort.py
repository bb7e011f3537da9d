"""Open and run models with onnxruntime. The only file that imports it.

onnxruntime falls back from CUDA to the CPU without an exception, lists providers that cannot load, and writes messages
to stdout. Here it is kept silent, and the device it really uses is reported. Facts: measured on onnxruntime 1.31.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attnx.errors import DeviceError, InputError, ModelError, RunError, lacks_memory
from attnx.installed import pip
from attnx.records import Array
from attnx.session.device import parse_device
from attnx.silence import quiet, unprinted
from attnx.wording import Wording

_CODES = {
    "tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(double)": np.float64,
    "tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(int8)": np.int8, "tensor(uint8)": np.uint8,
    "tensor(bool)": np.bool_, "tensor(int16)": np.int16, "tensor(uint16)": np.uint16, "tensor(uint32)": np.uint32,
    "tensor(uint64)": np.uint64,
}  # fmt: skip


os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
"""Before onnxruntime is imported: 1.31 keeps a database in the user's cache folder of what was run, for its makers."""
THREADS: int | None = None
"""Default number of threads inside an operator; onnxruntime's choice where None."""


@dataclass(frozen=True, slots=True)
class Slot:
    """An input or output of a model."""

    name: str
    shape: tuple[int | str | None, ...]
    """Numbers, names of symbolic dimensions, or None."""
    type: str
    """As onnxruntime writes it: "tensor(int64)"."""
    ids: bool = False
    """Whether it takes token ids although its name does not say so, because its numbers are looked up in a table."""
    table: int | None = None
    """Entries of the table that its numbers are looked up in; None where there is none, or it is not known."""
    kept: float | None = None
    """For a mask, its value for a visible key (see `attnx.graph.axes.mask_values`); None where unknown."""

    @property
    def dtype(self) -> Any:
        """The numpy type, or None where numpy has none (bfloat16, strings)."""
        return _CODES.get(self.type)

    def describe(self) -> str:
        """Name, type and shape: "past.0.key: tensor(float) [batch, 4, past, 16]"."""
        return f"{self.name}: {self.type} [{', '.join('?' if d is None else str(d) for d in self.shape)}]"


def has_driver() -> bool:
    """Whether NVIDIA's driver is on this machine: a cheap check before CUDA is tried at all."""
    import ctypes

    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def built_in() -> list[str]:
    """The providers that this onnxruntime was built with, whether or not they can load."""
    with quiet():
        import onnxruntime as ort

        found: list[str] = ort.get_available_providers()
    return found


def on_cuda(device: str) -> bool:
    """Whether a session on this device should run on a GPU."""
    kind = parse_device(device).kind
    return kind == "cuda" or (kind == "auto" and "CUDAExecutionProvider" in built_in() and has_driver())


def cuda_version() -> str:
    """The CUDA version that this onnxruntime was built for; "" where unknown."""
    with quiet(), contextlib.suppress(ImportError):
        from onnxruntime.capi import build_and_package_info

        return str(getattr(build_and_package_info, "cuda_version", "") or "")
    return ""


class Session:
    """One opened model.

    Attributes:
        inputs: What it takes.
        outputs: Names of what it gives.
        device: The device it really runs on: "cpu", "cuda:0".
    """

    def __init__(self, raw: Any, device: str) -> None:
        self._raw = raw
        self.device = device
        self.inputs = [Slot(i.name, tuple(i.shape), i.type) for i in raw.get_inputs()]
        self.outputs: list[str] = [o.name for o in raw.get_outputs()]

    def run(
        self, feed: Mapping[str, Array], names: Sequence[str] | None = None, *, shrink: bool = False
    ) -> dict[str, Array]:
        """Run once.

        Args:
            feed: An array for each input.
            names: The outputs to compute; all where None.
            shrink: Free what the session holds for runs afterwards. Else it keeps what its largest run took.

        Raises:
            RunError: onnxruntime refused the feed or failed; with its message, tidied up.
            InputError: An id or a position that the model has no entry for.
        """
        wanted = list(names) if names is not None else self.outputs
        if not wanted:
            return {}  # onnxruntime treats an empty list of outputs as an error
        try:
            values = self._raw.run(wanted, dict(feed), _shrinking() if shrink else None)
        except Exception as error:  # onnxruntime's exceptions have no common base class
            raise _run_error(error, self.inputs, feed) from None
        return dict(zip(wanted, values, strict=True))


def _shrinking() -> Any:
    import onnxruntime as ort

    options = ort.RunOptions()
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    return options


def _run_error(error: Exception, inputs: Sequence[Slot], feed: Mapping[str, Array]) -> RunError | InputError:
    text = _plain(error)
    if beyond := re.search(r"idx=(-?\d+) must be within the inclusive range \[-?\d+,(\d+)\]", text):
        return InputError(
            f"the model looks up number {beyond[1]} in a table of {int(beyond[2]) + 1}",
            "An id or a position is too large: is the tokenizer this model's? Is the text, with what is written, too "
            "long for the model?",
        )
    if lacks_memory(error):
        return RunError("the model ran out of memory", Wording("Use a shorter text[, or fewer layers (<layers>)]."))
    if "BFCArena" in text or "CUDA out of memory" in text:
        return RunError(
            "the GPU ran out of memory",
            Wording("Use <device='cpu'>, or a shorter text[, or fewer layers (<layers>)]."),
        )
    from attnx.session.disagreement import disagreement  # only a run that failed needs it

    return disagreement(inputs, feed) or RunError(
        f"onnxruntime could not run the model: {text}",
        Wording("Check the feed[ (<inputs>)] against <model.slots()>."),
    )


def _plain(error: Exception) -> str:
    """What onnxruntime says, without the places in its own source, which would fill the message."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    said = re.sub(r"/\S*onnxruntime\S*:\d+ [^)]*\)(?: const)? ", "", " ".join(lines))
    return said[:500] if lines else type(error).__name__


def open_session(
    model: bytes | Path,
    folder: Path | None = None,
    device: str = "auto",
    *,
    thorough: bool = True,
    fused: bool = False,
    exact: bool = False,
    threads: int | None = None,
    save_to: Path | None = None,
) -> Session:
    """Open a model.

    Args:
        model: Serialised model, or its path.
        folder: Where the external data of a serialised model is.
        device: As `attnx.session.device.parse_device` reads it: auto, cpu, cuda, cuda:N, cuda:N,tf32,memory=8G.
        thorough: Prepare for many runs or a long one: fuse operators, convert weights once, lay them out for the
            processor. Without it opening takes half the time or less, and the weights of a file stay where they are,
            mapped into memory; a short run then takes a little longer.
        fused: Turn products between DequantizeLinear into products of integers, as onnxruntime does by itself.
        exact: On the CPU, give bit for bit what the graph gives as it is written: nothing fused, no weights laid out.
        threads: Threads inside an operator; `THREADS` where None.
        save_to: Write the optimised model there.

    Raises:
        DeviceError: CUDA was asked for and the session did not get it.
        ModelError: onnxruntime cannot load the model.
    """
    with quiet():
        import onnxruntime as ort

        ort.set_default_logger_severity(4)
    wanted = parse_device(device)
    kind, number = wanted.kind, wanted.number
    options = ort.SessionOptions()
    options.log_severity_level = 4
    # For peak memory: each reduction runs right after its site, so that no matrix is kept until the end.
    options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
    level = ort.GraphOptimizationLevel
    least = level.ORT_DISABLE_ALL if exact else level.ORT_ENABLE_BASIC
    options.graph_optimization_level = level.ORT_ENABLE_ALL if thorough and not exact else least
    # Fused quantised products also round activations; attnx shows what the graph itself computes.
    options.add_session_config_entry("session.disable_quant_qdq", "0" if fused else "1")
    # Threads that still wait for work of one session would keep another's from a processor: where sessions take turns,
    # runs took twice as long. And behind a single run Python could use it.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if exact or not thorough:
        options.add_session_config_entry("session.disable_prepacking", "1")
    if threads or THREADS:
        options.intra_op_num_threads = threads or THREADS
    if folder is not None:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
    if save_to is not None:
        options.optimized_model_filepath = str(save_to)
    providers: list[Any] = ["CPUExecutionProvider"]
    wants_cuda = on_cuda(device)
    if kind == "cuda" and "CUDAExecutionProvider" not in ort.get_available_providers():
        raise DeviceError(
            Wording("<device='cuda'>: this onnxruntime is built without CUDA"),
            f"Install the GPU build: pip uninstall onnxruntime; {pip('cuda')} onnxruntime-gpu.",
        )
    if wants_cuda:
        with quiet():
            _preload(ort)
        providers.insert(0, ("CUDAExecutionProvider", wanted.cuda_options()))
    try:
        with quiet():
            raw = _loaded(ort, model, options, providers, [] if thorough else ["ConstantFolding"])
    except Exception as error:  # as in `run`
        if lacks_memory(error):
            raise RunError(
                "there is not enough memory to load the model",
                "Free some memory, or raise the limit that this process was given: ulimit -a shows it.",
            ) from None
        raise _load_error(error) from None
    real = "cuda" if raw.get_providers()[0] == "CUDAExecutionProvider" else "cpu"
    if kind == "cuda" and real != "cuda":
        raise DeviceError(
            _why_no_cuda(number),
            Wording("<attnx.study.health.examine()> shows what is missing; or use <device='cpu'>."),
        )
    return Session(raw, f"cuda:{number}" if real == "cuda" else "cpu")


def _loaded(ort: Any, model: bytes | Path, options: Any, providers: list[Any], without: list[str]) -> Any:
    """A session of onnxruntime's own; unoptimised where its optimiser makes a graph that it cannot load itself.

    A norm in float32 between casts from and to float16 becomes one LayerNormalization of both types, which onnxruntime
    itself then refuses; that fusion cannot be disabled by its name.
    """
    source = model if isinstance(model, bytes) else str(model)
    try:
        return ort.InferenceSession(source, options, providers=providers, disabled_optimizers=without)
    except Exception as error:
        plain = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        if lacks_memory(error) or options.graph_optimization_level == plain:
            raise
        options.graph_optimization_level = plain
        with contextlib.suppress(Exception):  # then it is not the optimiser's fault
            return ort.InferenceSession(source, options, providers=providers)
        raise


def outputs_of(model: bytes) -> list[Slot]:
    """A model's outputs by onnxruntime's own shape inference; empty where it cannot open the model on the CPU."""
    with quiet(), contextlib.suppress(Exception):
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        raw = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        return [Slot(o.name, tuple(o.shape), o.type) for o in raw.get_outputs()]
    return []


def _preload(ort: Any) -> None:
    """Load CUDA and cuDNN from the nvidia-* wheels, if these are installed."""
    with contextlib.suppress(Exception), unprinted():
        ort.preload_dlls()


def _why_no_cuda(number: int) -> str:
    if not has_driver():
        return Wording(
            "<device='cuda'>: there is no NVIDIA driver on this machine, so onnxruntime would have used the CPU"
        )
    return Wording(
        "<device={device}>: onnxruntime could not load its CUDA provider and would have used the CPU; it needs the "
        "CUDA 13 and cuDNN 9 libraries ({install}) and a GPU of that number",
        device=f"cuda:{number}",
        install=pip("cuda"),
    )


def _load_error(error: Exception) -> ModelError:
    text = _plain(error)
    if "Could not find an implementation" in text or "is not a registered function/op" in text:
        narrow = " (the graph computes in bfloat16)" if "bfloat16" in text else ""
        return ModelError(
            f"onnxruntime has no kernel for an operator of this model{narrow}: {text}", "It may need another provider."
        )
    if newer := re.search(r"(?i)(IR version|opset):? (\d+)\b.*\b(?:version:|till opset) (\d+)", text):
        return ModelError(
            f"the model has {newer[1]} {newer[2]}, and this onnxruntime reads up to {newer[3]}".replace(
                "Opset", "opset"
            ),
            "Update onnxruntime, or export again for an older one.",
        )
    if "opset" in text.lower() and "support" in text.lower():
        return ModelError(
            f"onnxruntime does not support the model's opset: {text}", "Update onnxruntime, or export again."
        )
    if "OrtValue indexes should have been populated" in text:  # what it says where nothing leads to an output
        return ModelError("the model has no outputs, so there is nothing to run", "Export it again, with its outputs.")
    return ModelError(f"onnxruntime cannot load the model: {text}", "Export the model again, or check its weights.")
