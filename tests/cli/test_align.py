"""`attnx align` on a translator: links as table, lines, Pharaoh and JSON; two models; gold; what is refused."""

import re
from pathlib import Path

import numpy as np
import pytest

from tests import small_models as small
from tests.cli.conftest import Run
from tests.small_senses import letters
from tests.study.test_translation import READ, SOURCE, SPACED, START, TARGET, TARGETS, W, by_hand


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = small.save(
        tmp_path_factory.mktemp("pair"),
        config={"decoder_start_token_id": START, "eos_token_id": 20, "max_position_embeddings": 32},
        encoder_model=small.encoder(W),
        decoder_model=small.cross_decoder(W, cached=False),
    )
    letters(folder)
    return folder


def test_links_in_json(attnx: Run, model: Path) -> None:
    got = attnx("align", SOURCE, "-m", model, "--target", TARGET, "--head", "1.0", "--json").document
    want = by_hand(READ)[1, 0]
    assert (got["source"], got["target"]) == (list(READ), list(TARGETS))
    np.testing.assert_allclose(got["weights"], want, atol=1e-5)
    linked = sorted((int(row.argmax()), t) for t, row in enumerate(want))
    assert [(link["source"], link["target"]) for link in got["links"]] == linked
    assert got["pharaoh"] == " ".join(f"{s}-{t}" for s, t in linked)
    assert got["where"] == "L1 H0"


def test_pharaoh_counts_what_stands_between_spaces(attnx: Run, model: Path, tmp_path: Path) -> None:
    want = by_hand(SPACED)[0].mean(0)
    line = " ".join(f"{s}-{t}" for s, t in sorted((int(row.argmax()), t) for t, row in enumerate(want)))
    told = ("-m", model, "--layer", "0", "--view", "pharaoh")
    assert attnx("align", SOURCE, *told, "--target", TARGET).out == f"{line}\n"
    (tmp_path / "source").write_text(f"{SOURCE}\n{SOURCE}\n", encoding="utf-8")
    (tmp_path / "target").write_text(f"{TARGET}\n{TARGET}\n", encoding="utf-8")
    assert attnx("align", "--file", "source", "--targets", "target", *told).out == f"{line}\n{line}\n"
    (tmp_path / "target").write_text(f"{TARGET}\n", encoding="utf-8")
    (tmp_path / "gap").write_text(f"{TARGET}\n \n", encoding="utf-8")
    assert "line 2 of gap is empty" in attnx("align", "--file", "source", "--targets", "gap", *told, code=4).err
    for count in (1, 3):
        (tmp_path / "target").write_text(f"{TARGET}\n" * count, encoding="utf-8")
        failed = attnx("align", "--file", "source", "--targets", "target", *told, code=4)
        assert f"has {count} line{'s' * (count > 1)} for 2 texts" in failed.err
        assert failed.out == ""  # it fails before the first text is shown


def test_table_and_lines(attnx: Run, model: Path) -> None:
    base = ("align", SOURCE, "-m", model, "--target", TARGET)
    out = attnx(*base, "--head", "1.0").out
    want = by_hand(READ)[1, 0]
    for t, row in enumerate(want):
        s = int(row.argmax())
        (line,) = [line for line in out.splitlines() if line.startswith(f"{t} {list(TARGETS)[t]}")]
        assert f"{s} {list(READ)[s]}" in line
        assert f"{row[s]:.3f}" in line
    assert "L1 H0 · 2 links" in out
    assert "Clark" not in out
    assert "Clark et al. 2019" in attnx(*base, "--explain").out
    drawn = attnx(*base, "--head", "1.0", "--view", "lines").out
    assert "2 lines of 2" in drawn
    assert "of all layers the mean of its heads agrees best" in attnx(*base).out
    assert "4 heads of 2 layers" in attnx(*base, "--all", "--view", "heatmap").out


def test_it_writes_the_translation_itself(attnx: Run, model: Path) -> None:
    done = attnx("align", SOURCE, "-m", model, "--generate", "5", "--json")
    ids = small.greedy(
        lambda now: small.encoder_decoder(W, [21, 0, 1, 23, 2, 23, 23, 3, 3, 22], now).logits[0], [START], 5
    )
    assert done.document["tokens"]["ids"] == ids
    assert len(attnx("align", SOURCE, "-m", model, "--json").document["tokens"]["ids"]) > 6


def test_two_models(attnx: Run, model: Path) -> None:
    base = ("align", SOURCE, "-m", model, "--target", TARGET, "--all", "--back", model)
    made = {
        how: {(k["source"], k["target"]) for k in attnx(*base, "--symmetrise", how, "--json").document["links"]}
        for how in ("intersection", "union", "grow-diag")
    }
    there = attnx("align", SOURCE, "-m", model, "--target", TARGET, "--all", "--json").document
    back = attnx("align", TARGET, "-m", model, "--target", SOURCE, "--all", "--json").document
    one = {(k["source"], k["target"]) for k in there["links"]}
    two = {(k["target"], k["source"]) for k in back["links"]}
    assert made["intersection"] == one & two
    assert made["union"] == one | two
    assert one & two <= made["grow-diag"] <= one | two
    got = attnx(*base, "--json").document
    assert {(k["source"], k["target"]) for k in got["links"]} == made["grow-diag"]
    np.testing.assert_allclose(got["back"]["weights"], back["weights"], atol=1e-6)
    out = attnx(*base).out
    assert "grow-diag of two directions" in out
    assert " there " in out


def test_gold(attnx: Run, model: Path, tmp_path: Path) -> None:
    (tmp_path / "source").write_text(f"{SOURCE}\n" * 4, encoding="utf-8")
    (tmp_path / "target").write_text(f"{TARGET}\n" * 4, encoding="utf-8")
    (tmp_path / "gold").write_text("0-0\n1-0 0p1\n2-1\n0-0 2-1\n", encoding="utf-8")
    base = ("align", "--file", "source", "--targets", "target", "-m", model, "--gold", "gold")
    got = attnx(*base, "--json").document
    weights, sure = by_hand(SPACED), 5
    gold = [({(0, 0)}, set()), ({(1, 0)}, {(0, 1)}), ({(2, 1)}, set()), ({(0, 0), (2, 1)}, set())]
    for layer in range(2):
        for head in range(2):
            made = {(int(row.argmax()), t) for t, row in enumerate(weights[layer, head])}
            hit = sum(len(made & s) + len(made & (s | p)) for s, p in gold)
            assert got["heads"]["values"][layer][head] == pytest.approx(1 - hit / (4 * len(made) + sure))
    assert got["sentences"] == 4
    out = attnx(*base).out
    assert "best head, chosen on the other half" in out
    assert "the best heads, after the fact" in out
    assert "4 sentences" in out
    assert len(out.splitlines()) < 24
    assert re.search(r"^method +AER 95% interval +precision recall$", out, re.M)  # side by side on 80 columns
    (tmp_path / "gold").write_text("0-0\n", encoding="utf-8")
    assert "links of 1 sentence for" in attnx(*base, code=4).err
    assert "no gold" not in attnx("align", SOURCE, "-m", model, "--target", TARGET, "--gold", "gold").err
    (tmp_path / "gold").write_text("9-0\n", encoding="utf-8")
    err = attnx("align", SOURCE, "-m", model, "--target", TARGET, "--gold", "gold", code=4).err
    assert "gold link 9-0 is of no word" in err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--symmetrise", "union"), "would do nothing without --back"),
        (("--gold-from", "1"), "would do nothing without --gold"),
        (("--when", "never"), "none of read, written"),
        (("--view", "grid"), "none of table"),
        (("--all", "--head", "0.0"), "would do nothing with --all"),
        (("--head", "9.0"), "there is no layer 9"),
        (("--head", "0.7"), "there is no head 7"),
        (("--layer", "0", "--head", "1.0"), "which --layer leaves out"),
        (("--gold", "nowhere", "--view", "table"), "would do nothing with --gold"),
        (("--gold", "nowhere", "--gold-from", "-1"), "invalid value for '--gold-from'"),
        (("--target", " "), "the target is empty"),
    ],
)
def test_what_does_not_go_together(attnx: Run, model: Path, options: tuple[str, ...], said: str) -> None:
    assert said in attnx("align", SOURCE, "-m", model, "--target", TARGET, *options, code=2).err
