"""Overview, sites, what a run gave."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest

from attnx.records import Axis, Check, Measurement
from attnx.view.cells import cell_len
from attnx.view.overview import Look, Target, Worth, overview
from attnx.view.sites import sites_table
from attnx.view.traced import traced
from attnx.view.visible import visible
from tests.view import samples
from tests.view.scenes import SCENES
from tests.view.screen import plain, segments


def test_header_says_what_ran() -> None:
    first = plain(SCENES["overview"](), 80).splitlines()[0]
    assert first == "minilm · 16 tokens · 2 layers × 4 heads · d_k 32 · cpu"
    trace = samples.trace()
    one = dataclasses.replace(trace.attentions[0].site, heads=8, kv_heads=2, head_size=None)
    mixed = dataclasses.replace(
        trace, attentions=(dataclasses.replace(trace.attentions[0], site=one), trace.attentions[1])
    )
    first = plain(overview(mixed, [], []), 80).splitlines()[0]
    assert "4–8 heads (2 key/value)" in first


def test_looks_name_query_key_weight_and_head() -> None:
    looks = [Look(10, (Target(2, 0.6731, "L5 H11"), Target(0, 0.2, "L1 H0"))), Look(3, ())]
    text = plain(overview(samples.trace(), looks, []), 80)
    line = next(line for line in text.splitlines() if line.startswith("10 it"))
    assert line.split()[:5] == ["10", "it", "→", "animal", "0.67"]
    assert "L5 H11" in line
    wide = plain(overview(samples.trace(), looks, []), 160)
    assert "[CLS]  0.20 L1 H0" in wide


def test_everything_is_on_one_screen_of_80_by_24() -> None:
    lines = segments(SCENES["overview"](), 80, 24)
    text = "\n".join("".join(s.text for s in line).rstrip() for line in lines)
    assert len(lines) <= 23
    for part in (
        "minilm",
        "where each token looks",
        "heads worth a look",
        "entropy  ",
        "where the weight goes",
        "more:",
    ):
        assert part in text


def test_what_does_not_fit_is_counted() -> None:
    looks = [Look(at % 16, (Target(0, 0.5, "L0 H0"),)) for at in range(40)]
    worth = [Worth(f"kind {at}", "L0 H0", 0.5) for at in range(20)]
    lines = segments(overview(samples.trace(), looks, worth), 80, 24)
    texts = ["".join(s.text for s in line) for line in lines]
    shown = sum("→" in text for text in texts)
    kinds = sum("kind " in text for text in texts)
    assert any(f"and {40 - shown} more tokens" in text for text in texts)
    assert any(f"and {20 - kinds} more" in text for text in texts)


def test_where_the_weight_goes_adds_up() -> None:
    mass = Measurement("mass", "share", (Axis("to", ("a", "b")),), np.array([0.25, 0.75]))
    text = plain(overview(samples.trace(), [], [], mass=mass), 80).splitlines()
    line = next(line for line in text if line.startswith("mass"))
    bar = line.removeprefix("mass  ").split("  ")[0]
    assert len(bar) == 40
    assert bar.count("█") == 10
    assert bar.count("▓") == 30
    assert "a 0.25" in line
    assert "b 0.75" in line


def test_map_shades_follow_the_values() -> None:
    lines = plain(SCENES["overview"](), 100).splitlines()
    values = samples.by_head().values
    for layer in range(6):
        line = next(line for line in lines if f"L{layer} " in line and set(line[-24:]) <= set(" ░▒▓█L0123456789"))
        drawn = line[line.rindex(f"L{layer} ") + 3 :].ljust(24)
        for head in range(12):
            step = min(4, int(values[layer, head] / values.max() * 5))
            assert drawn[2 * head] == " ░▒▓█"[step]


def test_sites_say_what_they_are() -> None:
    text = plain(SCENES["sites"](), 160)
    line = next(line for line in text.splitlines() if line.startswith("1 "))
    for part in (
        "L1",
        "encoder",
        "4/2",
        "by head",
        "causal, 128 wide",
        "ALiBi, softcap 50",
        "com.microsoft.GroupQueryAttention",
    ):
        assert part in line
    assert "the scale is folded into the weights of [bold]q[/b]" in text
    assert "2 nodes refused" in text
    assert "query: /q/Mul_output_0 [b h q d] x 0.5" in text


def test_columns_that_do_not_fit_are_named() -> None:
    said = "a wider terminal also shows where the scale is applied, what else changes the scores, operators, nodes"
    assert said in plain(SCENES["sites"](), 60).replace("\n", " ")
    assert "wider" not in plain(SCENES["sites"](), 200)


def test_no_sites() -> None:
    assert plain(sites_table([]), 80) == "no attention sites\n"


def test_traced_names_arrays_and_failures() -> None:
    trace = samples.trace()
    assert "2 of 2 checks hold" in plain(traced(trace), 80)
    bad = dataclasses.replace(trace.attentions[1], checks=(Check("rows sum to 1", 0.5, 1e-4),))
    text = plain(traced(dataclasses.replace(trace, attentions=(trace.attentions[0], bad))), 80)
    assert "1 of 2 checks hold" in text
    assert "L1, rows sum to 1: does not hold, 0.5 apart (tolerance 0.0001)" in text
    assert "weights  1x4x16x16        tapped" in text
    assert "capped   1x4x16x16        computed" in text
    nan = dataclasses.replace(trace.attentions[1], checks=(Check("rows sum to 1", float("nan"), 1e-4),))
    assert "nan apart" in plain(traced(dataclasses.replace(trace, attentions=(nan,))), 80)


@pytest.mark.parametrize("width", [40, 60, 80, 100])
def test_the_first_line_says_the_length_and_the_device_at_any_width(width: int) -> None:
    one = dataclasses.replace(samples.trace(), model="somebody/a-model-with-a-name-of-some-length-0.5B-instruct")
    first = plain(overview(one, [], []), width).splitlines()[0]
    assert cell_len(first) <= width
    assert first.startswith("somebody/a-mod")
    assert first.endswith(f" · {one.device}")
    assert f" · {len(one.tokens)} tokens · " in first
    assert ("2 layers × 4 heads" in first) is (width >= 60)


@pytest.mark.parametrize("count", [4, 17, 60])
def test_rows_of_a_mask_are_named_and_kept_apart_from_the_cells(count: int) -> None:
    axes = tuple(Axis(name, tuple(f"<|endoftext|>{at}"[:13] for at in range(count))) for name in ("query", "key"))
    text = plain(visible(Measurement("visible", "", axes, np.ones((count, count))), height=24), 80)
    rows = [line for line in text.splitlines() if "█" in line and "query" not in line]
    assert all(re.match(r" *\d+ \S.*? █", row) for row in rows)
    assert not any(re.match(r" *(\d+) to \1 ", row) for row in rows)
