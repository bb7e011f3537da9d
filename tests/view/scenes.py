"""Every view with something to show, for the exact-text tests and for looking at them.

python -m tests.view.scenes                    names
python -m tests.view.scenes heatmap            look at one in this terminal
python -m tests.view.scenes --update           write tests/view/snapshots anew; read the diff before committing it
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from rich.console import Console, RenderableType

from attnx.records import Axis, Measurement, Miss
from attnx.view.bars import bars
from attnx.view.columns import both, column, columns
from attnx.view.grid import grid
from attnx.view.heatmap import heatmap
from attnx.view.lines import lines
from attnx.view.matrix import Matrix, of_attention
from attnx.view.overview import Look, Target, Worth, overview
from attnx.view.row import row
from attnx.view.sites import sites_table
from attnx.view.sparkline import sparklines
from attnx.view.strip import strip
from attnx.view.table import matrix_table, table
from attnx.view.traced import traced
from attnx.view.visible import visible
from tests.view import samples
from tests.view.screen import plain

SNAPSHOTS = Path(__file__).parent / "snapshots"
WIDTHS = (60, 100, 160)


def matrix(pieces: list[str] = samples.ENGLISH, head: int = 3, causal: bool = False, stage: str = "weights") -> Matrix:
    trace = samples.trace(pieces, causal=causal)
    return of_attention(trace, trace.attentions[-1], head, stage)  # type: ignore[arg-type]


def _difference() -> Matrix:
    one, two = matrix(head=3), matrix(head=2)
    return dataclasses.replace(one, values=one.values - two.values, bounds=(-1.0, 1.0), title="L1 H3 - H2")


def _columns(pieces: list[str]) -> RenderableType:
    weights = np.linspace(0, 1, len(pieces))
    return columns(
        "L5 H11 · from it@10",
        [
            column("key", [f"{at} {piece}" for at, piece in enumerate(pieces)]),
            column("q·k", weights * 24 - 3, decimals=2),
            column("softmax unscaled", weights, bar=(0.0, 1.0)),
            column("difference", weights - 0.5, bar=(-0.5, 0.5)),
            column("entropy (nats)", [both(value, value / 2) for value in weights], whole=True),
            column("mean distance", np.where(weights > 0.9, np.nan, weights * 9), decimals=1, spare=True),
            column(
                "kind", ["previous-token", "a long name that says much", "", "self", "[bold]x", "sink"][: len(pieces)]
            ),
        ],
        strong=[1],
        faint=[0],
        notes=["softmax(q·k) (Vaswani et al. 2017, equation 1)", "", "2 more keys"],
    )


def _products(count: int) -> Measurement:
    values = np.sin(np.arange(count) * 0.7) * np.linspace(0.1, 3, count)
    values[5] = np.nan
    return Measurement("products by dimension", "", (Axis("dimension", tuple(map(str, range(count)))),), values)


def _seen(count: int) -> Measurement:
    names = tuple(samples.long(count)) if count > 16 else tuple(samples.ENGLISH[:count])
    values = np.tri(count)
    values[:, 0] = 0.5
    return Measurement("visible", "share of heads", (Axis("query", names), Axis("key", names)), values, (0.0, 1.0))


def _overview(pieces: list[str] = samples.ENGLISH) -> RenderableType:
    trace = samples.trace(pieces)
    looks = []
    for query in range(len(pieces)):
        found = [
            Target(int(a.weights[0, h, query].argmax()), float(a.weights[0, h, query].max()), f"L{a.site.layer} H{h}")  # type: ignore[index]
            for a in trace.attentions
            for h in range(4)
        ]
        looks.append(Look(query, tuple(sorted(found, key=lambda t: -t.weight)[:3])))
    worth = [
        Worth("most confident", "L1 H3", 0.31, "nats", "it → animal"),
        Worth("most confident", "L0 H2", 0.44, "nats", "previous token"),
        Worth("most on one token", "L0 H0", 0.97, "share", "[CLS]"),
    ]
    mass = Measurement(
        "where the weight goes",
        "share",
        (Axis("to", ("[CLS]", "[SEP]", ".", "words")),),
        np.array([0.12, 0.37, 0.06, 0.45]),
    )
    hints = ["more: attnx inspect TEXT --head 1.3 · --query it · --view grid · --json"]
    return overview(trace, looks, worth, mass=mass, heads=samples.by_head(), hints=hints)


def _sites() -> RenderableType:
    found = [attention.site for attention in samples.trace(layers=3).attentions]
    found[1] = dataclasses.replace(
        found[1], kv_heads=2, causal=True, window=128, softcap=50.0, bias="ALiBi", scale=(0.1, 0.2, 0.3, 0.4),
        op="com.microsoft.GroupQueryAttention", notes=("the scale is folded into the weights of [bold]q[/b]",),
    )  # fmt: skip
    misses = [
        Miss(
            "/classifier/Softmax",
            "Softmax",
            "its input is the product of an activation and a constant: a classifier",
        ),
        Miss("/router/\x1b[31mSoftmax", "Softmax", "rank 2"),
    ]
    return sites_table(found, misses, places=True, elsewhere="--json has everything")


def _rank_three() -> Measurement:
    kind, layer, head = np.indices((2, 3, 14))
    return Measurement(
        "share", "", (
            Axis("kind", ("next", "previous")), Axis("layer", ("L0", "L1", "L2")),
            Axis("head", tuple(f"H{at}" for at in range(14))),
        ),
        np.where((head == 3) & (layer == 1), np.nan, np.sin(kind + 2 * layer + head)),
    )  # fmt: skip


SCENES: dict[str, Callable[[], RenderableType]] = {
    "heatmap": lambda: heatmap(matrix(), query=10),
    "heatmap_wide": lambda: heatmap(matrix(samples.WIDE, head=0, causal=True), kind="log", mute=(0,)),
    "heatmap_hostile": lambda: heatmap(matrix(samples.HOSTILE), kind="row"),
    "heatmap_blocks": lambda: heatmap(matrix(samples.long(), head=1, causal=True), height=30),
    "heatmap_window": lambda: heatmap(matrix(samples.long(), head=3), query=60, height=20),
    "heatmap_difference": lambda: heatmap(_difference(), diverging=True),
    "table": lambda: matrix_table(matrix(), query=10),
    "table_masked": lambda: matrix_table(matrix(samples.WIDE, causal=True, stage="masked"), mute=(0,)),
    "table_long": lambda: matrix_table(matrix(samples.long(), head=2), query=60, rows=9, kind="log"),
    "table_measurement": lambda: table(samples.by_head()),
    "table_one_axis": lambda: table(samples.by_candidate()),
    "table_three_axes": lambda: table(_rank_three(), diverging=True),
    "lines": lambda: lines([matrix()]),
    "lines_query": lambda: lines([matrix(head=h) for h in (0, 2, 3)], query=10),
    "lines_wide": lambda: lines([matrix(samples.WIDE, head=1, causal=True)], mute=(0,)),
    "row": lambda: row(matrix(), 10),
    "row_wide": lambda: row(matrix(samples.WIDE, head=1, causal=True), 7, top=4, mute=(0,)),
    "row_masked": lambda: row(matrix(causal=True, stage="masked"), 6, top=None),
    "grid": lambda: grid(samples.trace(layers=6, heads=12), mark=[(5, 11), (2, 0)]),
    "grid_causal": lambda: grid(
        samples.trace(samples.long(64), layers=12, heads=12, causal=True), mute=(0,), height=24
    ),
    "grid_many": lambda: grid(samples.trace(layers=30, heads=9), height=24),
    "bars": lambda: bars(samples.by_candidate()),
    "sparklines": lambda: sparklines(samples.by_head(), along="layer"),
    "columns": lambda: _columns(samples.ENGLISH[:6]),
    "columns_wide": lambda: _columns(samples.WIDE[:6]),
    "strip": lambda: strip(_products(32)),
    "strip_long": lambda: strip(_products(200)),
    "visible": lambda: visible(_seen(16)),
    "visible_long": lambda: visible(_seen(200), height=24),
    "overview": _overview,
    "overview_wide": lambda: _overview(samples.WIDE),
    "sites": _sites,
    "traced": lambda: traced(samples.trace(), saved=["wrote out.npz"], why="see attnx sites"),
}


def path(name: str, width: int) -> Path:
    return SNAPSHOTS / f"{name}-{width}.txt"


def update() -> None:
    SNAPSHOTS.mkdir(exist_ok=True)
    wanted = {path(name, width) for name in SCENES for width in WIDTHS}
    for old in set(SNAPSHOTS.glob("*.txt")) - wanted:
        old.unlink()
    for name, scene in SCENES.items():
        for width in WIDTHS:
            path(name, width).write_text(plain(scene(), width), encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:] == ["--update"]:
        update()
    elif len(sys.argv) == 1:
        sys.stdout.write("\n".join([*SCENES, ""]))
    else:
        Console(highlight=False, markup=False, emoji=False).print(SCENES[sys.argv[1]]())
