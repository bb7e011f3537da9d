"""Contacts of a protein: the corrected map by loops, precision by hand, and files of real contacts."""

from pathlib import Path

import numpy as np
import pytest

from attnx.errors import InputError
from attnx.measure import contacts as measure


def by_hand(a: np.ndarray) -> np.ndarray:
    """Cell by cell, as Rao et al. 2021 write it."""
    n = len(a)
    s = [[float(a[i, j]) + float(a[j, i]) for j in range(n)] for i in range(n)]
    total = sum(map(sum, s))
    return np.array([[s[i][j] - sum(s[i]) * sum(row[j] for row in s) / total for j in range(n)] for i in range(n)])


def test_the_average_product_is_taken_off_the_symmetric_map() -> None:
    a = np.random.default_rng(1).random((2, 3, 7, 7), np.float32)
    got = measure.corrected(a)
    for at in np.ndindex(2, 3):
        np.testing.assert_allclose(got[at], by_hand(a[at]), atol=1e-12)
    np.testing.assert_allclose(got, np.swapaxes(got, -1, -2), atol=1e-12)
    np.testing.assert_allclose(got.sum(-1), 0, atol=1e-12)
    assert (measure.corrected(np.zeros((4, 4))) == 0).all()


def test_pairs_far_enough_apart_the_strongest_first() -> None:
    scores = np.zeros((9, 9))
    for rank, (i, j) in enumerate([(0, 8), (1, 7), (0, 6)]):
        scores[i, j] = scores[j, i] = 3 - rank
    scores[2, 3] = scores[3, 2] = 9  # neighbours, however strong
    assert measure.strongest(scores, 6, 3) == [(0, 8), (1, 7), (0, 6)]
    assert measure.strongest(scores, 6, 99)[3:] == [(0, 7), (1, 8), (2, 8)]  # equals in the protein's order
    assert measure.strongest(scores, 1, 1) == [(2, 3)]
    assert measure.strongest(scores, 9, 5) == []


def test_precision_by_hand() -> None:
    """Of 10 residues, 10 pairs lie 6 apart; real are the 1st, 2nd and 6th strongest, and one that is too near."""
    i, j = measure.pairs(10, 6)
    assert len(i) == 10
    scores, real = np.zeros((10, 10)), np.zeros((10, 10), bool)
    for rank, (a, b) in enumerate(zip(i, j, strict=True)):
        scores[a, b] = scores[b, a] = 10 - rank
        real[a, b] = real[b, a] = rank in (0, 1, 5)
    real[0, 1] = real[1, 0] = True
    np.testing.assert_allclose(measure.precision(scores, real), [3 / 10, 2 / 5, 2 / 2])
    assert np.isnan(measure.precision(scores[:6, :6], real[:6, :6])).all()


def test_files_of_contacts(tmp_path: Path) -> None:
    letters = tuple("MKTAYIAK")
    want = np.zeros((8, 8), bool)
    for i, j in ((0, 6), (1, 7)):
        want[i, j] = want[j, i] = True
    file = tmp_path / "gold"
    for said in ("1 7\n2 8\n", "\ufeffi,j\n1,7\n\n8,2\n", "# real\nM1\tA7\nk8 K2\n2 8\n"):
        file.write_text(said, encoding="utf-8")
        np.testing.assert_array_equal(measure.read_gold(file, letters), want)
    file.write_text("11 17\n12 18\n")
    np.testing.assert_array_equal(measure.read_gold(file, letters, 11), want)


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("1 9\n", "there is no residue 9"),
        ("0 7\n", "there is no residue 0"),
        ("1 7\nM1 K7\n", "residue 7 is A, not K"),
        ("1 7 0.9\n", "not a pair of residues"),
        ("1.0 7.0\n2 8\n", "line 1 .* is not a pair of residues"),
        ("1 7\ni j\n", "not a pair of residues"),
        ("3 3\n", "does not touch itself"),
        ("# nothing\n", "no contacts in it"),
    ],
)
def test_what_is_no_contact(tmp_path: Path, said: str, found: str) -> None:
    (tmp_path / "gold").write_text(said)
    with pytest.raises(InputError, match=found):
        measure.read_gold(tmp_path / "gold", tuple("MKTAYIAK"))


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "gold").write_bytes(b"1 7 caf\xe9\n")
    for name, why in (("gold", "is not UTF-8 text"), ("none", "cannot be read")):
        with pytest.raises(InputError, match=why):
            measure.read_gold(tmp_path / name, tuple("MKTAYIAK"))
