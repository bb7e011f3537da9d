"""Contacts of a protein from attention: symmetrised, corrected by the average product; and how many are real."""

from __future__ import annotations

from pathlib import Path
from re import ASCII, fullmatch

import numpy as np

from attnx.errors import InputError
from attnx.records import Array
from attnx.tokens.text_file import read_text

SOURCE = "Rao et al. 2021, Transformer protein language models are unsupervised structure learners, section 3.2"
FORMULA = "S - (row sum of S × column sum of S) / sum of S, where S = A + transposed A, special tokens left out"
APART = 6
"""How many positions apart two residues must be to count. Source: Rao et al. 2021, section 4."""
SHARES = (1, 2, 5)
"""For L residues, the L, L/2 and L/5 strongest pairs are compared with the real contacts."""


def corrected(weights: Array) -> Array:
    """Attention between residues as evidence of contacts: symmetrised, then corrected by the average product.

    What a residue shares with all others says nothing about one pair: row sum times column sum over the total.

    Args:
        weights: [...,N,N], without the rows and columns of special tokens.

    Returns:
        float64 [...,N,N], symmetric; each row sums to 0. If there is no weight at all, 0.

    Source: Rao et al. 2021, section 3.2; fair-esm, `symmetrize` and `apc`. Dunn et al. 2008 for the correction.
    """
    wide = weights.astype(np.float64)
    both = wide + np.swapaxes(wide, -1, -2)
    rows, columns = both.sum(-1, keepdims=True), both.sum(-2, keepdims=True)
    total = both.sum((-1, -2), keepdims=True)
    return np.asarray(both - rows * columns / np.where(total > 0, total, 1.0))


def pairs(count: int, apart: int = APART) -> tuple[Array, Array]:
    """The pairs of `count` residues at least this far apart, int [P] each: the first always before the second."""
    return np.triu_indices(count, max(apart, 1))


def strongest(scores: Array, apart: int, most: int) -> list[tuple[int, int]]:
    """The pairs with the largest scores, the largest first; ties in the order of the protein.

    Args:
        scores: [N,N].
        apart: See `pairs`.
        most: How many pairs.
    """
    i, j = pairs(len(scores), apart)
    order = np.argsort(-scores[i, j], kind="stable")[:most]
    return [(int(i[at]), int(j[at])) for at in order]


def precision(scores: Array, gold: Array, apart: int = APART) -> Array:
    """The share of real contacts among the L, L/2 and L/5 strongest pairs (at least one, at most all there are).

    Args:
        scores: [N,N].
        gold: bool [N,N], symmetric.
        apart: See `pairs`.

    Returns:
        float64 [3]; NaN if no two residues are that far apart.

    Source: Rao et al. 2021, section 4.
    """
    count = len(scores)
    i, j = pairs(count, apart)
    if not len(i):
        return np.full(len(SHARES), np.nan)
    hits = gold[i, j][np.argsort(-scores[i, j], kind="stable")]
    return np.array([hits[: max(1, count // share)].mean() for share in SHARES])


def read_gold(path: Path, letters: tuple[str, ...], start: int = 1) -> Array:
    """Read a file of contacts, two residues per line: "12 57", "12,57" or, checked against the protein, "K12 A57".

    Args:
        path: The file. Empty lines, lines that begin with #, and a first line without numbers are skipped.
        letters: The protein's residues.
        start: The number of the first residue in the file.

    Returns:
        bool [N,N], symmetric.

    Raises:
        InputError: It cannot be read, or a line has something else or a residue that is not in the protein.
    """
    lines = read_text(path, "Contacts are a text file, two residues a line.").splitlines()
    out = np.zeros((len(letters), len(letters)), bool)
    for number, line in enumerate(lines, 1):
        fields = line.replace(",", " ").split()
        if not fields or fields[0].startswith("#"):
            continue
        found = [fullmatch(r"([A-Za-z]?)(\d{1,6})", field, ASCII) for field in fields]
        if number == 1 and not any(map(str.isdigit, line)):  # column names
            continue
        if len(found) != 2 or None in found:
            raise InputError(
                f"line {number} of {path} is not a pair of residues: {line.strip()[:60]!r}",
                "Each line is two residues, by number or by letter and number: 12 57, or K12 A57.",
            )
        places = []
        for one in found:
            assert one is not None
            at = int(one[2]) - start
            if not 0 <= at < len(letters):
                raise InputError(
                    f"line {number} of {path}: there is no residue {one[2]}",
                    f"The protein has residues {start} to {start + len(letters) - 1}.",
                )
            if one[1] and one[1].upper() != letters[at].upper():
                raise InputError(
                    f"line {number} of {path}: residue {one[2]} is {letters[at]}, not {one[1]}",
                    "Are the contacts of this protein, and counted as it is?",
                )
            places.append(at)
        if places[0] == places[1]:
            raise InputError(
                f"line {number} of {path}: a residue does not touch itself", "Each line is two different residues."
            )
        out[places[0], places[1]] = out[places[1], places[0]] = True
    if not out.any():
        raise InputError(f"{path} has no contacts in it", "Each line is two residues: 12 57, or K12 A57.")
    return out


__all__ = ["APART", "FORMULA", "SHARES", "SOURCE", "corrected", "pairs", "precision", "read_gold", "strongest"]
