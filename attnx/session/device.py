"""A device as text, "cpu" or "cuda:1,tf32,memory=8G" -> where a model runs, and how CUDA is to be used there."""

from __future__ import annotations

import re
from dataclasses import dataclass

from attnx.errors import UsageError
from attnx.wording import Wording

HOW = "Use auto, cpu, cuda or cuda:N; behind cuda, ,tf32 and ,memory=8G may stand."
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


@dataclass(frozen=True, slots=True)
class Device:
    """Where a model runs.

    Attributes:
        kind: "auto", "cpu" or "cuda".
        number: Which GPU.
        tf32: Whether float32 products may be rounded to TF32 (10 bits of mantissa, off by about 1e-3): faster on GPUs
            since Ampere, and not what the graph says, so that it is off unless asked for.
        memory: Bytes that onnxruntime may take of the GPU's memory; None for no bound but the GPU's own.
    """

    kind: str
    number: int = 0
    tf32: bool = False
    memory: int | None = None

    def cuda_options(self) -> dict[str, str]:
        """Options of onnxruntime's CUDA provider.

        The arena grows by what is asked for, not by powers of two, so that a long text does not reserve twice its
        need; convolutions are chosen by rule, for trying all of them at each new length takes longer than a run.
        """
        options = {
            "device_id": str(self.number),
            "use_tf32": str(int(self.tf32)),
            "arena_extend_strategy": "kSameAsRequested",
            "cudnn_conv_algo_search": "HEURISTIC",
        }
        if self.memory is not None:
            options["gpu_mem_limit"] = str(self.memory)
        return options


def parse_device(text: str) -> Device:
    """Read a device: "cuda:1", or with settings behind it "cuda:1,tf32,memory=8G".

    Raises:
        UsageError: Anything else.
    """
    place, *extras = text.split(",")
    kind, colon, number = place.partition(":")
    if kind in ("auto", "cpu") and not colon and not extras:
        return Device(kind)
    if kind != "cuda" or (colon and not (number.isascii() and number.isdigit() and len(number) < 4)):
        raise UsageError(f"no device {text!r}", HOW)
    tf32, memory = False, None
    for extra in extras:
        if extra == "tf32":
            tf32 = True
        elif size := re.fullmatch(r"memory=(\d{1,12})([KMG]?)B?", extra, re.IGNORECASE):
            memory = int(size[1]) * _UNITS[size[2].upper()]
        else:
            raise UsageError(
                Wording("<device={text!r}>: {extra!r} says nothing about a GPU", text=text, extra=extra), HOW
            )
    return Device(kind, int(number or 0), tf32, memory)
