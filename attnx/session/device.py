"""A device as text, "cpu" or "cuda:1,tf32,memory=8G" -> where a model runs, and how CUDA is used there."""

from __future__ import annotations

import re
from dataclasses import dataclass

from attnx.errors import UsageError
from attnx.numerals import whole
from attnx.wording import Wording

HOW = "Use auto, cpu, cuda or cuda:N; cuda may be followed by ,tf32 and ,memory=8G."
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


@dataclass(frozen=True, slots=True)
class Device:
    """Where a model runs.

    Attributes:
        kind: "auto", "cpu" or "cuda".
        number: Which GPU.
        tf32: Whether float32 products may be rounded to TF32 (10 bits of mantissa, off by about 1e-3): faster on GPUs
            since Ampere, but not what the graph specifies, so it is off by default.
        memory: Bytes of the GPU's memory that onnxruntime may use; None for no limit but the GPU's own.
    """

    kind: str
    number: int = 0
    tf32: bool = False
    memory: int | None = None

    def cuda_options(self) -> dict[str, str]:
        """Options of onnxruntime's CUDA provider.

        The arena grows by the size requested, not by powers of two, so that a long text does not reserve twice what it
        needs; convolution algorithms are chosen by rule: trying all of them at each new length takes longer than a run.
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
    """Read a device: "cuda:1", or with settings "cuda:1,tf32,memory=8G".

    Raises:
        UsageError: Anything else.
    """
    if not isinstance(text, str):
        raise UsageError(f"a device is a name, and this is {type(text).__name__}", HOW)
    place, *extras = text.split(",")
    kind, colon, said = place.partition(":")
    number = whole(said, most=999) if colon else 0
    if kind in ("auto", "cpu") and not colon and not extras:
        return Device(kind)
    if kind != "cuda" or number is None:
        raise UsageError(f"no device {text!r}", HOW)
    tf32, memory = False, None
    for extra in extras:
        if extra == "tf32":
            tf32 = True
        elif size := re.fullmatch(r"memory=([0-9]{1,12})([KMG]?)B?", extra, re.IGNORECASE | re.ASCII):
            memory = int(size[1]) * _UNITS[size[2].upper()]
        else:
            raise UsageError(
                Wording("<device={text!r}>: {extra!r} is not a setting of a GPU", text=text, extra=extra), HOW
            )
    return Device(kind, number, tf32, memory)
