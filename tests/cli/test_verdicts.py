"""The answer stands first, and on one screen of 80 by 24; formulas and where they are from stand behind --explain."""

import re

import pytest

from tests.cli.conftest import ANIMAL, Run

COMMANDS = {
    "coref": ("coref", ANIMAL),
    "heads": ("heads", ANIMAL),
    "mask": ("mask", "The cat sat on the mat.", "-m", "tiny-gpt"),
    "diff": ("diff", "minilm", "minilm", ANIMAL, "--other-text", ANIMAL.replace("tired", "wide")),
}
SOURCE = re.compile(r"(et al\.|and [A-Z]\w+|[A-Z]\w+) (19|20)\d\d|\(attnx")


@pytest.mark.parametrize("name", COMMANDS)
def test_the_answer_fits_one_screen_without_formulas(name: str, attnx: Run) -> None:
    done = attnx(*COMMANDS[name])
    lines = done.out.splitlines()
    assert len(lines) <= 24
    assert all(len(line) <= 80 for line in lines)
    assert not SOURCE.search(done.out)
    assert SOURCE.search(" ".join(attnx(*COMMANDS[name], "--explain").out.split()))


def test_coref_says_what_it_comes_to(attnx: Run) -> None:
    assert attnx("coref", ANIMAL).out == """\
minilm · 16 tokens · cpu
The animal didn't cross the street because it was too tired.
it@10 → the mean of all heads: tired 0.40; the best head, L2 H1: tired 0.85
(chance 0.25; nearest street, first animal)
read by            where  points at  share                   margin
best head          L2 H1  tired      0.851 █████████████▋     0.777
mean of all heads         tired      0.404 ██████▌            0.128
rollout                   tired      0.303 ████▉              0.035
value norms               tired      0.349 █████▋             0.028
baseline: uniform         (level)        -                    0.000
baseline: nearest         street     1.000 ████████████████   1.000
baseline: first           animal     1.000 ████████████████   1.000
one sentence proves nothing: a head may point at a noun for its place alone
set aside as a hub, since other queries look there as well, in 1 head: L5 H11
0.67 on animal

from it@10: heads by margin
head   animal      cross       street      tired       margin  set aside
L2 H1  0.062   7%  0.006   1%  0.057   7%  0.715  85%   0.653       0.13
L3 H1  0.677  89%  0.013   2%  0.050   7%  0.017   2%   0.627       0.18
L2 H3  0.003   0%  0.005   1%  0.003   0%  0.611  98%   0.606       0.17
L2 H8  0.002   0%  0.007   1%  0.003   1%  0.587  98%   0.580       0.13
the head that is most on one token, L5 H11: it@10 → animal 0.67
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
72 heads: 56 sink, 9 broad, 5 mixed, 1 previous-token (L0 H2), 1 next-token (L1
H8)
what each head does
layer H0    H1    H2   H3    H4   H5   H6    H7    H8   H9   H10   H11
L0    broad broad prev broad ·    ·    broad broad sink ·    broad broad
L1    sink  sink  ·    sink  sink sink sink  sink  next sink sink  sink
L2    sink  sink  sink sink  sink sink sink  sink  sink sink sink  sink
L3    sink  sink  sink sink  sink sink sink  sink  sink sink sink  broad
L4    sink  sink  sink sink  sink sink sink  sink  sink sink sink  sink
L5    sink  sink  sink sink  sink sink broad sink  sink ·    sink  sink"""
    )


def test_sink_means_one_thing(attnx: Run) -> None:
    """Of `heads`: importance of the first token (Gu et al.). Inspect parks weight, coref sets hubs aside."""
    for command in ("inspect", "coref"):
        assert "sink" not in attnx(command, ANIMAL).out
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
