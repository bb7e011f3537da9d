"""A hint names only options that the command at hand has; here the same mistakes are made with every command."""

import re
from pathlib import Path

import pytest
import typer

from attnx.cli import app as cli
from tests import small_senses
from tests.cli.conftest import MINILM

OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
BEFORE = {"word": ["--word", "a"], "scan": ["-o", "out.parquet"]}
"""What a command must be given before it looks at anything else."""


def options(name: str) -> set[str]:
    """The options of a command, by their long names."""
    command = typer.main.get_command(cli.app).get_command(None, name)  # type: ignore[attr-defined]
    return {option for parameter in command.params for option in parameter.opts if option.startswith("--")}


TAKE = [name for name in cli.names() if "--tokenizer" in options(name)]
"""Commands that run a model on something."""
MISTAKES = ("no text", "a picture's model", "a sound's model", "no tokenizer", "picture.png", "beep.wav", "feed.npz",
            "text.txt", "no memory")  # fmt: skip


def line(name: str, mistake: str, folder: Path) -> list[str]:
    """A command line with a mistake in it."""
    models = {"a picture's model": "eyes", "a sound's model": "ears", "no tokenizer": "bare"}
    model = str(folder / models[mistake]) if mistake in models else str(MINILM)
    texts = [] if mistake == "no text" else [mistake if "." in mistake else "a b a"]
    if name == "scan":
        (folder / "in.txt").write_text("a b a\n")
        texts = ["in.txt"]
    if name == "word":
        texts = [*texts, "b a b"]
    named = [str(MINILM), model] if name == "diff" else []
    return [name, *named, *texts, *([] if named else ["-m", model]), *BEFORE.get(name, [])]


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("name", [name for name in TAKE if name != "explore"])
def test_hints_name_options_of_the_command(
    name: str, mistake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    small_senses.vit(tmp_path / "eyes")
    small_senses.listener(tmp_path / "ears")
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "model.onnx").symlink_to(MINILM / "model.onnx")
    for file in ("picture.png", "beep.wav", "feed.npz", "text.txt"):
        (tmp_path / file).write_bytes(b"")
    if mistake == "no memory":
        monkeypatch.setattr("attnx.session.memory.available", lambda: 1)
    cli.run(line(name, mistake, tmp_path))
    hint = re.sub(r"`attnx [^`]*`|\(attnx [^)]*\)", "", capsys.readouterr().err)
    assert set(OPTION.findall(hint)) <= options(name), hint
    assert not re.search(r"`\w+(=[^`]*)?`|`model\.", hint), "a hint in the words of Python"
