"""Options and commands in panels, examples that the parser takes, a text in place of a command, shell completion."""

import os
import shlex
import subprocess
import sys
from typing import Any

import pytest
import typer

from attnx.cli import app as cli
from attnx.cli import panels
from attnx.view.cells import cell_len
from tests.cli.conftest import ANIMAL, Run

GROUP: Any = typer.main.get_command(cli.app)


def command(name: str) -> Any:
    return GROUP.get_command(None, name)


@pytest.mark.parametrize("name", cli.names())
def test_every_option_is_in_a_panel(name: str) -> None:
    assert {p.rich_help_panel for p in command(name).params if p.param_type_name == "option"} <= set(panels.OPTIONS)


@pytest.mark.parametrize("name", cli.names())
def test_every_command_has_three_examples_that_it_takes(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    one = command(name)
    assert cli.run([name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert len(one.examples) >= 3
    assert any(name in example.split() for example in one.examples)
    assert all(cell_len(example) + 2 <= 78 for example in one.examples)  # under the indent, on 80 columns
    for example in one.examples:
        assert f"\n  {example}\n" in shown  # whole, whatever the width: it is to be copied
        program, which, *args = shlex.split(example)
        assert program == "attnx"
        command(which).make_context(which, args)


def test_attnx_alone_is_one_short_screen(attnx: Run) -> None:
    shown = attnx().out
    lines = shown.splitlines()
    assert len(lines) <= 22
    assert all(cell_len(line) <= 80 for line in lines)
    assert f"attnx --help lists all {len(cli.names())} commands" in shown
    for name in panels.FIRST:
        assert f"  {name:<9}  {cli.summary(name)}" in lines
    assert all(cell_len(f"  {name:<9}  {cli.summary(name)}") <= 80 for name in cli.names())


def test_help_is_one_screen_with_every_command(attnx: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (
        attnx("--help").out
        == """\
See what each token attends to, in any Transformer exported to ONNX.
Usage: attnx COMMAND [OPTIONS]   attnx COMMAND --help   attnx "A text."
Look
  inspect    what each token attends to  qkv        one weight taken apart
  coref      which noun "it" points at   explore    heads under the arrow keys
  align      words traced to a source    report     every head on a web page
Measure
  heads      what each head does         flow       attention over all layers
  scale      why divide by sqrt(d_k)     contacts   which residues touch
  mask       who may look at whom        diff       two models compared
  word       one word in two contexts
Intervene
  ablate     without a head or an edge   lens       what each layer would say
  patch      where an answer comes from  attribute  which parts make an answer
Many texts, scripts
  scan       every head over a corpus    intervene  many edits at once
  trace      every array of a run
Models
  models     models that are at hand     sites      the attention in a file
  pull       a model from the Hub        cost       what attention costs
  export     ONNX from PyTorch           doctor     what works on this machine
Options: -V/--version, --install-completion, --show-completion, -h/--help
Terms that it uses: docs/reference/glossary.md in the repository
"""
    )
    assert panels.REST not in panels.grouped(cli.names())
    told = {name: words for panel in panels.COMMANDS.values() for name, words in panel.items()}
    assert sorted(told) == sorted(cli.names())
    assert max(map(len, told.values())) <= panels.BRIEF
    monkeypatch.setenv("COLUMNS", "60")
    narrow = attnx("--help").out
    assert all(f"\n  {name:<9}  {words}\n" in narrow for name, words in told.items())


def test_help_of_a_command_by_panels(attnx: Run) -> None:
    assert (
        attnx("mask", "--help").out
        == """\
Usage: attnx mask [OPTIONS] [TEXT]

  Show who may look at whom, read off what each softmax was given: the
  pattern, what hides, how much is hidden.

  Layers with the same mask are shown once, and drawn where they hide
  anything. --explain says what counts as hidden.

Examples:
  attnx mask "The animal slept because it was tired."
  attnx mask "The cat sat on the mat." -m tiny-gpt
  attnx mask "The cat sat on the mat." -m tiny-gpt --layer 0 --json

Arguments:
  TEXT  The text; - reads it from stdin.

Text:
  --pair TEXT       A second text, for models that take two.
  --target TEXT     What the decoder of an encoder-decoder says.
  --ids IDS         Token ids instead of a text: 101,2023,102.
  --inputs FEED     An .npz file with an array for each graph input.
  --set NAME=VALUE  A graph input: a number, a list, zeros, ones, arange,
                    randn:SEED or @file.npy; several times.
  --dim NAME=SIZE   Size of a dimension that --set leaves open; several times.
  --image FILE      A picture, for models that take one.
  --audio FILE      A WAV file, for models that take sound.

Model:
  -m, --model MODEL  An .onnx file, a folder as on the Hub, or the name of a
                     bundled model.  [default: minilm]
  --tokenizer PATH   Tokenizer file or folder, where it is not beside the
                     model.

Select:
  -l, --layer L  A layer from 0, last or -1, a range 2-4, or a list 0,5.
  --site SORT    Which attention of an encoder-decoder: encoder, decoder or
                 cross.

Show:
  --explain  Say how each number is computed, and whose measure it is.

Output:
  --json           One JSON document instead of tables.
  -o, --save FILE  Write the result to this file.
  --force          Replace an existing file.

Generate:
  -g, --generate N  Let the decoder write up to N tokens, and show them too.

Device:
  --device DEVICE  auto, cpu, cuda, cuda:N; cuda:0,tf32,memory=8G.  [default:
                   auto]

Others:
  -h, --help  Show this message and exit.
"""
    )


def test_a_text_in_place_of_a_command_is_inspected(attnx: Run) -> None:
    assert attnx(ANIMAL).out == attnx("inspect", ANIMAL).out
    assert attnx(ANIMAL, "--head", "5.11", "-q", "it").out == attnx("inspect", ANIMAL, "-H", "5.11", "-q", "it").out
    assert attnx("고양이").out == attnx("inspect", "고양이").out
    assert "`attnx inspect --help`" in attnx("two words", "--querry", "it", code=2).err


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["inspct"], "there is no command 'inspct'\n  Did you mean `attnx inspect`? As a text: attnx inspect inspct."),
        (["Head"], "there is no command 'Head'\n  Did you mean `attnx heads`?"),
        (["analyse", "A text."], "there is no command 'analyse'\n  `attnx --help` lists the commands."),
    ],
)
def test_a_mistyped_command_is_no_text(attnx: Run, args: list[str], says: str) -> None:
    assert says in attnx(*args, code=2).err


@pytest.mark.parametrize("option", ["-V", "--version"])
def test_version_by_either_name(attnx: Run, option: str) -> None:
    assert attnx(option).out.startswith("attnx ")


@pytest.mark.parametrize(("typed", "offers"), [("in", {"inspect", "intervene"}), ("inspect --lay", {"--layer"})])
def test_a_shell_completes_commands_and_options(typed: str, offers: set[str]) -> None:
    words = f"attnx {typed}"
    environment = {
        **os.environ, "_ATTNX_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" ")),
    }  # fmt: skip
    done = subprocess.run([sys.executable, "-m", "attnx"], capture_output=True, text=True, env=environment, check=True)
    assert set(done.stdout.split()) == offers


def test_layers_from_the_end(attnx: Run) -> None:
    small = (ANIMAL, "-m", "tiny-gpt")
    for named in ("last", "-1"):
        assert attnx("inspect", *small, "--layer", named).out == attnx("inspect", *small, "--layer", "3").out
        assert attnx("mask", *small, "-l", named).out == attnx("mask", *small, "-l", "3").out
    for named in ("last.4", "-1.4"):
        head = attnx("inspect", *small, "--head", named, "-q", "it").out
        assert head == attnx("inspect", *small, "--head", "3.4", "-q", "it").out
    assert attnx("qkv", *small, "--head", "last.4").out == attnx("qkv", *small, "--head", "3.4").out
    pairs = attnx("diff", "tiny-gpt", "tiny-gpt", ANIMAL, "--layer", "0=last", "--json").document["pairs"]
    assert pairs == [{"site": "L0", "other": "L3"}]
    assert (
        "there is no layer -7\n  The layers are 0 to 3, or -4 to -1." in attnx("mask", *small, "-l", "-7", code=2).err
    )
