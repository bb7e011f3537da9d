"""Every view of `attnx inspect` in every format: what is in the file is what the model did."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.conftest import Run

pytest.importorskip("matplotlib", reason="the extra `figures` is not installed")

TEXT = "The bank refused the loan."
VIEWS: dict[str, list[str]] = {
    "overview": [],
    "grid": ["--view", "grid"],
    "ranking": ["--query", "bank"],
    "row": ["--head", "5.11", "--query", "bank"],
    "heatmap": ["--head", "5.11", "--view", "heatmap"],
    "lines": ["--head", "5.11", "--view", "lines"],
    "table": ["--head", "5.11"],
    "layer": ["--layer", "5", "--view", "heatmap"],
    "mean": ["--layer", "5", "--mean", "heads"],
}
STARTS = {".png": b"\x89PNG", ".pdf": b"%PDF", ".svg": b"<", ".html": b"<!DOCTYPE html>", ".json": b"{"}


@pytest.mark.parametrize("ending", [".txt", ".svg", ".html", ".png", ".pdf", ".csv", ".npz", ".parquet", ".json"])
@pytest.mark.parametrize("view", VIEWS)
def test_every_view_is_saved_in_every_format(attnx: Run, tmp_path: Path, view: str, ending: str) -> None:
    path = tmp_path / f"{view}{ending}"
    done = attnx("inspect", TEXT, *VIEWS[view], "--save", str(path))
    assert done.code == 0, done.err
    content = path.read_bytes()
    assert content.startswith(STARTS.get(ending, b""))
    assert len(content) > 100
    if ending == ".svg":
        drawn = content.decode()
        # Views with axes are figures; the others look as in a terminal.
        assert ("rich-terminal" not in drawn) == (view in ("grid", "heatmap", "table", "mean"))
        assert "bank" in drawn or view == "grid"
    if ending == ".json":
        assert json.loads(content)["schema"] == "attnx/inspect"


def test_lines_are_drawn_as_lines(attnx: Run, tmp_path: Path) -> None:
    for view in ("lines", "heatmap"):
        attnx("inspect", TEXT, *VIEWS[view], "--save", str(tmp_path / f"{view}.png"))
    assert (tmp_path / "lines.png").read_bytes() != (tmp_path / "heatmap.png").read_bytes()


def test_the_grid_in_numbers_is_every_head(attnx: Run, tmp_path: Path, oracle: Any) -> None:
    attnx("inspect", TEXT, "--view", "grid", "--save", str(tmp_path / "grid.npz"))
    attnx("inspect", TEXT, "--view", "grid", "--save", str(tmp_path / "grid.csv"))
    told = oracle(TEXT)
    with np.load(tmp_path / "grid.npz") as found:
        assert found["head"][71] == "L5 H11"
        assert found["key"][2] == "bank"
        np.testing.assert_allclose(found["values"], told.weights.reshape(72, 8, 8), atol=1e-5)
    with (tmp_path / "grid.csv").open(newline="", encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    assert len(rows) == 72 * 64
    last = rows[71 * 64 + 2 * 8 + 5]
    assert (last["head_label"], last["query_label"], last["key_label"]) == ("L5 H11", "bank", "loan")
    assert float(last["weights"]) == pytest.approx(told.weights[5, 11, 2, 5], abs=1e-5)


def test_too_many_numbers_for_lines_are_refused(attnx: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnx.study.save.MOST", 1000)
    done = attnx("inspect", TEXT, "--view", "grid", "--save", str(tmp_path / "grid.csv"), code=2)
    assert "4,608 values are too many for one per line in .csv" in done.err
    assert not (tmp_path / "grid.csv").exists()


def test_without_matplotlib_an_svg_is_the_terminals_and_that_is_said(
    attnx: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnx.study.save.find_spec", lambda name: None)
    done = attnx("inspect", TEXT, *VIEWS["heatmap"], "--save", str(tmp_path / "head.svg"))
    assert "needs matplotlib" in done.err
    assert "rich-terminal" in (tmp_path / "head.svg").read_text(encoding="utf-8")


def test_an_unknown_ending_is_told_with_all_that_there_are(attnx: Run) -> None:
    said = attnx("inspect", "It slept.", "--save", "x.xyz", code=2).err
    for ending in (".txt", ".svg", ".html", ".png", ".pdf", ".csv", ".npz", ".parquet", ".json"):
        assert ending in said
