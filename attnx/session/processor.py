"""The processor that models run on: its instructions, and how onnxruntime's kernels behave on it, found by trial."""

from __future__ import annotations

import contextlib
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from attnx.errors import AttnxError
from attnx.records import Array, Kernels

CPUINFO = Path("/proc/cpuinfo")
INSTRUCTIONS = {
    "sse4_1": "SSE4.1", "sse4.1": "SSE4.1", "avx": "AVX", "avx1.0": "AVX", "avx2": "AVX2", "avx512f": "AVX512F",
    "avx512bw": "AVX512BW", "avx512_vnni": "AVX512_VNNI", "avx512vnni": "AVX512_VNNI", "avx_vnni": "AVX_VNNI",
    "avxvnni": "AVX_VNNI", "amx_int8": "AMX_INT8", "asimd": "NEON", "advsimd": "NEON", "asimddp": "DotProd",
    "feat_dotprod": "DotProd", "i8mm": "I8MM", "feat_i8mm": "I8MM", "sve": "SVE",
}  # fmt: skip
"""Linux's and macOS's names of the instructions that kernels are written for -> the usual names."""
PRODUCT = (
    b'\x08\x08:@\n\x1a\n\x01a\n\x01b\x12\x01y"\rMatMulInteger:\x00\x12\x01gZ\t\n\x01a\x12\x04\n\x02\x08\x02Z\t\n\x01b\x12\x04'
    b"\n\x02\x08\x03b\t\n\x01y\x12\x04\n\x02\x08\x06B\x04\n\x00\x10\x11"
)
"""y = a b as a serialised model, which can be run without importing onnx."""
LAYOUT = (
    b'\x08\x08:>\n)\n\x01x\x12\x01y"\x0cReorderInput:\x13com.microsoft.nchwc\x12\x01gZ\t\n\x01x\x12\x04\n\x02\x08\x01b\x03\n'
    b"\x01yB\x04\n\x00\x10\x11B\x17\n\x13com.microsoft.nchwc\x10\x01"
)
"""y = x in onnxruntime's own layout, also serialised."""
_WINDOWS = {37: "SSE4.1", 39: "AVX", 40: "AVX2", 41: "AVX512F", 43: "DotProd"}
"""Numbers for Windows's IsProcessorFeaturePresent, which has none for VNNI."""


@dataclass(frozen=True, slots=True)
class Processor:
    """What is known of a processor."""

    name: str
    """As the system reports it; "" where it does not."""
    instructions: tuple[str, ...] | None
    """Those of `INSTRUCTIONS` that it has; None where the system does not report them."""
    saturates: bool | None
    """Whether onnxruntime adds products of uint8 and int8 in 16 bits; None where it could not be tried."""
    block: int | None
    """Channels in a block of onnxruntime's own layout; None where it has none here, or it could not be tried."""


@cache
def here() -> Processor:
    """This machine's."""
    return Processor(*described(), saturates=_saturates(), block=_block())


def described() -> tuple[str, tuple[str, ...] | None]:
    """The name of this machine's processor and its instructions, as far as the system says them."""
    found: tuple[str, tuple[str, ...] | None] = ("", None)
    with contextlib.suppress(OSError, ValueError, AttributeError, subprocess.SubprocessError):
        if sys.platform == "linux":
            found = of_cpuinfo(CPUINFO.read_text(encoding="utf-8", errors="replace"))
        elif sys.platform == "darwin":
            said = subprocess.run(["/usr/sbin/sysctl", "machdep.cpu", "hw.optional"], capture_output=True, timeout=5)
            found = of_sysctl(said.stdout.decode("utf-8", "replace"))
        elif sys.platform == "win32":
            import ctypes

            has = ctypes.windll.kernel32.IsProcessorFeaturePresent
            found = "", tuple(name for number, name in _WINDOWS.items() if has(number))
    name, instructions = found
    return name or platform.processor() or platform.machine(), instructions


def of_cpuinfo(text: str) -> tuple[str, tuple[str, ...] | None]:
    """Name and instructions from Linux's /proc/cpuinfo."""
    rows: dict[str, str] = dict(re.findall(r"^([^\n:]*?)[ \t]*:[ \t]*(.*)$", text, re.M))
    flags = rows.get("flags", rows.get("Features"))
    name = rows.get("model name", rows.get("Processor", rows.get("cpu model", "")))
    return name.strip(), None if flags is None else _known(flags.split())


def of_sysctl(text: str) -> tuple[str, tuple[str, ...] | None]:
    """Name and instructions from macOS's machdep.cpu and hw.optional."""
    rows: dict[str, str] = dict(re.findall(r"^([\w.]+): (.*)$", text, re.M))
    listed = [word for key, value in rows.items() if key.endswith("features") for word in value.split()]
    on = [key.rsplit(".", 1)[-1] for key, value in rows.items() if key.startswith("hw.optional") and value == "1"]
    found = _known([*listed, *on])
    return (rows.get("machdep.cpu.brand_string") or "").strip(), found or None


def _known(names: Iterable[str]) -> tuple[str, ...]:
    has = {INSTRUCTIONS.get(name.lower()) for name in names}
    return tuple(name for name in dict.fromkeys(INSTRUCTIONS.values()) if name in has)


def doubts(kernels: Kernels, processor: Processor) -> Iterator[str]:
    """Warnings about a model's numbers on a processor, one line each; empty where all is well."""
    bits = "in 16 bits on this processor (uint8 x int8 without VNNI)"
    if processor.saturates is None:
        bits = "in 16 bits on a processor without VNNI, and what this one does could not be tried"
    cost = "a comparison with the model in floats measures what it costs"
    if kernels.products and processor.saturates is not False:
        yield f"integer products that can saturate {bits}: {_counted(kernels.products)}; {cost}"
    if kernels.fused and processor.saturates is not False:
        yield (
            f"products of floats, {_counted(kernels.fused)}, that onnxruntime makes integer products where attnx does "
            f"not keep it from that: they can saturate {bits}; {cost}"
        )
    if kernels.blocked and kernels.blocks != (processor.block,):
        yield _laid_out(kernels, processor.block)


def _laid_out(kernels: Kernels, block: int | None) -> str:
    """A warning about weights in blocks of channels whose size may differ between the file and this processor."""
    sizes = " or ".join(map(str, kernels.blocks)) or "an unknown number of"
    here = f"this one's have {block}" if block else "this one has none, or they could not be tried"
    what = f"{kernels.blocked} nodes hold weights that onnxruntime laid out in blocks of {sizes} channels for "
    again = "save the model again without layouts (ORT_ENABLE_EXTENDED)"
    if block and block not in kernels.blocks:
        return f"{what}another kind of processor ({here}): its numbers are wrong here; {again}"
    return f"{what}the kind of processor it ran on ({here}): on another the numbers are wrong without an error; {again}"


def _counted(operators: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in operators.items())


def _saturates() -> bool | None:
    """Multiply 255s by 127s: the sum of two such products does not fit in 16 bits."""
    a, b = np.full((1, 8), 255, np.uint8), np.full((8, 8), 127, np.int8)
    got = _tried(PRODUCT, {"a": a, "b": b})
    return None if got is None else bool((got != a.astype(np.int32) @ b.astype(np.int32)).any())


def _block() -> int | None:
    """Lay out two pixels of 64 channels, and count how many channels of the first come before the second's."""
    pixels = np.arange(128, dtype=np.float32).reshape(1, 64, 1, 2)
    got = _tried(LAYOUT, {"x": pixels})
    if got is None or not np.array_equal(np.sort(got.ravel()), pixels.ravel()):
        return None
    size = int(np.argmax(got.ravel() % 2 == 1))
    return size if size > 1 else None


def _tried(model: bytes, feed: dict[str, Array]) -> Array | None:
    """The output of a model with one operator; None where it cannot be run."""
    from attnx.session.ort import open_session

    try:
        return open_session(model, device="cpu").run(feed)["y"]
    except AttnxError:
        return None
