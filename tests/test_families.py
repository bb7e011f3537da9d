"""Families of models as real exporters write them (scripts/make_families.py), and the README's table of them.

A few small ones ship in tests/families; the others are checked where they were built into families/ of the checkout.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))
import check_families  # noqa: E402

SHIPPED = Path(__file__).parent / "families"
THERE = {p.name: p for root in (ROOT / "families", SHIPPED) if root.is_dir() for p in root.iterdir() if p.is_dir()}
LINES = [(name, line) for name, found in check_families.lines().items() for line in found]


@pytest.mark.parametrize("name", sorted(THERE))
def test_attention_is_what_the_framework_computed(name: str) -> None:
    assert check_families.faults(THERE[name]) == []


def test_the_truth_is_held_to(tmp_path: Path) -> None:
    """One number changed in a truth is found."""
    import shutil

    import numpy as np

    folder = tmp_path / "luong"
    shutil.copytree(SHIPPED / "luong", folder)
    with np.load(folder / "truth.npz") as truth:
        arrays = dict(truth)
    arrays["weights.0"][0, 0, 1, 2] += 0.01
    np.savez(folder / "truth.npz", **arrays)
    assert check_families.faults(folder) == ["site 0: weights are off by 0.01"]


def test_the_table_has_every_family() -> None:
    sys.modules.pop("make_families", None)
    names = {name for name, _ in LINES}
    assert len(LINES) >= 25
    assert {p.name for p in SHIPPED.iterdir()} <= names


@pytest.mark.parametrize(("name", "line"), LINES, ids=[f"{name}-{i}" for i, (name, _) in enumerate(LINES)])
def test_lines_of_the_readme_run(name: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name not in THERE:
        pytest.skip(f"built by scripts/make_families.py families {name}, which needs torch")
    (tmp_path / "families").mkdir()
    (tmp_path / "families" / name).symlink_to(THERE[name])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    code, out, err = check_families.run(line)
    assert code == 0, err
    assert (out + err).strip()


def test_what_gathers_the_patches_is_not_what_is_shown_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    place = SHIPPED / "siglip"
    line = f'attnx inspect "a photo of a cat" --image {place}/picture.png -m {place}'
    code, out, err = check_families.run(f"{line} --query r1c2 --head 1.0")
    assert code == 0, err
    assert "from r1c2" in out
    assert "encoder attention; --site shows the others: pooling" in out
