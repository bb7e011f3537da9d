"""Links between words: read off matrices, made of two directions, written and read, held against gold by hand."""

from pathlib import Path

import numpy as np
import pytest

from attnx.errors import InputError
from attnx.measure import alignment_error as aer
from attnx.measure import links

RNG = np.random.default_rng(5)


def test_each_target_word_has_its_strongest_source_word() -> None:
    weights = np.array([[0.2, 0.5, 0.3], [0.0, 0.0, 0.0], [0.4, 0.4, 0.1], [np.nan, 0.1, np.nan]])
    got = links.strongest(weights)
    assert links.listed(got) == ((0, 2), (1, 0), (1, 3))
    assert not got[1].any()
    assert links.pharaoh(links.listed(got)) == "0-2 1-0 1-3"
    assert links.strongest(np.zeros((2, 3, 0))).shape == (2, 3, 0)


def test_agreement_is_between_rows_and_columns() -> None:
    #     rows: (0,0) (1,1) (2,1); columns: (0,0) (1,2): both have (0,0) only, of 3 and 2
    weights = np.array([[0.9, 0.1], [0.3, 0.4], [0.2, 0.8]])
    rows, columns = {(0, 0), (1, 1), (2, 1)}, {(0, 0), (2, 1)}
    assert links.agreement(weights) == pytest.approx(2 * len(rows & columns) / (len(rows) + len(columns)))
    assert links.agreement(np.eye(4)) == 1
    assert links.agreement(np.zeros((3, 2))) == 0
    stacked = RNG.random((2, 3, 5, 4))
    one = [[links.agreement(m) for m in layer] for layer in stacked]
    np.testing.assert_allclose(links.agreement(stacked), one)


def grown(forward: set[tuple[int, int]], backward: set[tuple[int, int]]) -> set[tuple[int, int]]:
    """GROW-DIAG as Koehn et al. 2005 write it down, over sets of points."""
    around = [(-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1)]
    union, made = forward | backward, forward & backward
    while True:
        before = len(made)
        for e in range(20):
            for f in range(20):
                if (e, f) not in made:
                    continue
                for de, df in around:
                    new = (e + de, f + df)
                    free = new[0] not in {a for a, _ in made} or new[1] not in {b for _, b in made}
                    if new in union and free:
                        made.add(new)
        if len(made) == before:
            return made


@pytest.mark.parametrize("seed", range(8))
def test_two_directions_are_made_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    forward, backward = rng.random((9, 12)) < 0.15, rng.random((9, 12)) < 0.15
    backward |= forward & (rng.random((9, 12)) < 0.3)
    one, two = ({(int(t), int(s)) for t, s in np.argwhere(m)} for m in (forward, backward))
    for how, want in (("intersection", one & two), ("union", one | two), ("grow-diag", grown(one, two))):
        got = links.symmetrise(forward, backward, how)  # type: ignore[arg-type]
        assert {(int(t), int(s)) for t, s in np.argwhere(got)} == want
    assert len(one & two) < len(grown(one, two)) < len(one | two)


# Och and Ney's measure by hand: A = {0-0, 1-1, 2-2, 2-3}, S = {0-0, 1-2}, P = S + {2-2, 1-1}.
# |A and S| = 1, |A and P| = 3, |A| = 4, |S| = 2: AER 1 - 4/6, precision 3/4, recall 1/2.
A, GOLD = [(0, 0), (1, 1), (2, 2), (2, 3)], "0-0 1-2 2p2 1?1"


def matrix(pairs: list[tuple[int, int]], targets: int = 4, sources: int = 3) -> np.ndarray:
    out = np.zeros((targets, sources), bool)
    for s, t in pairs:
        out[t, s] = True
    return out


def test_error_rate_by_hand(tmp_path: Path) -> None:
    (tmp_path / "gold").write_text(GOLD + "\n", encoding="utf-8")
    (gold,) = aer.read_gold(tmp_path / "gold")
    assert gold.sure == {(0, 0), (1, 2)}
    assert gold.possible == {(0, 0), (1, 2), (2, 2), (1, 1)}
    counted = aer.count(matrix(A), *gold.matrices(4, 3))
    assert counted.tolist() == [1, 3, 4]
    np.testing.assert_allclose(aer.rates(counted, 2), [1 - 4 / 6, 3 / 4, 1 / 2])
    assert np.isnan(aer.rates(np.zeros(3, int), 0)).all()


# Links, gold ones, and AER, precision and recall by nltk 3.10.4: nltk.translate.metrics.alignment_error_rate and
# nltk.metrics.
BY_NLTK = [
    ("1-0 2-0 0-1 2-3", "1-0 0-1 2-2 0-3", 0.5, 0.5, 0.5),
    ("2-0 1-2 0-4 2-4 3-4", "0-2 3-2 0-4 3-4 0p3 2p3 3p3", 0.5555555555555556, 0.4, 0.5),
    (
        "0-0 1-0 3-0 1-1 2-1 3-1 1-2 4-3 3-5 4-5",
        "3-3 4-3 4-5 0p0 1p0 3p0 4p0 1p1 0p4 4p4 1p5 3p5",
        0.3076923076923077,
        0.7,
        0.6666666666666666,
    ),
    (
        "0-0 1-0 4-0 1-1 3-1 4-2 1-3 2-3 4-3",
        "4-0 1-1 5-3 3p0 5p1 0p2 1p3",
        0.5833333333333333,
        0.3333333333333333,
        0.6666666666666666,
    ),
    ("0-1 1-2", "0-1 2-2 0p4", 0.5, 0.5, 0.5),
]


@pytest.mark.parametrize(("made", "gold", "error", "precision", "recall"), BY_NLTK)
def test_a_public_tool_says_the_same(
    tmp_path: Path, made: str, gold: str, error: float, precision: float, recall: float
) -> None:
    (tmp_path / "gold").write_text(f"{gold}\n", encoding="utf-8")
    (want,) = aer.read_gold(tmp_path / "gold")
    sure, possible = want.matrices(8, 8)
    links = matrix([(int(s), int(t)) for s, _, t in (word.partition("-") for word in made.split())], 8, 8)
    got = aer.rates(aer.count(links, sure, possible), int(sure.sum()))
    np.testing.assert_allclose(got, [error, precision, recall])


def test_gold_counts_from_one_where_it_is_told(tmp_path: Path) -> None:
    (tmp_path / "gold").write_text("1-1 2p3\n\n3-2\n", encoding="utf-8")
    one, nothing, two = aer.read_gold(tmp_path / "gold", 1)
    assert (one.sure, one.possible) == ({(0, 0)}, {(0, 0), (1, 2)})
    assert not nothing.possible
    assert two.sure == {(2, 1)}
    with pytest.raises(InputError, match="3-2 is of no word: there are 3 source and 2 target words"):
        aer.read_gold(tmp_path / "gold")[2].matrices(2, 3)


@pytest.mark.parametrize("text", ["0-0 x", "0:1", "1-", "0-0 -1-2", "", "\n\n", "0-9999999"])
def test_gold_that_cannot_be_read(tmp_path: Path, text: str) -> None:
    (tmp_path / "gold").write_text(text, encoding="utf-8")
    with pytest.raises(InputError):
        aer.read_gold(tmp_path / "gold")
    (tmp_path / "gold").write_text("0-0", encoding="utf-8")
    with pytest.raises(InputError, match="is not a line of links"):
        aer.read_gold(tmp_path / "gold", 1)


def test_the_head_is_chosen_on_one_half_and_judged_on_the_other() -> None:
    """Head 0 is right on odd sentences, head 1 on even ones: whichever is chosen, the other half tells."""
    count, sure = 40, 3
    sentences = []
    for at in range(count):
        heads = np.array([[[3, 3, 3], [0, 0, 3]], [[1, 1, 3], [0, 1, 2]]])
        if at % 2:
            heads[0] = heads[0][::-1]
        sentences.append(aer.Counted(heads, heads.sum(axis=1), {"nothing": np.array([0, 0, 1])}, sure))
    found = aer.errors(sentences, ("L0", "L1"), seed=3, draws=50)
    order = np.random.default_rng(3).permutation(count)
    first = np.isin(np.arange(count), order[: count // 2])
    total = np.zeros(3)
    for train, test, chosen in ((first, ~first, found.chosen[0]), (~first, first, found.chosen[1])):
        rate = [
            [1 - sum(s.heads[at, h, :2].sum() for s, k in zip(sentences, train, strict=True) if k)
             / sum(s.heads[at, h, 2] + sure for s, k in zip(sentences, train, strict=True) if k) for h in range(2)]
            for at in range(2)
        ]  # fmt: skip
        assert chosen == divmod(int(np.argmin(rate)), 2)
        total += sum(s.heads[chosen] for s, k in zip(sentences, test, strict=True) if k)
    methods = found.methods.axes[0].labels
    row = found.methods.values[methods.index("best head, chosen on the other half")]
    assert row[0] == pytest.approx(1 - total[:2].sum() / (total[2] + sure * count))
    assert row[3] == pytest.approx(total[1] / total[2])
    assert row[4] == pytest.approx(total[0] / (sure * count))
    assert row[1] <= row[0] <= row[2]
    assert found.heads.values[0] == pytest.approx([1 - 6 / 12] * 2)
    assert found.layers.values[1] == pytest.approx(1 - 3 / 8)
    assert found.methods.values[methods.index("nothing"), 0] == 1
    alone = aer.errors(sentences[:1], ("L0", "L1"))
    assert alone.chosen == ()
    assert any("cannot be cut in two" in note for note in alone.notes)
