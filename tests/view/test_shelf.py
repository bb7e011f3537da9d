"""The list of models as exact text."""

from rich.console import Console

from attnx.view.shelf import pulled, shelf, size

ROWS = [
    ("minilm", "bundled", 45_719_081, (6,), 12, "encoder", "fp16", "", ""),
    ("org/t5:onnx/decoder_q4.onnx", "Hub", 1_234, (8, 8), 6, "encoder-decoder", "int4", "0123456789ab", ""),
    ("org/odd", "Hub", 999, (), None, "", "", "0123456789ab", "weights.bin is missing"),
]


def text(renderable: object, width: int) -> str:
    console = Console(width=width, color_system=None, force_terminal=False)
    with console.capture() as captured:
        console.print(renderable)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def test_a_wide_list() -> None:
    assert text(shelf(ROWS, "attnx inspect TEXT -m MODEL runs one."), 120).splitlines() == [
        "                             layers ×",
        "model                        heads      kind             weights  size     from     revision",
        "minilm                       6 × 12     encoder          fp16     45.7 MB  bundled",
        "org/t5:onnx/decoder_q4.onnx  8+8 × 6    encoder-decoder  int4     1.2 kB   Hub      01234567",
        "org/odd                                                           999 B    Hub      01234567",
        "org/odd: weights.bin is missing",
        "attnx inspect TEXT -m MODEL runs one.",
    ]


def test_a_narrow_list_says_what_is_left_out() -> None:
    got = text(shelf(ROWS), 60)
    assert "org/t5:onnx/decoder_q4.onnx" in got
    assert "a wider terminal shows" in got
    assert max(len(line) for line in got.splitlines()) <= 60


def test_nothing_here() -> None:
    assert "There are none." in text(shelf([]), 80)


def test_sizes_and_what_came() -> None:
    assert [size(n) for n in (0, 999, 1000, 1_500_000, 2_000_000_000)] == ["0 B", "999 B", "1.0 kB", "1.5 MB", "2.0 GB"]
    got = text(pulled("org/m\x1b[31m", "/cache/x", {"a": 1_000, "b": 500}), 80)
    assert "\x1b" not in got
    assert "2 files, 1.5 kB, in /cache/x" in got
