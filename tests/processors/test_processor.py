"""What a processor has, as systems say it, and what is said of models on one."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, ValueInfoProto, helper

from attnx.records import Kernels
from attnx.session import processor
from attnx.session.processor import Processor, described, doubts, here, of_cpuinfo, of_sysctl
from attnx.study.health import processor as findings
from tests.integers import saturates
from tests.processors.made import NEW, OLD, UNKNOWN

X86 = """processor\t: 0
vendor_id\t: AuthenticAMD
model name\t: AMD EPYC 7763 64-Core Processor
flags\t\t: fpu sse4_1 sse4_2 avx f16c avx2 bmi2

processor\t: 1
model name\t: AMD EPYC 7763 64-Core Processor
flags\t\t: fpu sse4_1 sse4_2 avx f16c avx2 bmi2
"""
ARM = "processor\t: 0\nBogoMIPS\t: 243.75\nFeatures\t: fp asimd asimddp sve i8mm\nCPU implementer\t: 0x41\n"
MAC = """machdep.cpu.brand_string: Intel(R) Core(TM) i7-1068NG7 CPU @ 2.30GHz
machdep.cpu.features: FPU SSE SSE4.1 SSE4.2 AVX1.0
machdep.cpu.leaf7_features: RDWRFSGS AVX2 AVX512F AVX512BW AVX512VNNI
hw.optional.avx2_0: 1
"""
M1 = """machdep.cpu.brand_string: Apple M1
hw.optional.AdvSIMD: 1
hw.optional.arm.FEAT_DotProd: 1
hw.optional.arm.FEAT_I8MM: 0
"""


def test_what_systems_say() -> None:
    assert of_cpuinfo(X86) == ("AMD EPYC 7763 64-Core Processor", ("SSE4.1", "AVX", "AVX2"))
    assert of_cpuinfo(ARM) == ("", ("NEON", "DotProd", "I8MM", "SVE"))
    assert of_cpuinfo("nothing of the kind") == ("", None)
    vnni = ("SSE4.1", "AVX", "AVX2", "AVX512F", "AVX512BW", "AVX512_VNNI")
    assert of_sysctl(MAC) == ("Intel(R) Core(TM) i7-1068NG7 CPU @ 2.30GHz", vnni)
    assert of_sysctl(M1) == ("Apple M1", ("NEON", "DotProd"))
    assert of_sysctl("") == ("", None)


def test_a_system_that_says_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(processor, "CPUINFO", tmp_path / "none")
    monkeypatch.setattr(sys, "platform", "linux")
    assert described()[1] is None
    monkeypatch.setattr(sys, "platform", "plan9")
    assert described()[1] is None


def test_this_processor_is_tried() -> None:
    found = here()
    assert found.saturates is saturates()
    assert found.block in (None, 8, 16)
    assert here() is found


def test_a_model_that_cannot_be_run_tells_nothing() -> None:
    graph = helper.make_graph([helper.make_node("Nothing", ["x"], ["y"])], "g", [], [])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString()
    assert processor._tried(model, {"x": np.zeros(1)}) is None


def test_the_models_it_is_tried_with_are_these() -> None:
    def model(domain: str, op: str, inputs: dict[str, int], out: ValueInfoProto) -> onnx.ModelProto:
        values = [helper.make_tensor_value_info(name, kind, None) for name, kind in inputs.items()]
        graph = helper.make_graph([helper.make_node(op, [*inputs], ["y"], domain=domain)], "g", values, [out])
        opsets = [helper.make_opsetid("", 17), *([helper.make_opsetid(domain, 1)] if domain else [])]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)

    integers = helper.make_tensor_value_info("y", TensorProto.INT32, None)
    product = model("", "MatMulInteger", {"a": TensorProto.UINT8, "b": TensorProto.INT8}, integers)
    layout = model("com.microsoft.nchwc", "ReorderInput", {"x": TensorProto.FLOAT}, ValueInfoProto(name="y"))
    assert onnx.ModelProto.FromString(processor.PRODUCT) == product
    assert onnx.ModelProto.FromString(processor.LAYOUT) == layout


def test_products_are_doubted_where_they_may_saturate() -> None:
    held = Kernels(products={"MatMulInteger": 6, "QAttention": 2})
    (said,) = doubts(held, OLD)
    assert said == (
        "integer products that can saturate in 16 bits on this processor (uint8 x int8 without VNNI): "
        "6 MatMulInteger, 2 QAttention; a comparison with the model in floats measures what it costs"
    )
    (unsure,) = doubts(held, UNKNOWN)
    assert "on a processor without VNNI, and what this one does could not be tried: 6 MatMulInteger" in unsure
    assert list(doubts(held, NEW)) == []
    (fused,) = doubts(Kernels(fused={"MatMul": 12}), OLD)
    assert fused.startswith(
        "products of floats, 12 MatMul, that onnxruntime makes integer products where attnx does not"
    )
    assert list(doubts(Kernels(fused={"MatMul": 12}), NEW)) == []
    assert list(doubts(Kernels(), OLD)) == []


@pytest.mark.parametrize(
    ("blocks", "block", "said"),
    [
        ((8,), 8, ""), ((16,), 16, ""),
        ((16,), 8, "of 16 channels for another kind of processor (this one's have 8): its numbers are wrong here"),
        ((8,), 16, "of 8 channels for another kind of processor (this one's have 16): its numbers are wrong here"),
        ((8, 16), 8, "of 8 or 16 channels for the kind of processor it ran on (this one's have 8): on another"),
        ((8, 16), None, "(this one has none, or they could not be tried): on another the numbers are wrong"),
        ((), 8, "of an unknown number of channels for another kind of processor"),
    ],
)  # fmt: skip
def test_layouts_are_doubted_where_they_may_be_for_another(
    blocks: tuple[int, ...], block: int | None, said: str
) -> None:
    found = list(doubts(Kernels(blocked=2, blocks=blocks), Processor("", None, saturates=False, block=block)))
    assert len(found) == bool(said)
    assert all(said in one and "2 nodes hold weights" in one for one in found)


def test_doctor_says_what_is_there() -> None:
    found = {f.name: f for f in findings(OLD)}
    assert {f.part for f in found.values()} == {"processor"}
    assert (found["name"].said, found["instructions"].said) == ("an old one", "AVX2")
    assert found["uint8 x int8"].state == "note"
    assert found["uint8 x int8"].said.startswith("saturates in 16 bits")
    assert found["own layouts"].said == "blocks of 8 channels"
    better = {f.name: f for f in findings(NEW)}
    assert (better["uint8 x int8"].state, better["uint8 x int8"].said) == ("good", "exact")
    unknown = {f.name: (f.state, f.said) for f in findings(UNKNOWN)}
    assert all(state == "note" for state, _ in unknown.values())
    assert unknown["instructions"] == ("note", "not known on this system")
    assert [f.state for f in findings() if f.name == "uint8 x int8"] == ["note" if saturates() else "good"]
