"""--device: what it may say, what CUDA is told, and what is refused."""

from __future__ import annotations

import pytest

from attnx.errors import UsageError
from attnx.session.device import Device, parse_device


@pytest.mark.parametrize(
    ("text", "device"),
    [
        ("auto", Device("auto")),
        ("cpu", Device("cpu")),
        ("cuda", Device("cuda")),
        ("cuda:1", Device("cuda", 1)),
        ("cuda,tf32", Device("cuda", 0, True)),
        ("cuda:2,memory=8G", Device("cuda", 2, False, 8 * 2**30)),
        ("cuda:0,tf32,memory=512mb", Device("cuda", 0, True, 512 * 2**20)),
        ("cuda,memory=1000", Device("cuda", 0, False, 1000)),
    ],
)
def test_a_device_is_read(text: str, device: Device) -> None:
    assert parse_device(text) == device


@pytest.mark.parametrize(
    "text",
    ["", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:²", "cuda:99999", "cuda,", "cuda,tf", "cuda,memory=",
     "cuda,memory=8T", "cpu:0", "cpu,tf32", "auto,tf32"],
)  # fmt: skip
def test_no_device(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_device(text)
    assert repr(text) in caught.value.message
    assert "cuda:N" in caught.value.hint


def test_float32_products_are_not_rounded_unless_asked_for() -> None:
    assert parse_device("cuda").cuda_options()["use_tf32"] == "0"
    assert parse_device("cuda:3,tf32").cuda_options()["use_tf32"] == "1"
    assert parse_device("cuda:3,tf32").cuda_options()["device_id"] == "3"


def test_memory_is_bounded_only_where_asked_for() -> None:
    assert "gpu_mem_limit" not in parse_device("cuda").cuda_options()
    options = parse_device("cuda,memory=2G").cuda_options()
    assert options["gpu_mem_limit"] == str(2 * 2**30)
    assert options["arena_extend_strategy"] == "kSameAsRequested"
