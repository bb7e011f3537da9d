"""The answer stands first, and on one screen of 80 by 24; formulas and where they are from stand behind --explain."""

import re
from pathlib import Path

import numpy as np
import pytest

from attnx.cli import app as cli
from attnx.cli.plain import wrapped
from attnx.view.cells import cell_len
from tests import small_models as small
from tests.cli.conftest import ANIMAL, Done, Run
from tests.cli.test_panels import command
from tests.small_senses import letters
from tests.test_every_command import FEED

WIDE = ANIMAL.replace("tired", "wide")
TWO = "The nurse thanked Daniel because he had carried her heavy suitcase."
KOREAN = "동물은 너무 피곤해서 길을 건너지 않았다."
GPT = ("-m", "tiny-gpt")
SCREEN = 23
"""Lines of 24 that an answer may take: the prompt stands below it."""
COMMANDS: dict[str, tuple[tuple[str, ...], ...]] = {
    "inspect": (
        (KOREAN,), (ANIMAL, "--head", "11", "--query", "it"), (ANIMAL,), (ANIMAL, *GPT), (ANIMAL, "--words"),
        (ANIMAL, "--query", "it"), (ANIMAL, "--view", "grid"),
    ),
    "coref": (
        (TWO,), (TWO, *GPT), (TWO, "--causal"), (ANIMAL, "--to", "animal,street,cross"),
        (ANIMAL, "--to", "animal,street", "--causal"), (ANIMAL, "--contrast", WIDE, "--to", "animal,street"),
        (TWO, "--contrast", TWO.replace("heavy", "light"), "--to", "nurse,Daniel"),
        (KOREAN, "--from", "2", "--to", "5,9"),
        (ANIMAL,), (ANIMAL, *GPT), (ANIMAL, "--causal"), (ANIMAL, *GPT, "--causal"),
    ),
    "align": ((ANIMAL, *GPT), (ANIMAL, *GPT, "--generate", "6"), (ANIMAL, *GPT, "--generate", "6", "--view", "strip")),
    "qkv": ((ANIMAL,), (ANIMAL, *GPT), (ANIMAL, "--query", "it", "--key", "animal")),
    "report": ((ANIMAL, "-o", "a.html"),),
    "trace": (("minilm", ANIMAL), ("tiny-gpt", ANIMAL)),
    "heads": (
        (KOREAN,), (KOREAN, *GPT), (ANIMAL,), (ANIMAL, *GPT),
        (ANIMAL, "--causal"), (ANIMAL, "--map", "entropy"), (ANIMAL, "--similar", "2.1"),
        ("--probe", "induction"), ("--probe", "induction", *GPT), ("--file", "texts.txt"),
    ),
    "scale": ((ANIMAL,), (ANIMAL, *GPT), ("--numbers", "112,96"), ("--theory", "16,64")),
    "mask": ((ANIMAL,), (ANIMAL, *GPT)),
    "word": (("We sat on the bank of the river.", "I went to the bank.", "--word", "bank"),),
    "flow": (
        (ANIMAL,), (ANIMAL, *GPT), (ANIMAL, "--query", "it"), (ANIMAL, *GPT, "--query", "it"), (f"{ANIMAL} " * 3,),
    ),
    "contacts": (("ABCDEFGHIJKLMNOPQRST".lower(), "-m", "protein"),),
    "diff": (("minilm", "minilm", ANIMAL, "--other-text", WIDE),),
    "ablate": ((ANIMAL,), (ANIMAL, *GPT), (ANIMAL, "--head", "5.11"), (ANIMAL, *GPT, "--layer", "0")),
    "patch": ((ANIMAL, WIDE), (ANIMAL, WIDE, *GPT), (ANIMAL, WIDE, *GPT, "--what", "residual")),
    "lens": ((ANIMAL, *GPT),),
    "attribute": ((ANIMAL, *GPT),),
    "intervene": (("tiny-gpt", "--plan", "plan.json", "--inputs", "feed.npz", "--save", "a.npz"),),
    "scan": (("texts.txt", "--out", "scan"),),
    "models": ((),),
    "sites": (("minilm",), ("tiny-gpt",)),
    "cost": (("minilm", "--no-measure"), ("tiny-gpt", "--no-measure")),
    "doctor": ((),),
}  # fmt: skip
LONGER = {
    "explore": "takes the whole screen by itself",
    "pull": "needs a network",
    "export": "needs a checkpoint",
}
"""Commands that give no answer to count lines of. Whole matrices and lists that were asked for (inspect --head, --all)
take what they take."""
SOURCE = re.compile(r"(et al\.|and [A-Z]\w+|[A-Z]\w+) (19|20)\d\d|\(attnx")
PROVED = ("coref", "diff", "flow", "heads", "mask", "qkv", "scale", "word")
"""Commands whose formulas have a source, which stands behind --explain."""


def test_every_command_is_here() -> None:
    assert {*COMMANDS, *LONGER} == set(cli.names())


@pytest.fixture(scope="module")
def protein(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = small.save(tmp_path_factory.mktemp("protein"), model=small.encoder(small.weights(4)))
    letters(folder)
    return folder


def fits(done: Done) -> None:
    """On a screen, with what stderr says."""
    lines = done.out.splitlines()
    said = sum(len(wrapped(note, 80, "", " " * 7).splitlines()) for note in done.err.splitlines())
    assert len(lines) + said <= SCREEN, done.out
    assert all(cell_len(line) <= 80 for line in lines)


@pytest.mark.parametrize(
    ("name", "given"), [(name, given) for name, lines in COMMANDS.items() for given in lines], ids=lambda v: str(v)[:60]
)
def test_the_answer_fits_one_screen(name: str, given: tuple[str, ...], attnx: Run, protein: Path) -> None:
    Path("texts.txt").write_text(f"{ANIMAL}\n{WIDE}\n", encoding="utf-8")
    Path("plan.json").write_text('[{"id": "a", "kind": "ablate", "layers": [1], "with": "zero"}]', encoding="utf-8")
    np.savez("feed.npz", **FEED)
    fits(attnx(name, *(str(protein) if one == "protein" else one for one in given)))


EXPLAINED = [name for name in COMMANDS if any("--explain" in one.opts for one in command(name).params)]


def test_what_explain_explains() -> None:
    assert {*PROVED, "ablate", "align", "attribute", "contacts", "cost", "inspect", "lens", "patch"} == set(EXPLAINED)


@pytest.mark.parametrize("name", EXPLAINED)
def test_the_explanation_fits_one_screen(name: str, attnx: Run, protein: Path) -> None:
    Path("texts.txt").write_text(f"{ANIMAL}\n{WIDE}\n", encoding="utf-8")
    for given in COMMANDS[name]:
        if "strip" not in given:  # it has no formula
            fits(attnx(name, *(str(protein) if one == "protein" else one for one in given), "--explain"))


def test_what_explains_is_whole_and_the_answer_gives_way(attnx: Run) -> None:
    whole = attnx("coref", TWO, "--all", "--explain").out
    shown = attnx("coref", TWO, "--explain").out
    assert "by layer" in whole
    told = [line for line in whole.splitlines() if "share among the candidates" in line or "sections 4.1" in line]
    assert len(told) > 2
    assert all(line in shown.splitlines() for line in told)
    assert shown.count("set aside: weight on special tokens") == 1  # once, though there are two pronouns
    assert shown.startswith("\n".join(attnx("coref", TWO).out.splitlines()[:2]))
    assert shown.splitlines()[-1] == "the answer in full: without --explain"
    assert "without --explain" not in whole


@pytest.mark.parametrize("name", PROVED)
def test_formulas_stand_behind_explain(name: str, attnx: Run) -> None:
    given = next(iter(COMMANDS[name]))
    assert not SOURCE.search(" ".join(attnx(name, *given).out.split()))
    assert SOURCE.search(" ".join(attnx(name, *given, "--explain").out.split()))


def test_coref_says_what_it_comes_to(attnx: Run) -> None:
    assert attnx("coref", ANIMAL).out == """\
minilm · 16 tokens · cpu
The animal didn't cross the street because it was too tired.
it@10 → the mean of all heads: tired 0.40; the best head, L2 H1: tired 0.85
(chance 0.25; nearest street, first animal)
read by            where  points at  share                    lead
best head          L2 H1  tired      0.851 █████████████▋    0.777
mean of all heads         tired      0.404 ██████▌           0.128
rollout                   tired      0.303 ████▉             0.035
value norms               tired      0.349 █████▋            0.028
baseline: nearest         street     1.000 ████████████████  1.000
baseline: first           animal     1.000 ████████████████  1.000
one sentence proves nothing: a head may point at a noun for its place alone
set aside as a hub, since other queries look there as well, in 1 head: L5 H11
0.67 on animal

from it@10: heads by margin
head   animal      cross       street      tired       margin  set aside
L2 H1  0.062   7%  0.006   1%  0.057   7%  0.715  85%   0.653       0.13
L3 H1  0.677  89%  0.013   2%  0.050   7%  0.017   2%   0.627       0.18
70 more heads: --all
layers: --all · formulas: --explain
"""  # fmt: skip


def test_mask_of_a_decoder(attnx: Run) -> None:
    assert (
        attnx("mask", "The cat sat", "-m", "tiny-gpt").out
        == """\
tiny-gpt · 4 tokens · cpu
L0 to L3: causal; 6 of 16 cells hidden by -inf

                0
0 <|endoftext|> ██· · ·
1 The           ████· ·
2 cat           ██████·
3 sat           ████████
query down, key across; █ visible, · hidden
"""
    )


def test_heads_by_kind(attnx: Run) -> None:
    assert (
        "\n".join(attnx("heads", ANIMAL).out.splitlines()[:11])
        == """\
minilm · 16 tokens · cpu
72 heads: 56 sink, 9 broad, 5 mixed, 1 previous (L0 H2), 1 next (L1 H8)
apart from the sink: 34 broad, 20 mixed, 2 previous (L1 H9, L2 H11)
what each head does
layer H0    H1    H2    H3    H4    H5    H6    H7    H8    H9    H10   H11
L0    broad broad prev  broad ·     ·     broad broad broad*·     broad broad
L1    broad*·*    ·     broad*·*    broad*·*    ·*    next  prev* ·*    ·*
L2    ·*    ·*    ·*    ·*    ·*    ·*    broad*broad*·*    ·*    broad*prev*
L3    broad*·*    broad*broad*broad*broad*broad*broad*·*    broad*broad*broad
L4    broad*broad*broad*broad*broad*broad*broad*broad*broad*·*    broad*broad*
L5    broad*·*    broad*broad*broad*broad*broad ·*    broad*·     broad*·*"""
    )


def test_sink_means_one_thing(attnx: Run) -> None:
    """Of `heads`: importance of the first token (Gu et al.). Inspect parks weight, coref sets hubs aside."""
    for name in ("inspect", "coref"):
        assert "sink" not in attnx(name, ANIMAL).out
    assert "[CLS] (parked) 0.47" in attnx("inspect", ANIMAL).out


def test_a_measure_has_one_name(attnx: Run) -> None:
    """On screen, in CSV and in JSON."""
    assert "confidence  0.0 ▏" in attnx("inspect", ANIMAL).out
    attnx("inspect", ANIMAL, "--save", "a.csv")
    with open("a.csv") as file:  # noqa: PTH123
        assert file.readline() == "layer,layer_label,head,head_label,confidence\n"
    assert attnx("inspect", ANIMAL, "--json").document["overview"]["heads"]["name"] == "confidence"


def test_the_first_screen_of_a_terminal_has_every_sort_of_head(monkeypatch: pytest.MonkeyPatch) -> None:
    from io import StringIO

    from rich.console import Console

    import attnx as package
    from attnx.run.prompt import Prompt
    from attnx.study.inspect_run import inspect_prompt
    from attnx.study.presentation import render
    from attnx.study.request import ask

    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    monkeypatch.setenv("TERM", "xterm")
    model = package.open("minilm", device="cpu")
    shown = inspect_prompt(model, Prompt(ANIMAL), ask(), matrices=False, rows=False)
    out = StringIO()
    console = Console(file=out, force_terminal=True, width=80, height=24, color_system=None)
    for part in render(shown, "Next: --help"):
        console.print(part)
    lines = out.getvalue().splitlines()
    assert len(lines) < 24  # and the prompt
    for sort in ("most on one token", "most confident", "parked", "confidence  0.0 ▏"):
        assert any(sort in line for line in lines), sort


def test_prose_in_a_pipe_wraps_as_on_80_columns_and_tables_do_not(attnx: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    args = ("coref", TWO, "--from", "he", "--top", "2")
    wrapped_lines = attnx(*args).out.splitlines()
    monkeypatch.delenv("COLUMNS")
    lines = attnx(*args).out.splitlines()
    prose = [line for line in lines if not line.startswith(("head ", "L"))]
    assert all(cell_len(line) <= 80 for line in prose)
    assert wrapped_lines[2:4] == lines[2:4]  # the answer, over two lines
    assert any(cell_len(line) > 80 for line in lines)
    assert any(line.endswith("set aside") for line in lines)
    assert any(
        line.startswith("a wider terminal shows set aside") for line in wrapped_lines
    )  # not in a table by itself


@pytest.mark.parametrize("all_", [(), ("--all",)])
def test_a_pipe_is_laid_out_as_the_smallest_screen(
    attnx: Run, monkeypatch: pytest.MonkeyPatch, all_: tuple[str, ...]
) -> None:
    shown = attnx("inspect", ANIMAL, *all_).out
    monkeypatch.delenv("COLUMNS")
    assert attnx("inspect", ANIMAL, *all_).out == shown
    assert max(map(cell_len, shown.splitlines())) <= 80


def test_a_pair_of_tokens_is_cut_in_its_names_and_never_in_its_weight(attnx: Run) -> None:
    import attnx as package

    text = "The animal slept."
    weights = package.open("minilm", device="cpu").trace(text).attentions[5].need("weights")[0, 9]
    (line,) = (line for line in attnx("inspect", text, "--all").out.splitlines() if "…" in line)
    assert line.split()[:2] == ["L5", "H9"]
    assert line.endswith(f"  animal → sl… {weights[2, 3]:.2f}")  # [CLS] the animal slept . [SEP]
    assert cell_len(line) <= 80


def test_punctuation_is_quoted_in_prose(attnx: Run) -> None:
    assert "he@6 → '.' 0." in attnx("coref", TWO).out
    assert "0.63 on '.'" in attnx("coref", TWO, "--from", "he").out


def test_coref_names_the_head_worth_opening_once(attnx: Run) -> None:
    """As a hub that is set aside, or else, and where no hubs are listed, as the head that is most on one token."""
    for args in ((ANIMAL,), (ANIMAL, "--to", "animal,street")):
        shown = " ".join(attnx("coref", *args).out.split())
        assert "in 1 head: L5 H11 0.67 on animal" in shown
        assert "most on one token" not in shown
    shown = attnx("coref", TWO).out
    assert "aside as a hub" not in shown
    assert "the head that is most on one token, L3 H11: he@6 →" in shown


def test_rows_of_several_heads_are_a_line_each_and_all_gives_the_bars(attnx: Run) -> None:
    args = ("inspect", ANIMAL, "--head", "11", "--query", "it")
    found = {h["label"]: h for h in attnx(*args, "--top", "3", "--json").document["heads"]}
    lines = attnx(*args).out.splitlines()
    assert len(found) == 6
    for label, head in found.items():
        (line,) = (line for line in lines if line.startswith(label))
        assert line.split()[2:] == [word for one in head["top"][0] for word in (one["piece"], f"{one['value']:.2f}")]
    assert "bars: --all" in lines
    assert len(attnx(*args, "--all").out.splitlines()) > SCREEN


def test_small_maps_say_which_column_is_which(attnx: Run) -> None:
    lines = attnx("inspect", ANIMAL).out.splitlines()
    (at,) = (n for n, line in enumerate(lines) if "confidence  0.0" in line)
    first, last = lines[at + 1].index("H0"), lines[at + 1].index("H11") + 3
    assert (first, last) == (lines[at + 2].index("L0 ") + 3, lines[at + 2].index("L0 ") + 3 + 2 * 12)
    assert "columns: H0 to H11" in attnx("ablate", ANIMAL).out


def test_an_option_is_named_once_in_what_is_missing(attnx: Run) -> None:
    assert attnx("ablate", ANIMAL).out.splitlines()[-1] == (
        "67 more heads, the map in numbers: --all · formulas: --explain"
    )
