"""The notebook of the docs: its cells run in order, show what they show, and its numbers are onnxruntime's own."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.test_docs import same

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
import notebook


def test_the_notebook_runs_and_shows_what_it_shows(oracle: Any) -> None:
    """Every cell of code in one process, without Jupyter."""
    pytest.importorskip("pandas")
    names: dict[str, Any] = {}
    for cell in notebook.cells():
        printed, value = notebook.run(cell, names)
        assert same(notebook.shown(cell), printed + value), "regenerate docs/notebook with `python scripts/notebook.py`"
    run = oracle(names["SENTENCE"])
    it, animal, street = (run.pieces.index(piece) for piece in ("it", "animal", "street"))
    assert (names["it"], names["animal"]) == (it, animal)
    for name in ("row", "by_hand"):
        np.testing.assert_allclose(names[name], run.weights[5, 11, it], atol=1e-4)
    layer, head = names["layer"], names["head"]
    pair = run.weights[layer, head, it, [animal, street]]
    np.testing.assert_allclose(names["found"].shares.values[layer, head], pair / pair.sum(), atol=1e-4)


def test_the_first_cell_installs_nothing_in_a_clone() -> None:
    first = notebook.cells()[0]["source"]
    assert any("pip install" in line for line in first)
    assert all(line.startswith("#") for line in first)
